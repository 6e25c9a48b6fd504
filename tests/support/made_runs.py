"""Run directories for figures and reports, written with the project's own writers; nothing is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diaster.config import METHODS, PAPER_TASKS, build_config, write_toml
from diaster.rundir.recordings import Maze, Rollouts, nets_digest, write_rollouts
from diaster.rundir.records import CONFIG, DECOMPOSER, DONE, METADATA, POLICY, PROGRESS, read_config
from diaster.rundir.results import COLUMNS, progress_csv
from diaster.rundir.trust import sign

QUALITY = {
    "diaster": 0.9, "rrd": 0.8, "rd": 0.6, "rudder": 0.3, "ircr": 0.7, "uniform": 0.45, "episodic": 0.15, "dense": 1.0,
}  # fmt: skip
TOP = dict(zip(PAPER_TASKS, (1000.0, 3300.0, 45.0, 4200.0, 3900.0, 5200.0, 160_000.0), strict=True))


def make_run(
    path: Path,
    returns: Mapping[int, Sequence[float]],
    every: int = 100,
    done: bool = True,
    columns: Mapping[str, Sequence[float]] | None = None,
    **settings: Any,
) -> Path:
    """Seed → returns, evaluated at every multiple of `every` steps; other columns are the same for every seed."""
    path.mkdir(parents=True)
    settings = {"env": "Toy-v0", "seeds": tuple(returns) or (0,), "horizon": 1000, **settings}
    longest = max(map(len, returns.values()), default=0)
    settings.setdefault("steps", every * max(longest, 1))
    settings.setdefault("warmup_steps", 1)
    preset = settings.pop("preset", "default")
    (path / CONFIG).write_text(write_toml(build_config(preset, **settings)), encoding="utf-8")
    rows = [
        {
            **dict.fromkeys(COLUMNS, float("nan")),
            "step": every * (n + 1),
            "seed": seed,
            "episodes": n,
            "return_mean": of[n],
            **{name: values[n] for name, values in (columns or {}).items()},
        }
        for n in range(longest)
        for seed, of in returns.items()
        if n < len(of)
    ]
    (path / PROGRESS).write_text(progress_csv(rows), encoding="utf-8")
    if done:
        (path / DONE).touch()
    return path


def curves(env: str, quality: float, seeds: int, n: int, random: np.random.Generator) -> dict[int, list[float]]:
    """Made-up learning curves."""
    time = np.linspace(0.0, 1.0, n)
    found = {}
    for seed in range(seeds):
        best = quality * random.uniform(0.8, 1.1)
        noise = np.cumsum(random.normal(0.0, 0.02, n))
        found[seed] = (TOP.get(env, 100.0) * best * (1 - np.exp(-4 * time)) * (1 + noise)).tolist()
    return found


def make_everything(root: Path, seeds: int = 5, n: int = 40) -> Path:
    """Seven tasks × eight methods, and the runs of all ablations."""
    random = np.random.default_rng(0)
    for env, task in PAPER_TASKS.items():
        every = task.steps // n
        for method in METHODS:
            found = curves(env, QUALITY[method], seeds, n, random)
            make_run(root / f"{env}-{method}", found, every, env=env, method=method)
    for env in ("InvertedPendulum-v5", "Hopper-v5", "Swimmer-v5", "Walker2d-v5"):
        every = PAPER_TASKS[env].steps // n
        for head in ("final", "cumulative"):
            for m, quality in ((0, 0.2), (1, 0.9), (5, 0.85), (10, 0.7), (100, 0.5), (999, 0.3)):
                settings = {"head": head, "segments": "all", "n_cuts": m}
                found = curves(env, quality, seeds, n, random)
                make_run(root / f"{env}-{head}-{m}", found, every, env=env, method=settings)
        without = {"reward_source": "difference"}
        make_run(root / f"{env}-without", curves(env, 0.5, seeds, n, random), every, env=env, method=without)
    return root


def make_run_with_nets(path: Path, env: str) -> Path:
    """A run that can be loaded: two seeds, small nets of random numbers above 0."""
    import jax
    import safetensors.numpy
    import toy_envs

    from diaster.agents import make_agent
    from diaster.decomposers import make_decomposer
    from diaster.envs.making import describe_env, make_env
    from diaster.nn.trees import leaf_names

    small: dict[str, Any] = {"method": {"hidden": 4}, "agent": {"name": "sac", "hidden": 4}, "imports": ("toy_envs",)}
    make_run(path, {3: [1.0, 2.0], 8: [2.0, 3.0]}, env=env, horizon=toy_envs.HORIZON, **small)
    config = read_config(path)
    spec = describe_env(make_env(env, toy_envs.HORIZON), env, toy_envs.HORIZON)
    agent, decomposer = make_agent(config.agent, spec), make_decomposer(config.method, toy_envs.HORIZON)
    policy = jax.eval_shape(lambda key: agent.policy(agent.init(key, spec)), jax.random.key(0))
    state = jax.eval_shape(lambda key: decomposer.init(key, spec), jax.random.key(0))
    random = np.random.default_rng(0)
    for name, tree, fields in ((POLICY, policy, None), (DECOMPOSER, state, decomposer.saved)):
        arrays = {
            leaf_name: random.uniform(0.1, 0.5, (2, *leaf.shape)).astype(leaf.dtype)
            for leaf_name, leaf in leaf_names(tree, fields)
        }
        (path / name).write_bytes(safetensors.numpy.save(arrays))
    (path / METADATA).write_text("{}", encoding="utf-8")
    sign(path, config)
    return path


def make_rollouts(path: Path, lengths: Sequence[int] = (40, 60, 50), **changes: Any) -> Rollouts:
    """A made-up recording in a run directory; nets are made up where there are none."""
    for name in (POLICY, DECOMPOSER):
        if not (path / name).exists():
            (path / name).write_bytes(name.encode())
    random = np.random.default_rng(len(lengths))
    n, n_episodes = sum(lengths), len(lengths)
    moved = random.gamma(2.0, 0.01, n)
    position = np.cumsum(moved)[:, None]
    found = Rollouts(
        seed=np.zeros(n_episodes, np.int64),
        is_spread=np.arange(n_episodes) % 2 == 1,
        length=np.array(lengths, np.int64),
        episode_return=random.normal(100.0, 5.0, n_episodes),
        goal=np.zeros((n_episodes, 0)),
        obs=random.normal(size=(n, 3)).astype(np.float32),
        action=random.uniform(-1, 1, (n, 2)).astype(np.float32),
        step_reward=1.0 + 100 * moved + random.normal(0.0, 0.5, n),
        true_reward=1.0 + 125 * moved,
        position=position - moved[:, None],
        next_position=position,
        frames=np.zeros((0, 1, 1, 3), np.uint8),
        frame_step=np.zeros(0, np.int64),
    )._replace(**changes)
    write_rollouts(path, found, nets_digest(path))
    return found


U_MAZE = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], bool)


def make_maze_rollouts(path: Path, clarity: float, episodes: int = 40, length: int = 100) -> Rollouts:
    """Made-up walks through the U-shaped maze, with rewards that grow near the goal."""
    random = np.random.default_rng(1)
    way = np.array([(-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1)], float)
    positions, rewards = [], []
    for _ in range(episodes):
        place = np.clip(random.uniform(0, 6) + np.cumsum(np.abs(random.normal(0.03, 0.05, length + 1))), 0, 6)
        xy = np.stack([np.interp(place, np.arange(7), way[:, axis]) for axis in (0, 1)], axis=1)
        positions.append(xy + random.uniform(-0.35, 0.35, (length + 1, 2)))
        rewards.append(clarity * place[:-1] / 6 + random.normal(0.0, 0.3, length))
    goal = np.tile([-1.0, -1.0], (episodes, 1))
    n = episodes * length
    return make_rollouts(
        path,
        (length,) * episodes,
        is_spread=np.ones(episodes, bool),
        goal=goal,
        step_reward=np.concatenate(rewards),
        true_reward=np.zeros(n),
        position=np.concatenate([xy[:-1] for xy in positions]),
        next_position=np.concatenate([xy[1:] for xy in positions]),
        maze=Maze(U_MAZE, 1.0),
    )
