"""Pictures of environments, and what is said where there are none."""

import os

import numpy as np
import pytest
import toy_envs

from diaster.envs.making import make_env
from diaster.errors import DiasterError
from diaster.media.rendering import picture_of, rendering_env, shrunk


def test_an_environment_that_can_draw_is_handed_over() -> None:
    with rendering_env(lambda **kwargs: make_env("ToyRunner-v0", toy_envs.HORIZON, **kwargs), "ToyRunner-v0") as env:
        env.reset(seed=0)
        assert picture_of(env).shape == (30, 40, 3)


def refusal(env_id: str) -> str:
    with (
        pytest.raises(DiasterError) as caught,
        rendering_env(lambda **kwargs: make_env(env_id, toy_envs.HORIZON, **kwargs), env_id),
    ):
        pass
    assert f"'{env_id}' cannot be drawn here" in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "why"),
    [
        ("Toy-v0", "unexpected keyword argument 'render_mode'"),
        ("ToyUndrawn-v0", "NotImplementedError"),
        ("ToyBlank-v0", "its render() returned nothing"),
    ],
)
def test_one_that_does_not_draw_is_told_how_to_and_not_to_install_a_driver(env_id: str, why: str) -> None:
    sentence = refusal(env_id)
    assert why in sentence and "render_mode='rgb_array'" in sentence
    assert "EGL" not in sentence


def test_one_that_needs_a_driver_is_a_sentence_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "libegl1" in refusal("ToyMujoco-v0")
    assert "MUJOCO_GL" not in os.environ  # it was set only for as long


def test_a_picture_is_shrunk_by_means_of_blocks() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[:2, :2] = [[[8] * 3, [0] * 3], [[0] * 3, [0] * 3]]
    small = shrunk(picture, 3)
    assert small.shape == (2, 3, 3)
    assert small[0, 0].tolist() == [2, 2, 2] and not small[1:].any()
    assert shrunk(picture, 6) is not None and shrunk(picture, 6).shape == (4, 6, 3)
