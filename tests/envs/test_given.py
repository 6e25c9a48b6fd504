"""What a run keeps of an environment that was given in Python."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs

from diaster.config import build_config, is_placeholder
from diaster.envs.creating import find_horizon
from diaster.envs.given import creator_of, keep_env
from diaster.envs.making import make_env
from diaster.envs.source import source_of
from diaster.errors import DiasterError


def made(env: Any, kwargs: Any = None, horizon: int = 10) -> gym.Env:
    """An environment of a run that was given this."""
    given = keep_env(env, kwargs)
    return make_env(source_of(build_config(**given.settings), given.creator), horizon)


def test_an_id_is_kept_with_its_arguments() -> None:
    given = keep_env("ToyWide-v0", {"width": np.int64(5), "rows": ((1, 2), (3, 4))})
    assert given == ({"env": "ToyWide-v0", "env_kwargs": {"width": 5, "rows": [[1, 2], [3, 4]]}}, None, ())
    assert made("ToyWide-v0", {"width": 5}).observation_space.shape == (5,)


def test_an_id_with_arguments_that_no_file_can_hold_needs_them_again() -> None:
    given = keep_env("ToyWide-v0", {"width": 5, "rows": object(), "word": None})
    assert given.settings == {"env": "<ToyWide-v0>", "env_kwargs": {}}
    [remark] = given.remarks
    assert "the arguments rows, word are nothing that a file can hold" in remark
    assert "diaster.load(path, env=…)" in remark and "diaster.resume(path, env=…)" in remark
    assert made("ToyWide-v0", {"width": 5, "word": None}).unwrapped.word is None
    assert gym.spec("ToyWide-v0").kwargs == {}  # Gymnasium's own record is left as it was


@pytest.mark.parametrize("kwargs", [{}, {"width": 5}])
@pytest.mark.parametrize("function", [toy_envs.make_wide, toy_envs.WideToy])
def test_a_function_or_class_of_a_module_is_kept_by_its_name(function: Any, kwargs: dict[str, Any]) -> None:
    name = f"toy_envs:{function.__qualname__}"
    assert keep_env(function, kwargs) == ({"env": name, "env_kwargs": kwargs}, None, ())
    assert keep_env(partial(function, **kwargs)) == keep_env(function, kwargs)
    assert made(function, kwargs).observation_space.shape == (kwargs.get("width", 3),)


def test_arguments_go_before_those_of_a_partial_function() -> None:
    given = keep_env(partial(toy_envs.make_wide, width=5, word="a"), {"width": 6})
    assert given.settings["env_kwargs"] == {"width": 6, "word": "a"}


def test_a_lambda_is_named_after_what_it_makes_and_has_to_be_given_again() -> None:
    given = keep_env(lambda width=4: toy_envs.WideToy(width), {"width": 5})
    assert given.settings == {"env": "<WideToy>", "env_kwargs": {"width": 5}}
    assert is_placeholder(given.settings["env"])
    [remark] = given.remarks
    assert "cannot keep what makes WideToy" in remark and "(my_module:make_env)" in remark
    assert made(lambda width: toy_envs.WideToy(width), {"width": 5}).observation_space.shape == (5,)


def test_a_lambda_that_asks_gymnasium_is_named_by_the_id_it_asks_for() -> None:
    assert keep_env(lambda: gym.make("ToyWide-v0", width=4)).settings["env"] == "<ToyWide-v0>"
    assert keep_env(lambda: gym.make_vec("ToyWide-v0", num_envs=2)).settings["env"] == "<ToyWide-v0>"
    assert keep_env(lambda: gym.vector.SyncVectorEnv([toy_envs.Toy] * 2)).settings["env"] == "<SyncVectorEnv>"


def test_a_function_of_a_script_has_to_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_mine() -> gym.Env:
        return toy_envs.Toy()

    make_mine.__module__, make_mine.__qualname__ = "__main__", "make_mine"
    monkeypatch.setattr(sys.modules["__main__"], "make_mine", make_mine, raising=False)
    assert keep_env(make_mine).settings["env"] == "<make_mine>"


def test_an_object_that_is_called_has_the_name_of_its_class() -> None:
    class Maker:
        def __call__(self) -> gym.Env:
            return toy_envs.Toy()

    assert keep_env(Maker()).settings["env"] == "<Maker>"


def test_a_function_with_arguments_that_no_file_can_hold_keeps_none_of_them() -> None:
    given = keep_env(partial(toy_envs.make_wide, width=5), {"word": None})
    assert given.settings == {"env": "<make_wide>", "env_kwargs": {}}
    assert "the argument word is nothing a file can hold" in given.remarks[0]


def test_arguments_that_no_file_can_hold_are_refused_beside_a_name_with_a_module() -> None:
    with pytest.raises(DiasterError, match=r"the argument word is nothing that a run can keep.*lambda"):
        keep_env("toy_envs:make_wide", {"word": None})


# Instances


def test_an_instance_is_kept_as_its_id_with_the_arguments_it_was_made_with() -> None:
    env = gym.make("ToyWide-v0", width=5, max_episode_steps=4)
    given = keep_env(env)
    assert given.settings == {"env": "ToyWide-v0", "env_kwargs": {"width": 5}, "horizon": 4}
    assert given.creator is None
    [remark] = given.remarks
    assert "an instance is a single environment" in remark and "made from its spec (ToyWide-v0)" in remark


def test_an_instance_as_it_is_registered_is_kept_as_its_id_alone() -> None:
    assert keep_env(gym.make("ToyTerminates-v0")).settings == {"env": "ToyTerminates-v0", "env_kwargs": {}}
    drawn = gym.make("ToyRunner-v0", render_mode="rgb_array")
    assert keep_env(drawn).settings == {"env": "ToyRunner-v0", "env_kwargs": {}}


def test_an_instance_with_wrappers_that_say_how_they_were_made_is_made_again_with_them() -> None:
    env = gym.wrappers.TimeAwareObservation(gym.make("ToyWide-v0", width=5))
    given = keep_env(env)
    assert given.settings == {"env": "<ToyWide-v0>", "env_kwargs": {}}
    assert len(given.remarks) == 2 and "its id says nothing of its wrappers" in given.remarks[1]
    source = source_of(build_config(**given.settings), given.creator)
    assert find_horizon(source, "auto") == toy_envs.HORIZON
    assert make_env(source, 10).observation_space.shape == (6,)


def test_an_instance_that_cannot_be_made_again_is_refused_with_a_way_out() -> None:
    class Silent(gym.Wrapper):  # does not record its arguments
        pass

    for env, why in ((toy_envs.Toy(), "no spec of Gymnasium"), (Silent(gym.make("Toy-v0")), "its wrapper Silent")):
        with pytest.raises(DiasterError, match=rf"an instance is a single environment.*{why}.*lambda: MyEnv"):
            keep_env(env)


def test_an_instance_takes_no_further_arguments() -> None:
    with pytest.raises(DiasterError, match="an instance was given"):
        keep_env(gym.make("Toy-v0"), {"width": 3})


def test_a_vector_environment_itself_is_refused_with_a_way_out() -> None:
    vector = gym.make_vec("Toy-v0", num_envs=3)
    for give in (keep_env, creator_of):
        with pytest.raises(DiasterError, match=r"lambda: gymnasium\.make_vec\('MyEnv-v0', num_envs=3\)"):
            give(vector)


@pytest.mark.parametrize("nothing", [3, None, ["Toy-v0"], object()])
def test_what_is_neither_is_refused(nothing: Any) -> None:
    with pytest.raises(DiasterError, match="was given as the environment"):
        keep_env(nothing)


# Given again


def test_an_environment_is_given_again_in_any_of_these_forms() -> None:
    lost = build_config(env="<WideToy>", env_kwargs={})
    instance = gym.make("ToyWide-v0", width=5)
    forms: list[Any] = [lambda: toy_envs.WideToy(5), partial(toy_envs.make_wide, width=5), instance]
    for form in forms:
        assert make_env(source_of(lost, creator_of(form)), 10).observation_space.shape == (5,)
    assert make_env(source_of(lost, creator_of("toy_envs:make_wide")), 10).observation_space.shape == (3,)
    assert creator_of(None) is None


def test_what_takes_the_place_of_another_environment_has_none_of_its_arguments() -> None:
    config = build_config(env="ToyWide-v0", env_kwargs={"width": 9})
    assert make_env(source_of(config, toy_envs.WideToy), 10).observation_space.shape == (3,)
