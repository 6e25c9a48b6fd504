"""The two examples with an environment of their own: their rules, and that their scripts run from end to end."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import diaster

EXAMPLES = Path(__file__).parents[2] / "examples"


def loaded(name: str) -> Iterator[ModuleType]:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that a run can keep what makes its environments
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def heating() -> Iterator[ModuleType]:
    yield from loaded("own_environment")


@pytest.fixture(scope="module")
def sparse() -> Iterator[ModuleType]:
    yield from loaded("sparse_success")


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the examples are made in this process, with nets of four units."""
    train = diaster.train

    def small_train(env: object, **given: object) -> diaster.Run:
        method = {"name": "diaster", "hidden": 4, "updates": 1, "every": 50}
        small_one = {"method": method, "agent": {"name": "sac", "hidden": 4, "batch_size": 8}, "workers": 0}
        return train(env, **{**given, **small_one, "evaluation": {"every": 500, "episodes": 2}, "progress": False})

    monkeypatch.setattr(diaster, "train", small_train)


# --- own_environment.py ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # Gymnasium's advice about bounds of observations
def test_the_heating_is_an_environment_as_gymnasium_wants_it(heating: ModuleType) -> None:
    check_env(heating.Heating(), skip_render_check=True)


def test_a_day_has_48_half_hours_and_ends(heating: ModuleType) -> None:
    env = heating.Heating()
    env.reset(seed=0)
    ends = [env.step(np.zeros(1, np.float32))[2] for _ in range(heating.HALF_HOURS)]
    assert ends == [False] * 47 + [True]


def test_heating_costs_energy_and_cold_costs_only_while_somebody_is_at_home(heating: ModuleType) -> None:
    def paid(time: int, inside: float, power: float) -> float:
        env = heating.Heating(insulation=1.0)
        env.reset(seed=0)
        env.time, env.inside = time, inside
        return float(env.step(np.array([power], np.float32))[1])

    night, noon = 4, 24
    assert paid(noon, 10.0, 0.0) == 0.0
    assert paid(night, 10.0, 0.0) == pytest.approx(-10.0 * heating.COST_OF_DISCOMFORT)
    assert paid(noon, 20.0, 1.0) == pytest.approx(-heating.COST_OF_HEAT)
    assert paid(night, 17.0, 1.0) == pytest.approx(-heating.COST_OF_HEAT)  # a full half hour warms by three degrees


def test_a_thermostat_is_better_than_no_heating(heating: ModuleType) -> None:
    assert heating.mean_return(heating.thermostat) > heating.mean_return(lambda obs: np.zeros(1)) + 10.0


def test_the_example_trains_and_compares(
    heating: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["own_environment.py", "--steps", "600", "--out", str(tmp_path / "run")])
    heating.main()
    said = capsys.readouterr().out
    assert re.search(r"^random heating +-\d+\.\d\na thermostat +-\d+\.\d\nthe policy +-\d+\.\d$", said, re.MULTILINE)
    assert "fit_r2" in said
    run = diaster.load(tmp_path / "run")
    assert run.config.horizon == 48 and run.config.env_kwargs == {"insulation": 0.9}


# --- sparse_success.py ----------------------------------------------------------------------------------------


def test_being_there_is_an_environment_as_gymnasium_wants_it(sparse: ModuleType) -> None:
    check_env(sparse.BeThere(), skip_render_check=True)


def test_only_the_last_step_pays_and_only_at_the_goal(sparse: ModuleType) -> None:
    def rewards(goal: float) -> list[float]:
        env = sparse.BeThere()
        env.reset(seed=0)
        env.place, env.goal = np.zeros(2), np.array([goal, 0.0])
        return [env.step(np.zeros(2))[1] for _ in range(sparse.LENGTH)]

    assert rewards(0.2) == [0.0] * 19 + [1.0]
    assert rewards(0.3) == [0.0] * 20


def test_one_that_goes_straight_succeeds_and_random_actions_seldom_do(sparse: ModuleType) -> None:
    assert sparse.successes(lambda env, obs: 10.0 * (obs[2:4] - obs[:2]).clip(-0.1, 0.1)) == 1.0
    assert 0.0 < sparse.successes(lambda env, obs: env.action_space.sample()) < 0.15


def test_the_example_trains_and_counts(
    sparse: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["sparse_success.py", "--steps", "600", "--out", str(tmp_path / "run")])
    sparse.main()
    said = capsys.readouterr().out
    assert re.search(r"random actions succeed in \d+% of 200 episodes", said)
    assert re.search(r"after 600 steps the policy succeeds in \d+% ", said)
    assert set(diaster.load(tmp_path / "run").progress["return_mean"] * 2) <= {0.0, 1.0, 2.0}
