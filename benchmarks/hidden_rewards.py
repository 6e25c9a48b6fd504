"""How well `diaster.fit` finds the rewards of trained policies' episodes, of which it is told sums alone.

    diaster train Hopper-v5 --method dense --agent xqc --agent.size small --steps 100000 --out build/policies/Hopper-v5
    python benchmarks/hidden_rewards.py build/policies/Hopper-v5

Episodes are those of the trained policy with noise on its actions, more in some episodes than in others (standard
deviations from 0 to `--noise`, drawn per episode), so that returns differ. Some episodes are kept from the fit
altogether; on them the learnt rewards are compared with the hidden ones. "correlation" is Pearson's over all their
steps, "within" that of what is left when each episode's mean is taken off.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np

import diaster
from diaster.analysis.diagnostics import diagnose
from diaster.offline.progress import make_progress
from diaster.run import Run, load
from diaster.types import Episode, EvaluationEpisode


def collect(run: Run, n_episodes: int, noise: float, seed: int) -> dict[str, np.ndarray]:
    """Episodes as an .npz file has them, with the rewards that are to be hidden."""
    random = np.random.default_rng(seed)
    env, act = gym.make(run.config.env), run.actor()
    observations: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    rewards: list[float] = []
    lengths: list[int] = []
    for number in range(n_episodes):
        size = noise * random.random()
        obs, _ = env.reset(seed=int(random.integers(2**31)))
        first, is_over = len(rewards), False
        observations.append(obs)
        while not is_over:
            wanted = act(np.asarray(obs, np.float32)) + size * random.normal(size=run.spec.action_dim)
            unit = np.clip(wanted, -1.0, 1.0).astype(np.float32)
            action = run.spec.to_env(unit)
            obs, reward, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
            observations.append(obs)
            actions.append(action)
            rewards.append(float(reward))
        lengths.append(len(rewards) - first)
        if (number + 1) % 50 == 0:
            print(f"{number + 1} episodes, {len(rewards):,} steps", flush=True)
    return {
        "observations": np.array(observations, np.float32),
        "actions": np.array(actions, np.float32),
        "rewards": np.array(rewards),
        "lengths": np.array(lengths),
    }


def parts(data: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The episodes one by one."""
    ends = np.cumsum(data["lengths"])
    obs_ends = ends + np.arange(1, len(ends) + 1)
    return [
        {
            "observations": data["observations"][b - n - 1 : b],
            "actions": data["actions"][e - n : e],
            "rewards": data["rewards"][e - n : e],
        }
        for n, e, b in zip(data["lengths"], ends, obs_ends, strict=True)
    ]


def hidden(episode: dict[str, np.ndarray]) -> dict[str, object]:
    """What the fit is told of an episode."""
    told = {name: episode[name] for name in ("observations", "actions")}
    return {**told, "return": float(episode["rewards"].sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--held-out", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="diaster")
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=VALUE", help="of the method")
    arguments = parser.parse_args()
    run = load(arguments.run)
    n = max(arguments.episodes)
    kept = (
        Path(tempfile.gettempdir())
        / f"hidden-rewards-{run.config.env}-{n}-{arguments.held_out}-{arguments.noise}-{arguments.seed}.npz"
    )
    if not kept.exists():
        made = collect(run, n + arguments.held_out, arguments.noise, arguments.seed)
        np.savez(kept, allow_pickle=False, **made)
    episodes = parts(dict(np.load(kept)))
    returns = np.array([episode["rewards"].sum() for episode in episodes])
    lengths = np.array([len(episode["rewards"]) for episode in episodes])
    print(
        f"{run.config.env}: returns {returns.mean():,.0f} ± {returns.std():,.0f} ({returns.min():,.0f} to "
        f"{returns.max():,.0f}), lengths {lengths.min()} to {lengths.max()}, mean {lengths.mean():.0f}"
    )
    method: dict[str, object] = {"name": arguments.method}
    for setting in arguments.settings:
        name, _, value = setting.partition("=")
        method[name] = (
            {"true": True, "false": False}.get(value, value)
            if not value[:1].isdigit()
            else float(value)
            if "." in value
            else int(value)
        )
    held = episodes[n:]
    items = [
        EvaluationEpisode(Episode(e["observations"], e["actions"], float(e["rewards"].sum()), False), e["rewards"])
        for e in held
    ]
    for n_fitted in arguments.episodes:
        model = diaster.fit(
            [hidden(e) for e in episodes[:n_fitted]], seed=arguments.seed, method=method, progress=make_progress()
        )
        found = diagnose(items, [model.rewards(hidden(e)) for e in held])
        print(
            f"| {run.config.env} | {n_fitted} | {found.reward_correlation:.3f} | {found.within_correlation:.3f} | "
            f"{found.reward_slope:.2f} | {model.fit_r2:.3f} | {model.results['updates']} | "
            f"{model.results['net_share']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
