"""How fast this machine learns: what an update takes, what share of it is decomposition, and the whole loop.

Updates are timed on episodes of random numbers: what they hold does not change how long an update takes. Each such
figure is the least of several repetitions, because machines are shared and noisy.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from diaster.agents import make_agent
from diaster.config import DiasterConfig, RunConfig, check_new, updates_due, validate
from diaster.decomposers import make_decomposer
from diaster.envs.creating import find_horizon
from diaster.envs.source import source_of
from diaster.learning.learner import Learner
from diaster.learning.machine import find_devices, one_blas_thread, peak_memory, use_compilation_cache
from diaster.nn.gru import gru_scan_two_ways
from diaster.nn.nets import GRU, gru_init
from diaster.training.progress import Progress, Silent, duration
from diaster.training.resolve import resolve
from diaster.training.train import run_training
from diaster.types import EnvSpec, Episode, Feedback, Spans

LOOP_SECONDS = 25.0
LEAST_LOOP = 2000  # steps per seed
Row = tuple[str, str]


class Parts(NamedTuple):
    """Seconds of one update, of all seeds together."""

    agent: float
    decomposer: float
    agent_updates: int  # of a chunk
    decomposer_updates: int

    @property
    def chunk(self) -> float:
        """What a chunk's updates take."""
        return self.agent * self.agent_updates + self.decomposer * self.decomposer_updates

    @property
    def share(self) -> float:
        """Of the decomposer."""
        return self.decomposer * self.decomposer_updates / self.chunk


def bench(config: RunConfig, length: int, loop_seconds: float = LOOP_SECONDS) -> list[Row]:
    """The table of this machine, with updates timed on episodes of `length` steps; 0 seconds leave the loop out."""
    validate(config)
    horizon = find_horizon(source_of(config), config.horizon)
    config, spec = resolve(dataclasses.replace(config, horizon=max(length, horizon)))
    check_new(config)
    device = find_devices(config.device, 1)[0]
    use_compilation_cache()
    n_seeds = len(config.seeds)
    with one_blas_thread(), jax.default_device(device):
        parts = time_parts(config, spec, device, length)
        learning = n_seeds * config.chunk_steps / parts.chunk
        rows = [
            ("machine", device.device_kind),
            ("an update of the agent", f"{1e3 * parts.agent:.3f} ms"),
            (f"an update of the decomposer, episodes of {length} steps", f"{1e3 * parts.decomposer:.3f} ms"),
            ("share of the decomposer", f"{100 * parts.share:.0f} %"),
            ("learning alone, seeds added up", f"{learning:,.0f} steps/s"),
        ]
        peak = peak_memory(device)
        if peak is not None:
            rows.append(("largest use of the device's memory", f"{peak / 1e9:.2f} GB"))
        if isinstance(config.method, DiasterConfig) and config.method.segments == "all":
            rows += recurrent_part(n_seeds, config.method, spec, length)
        if loop_seconds > 0:
            rows += whole_loop(config, LEAST_LOOP + int(0.7 * learning / n_seeds * loop_seconds))
    return rows


