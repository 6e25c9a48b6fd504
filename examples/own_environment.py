"""An environment of your own, from the class to a trained policy: heating that learns from its daily bill.

    python examples/own_environment.py                        # about two minutes on two idle cores
    python examples/own_environment.py --steps 3000 --seed 1

A day has 48 half hours, and in each of them the policy says how much to heat. At the end of the day there is one
number: the cost of the energy, plus a penalty for every half hour in which somebody was at home and it was too cold or
too hot. Learning is not told what a single half hour cost. The script trains a policy, and compares it with random
heating and with a thermostat on 30 fresh days.

The class is an ordinary Gymnasium environment that pays every half hour. Learning sees only the sum of a day; only the
evaluation compares the learnt rewards with the hidden ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import diaster

HALF_HOURS = 48
WANTED = 20.0  # degrees
SHOWN = "fit_r2", "reward_correlation", "within_correlation"
COST_OF_HEAT, COST_OF_DISCOMFORT = 0.5, 0.2  # of full power for half an hour; of a degree for half an hour


class Heating(gymnasium.Env[Any, Any]):
    """A room that loses heat, a heating, and people who are out from 8 to 16 o'clock."""

    def __init__(self, insulation: float = 0.9) -> None:
        self.insulation = insulation
        # Inside and outside temperature less 20 degrees, in tens of degrees; the time as a point on a circle.
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = spaces.Box(0.0, 1.0, (1,), np.float32)  # the power

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        self.mean_outside = self.np_random.uniform(-5.0, 10.0)
        self.inside = self.np_random.uniform(14.0, 20.0)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        power = float(action[0])
        self.inside = self.outside() + self.insulation * (self.inside - self.outside()) + 3.0 * power
        is_at_home = not 16 <= self.time < 32
        cost = COST_OF_HEAT * power + COST_OF_DISCOMFORT * is_at_home * abs(self.inside - WANTED)
        self.time += 1
        return self.observe(), -cost, self.time == HALF_HOURS, False, {}

    def outside(self) -> float:
        """Coldest at 3, warmest at 15 o'clock."""
        return self.mean_outside - 5.0 * float(np.cos(2.0 * np.pi * (self.time - 6) / HALF_HOURS))

    def observe(self) -> Any:
        """What a heating can measure."""
        angle = 2.0 * np.pi * self.time / HALF_HOURS
        seen = (self.inside - WANTED) / 10.0, (self.outside() - WANTED) / 10.0, np.sin(angle), np.cos(angle)
        return np.array(seen, np.float32)


def thermostat(obs: Any) -> Any:
    """Heats fully below 20 degrees, day and night."""
    return np.array([1.0 if obs[0] < 0.0 else 0.0], np.float32)


def mean_return(act: Callable[[Any], Any], days: int = 30) -> float:
    """Of fresh days, the same ones for every policy."""
    env, total = Heating(), 0.0
    for day in range(days):
        obs, _ = env.reset(seed=100_000 + day)
        is_over = False
        while not is_over:
            obs, reward, is_over, _, _ = env.step(act(obs))
            total += reward
    return total / days


def main() -> None:
    """Train, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the run is kept; by default a new folder below runs")
    given = parser.parse_args()
    run = diaster.train(
        Heating,  # anything that makes a new environment when it is called
        env_kwargs={"insulation": 0.9},
        agent={"name": "sac", "hidden": 64},  # SAC with small nets: enough here, and quick
        method={"name": "diaster", "hidden": 64},
        horizon=HALF_HOURS,  # the longest episode; not needed where the environment is registered with a limit
        steps=given.steps,
        seeds=(given.seed,),
        evaluation={"every": max(1, given.steps // 5), "episodes": 10},
        out=given.out,
        progress=True,
    )
    random = np.random.default_rng(0)
    policies: dict[str, Callable[[Any], Any]] = {
        "random heating": lambda obs: random.uniform(0.0, 1.0, 1),
        "a thermostat": thermostat,
        "the policy": run.policy(seed=given.seed),
    }
    print("\nmean return of 30 fresh days")
    for name, act in policies.items():
        print(f"{name:<16} {mean_return(act):7.1f}")
    print("\nof the learnt rewards, on held-out days: " + ", ".join(f"{n} {run.progress[n][-1]:.2f}" for n in SHOWN))
    print(f"the run is in {run.path}")


if __name__ == "__main__":
    try:
        main()
    except diaster.DiasterError as error:
        raise SystemExit(str(error)) from None
