"""Names and types of settings: what is refused, and with which sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from all_settings import nested, refusal, settings_file

from diaster.config import build_config, validate

MISSPELT: list[tuple[dict[str, Any], str, str]] = [
    ({"stepps": 3}, "stepps", "steps"),
    ({"import": ("x",)}, "import", "imports"),
    ({"method": {"hed": "final"}}, "method.hed", "method.head"),
    ({"agent": {"batchsize": 3}}, "agent.batchsize", "agent.batch_size"),
    ({"evaluation": {"episode": 3}}, "evaluation.episode", "evaluation.episodes"),
]


def test_an_unknown_setting_gives_the_nearest_with_its_dotted_name() -> None:
    for settings, given, nearest in MISSPELT:
        sentence = refusal(lambda settings=settings: build_config(**settings))
        assert f"'{given}'" in sentence
        assert sentence.endswith(f"Did you mean '{nearest}'?")


def test_an_unknown_setting_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "[method]\nhed = 3\n")
    sentence = refusal(lambda: build_config(file=path))
    assert str(path) in sentence
    assert "'method.head'" in sentence


def test_a_name_that_is_like_no_other_gets_the_list_without_a_guess() -> None:
    sentence = refusal(lambda: build_config(qqqqq=3))
    assert "Did you mean" not in sentence
    assert "steps" in sentence


WRONG_TYPES = [
    ("steps", "many", "a whole number"),
    ("steps", 1e5, "a whole number"),
    ("steps", True, "a whole number"),
    ("steps", None, "a whole number"),
    ("env", 3, "a text"),
    ("horizon", "soon", "a whole number or 'auto'"),
    ("horizon", False, "a whole number or 'auto'"),
    ("devices", "some", "a whole number or 'all'"),
    ("feedback_every", "step", "a whole number or 'episode' or 'environment'"),
    ("device", "tpu", "'auto' or 'cpu' or 'gpu'"),
    ("imports", "toy_envs", "a list, each item a text"),
    ("imports", [3], "a text"),
    ("isolate_envs", "yes", "true or false"),
    ("step_seconds", "long", "a number"),
    ("method.head", "both", "'cumulative' or 'final'"),
    ("method.normalize_inputs", 1, "true or false"),
    ("method.learning_rate", "fast", "a number"),
    ("method.learning_rate", True, "a number"),
    ("method.return_scale", "big", "a number or 'auto'"),
    ("method.n_cuts", 1.0, "a whole number or 'auto'"),
    ("agent.batch_size", 16.0, "a whole number"),
    ("replay.capacity", [1], "a whole number"),
]


def test_a_value_of_the_wrong_type_is_refused_with_the_right_one() -> None:
    for name, value, wanted in WRONG_TYPES:
        sentence = refusal(lambda name=name, value=value: build_config(**nested(name, value)))
        assert sentence.startswith(f"'{name}' in the call is "), sentence
        assert sentence.endswith(f"; it has to be {wanted}."), sentence


def test_a_group_of_settings_is_a_table_and_nothing_else() -> None:
    for group in ("method", "agent", "replay", "evaluation"):
        for value in (3, ["rrd"], None, True):
            sentence = refusal(lambda group=group, value=value: build_config(**{group: value}))
            assert sentence == f"'{group}' in the call is a group of settings and takes a table, not {value!r}."


def test_seeds_of_the_wrong_type_are_refused() -> None:
    for value in (1.5, True, None, ["a"], {"a": 1}, "x"):
        assert "seeds" in refusal(lambda value=value: validate(build_config(env="Hopper-v5", seeds=value)))


def test_a_whole_number_is_a_number() -> None:
    scale = build_config(method={"return_scale": 3}).method.return_scale
    assert (scale, type(scale)) == (3.0, float)


def test_a_list_is_a_tuple() -> None:
    assert build_config(imports=["a", "b"], seeds=[1, 2]).imports == ("a", "b")
    assert build_config(seeds=[1, 2]).seeds == (1, 2)