def time_parts(config: RunConfig, spec: EnvSpec, device: jax.Device, length: int, repeat: int = 4) -> Parts:
    """Time the updates of a chunk."""
    n_seeds, n_episodes = len(config.seeds), max(2, min(100, 40_000 // length))
    feedback = config.feedback
    make = make_decomposer(config.method, spec.horizon, feedback.longest_span(spec.horizon), spec.image is not None)
    capacity, batch = (n_episodes + 1) * (length + 1), config.agent.batch_size
    learner = Learner(make, make_agent(config.agent, spec), spec, config.seeds, capacity, batch, device, feedback)
    random = np.random.default_rng(0)
    for _ in range(n_episodes):
        learner.store_episodes([[random_episode(random, length, spec, feedback)] for _ in range(n_seeds)])
    ready = np.ones(n_seeds, bool)
    n_agent = max(1, updates_due(config.agent, config.chunk_steps))
    n_decomposer = updates_due(config.method, config.chunk_steps)

    def fit_agent() -> Any:
        learner.fit_agent(ready, 0, n_agent)
        return learner.state

    def fit_decomposer() -> Any:
        learner.fit_decomposer(ready, 0, n_decomposer)
        return learner.state

    return Parts(
        least_seconds(fit_agent, repeat) / n_agent,
        least_seconds(fit_decomposer, repeat) / n_decomposer if n_decomposer else 0.0,
        n_agent,
        n_decomposer,
    )


def random_episode(random: np.random.Generator, length: int, spec: EnvSpec, feedback: Feedback) -> Episode:
    """An episode of no meaning; where an environment marks spans, it is one."""
    obs = random.standard_normal((length + 1, spec.obs_dim)).astype(np.float32)
    action = random.uniform(-1, 1, (length, spec.action_dim)).astype(np.float32)
    known = np.zeros(length, np.float32) if feedback.has_known else None
    end = np.append(np.arange(0, length, feedback.longest_span(length))[1:], length)
    numbers = random.standard_normal(len(end))
    spans = Spans(end, numbers) if feedback.has_spans else None
    terminated = bool(random.integers(2))
    return Episode(obs, action, float(numbers.sum()), terminated, np.zeros(length, np.float32), spans, known)


def least_seconds(call: Callable[[], Any], repeat: int) -> float:
    """The least time of a call, once it is compiled."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times)


def recurrent_part(n_seeds: int, config: DiasterConfig, spec: EnvSpec, length: int) -> Sequence[Row]:
    """The recurrent net alone: forward through cut and whole episodes at once, backward through the cut ones.

    No row can take less than its length times the least step of its size.
    """
    n_rows, n_in = config.batch_episodes, spec.obs_dim + spec.action_dim
    cells = jax.vmap(gru_init, (0, None, None))(jax.random.split(jax.random.key(0), n_seeds), n_in, config.hidden)
    inputs = jax.random.normal(jax.random.key(1), (n_seeds, length, n_rows, n_in))
    whole = jnp.broadcast_to(jnp.arange(length)[:, None] == 0, (length, n_rows))
    cut = whole | (jnp.arange(length)[:, None] == length // 2)

    def total(cell: GRU, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        states, others = gru_scan_two_ways(cell, inputs, cut, whole, config.precision)
        return states.sum(), others.sum()

    both_ways = jax.jit(jax.vmap(jax.grad(total, has_aux=True)))
    seconds = least_seconds(lambda: both_ways(cells, inputs), 3)
    steps = [least_step(n_seeds, n_ways * n_rows, config.hidden, length) for n_ways in (2, 1)]
    return [
        ("the recurrent net alone, forward and backward", f"{1e3 * seconds:.1f} ms"),
        (
            "the least recurrent step of its size, forward, backward",
            f"{1e6 * steps[0]:.2f} µs, {1e6 * steps[1]:.2f} µs",
        ),
        ("of the speed of these steps alone, reached", f"{100 * length * sum(steps) / seconds:.0f} %"),
    ]


def least_step(n_seeds: int, n_rows: int, n_hidden: int, n_steps: int) -> float:
    """Seconds of the least recurrent step: one product with the state, and what turns its result into a state again.

    Whichever is faster, with numbers of 32 bits or of 16.
    """

    def seconds_with(dtype: Any) -> float:
        weight = jnp.full((n_seeds, n_hidden, 3 * n_hidden), 1e-3, dtype)

        def run(state: jax.Array) -> jax.Array:
            def step(state: jax.Array, _: None) -> tuple[jax.Array, None]:
                one, two, three = jnp.split(jnp.einsum("sbh,shg->sbg", state, weight), 3, axis=-1)
                return jnp.tanh(one + two * three), None

            return jax.lax.scan(step, state, None, length=n_steps, unroll=8)[0]

        compiled = jax.jit(run)
        state = jnp.ones((n_seeds, n_rows, n_hidden), dtype)
        return least_seconds(lambda: compiled(state), 3) / n_steps

    return min(map(seconds_with, (jnp.float32, jnp.bfloat16)))


class Marks(Silent):
    """Notes when each chunk was done."""

    def __init__(self) -> None:
        self.marks: list[tuple[int, float]] = []

    def advance(self, progress: Progress) -> None:
        self.marks.append((progress.step, time.perf_counter()))


def whole_loop(config: RunConfig, steps: int) -> Sequence[Row]:
    """Train for about n steps, and count once all is compiled; the one evaluation is at the end."""
    # Whole chunks: another number of updates would be compiled anew, in the middle of what is timed.
    chunk = config.chunk_steps
    steps, warmup = (chunk * max(1, n // chunk) for n in (steps, min(1000, steps // 10)))
    short = dataclasses.replace(
        config,
        steps=steps,
        warmup_steps=warmup,
        checkpoint_every=0,
        evaluation=dataclasses.replace(config.evaluation, every=steps),
    )
    noted = Marks()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        run = run_training(short, Path(folder) / "run", noted)
        first = run.metadata["seconds_to_first_learning"]
        seconds = time.perf_counter() - start
    marks = [mark for mark in noted.marks if mark[0] > warmup + 2 * chunk]
    rows = [("start-up to the first learning step", "–" if first is None else f"{first:.1f} s")]
    if len(marks) > 1:
        speed = len(config.seeds) * (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])
        per_seed = speed / len(config.seeds)
        rows.append((f"the whole loop but evaluations, {config.env}, seeds added up", f"{speed:,.0f} steps/s"))
        rows.append(("300,000 steps of every seed take about", duration(300_000 / per_seed)))
    rows.append(("this measurement of the loop took", f"{seconds:.0f} s"))
    return rows
