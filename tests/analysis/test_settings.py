"""Settings in names and captions: what has been changed, and how it is written."""

import pytest

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
