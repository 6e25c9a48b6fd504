"""Where environments come from: ids, functions of modules, and their way into other processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest
import toy_envs
from toy_specs import toy_source

from diaster.envs.making import make_env
from diaster.envs.source import (
    EnvSource,
    PackedSource,
    find_source,
    gym_spec,
    import_modules,
    importable_name,
    is_portable,
    pack,
)
from diaster.errors import DiasterError

MODULE = """
import gymnasium
import toy_envs

gymnasium.register("InAModule-v0", entry_point="toy_envs:Toy", max_episode_steps=9)

def make(terminate_at=None):
    return toy_envs.Toy(terminate_at)

class Makers:
    make = staticmethod(make)

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the working directory, which registers an environment and has functions that make some."""
    (tmp_path / "module_of_the_user.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "module_of_the_user"
    sys.modules.pop("module_of_the_user", None)
    gym.registry.pop("InAModule-v0", None)


def test_an_unknown_environment_gives_the_nearest_name() -> None:
    with pytest.raises(DiasterError, match=r"unknown environment 'Hoper-v5'\. Did you mean 'Hopper-v5'\?") as caught:
        gym_spec("Hoper-v5")
    assert "--import" in str(caught.value)


def test_an_atari_game_asks_for_its_package_and_with_that_for_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiasterError, match=r"'ALE/Pong-v5' comes with ale-py; .*pip install ale-py.*--import ale_py"):
        gym_spec("ALE/Pong-v5")
    monkeypatch.setitem(gym.registry, "ALE/Pong-v5", gym.spec("CartPole-v1"))
    with pytest.raises(DiasterError, match=r"unknown environment 'ALE/Pog-v5'\. Did you mean 'ALE/Pong-v5'\?"):
        gym_spec("ALE/Pog-v5")


@pytest.mark.parametrize("env_id", ["xyzzy", "no spaces-v0", "no_such_module:Env-v0", "nowhere/Env-v0", "Hopper"])
def test_names_that_gymnasium_cannot_read_are_an_error_of_one_sentence(env_id: str) -> None:
    with pytest.raises(DiasterError) as caught:
        gym_spec(env_id)
    assert env_id in str(caught.value)
    assert "\n" not in str(caught.value)


def test_modules_that_are_imported_register_their_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import gymnasium\ngymnasium.register('Imported-v0', entry_point='toy_envs:Toy', max_episode_steps=9)\n"
    (tmp_path / "package_of_the_user.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the working directory is searched
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "Imported-v0" not in gym.registry
    try:
        import_modules(["package_of_the_user"])
        assert find_source("Imported-v0").creator.max_episode_steps == 9
    finally:
        sys.modules.pop("package_of_the_user", None)
        gym.registry.pop("Imported-v0", None)


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(DiasterError, match=r"'no_such_module' \(from --import no_such_module\) was not found"):
        import_modules(["no_such_module"])


@pytest.mark.parametrize("name", ["", ".relative"])
def test_a_name_that_cannot_be_a_module_is_refused(name: str) -> None:
    with pytest.raises(DiasterError, match=f"--import '?{name}"):
        import_modules([name])


def test_an_id_may_have_its_module_in_front_of_it(module: str) -> None:
    source = find_source(f"{module}:InAModule-v0")
    assert source.name == f"{module}:InAModule-v0"
    env = make_env(source, 9)
    assert isinstance(env.unwrapped, toy_envs.Toy) and env.spec is not None and env.spec.max_episode_steps == 9


@pytest.mark.parametrize("path", ["make", "Makers.make", "toy_envs.Toy"])
def test_a_function_or_class_of_a_module_makes_environments(module: str, path: str) -> None:
    env = make_env(find_source(f"{module}:{path}", {"terminate_at": 7}), 10)
    assert env.unwrapped.terminate_at == 7


@pytest.mark.parametrize("what", ["nothing", "number", "Makers.nothing", ""])
def test_a_module_without_such_an_environment_is_named(module: str, what: str) -> None:
    with pytest.raises(DiasterError, match=rf"'{module}:{what}' names nothing that makes environments"):
        find_source(f"{module}:{what}")


def test_a_module_in_front_of_an_id_that_is_missing_is_named() -> None:
    with pytest.raises(
        DiasterError, match=r"the module 'no_such_module' \(from 'no_such_module:Env-v0'\) was not found"
    ):
        find_source("no_such_module:Env-v0")


def test_a_placeholder_asks_for_the_environment_again() -> None:
    with pytest.raises(DiasterError, match=r"'MyEnv' was given in Python.*diaster\.load\(path, env=…\)"):
        find_source("<MyEnv>")
    assert find_source("<MyEnv>", given=toy_envs.Toy).creator is toy_envs.Toy


def test_functions_of_modules_have_a_name_that_leads_back_to_them() -> None:
    assert importable_name(toy_envs.make_toy) == "toy_envs:make_toy"
    assert importable_name(toy_envs.Toy) == "toy_envs:Toy"
    assert importable_name(toy_envs.MazeToy.Map) == "toy_envs:MazeToy.Map"


def test_what_no_name_leads_back_to_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def inner() -> gym.Env:
        return toy_envs.Toy()

    assert importable_name(inner) is None
    assert importable_name(lambda: toy_envs.Toy()) is None
    assert importable_name(threading.Lock()) is None
    monkeypatch.setattr(toy_envs, "make_toy", inner)  # another function has taken its place
    inner.__module__, inner.__qualname__ = "toy_envs", "make_wide"
    assert importable_name(inner) is None
    inner.__module__ = "__main__"  # another one in the next process
    assert importable_name(inner) is None


@pytest.mark.parametrize(
    "creator", [gym_spec("ToyTerminates-v0"), toy_envs.Toy, lambda terminate_at=7: toy_envs.Toy(terminate_at)]
)
def test_a_source_goes_to_another_process_and_makes_the_same_there(creator: Callable) -> None:
    source = EnvSource("some", creator, {"terminate_at": 7}, ("toy_envs",))
    packed = pack(source)
    assert isinstance(packed, PackedSource)
    there = packed.unpack()
    assert (there.name, there.kwargs, there.imports) == (source.name, source.kwargs, source.imports)
    assert make_env(there, 10).unwrapped.terminate_at == 7


def test_an_environment_of_a_script_is_sent_itself_and_not_by_a_name_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Mine", toy_envs.Toy, raising=False)
    spec = gym.envs.registration.EnvSpec("Mine-v0", "__main__:Mine", max_episode_steps=5)
    packed = pack(EnvSource("Mine-v0", spec))
    monkeypatch.delattr(sys.modules["__main__"], "Mine")
    assert isinstance(make_env(packed.unpack(), 5).unwrapped, toy_envs.Toy)
    assert spec.entry_point == "__main__:Mine"


def test_what_cannot_be_sent_is_a_sentence_with_a_way_out() -> None:
    source = toy_source("ToyUnsendable-v0")
    assert not is_portable(source)
    with pytest.raises(DiasterError, match=r"'ToyUnsendable-v0' cannot be made in other processes.*lock.*--workers 0"):
        pack(source)


def test_what_the_other_process_does_not_find_is_a_sentence(module: str) -> None:
    packed = pack(find_source(f"{module}:make"))
    del sys.modules[module]
    Path(f"{module}.py").unlink()
    sys.path_importer_cache.clear()
    with pytest.raises(DiasterError, match=r"cannot be made in another process.*--workers 0"):
        packed.unpack()
