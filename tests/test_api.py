"""What `import diaster` offers: what is promised, explained, and nothing that takes long before it is used."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diaster

FUNCTIONS = ["figure", "fit", "load", "plot", "resume", "train"]
RECORDS = ["Batch", "DelayedReward", "DiasterError"]  # what they are is all there is to say
CLASSES = [*RECORDS, "DecomposedReplay", "DecomposedReward", "Decomposition", "Evaluation", "Policy", "Run"]


def test_dir_shows_the_api_and_nothing_else() -> None:
    assert [name for name in dir(diaster) if not name.startswith("_")] == sorted(FUNCTIONS + CLASSES)
    assert set(diaster.__all__) == {*FUNCTIONS, *CLASSES, "__version__"}


def test_every_name_is_found_and_has_an_explanation_with_an_example() -> None:
    for name in FUNCTIONS:
        assert inspect.isfunction(getattr(diaster, name))
    for name in CLASSES:
        assert inspect.isclass(getattr(diaster, name))
    for name in set(FUNCTIONS + CLASSES) - set(RECORDS):
        text = inspect.getdoc(getattr(diaster, name)) or ""
        assert "\n    >>> " in text, f"{name} has no example"


def test_methods_of_a_run_are_explained() -> None:
    for name, method in inspect.getmembers(diaster.Run, inspect.isfunction):
        assert name.startswith("_") or inspect.getdoc(method), name


def test_help_shows_functions_with_the_settings_that_matter() -> None:
    text = pydoc.render_doc(diaster, renderer=pydoc.plaintext)
    for name in (*FUNCTIONS, *CLASSES):
        assert name in text
    assert "train(env: " in text
    for setting in ("steps", "seeds", "method", "agent", "out", "progress", "callback", "stop_at", "stop_after"):
        assert f"{setting}: " in text


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        diaster.trian  # noqa: B018


def test_importing_the_package_and_listing_its_names_loads_nothing_slow(python: Callable[..., Any]) -> None:
    code = "import diaster, sys; dir(diaster); print({'jax', 'gymnasium', 'matplotlib', 'numpy'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


def test_settings_of_the_signature_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run_training(config: Any, out: Any, reporter: Any, *others: Any, **more: Any) -> None:
        seen.update(config=config, out=out)

    monkeypatch.setattr("diaster.training.train.run_training", run_training)
    diaster.train(
        "Hopper-v5", steps=500, seeds=[3], method={"name": "rrd", "subset": 9}, agent="td3", out="here",
        stop_at=7, stop_after=2, from_run="there", evaluation={"every": 50}, warmup_steps=20,
    )  # fmt: skip
    config = seen["config"]
    assert (config.env, config.steps, config.seeds, config.from_run) == ("Hopper-v5", 500, (3,), "there")
    assert (config.method.subset, config.agent.name, config.warmup_steps, str(seen["out"])) == (9, "td3", 20, "here")
    assert (config.evaluation.every, config.evaluation.stop_at, config.evaluation.stop_after) == (50, 7.0, 2)
    diaster.train(config=None, env="Hopper-v5")
    assert seen["config"].evaluation.stop_at == "never" and seen["out"] is None
    diaster.train("FrozenLake-v1", env_kwargs={"map_name": "8x8"}, horizon=50)
    assert (seen["config"].env_kwargs, seen["config"].horizon) == ({"map_name": "8x8"}, 50)


def test_a_callback_that_cannot_be_called_is_refused_before_anything_is_written(empty_cwd: Path) -> None:
    for begin in (lambda: diaster.train("Toy-v0", callback=3), lambda: diaster.resume("run", callback=3)):  # type: ignore[arg-type]
        with pytest.raises(diaster.DiasterError, match=r"callback=3 cannot be called; give a function"):
            begin()
    assert list(empty_cwd.iterdir()) == []
