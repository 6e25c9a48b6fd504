"""Where the time of a chunk goes: the parts of the loop on the host, and the kernels of the compiled updates.

    python benchmarks/where.py loop --seeds 20 --steps 20000 --count-from 12000      # ms per chunk in each part
    python benchmarks/where.py kernels agent --seeds 5 --agent xqc --size full --precision bfloat16   # JAX's profiler
    python benchmarks/where.py kernels decomposer --preset paper --updates 5 --precision bfloat16
    python benchmarks/where.py collect --env Hopper-v5                               # microseconds per step, untrained

Parts of the loop are nested: what one waits for is counted in its caller as well. What `Trainer._collect` takes beyond
`start` and `finish` of its fleet is the wait for policies, and so for the learning of the chunk before. Evaluations run
concurrently; a thread records them (`record`, `mean_metrics`, `diagnose`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from threadpoolctl import threadpool_limits

from diaster.actors.acting import HostParameters
from diaster.actors.collector import Collector
from diaster.actors.fleet import LocalFleet
from diaster.actors.rollout import MakeEnv
from diaster.actors.workers import WorkerFleet
from diaster.agents import make_agent
from diaster.config import build_config
from diaster.decomposers import make_decomposer
from diaster.envs.making import make_env
from diaster.learning.learner import Learner
from diaster.learning.machine import use_compilation_cache
from diaster.learning.reward_model import RewardModel
from diaster.rundir.writer import RunWriter
from diaster.training import evaluations
from diaster.training.bench import random_episode
from diaster.training.loop import Trainer
from diaster.training.progress import Progress, Silent
from diaster.training.resolve import resolve
from diaster.training.train import run_training
from diaster.types import EPISODIC

PARTS = {
    Trainer: ("_learn", "_collect", "_evaluate", "_report", "_store", "_checkpoint"),
    evaluations.Evaluations: ("start", "advance", "finish"),
    Learner: ("fit_decomposer", "renew_labels", "fit_agent", "send_policies", "store_episodes", "keep_nets"),
    WorkerFleet: ("start", "finish"),
    LocalFleet: ("finish",),
    RewardModel: ("start",),
    RunWriter: ("record",),
    evaluations: ("mean_metrics", "diagnose"),
}  # fmt: skip


class Clock(Silent):
    """Notes when each chunk was done, and what its parts took from some step on."""

    def __init__(self, first: int) -> None:
        self.first, self.marks = first, list[tuple[int, float]]()
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def advance(self, progress: Progress) -> None:
        if progress.step >= self.first:
            self.marks.append((progress.step, time.perf_counter()))

    def watch(self, owner: Any, name: str) -> None:
        plain, label = getattr(owner, name), f"{owner.__name__}.{name}"

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return plain(*arguments, **named)
            finally:
                if self.marks:
                    self.seconds[label] += time.perf_counter() - start
                    self.calls[label] += 1

        setattr(owner, name, timed)


def loop(arguments: argparse.Namespace) -> None:
    clock = Clock(arguments.count_from)
    for owner, names in PARTS.items():
        for name in names:
            clock.watch(owner, name)
    config = build_config(
        arguments.preset,
        env=arguments.env,
        steps=arguments.steps,
        seeds=arguments.seeds,
        envs=arguments.envs,
        agent={"name": arguments.agent, **({"size": arguments.size} if arguments.size else {})},
        warmup_steps=1000,
    )
    with tempfile.TemporaryDirectory() as folder:
        run_training(config, Path(folder) / "run", clock)
    (first, start), (last, end) = clock.marks[0], clock.marks[-1]
    lengths = np.diff([moment for _, moment in clock.marks])
    print(f"{arguments.seeds * (last - first) / (end - start):,.0f} steps/s")
    print(f"ms per chunk: mean {1e3 * lengths.mean():.1f}, median {1e3 * np.median(lengths):.1f}")
    for name, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
        each = 1e3 * seconds / clock.calls[name]
        print(f"{1e3 * seconds / len(lengths):9.2f} ms per chunk, {each:9.2f} ms each  {name}")


def kernels(arguments: argparse.Namespace) -> None:
    use_compilation_cache()
    length = 1000
    settings = {"precision": arguments.precision} if arguments.precision else {}
    of_agent, of_method = (settings, {}) if arguments.part == "agent" else ({}, settings)
    of_agent |= {"size": arguments.size} if arguments.size else {}
    config, spec = resolve(
        build_config(
            arguments.preset,
            env=arguments.env,
            steps=300_000,
            seeds=arguments.seeds,
            horizon=length,
            method={"name": "diaster", **of_method},
            agent={"name": arguments.agent, **of_agent},
        )
    )
    learner = Learner(
        make_decomposer(config.method, length), make_agent(config.agent, spec), spec, config.seeds, 20 * length,
        config.agent.batch_size, jax.devices()[0],
    )  # fmt: skip
    random = np.random.default_rng(0)
    for _ in range(8):
        learner.store_episodes([[random_episode(random, length, spec, EPISODIC)] for _ in config.seeds])
    ready, n = np.ones(len(config.seeds), bool), arguments.updates
    fit = learner.fit_agent if arguments.part == "agent" else learner.fit_decomposer

    def call() -> float:
        start = time.perf_counter()
        fit(ready, 0, n)
        jax.block_until_ready(learner.state)
        return time.perf_counter() - start

    call()
    print(f"{1e3 * min(call() for _ in range(5)) / n:.4f} ms per update, the least of five calls of {n}")
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        [file] = Path(folder).rglob("*.trace.json.gz")
        with gzip.open(file) as trace:
            events = json.load(trace)["traceEvents"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    on_gpu = [e for e in events if e.get("ph") == "X" and "Stream" in threads.get((e["pid"], e["tid"]), "")]
    durations: dict[str, list[float]] = defaultdict(list)
    for event in on_gpu or [e for e in events if e.get("ph") == "X" and not e["name"].startswith("$")]:
        durations[event["name"]].append(event["dur"])
    if on_gpu:
        print(f"{len(on_gpu) / n:.1f} kernels per update")
    for name, each in sorted(durations.items(), key=lambda item: -sum(item[1]))[: arguments.lines]:
        print(f"{len(each) / n:8.2f} x {np.mean(each):8.2f} us = {sum(each) / n:9.2f} us per update  {name[:90]}")


def collect(arguments: argparse.Namespace) -> None:
    """A step collected by one process with a policy as it is at first; and with the environment's step as it comes."""
    config, spec = resolve(build_config(env=arguments.env, steps=300_000, agent="sac"))
    agent = make_agent(config.agent, spec)
    acting = agent.policy(agent.init(jax.random.key(0), spec))
    layers = tuple((np.asarray(layer.weight), np.asarray(layer.bias)) for layer in acting.layers)
    policy = HostParameters(layers, float(acting.exploration))

    def plain() -> Any:
        env = make_env(spec.id, spec.horizon)
        vars(env.unwrapped).pop("step", None)  # what `envs/planar.py` has put there, if anything
        return env

    makers: dict[str, MakeEnv] = {
        "as it is here": partial(make_env, spec.id, spec.horizon),
        "with Gymnasium's own step": plain,
    }
    for name, make in makers.items():
        collector, times = Collector(make, spec, agent.acting, 0), []
        with threadpool_limits(limits=1, user_api="blas"):
            for chunk in range(6):
                start = time.perf_counter()
                collector.collect(policy, chunk, arguments.steps)
                times.append(time.perf_counter() - start)
        print(f"{1e6 * min(times) / arguments.steps:8.1f} us per step, {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_loop, of_kernels = commands.add_parser("loop"), commands.add_parser("kernels")
    of_collect = commands.add_parser("collect")
    of_collect.add_argument("--env", default="Hopper-v5")
    of_collect.add_argument("--steps", type=int, default=2000)
    of_collect.set_defaults(run=collect)
    for command in (of_loop, of_kernels):
        command.add_argument("--env", default="Hopper-v5")
        command.add_argument("--seeds", type=int, default=1)
        command.add_argument("--preset", default="default")
        command.add_argument("--agent", default="sac")
        command.add_argument("--size", choices=["small", "full"], help="of xqc")
    of_loop.add_argument("--steps", type=int, default=20_000)
    of_loop.add_argument("--count-from", type=int, default=12_000)
    of_loop.add_argument("--envs", type=int, default=1)
    of_loop.set_defaults(run=loop)
    of_kernels.add_argument("part", choices=["agent", "decomposer"])
    of_kernels.add_argument("--updates", type=int, default=100)
    of_kernels.add_argument(
        "--precision", choices=["float32", "bfloat16"], help="of an agent's nets, or with --preset paper"
    )
    of_kernels.add_argument("--lines", type=int, default=40)
    of_kernels.set_defaults(run=kernels)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
