"""What an update of the learner and one of the decomposer take, apart from each other and from environments.

    python benchmarks/parts.py                                        # Hopper's sizes, one seed, episodes of 1000 steps
    python benchmarks/parts.py --env Humanoid-v5 --seeds 5 --length 200
    python benchmarks/parts.py --preset paper --seeds 5               # the paper's GRU, and its latency floor

Episodes are made of random numbers: what they hold does not change how long an update takes. Every figure is the least
of several repetitions, because machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diaster.config import build_config
from diaster.learner import Learner
from diaster.machine import use_compilation_cache
from diaster.registry import make_agent, make_decomposer
from diaster.training import resolve
from diaster.types import Episode


def least_seconds(call: Callable[[], Any], repeat: int) -> float:
    """The least time of a call, once it is compiled."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


def random_episodes(rng: np.random.Generator, n: int, length: int, obs_dim: int, action_dim: int) -> list[Episode]:
    return [
        Episode(
            rng.standard_normal((length + 1, obs_dim)).astype(np.float32),
            rng.uniform(-1, 1, (length, action_dim)).astype(np.float32),
            float(rng.standard_normal()),
            terminated=bool(rng.integers(2)),
        )
        for _ in range(n)
    ]


def latency_floor(n_seeds: int, n_rows: int, n_hidden: int, n_steps: int, repeat: int) -> float:
    """Seconds of the least recurrent step: one product with the state, and what turns its result into a state again."""
    weight = jnp.full((n_seeds, n_hidden, 3 * n_hidden), 1e-3)

    def run(state: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, None]:
            gates = jnp.einsum("sbh,shg->sbg", state, weight)
            return jnp.tanh(gates[..., :n_hidden] + gates[..., n_hidden : 2 * n_hidden] * gates[..., -n_hidden:]), None

        return jax.lax.scan(step, state, None, length=n_steps, unroll=8)[0]

    compiled = jax.jit(run)
    state = jnp.ones((n_seeds, n_rows, n_hidden))
    return least_seconds(lambda: compiled(state), repeat) / n_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--preset", default="default", choices=("default", "paper"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--length", type=int, default=1000, help="steps of every episode")
    parser.add_argument("--episodes", type=int, default=100, help="episodes in the replay")
    parser.add_argument("--updates", type=int, default=0, help="decomposer updates per call; 0: those of a chunk")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    n_seeds, length, repeat = arguments.seeds, arguments.length, arguments.repeat
    config, spec = resolve(
        build_config(arguments.preset, env=arguments.env, steps=300_000, seeds=n_seeds, horizon=max(length, 2))
    )
    device = jax.devices()[0]
    use_compilation_cache()
    learner = Learner(
        make_decomposer(config, spec.horizon),
        make_agent(config, spec),
        spec,
        config.seeds,
        (arguments.episodes + 1) * (length + 1),
        config.learner.batch_size,
        device,
    )
    rng = np.random.default_rng(0)
    for _ in range(arguments.episodes):
        learner.ingest([random_episodes(rng, 1, length, spec.obs_dim, spec.action_dim) for _ in range(n_seeds)])
    ready = np.ones(n_seeds, bool)
    n_agent = config.chunk_steps * config.learner.updates // config.learner.every
    n_chunk = max(1, config.chunk_steps * config.decomposer.updates // config.decomposer.every)
    n_decomposer = arguments.updates or n_chunk

    def fit_agent() -> Any:
        learner.fit_agent(ready, 0, n_agent)
        return learner.state

    def fit_decomposer() -> Any:
        learner.fit_decomposer(ready, 0, n_decomposer)
        return learner.state

    agent = least_seconds(fit_agent, repeat) / n_agent
    decomposer = least_seconds(fit_decomposer, repeat) / n_decomposer
    transfer = least_seconds(learner.policies, repeat)
    share = decomposer * n_chunk / (decomposer * n_chunk + agent * n_agent)
    rows = [
        ("machine", device.device_kind),
        (f"sizes of {arguments.env}, {n_seeds} seed(s), episodes of {length} steps, {arguments.preset}", ""),
        ("update of the learner, all seeds", f"{1e3 * agent:.3f} ms"),
        ("update of the decomposer, all seeds", f"{1e3 * decomposer:.3f} ms"),
        ("decomposer updates per learner update", f"{n_chunk / n_agent:.3g}"),
        ("share of the decomposer", f"{100 * share:.1f} %"),
        (
            "learning alone, seeds added up",
            f"{n_seeds * config.chunk_steps / (agent * n_agent + decomposer * n_chunk):,.0f} steps/s",
        ),
        ("policies to the host", f"{1e3 * transfer:.2f} ms"),
    ]
    if arguments.preset == "paper":
        floor = latency_floor(n_seeds, config.decomposer.batch_episodes, config.decomposer.hidden, length, repeat)
        rows.append(("least recurrent step", f"{1e6 * floor:.2f} µs"))
    for name, value in rows:
        print(f"| {name:<75} | {value:>20} |")


if __name__ == "__main__":
    main()
