"""diaster bench takes the settings of a run; what is measured is tested elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import run

from diaster.config import RunConfig, build_config, write_toml


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The settings of what would be measured."""
    found: list[RunConfig] = []

    def pretend(config: RunConfig, length: int, loop_seconds: float) -> list[tuple[str, str]]:
        found.append(config)
        return [("length", str(length)), ("loop", str(loop_seconds > 0))]

    monkeypatch.setattr("diaster.training.bench.bench", pretend)
    return found


def test_by_default_it_is_a_run_of_the_default_on_hopper(measured: list[RunConfig]) -> None:
    code, out, err = run("bench")
    assert (code, err) == (0, "")
    assert out.split() == ["length", "1000", "loop", "True"]
    assert measured == [build_config(env="Hopper-v5", steps=300_000)]


def test_every_setting_of_a_run_can_be_given(measured: list[RunConfig]) -> None:
    flags = "--agent xqc --agent.size small --seeds 5 --method rrd --method.hidden 64 --length 50 --no-loop"
    assert run("bench", "Ant-v5", *flags.split()).code == 0
    [config] = measured
    wanted = build_config(
        env="Ant-v5",
        steps=300_000,
        seeds=5,
        agent={"name": "xqc", "size": "small"},
        method={"name": "rrd", "hidden": 64},
    )
    assert config == wanted


def test_the_settings_of_a_file_are_not_those_of_hopper(measured: list[RunConfig], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(write_toml(build_config(env="Swimmer-v5", steps=1234)), encoding="utf-8")
    assert run("bench", "--config", tmp_path / "run.toml").code == 0
    assert [(config.env, config.steps) for config in measured] == [("Swimmer-v5", 1234)]


def test_an_episode_of_one_step_is_too_short(measured: list[RunConfig]) -> None:
    code, _, err = run("bench", "--length", 1)
    assert code == 2 and "--length 1 is too short" in err and measured == []
