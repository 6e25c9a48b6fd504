"""Names of curves: short, and different on one environment."""

from typing import Any

import pytest

from diaster.analysis.naming import Subject, names_of
from diaster.config import build_config
from diaster.errors import DiasterError


def subject(folder: str = "", label: str = "", reached: str = "", **settings: Any) -> Subject:
    settings = {"env": "Toy-v0", "horizon": 10, "steps": 3000, "warmup_steps": 1, **settings}
    return Subject(build_config(settings.pop("preset", None), **settings), reached, folder, label)


def names(*subjects: Subject) -> list[str]:
    found = names_of(subjects)
    assert len({(one.task, name) for one, name in zip(subjects, found, strict=True)}) == len(found)
    return found


def test_a_single_curve_has_the_name_of_its_method_whatever_its_settings() -> None:
    assert names(subject(method={"head": "final"})) == ["diaster"]
    assert names(subject(method="dense")) == ["dense (reference)"]


def test_presets_are_named_and_agents_where_there_are_several() -> None:
    assert names(subject(preset="paper"), subject(), subject(method="rrd", agent="td3")) == [
        "diaster (paper, sac)",
        "diaster",
        "rrd (td3)",
    ]
    assert names(subject(preset="paper"), subject(preset="paper", method="rrd")) == ["diaster (paper)", "rrd (paper)"]
    assert names(subject(agent="td3"), subject(agent="td3", method="rrd")) == ["diaster", "rrd"]


def test_settings_are_named_where_siblings_differ_in_them_and_only_those_that_are_unusual() -> None:
    common = {"hidden": 8}
    assert names(
        subject(method=common),
        subject(method={**common, "head": "final"}),
        subject(method={**common, "head": "final", "segment_length": 8}),
        subject(method="rrd"),
    ) == ["diaster", "diaster, head = final", "diaster, head = final, segment_length = 8", "rrd"]


def test_steps_are_named_where_nothing_else_differs() -> None:
    assert names(subject(steps=10), subject(steps=3000, warmup_steps=300), subject(method={"hidden": 8})) == [
        "diaster, 10 steps",
        "diaster, 3 k steps",
        "diaster, hidden = 8",
    ]


def test_other_settings_are_named_where_a_curve_of_the_same_environment_differs_in_them() -> None:
    assert names(subject(), subject(chunk_steps=100), subject(chunk_steps=100, env="Ant-v5")) == [
        "diaster, chunk_steps = 200",
        "diaster, chunk_steps = 100",
        "diaster",
    ]


def test_how_far_a_run_has_come_is_named_and_at_last_its_folder() -> None:
    assert names(
        subject("a"), subject("b", reached="unfinished at 1 k steps"), subject("c"), subject("d", env="Ant-v5")
    ) == ["diaster, in a", "diaster, unfinished at 1 k steps", "diaster, in c", "diaster"]


def test_of_many_settings_as_many_are_named_as_tell_a_curve_from_every_other() -> None:
    many = {"hidden": 8, "segment_length": 8, "batch_episodes": 8, "learning_rate": 0.1, "averaging": 0.5}
    assert names(subject(), subject(method=many), subject(method={"hidden": 8})) == [
        "diaster",
        "diaster, batch_episodes = 8, …",
        "diaster, hidden = 8",
    ]


def test_a_label_stands_for_every_other_name_and_keeps_others_from_having_it() -> None:
    assert names(subject("a", label="mine"), subject("b")) == ["mine", "diaster"]
    assert names(subject("a", label="diaster", method="rrd"), subject("b")) == ["diaster", "diaster, in b"]
    assert names(subject("a", label="x"), subject("b", label="x", env="Ant-v5")) == ["x", "x"]


def test_a_label_for_two_curves_of_an_environment_is_refused() -> None:
    with pytest.raises(DiasterError, match="'x' would name 2 different curves of one environment, those of a, b"):
        names_of([subject("a", label="x"), subject("b", label="x", method="rrd")])


def test_of_a_long_folder_the_end_is_named_where_that_is_enough() -> None:
    first, second = names(subject("x" * 500 + "a"), subject("x" * 500 + "b"))
    assert first == f"diaster, in …{'x' * 99}a" and second.endswith("xb")
    assert len(names(subject("a" + "x" * 500), subject("b" + "x" * 500))[0]) > 500
