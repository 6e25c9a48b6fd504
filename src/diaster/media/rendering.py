"""Pictures of an environment, drawn off-screen."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.envs.creating import Env
from diaster.errors import DiasterError, one_line

MOST_SIGNS = 200  # of what a driver or an environment says
Picture = NDArray[np.uint8]  # [height, width, 3]


@contextlib.contextmanager
def rendering_env(make: Callable[..., Env], name: str) -> Iterator[Env]:
    """An environment that can be drawn; if it cannot, a sentence says what is missing.

    MuJoCo draws with OpenGL. Without a screen it needs EGL or OSMesa, and it does not look for them itself.
    """
    with _off_screen(), warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        env: Env | None = None
        try:
            env = make(render_mode="rgb_array")
            env.reset(seed=0)
            picture_of(env)
        except Exception as error:  # whatever a driver raises
            if env is not None:
                with contextlib.suppress(Exception):
                    env.close()
            cause = error.__cause__ or error  # what the environment itself said
            raise DiasterError(
                f"'{name}' cannot be drawn here ({one_line(cause)[:MOST_SIGNS]}); {_what_helps(env)}."
            ) from error
        try:
            yield env
        finally:
            with contextlib.suppress(Exception):
                env.close()


def _what_helps(env: Env | None) -> str:
    """What to do about an environment that does not draw: a driver may be missing, or what draws."""
    if env is not None and any(
        "mujoco" in f"{kind.__module__}.{kind.__name__}".lower() for kind in type(env.unwrapped).__mro__
    ):
        return (
            "for MuJoCo install EGL or OSMesa (Debian: apt-get install libegl1, or libosmesa6 and set MUJOCO_GL=osmesa)"
        )
    return (
        "what makes it has to take render_mode='rgb_array', and its render() then to return a picture, an array of "
        "height × width × 3"
    )


def picture_of(env: Env) -> Picture:
    """The environment in its present state."""
    picture: Any = env.render()
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise TypeError(f"its render() returned {'nothing' if picture is None else 'no picture'}")
    return picture.astype(np.uint8, copy=False)


def shrunk(picture: Picture, most: int) -> Picture:
    """The picture with its longer side at most `most`: means over square blocks, so that thin lines stay visible."""
    block = -(-max(picture.shape[:2]) // most)
    height, width = (side // block * block for side in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // block, block, width // block, block, 3)
    return np.asarray(blocks.mean(axis=(1, 3)).round(), np.uint8)


@contextlib.contextmanager
def _off_screen() -> Iterator[None]:
    """Ask MuJoCo for EGL while it draws, unless the user has chosen or there is a screen."""
    if "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ:
        yield
        return
    os.environ["MUJOCO_GL"] = "egl"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]
