"""Images as the nets see them: small, square, grey or in colour, the last few of them together, 8 bits each."""

from __future__ import annotations

from collections import deque
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.types import Image as ImageForm

GREY = np.array([0.299, 0.587, 0.114], np.float32)  # how bright red, green and blue look

Image = NDArray[np.uint8]
SMALLEST = 8  # pixels of an image's shorter side


class SmallImages(gym.Wrapper[Image, Any, Any, Any]):
    """Shows the last few images of an environment, each `side` × `side`, laid flat: rows, columns, then channels.

    An episode begins with its first image several times.
    """

    def __init__(self, env: gym.Env[Any, Any], side: int, frames: int, colour: bool) -> None:
        super().__init__(env)
        shape = env.observation_space.shape or ()
        height, width = shape[:2]
        self._side = side
        self._down, self._across = shrinking(height, side), shrinking(width, side)
        self._makes_grey = len(shape) == 3 and shape[2] == 3 and not colour
        n_channels = 1 if self._makes_grey or len(shape) == 2 else shape[2]
        self._last: deque[Image] = deque(maxlen=frames)
        self.form = ImageForm(side, n_channels * frames)
        self.observation_space = spaces.Box(0, 255, (side * side * n_channels * frames,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        small = self._small(obs)
        self._last.extend([small] * (self._last.maxlen or 1))
        return self._seen(), info

    def step(self, action: Any) -> tuple[Image, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._last.append(self._small(obs))
        return self._seen(), reward, terminated, truncated, info

    def _seen(self) -> Image:
        return np.concatenate(list(self._last), axis=-1).reshape(-1)

    def _small(self, image: Any) -> Image:
        x = np.asarray(image, np.float32)
        if self._makes_grey:
            x = x @ GREY
        x = x.reshape(*x.shape[:2], -1)
        small = np.einsum("hi,ijc,wj->hwc", self._down, x, self._across, optimize=True)
        rounded: Image = np.clip(np.rint(small), 0, 255).astype(np.uint8)
        return rounded


def shrinking(size: int, side: int) -> NDArray[np.float32]:
    """A matrix that averages `size` pixels in a row to `side`, each new one over the old ones that it covers."""
    edge = np.linspace(0, size, side + 1)
    first, last = edge[:-1, None], edge[1:, None]
    pixel = np.arange(size)[None]
    covered = np.clip(np.minimum(last, pixel + 1) - np.maximum(first, pixel), 0.0, None)
    weights: NDArray[np.float32] = (covered / covered.sum(axis=1, keepdims=True)).astype(np.float32)
    return weights


def image_of(env: gym.Env[Any, Any]) -> ImageForm | None:
    """The form of the images that are seen; None of an environment that shows none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, SmallImages):
            return env.form
        env = env.env
    return None


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether a space holds pictures: rows and columns of pixels of 8 bits, grey or with up to four channels."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and (len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3, 4)))
        and min(space.shape[:2]) >= SMALLEST
    )
