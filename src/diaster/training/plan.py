"""What a run is about to do, said before it does it: what it will take, and where its budget is too small."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from diaster.actors.collector import Share
from diaster.actors.placement import available_cores
from diaster.config import RunConfig, Schedule
from diaster.training.estimate import estimate
from diaster.training.progress import DAY, Reporter
from diaster.training.schedule import chunks, is_evaluated, n_evaluations, warmup
from diaster.types import EnvSpec


def announce(reporter: Reporter, config: RunConfig, spec: EnvSpec, is_on_gpu: bool, step: int = 0) -> None:
    """Tell a person what begins, or goes on at a step."""
    reporter.start(config, spec, step)
    reporter.note(expected(config, spec, available_cores(), is_on_gpu, step))
    if step > 0:
        return
    if (sentence := evaluations(config)) is not None:
        reporter.note(sentence)
    for sentence in warnings_of_budget(config):
        reporter.warn(sentence)


def expected(config: RunConfig, spec: EnvSpec, cores: int, is_on_gpu: bool, step: int = 0) -> str:
    """Time and memory, from `step` on."""
    need = estimate(config, spec, cores, is_on_gpu)
    seconds = need.seconds * (1.0 - step / config.steps)
    where = "with a GPU" if is_on_gpu else "with two cores" if cores >= 2 else "with one core"
    less = "; fewer --steps or --seeds take less" if seconds > DAY else ""
    return (
        f"this will take about {spoken(seconds)} and {need.memory / 1e9:.1f} GB of memory, by rough figures of a "
        f"machine {where}; the first chunks of learning will tell more{less}"
    )


def spoken(seconds: float) -> str:
    """A time that is known roughly."""
    for unit, name, most in ((1, "seconds", 100), (60, "minutes", 100 * 60), (60 * 60, "hours", 2 * DAY)):
        if seconds < most:
            count = seconds / unit
            return f"{count:.1f} {name}" if count < 9.95 and unit > 60 else f"{count:.0f} {name}"
    return f"{seconds / DAY:.1f} days"


def evaluations(config: RunConfig) -> str | None:
    """Where they fall, if that is not what was asked for, or makes no curve."""
    every, size = config.evaluation.every, config.chunk_steps
    if n_evaluations(config, 0) == 1:
        example = max(size, config.steps // 20 // size * size)
        curve = f"; --evaluation.every {example} makes a curve" if example < config.steps else ""
        return f"one evaluation, at the end{curve}"
    if every % size == 0:
        return None
    first = [f"{chunk.end:,}" for chunk in islice((c for c in chunks(config) if is_evaluated(config, c)), 3)]
    return (
        f"evaluations take place at the ends of chunks of {size:,} steps (--chunk-steps): --evaluation.every {every} "
        f"makes that {', '.join(first)}{', …' if n_evaluations(config, 0) > 3 else ''}"
    )


def warnings_of_budget(config: RunConfig) -> Iterator[str]:
    """Why a run may learn nothing in its steps, with a number of steps in which it does."""
    warm, two_episodes = warmup(config), _steps_of_two_episodes(config)
    first_updates = {
        "the decomposer's": max(warm, _steps_of_one_update(config.method)),
        "the agent's": warm + _steps_of_one_update(config.agent),
    }
    enough = max(two_episodes, *first_updates.values(), warm + config.chunk_steps)
    for whose, step in first_updates.items():
        if config.steps < step:
            yield (
                f"the run ends after {config.steps:,} steps, before {whose} first update, which is due at {step:,}; "
                f"--steps {enough} are enough to begin with."
            )
            return
    if config.steps < two_episodes:
        shared = f" in each of {config.envs} environments" if config.envs > 1 else ""
        yield (
            f"{config.steps:,} steps may hold fewer than two episodes, and a seed learns from two on: an episode may "
            f"last {config.horizon:,} steps{shared}; --steps {enough} are enough in any case, or give a shorter "
            f"--horizon."
        )


def _steps_of_one_update(schedule: Schedule) -> int:
    """After how many steps the first one is due; 0 where there are none."""
    return -(-schedule.every // schedule.updates) if schedule.updates else 0


def _steps_of_two_episodes(config: RunConfig) -> int:
    """After how many steps a seed has two, if they last as long as they may."""
    assert isinstance(config.horizon, int)
    size, second = config.chunk_steps, Share(1, config.envs).of_steps(config.chunk_steps)
    if config.envs == 1:
        return 2 * config.horizon
    return size * (1 + -(-config.horizon // second))  # a chunk may be cut in two by the end of the warm-up
