"""Settings in names and captions: what has been changed, and how it is written."""

import math
from pathlib import Path

import pytest
from made_runs import make_run

from diaster.analysis.plots import learning_curve
from diaster.analysis.report.command import train_command
from diaster.analysis.results import read_results
from diaster.analysis.settings import changed_settings, setting_text, settings_text
from diaster.config import build_config


def test_what_a_run_of_xqc_has_resolved_is_no_changed_setting_and_what_dqn_was_given_is() -> None:
    xqc = build_config(env="Hopper-v5", agent={"name": "xqc", "annealing_updates": 95_000, "size": "full"})
    assert changed_settings(xqc) == {"agent.size": "full"}
    dqn = build_config(env="CartPole-v1", agent={"name": "dqn", "annealing_updates": 95_000})
    assert changed_settings(dqn) == {"agent.annealing_updates": 95_000}


def test_what_a_preset_sets_is_no_change_and_the_length_of_a_run_is_none_either() -> None:
    assert changed_settings(build_config("paper", env="Hopper-v5", steps=10)) == {}
    assert changed_settings(build_config(env="Hopper-v5", method={"head": "final"})) == {"method.head": "final"}


def test_a_base_is_a_change_where_it_is_not_the_one_that_the_preset_stands_for() -> None:
    for preset, method, base, is_change in (
        ("default", {}, "mixed", False),
        ("default", {}, "none", True),
        ("default", {"reward_source": "difference"}, "none", False),
        ("paper", {"reward_source": "difference"}, "none", False),
        ("paper", {}, "mixed", True),
        ("default", {"name": "rrd"}, "mixed", True),
    ):
        changed = changed_settings(build_config(preset, env="Hopper-v5", method={**method, "base": base}))
        assert ("method.base" in changed) == is_change, (preset, method, base)


def test_a_run_on_images_has_not_changed_its_base(tmp_path: Path) -> None:
    """A base needs numbers: where the settings had `auto`, the run was written with `none`."""
    for preset in ("default", "paper"):
        path = make_run(
            tmp_path / preset, {0: [1.0, 2.0]}, columns={"feature_loss": [math.nan, 0.3]}, preset=preset,
            method={"base": "none", "hidden": 8},
        )  # fmt: skip
        [run] = read_results(path).runs
        assert changed_settings(run.config) == {"method.hidden": 8}
        assert changed_settings(learning_curve(path).config) == {"method.hidden": 8}
        assert "base" not in train_command(run.config)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("method.head", "final", "head = final"),
        ("agent.discount", 0.9, "agent.discount = 0.9"),
        ("method.learning_rate", 0.0003, "learning_rate = 0.0003"),
        ("method.exact_sum", True, "exact_sum = true"),
        ("imports", ("a", "b"), "imports = a, b"),
        ("imports", (), "imports = none"),
        ("from_run", "", "from_run = none"),
        ("imports", ("x" * 99,), "imports = " + "x" * 23 + "…"),
    ],
)
def test_a_setting_is_written_as_in_a_file(name: str, value: object, text: str) -> None:
    assert setting_text(name, value) == text


def test_many_settings_are_cut() -> None:
    assert settings_text({"a": 1, "b": 2, "c": 3}) == "a = 1, b = 2, c = 3"
    assert settings_text({"a": 1, "b": 2, "c": 3, "d": 4}) == "a = 1, b = 2, c = 3 …"
