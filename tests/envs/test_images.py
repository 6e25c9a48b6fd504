"""Images as the nets see them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from diaster.envs.images import SmallImages, is_image, shrinking


class Filmed(gym.Env[Any, int]):
    """Shows an image whose pixels all have the number of the step, times ten; the red half is brighter."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (20, 30, 3)) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._image(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._image(), 0.0, False, False, {}

    def _image(self) -> np.ndarray:
        image = np.full(self.observation_space.shape, 10 * self._step, np.uint8)
        if image.ndim == 3:
            image[:, : image.shape[1] // 2, 0] += 100
        return image


def test_an_image_is_averaged_over_the_pixels_that_a_new_one_covers() -> None:
    np.testing.assert_allclose(shrinking(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(shrinking(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], rtol=1e-6)
    np.testing.assert_allclose(shrinking(2, 4), [[1, 0], [1, 0], [0, 1], [0, 1]])  # a smaller one is only repeated
    assert shrinking(210, 64).sum() == pytest.approx(64, rel=1e-5)


def test_the_last_images_are_shown_together_and_the_first_one_several_times() -> None:
    env = SmallImages(Filmed((16, 16)), side=8, frames=3, colour=False)
    first, _ = env.reset(seed=0)
    assert first.dtype == np.uint8 and first.shape == env.observation_space.shape == (8 * 8 * 3,)
    assert (first == 0).all()
    env.step(0)
    second = env.step(0)[0].reshape(8, 8, 3)
    assert second[3, 5].tolist() == [0, 10, 20]
    again, _ = env.reset()
    assert (again == 0).all(), "nothing of the last episode is left"


def test_colours_stay_or_become_their_brightness() -> None:
    grey, _ = SmallImages(Filmed(), side=10, frames=1, colour=False).reset()
    coloured, _ = SmallImages(Filmed(), side=10, frames=1, colour=True).reset()
    assert grey.reshape(10, 10)[:, :5].tolist() == np.full((10, 5), 30).tolist()  # 0.299 of 100
    assert coloured.reshape(10, 10, 3)[0, 0].tolist() == [100, 0, 0]
    assert coloured.reshape(10, 10, 3)[0, 9].tolist() == [0, 0, 0]


def test_pictures_are_told_from_other_arrays() -> None:
    assert is_image(spaces.Box(0, 255, (210, 160, 3), np.uint8))
    assert is_image(spaces.Box(0, 255, (84, 84), np.uint8))
    assert not is_image(spaces.Box(0, 255, (84, 84, 3), np.float32))
    assert not is_image(spaces.Box(0, 255, (128,), np.uint8)), "Atari's memory is a vector"
    assert not is_image(spaces.Box(0, 1, (4, 4), np.uint8)), "a small board is flattened"
