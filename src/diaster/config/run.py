"""The settings of a run, with those of its method and of its agent inside."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from diaster.config.agents import AGENTS, AgentConfig, XqcConfig
from diaster.config.fitted import Auto
from diaster.config.limits import FINITE, MOST, Count, CountOrNone, Fraction, Positive, at_least, at_most
from diaster.config.methods import METHODS, DiasterConfig, MethodConfig
from diaster.errors import DiasterError, unknown

if typing.TYPE_CHECKING:
    from diaster.types import Feedback

MOST_SEEDS = 10_000  # they train together, each with a replay of its own


def parse_seeds(text: str) -> tuple[int, ...]:
    """'5' means seeds 0 … 4; '3,7,11' names them ('3,' names one)."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise DiasterError(
            f"seeds '{text}' are neither a count nor a list; give --seeds 5 for seeds 0 to 4, or --seeds 3,7,11."
        ) from None
    return tuple(numbers) if "," in text else expand_seeds(numbers[0] if numbers else 0)


def expand_seeds(seeds: Any) -> tuple[int, ...]:
    """A count stands for the seeds 0 … count − 1; a list names them."""
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if isinstance(seeds, list | tuple | range) and all(type(seed) is int for seed in seeds):
        return tuple(seeds)
    if type(seeds) is int:
        if seeds < 1:
            raise DiasterError(f"{seeds} seeds were asked for; at least one is needed, e.g. --seeds 5.")
        if seeds > MOST_SEEDS:
            raise DiasterError(f"{seeds} seeds were asked for; at most {MOST_SEEDS} train together, e.g. --seeds 5.")
        return tuple(range(seeds))
    raise DiasterError(f"seeds={seeds!r} are neither a count nor a list of whole numbers; give 5, or [3, 7, 11].")


Seeds = Annotated[
    tuple[int, ...],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N|A,B,...",
        instance_from_str=lambda args: parse_seeds(args[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda seeds: [",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")],
    ),
]


EnvKwargs = Annotated[
    dict[str, Any],
    # `take_env_kwargs` reads them before the parser does, which knows no names of its own for them; this is its help.
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE",
        instance_from_str=lambda args: {},
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda kwargs: [", ".join(f"{name}={value}" for name, value in kwargs.items()) or "none"],
    ),
    tyro.conf.arg(name="env-kwargs.NAME"),
]


@dataclass(frozen=True)
class ReplayConfig:
    """The store of episodes."""

    capacity: Annotated[int, at_least(2), at_most(MOST)] = 1_000_000
    """Observations kept; the oldest whole episodes make room."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How the policy and the decomposition are judged, on environments of their own."""

    every: Count = 5000
    """Environment steps between two evaluations (the paper: 1000); each is at the end of its chunk (--chunk-steps)."""
    episodes: Count = 5
    """Deterministic episodes per evaluation (the paper: 10)."""
    held_out: Count = 50
    """Evaluation episodes, from the whole run, on which the decomposition is measured (at least one evaluation)."""
    stop_at: Annotated[float, FINITE] | Literal["never"] = "never"
    """End the run once an evaluation's return, the mean of all seeds, has reached this."""
    stop_after: CountOrNone = 0
    """End the run after this many evaluations in a row without a larger return (mean of all seeds); 0: never."""


@dataclass(frozen=True)
class ImageConfig:
    """How images are seen, where an environment shows them."""

    side: Annotated[int, at_least(8), at_most(256)] = 64
    """Pixels of each side: images are made small and square."""
    frames: Annotated[int, at_least(1), at_most(16)] = 3
    """How many of the last images are seen together; a single one does not show what moves."""
    colour: bool = False
    """Keep colours, in three times the memory; otherwise images are grey."""


@dataclass(frozen=True)
class RunConfig:
    """A run: together with its seeds these settings determine every byte of its result on a given machine."""

    env: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="ENV")]] = ""
    """Gymnasium id of the environment; module:Id imports a module first, module:function calls that function."""
    steps: Count = 100_000
    """Environment steps per seed."""
    seeds: Seeds = (0,)
    """How many seeds (5 means 0 to 4) or which (3,7,11); they train together."""
    preset: str = "default"
    """A named set: default, or paper (to the letter, with SAC, but one decomposer update for fifty of the policy)."""
    horizon: Annotated[int, at_least(1), at_most(10_000_000)] | Auto = "auto"
    """Longest episode; auto is 1000 for the paper's tasks, else the environment's own limit."""
    feedback_every: Count | Literal["episode", "environment"] = "episode"
    """episode: one number per episode; N: one for every N steps; environment: where it says so (info["feedback"])."""
    known_rewards: bool = False
    """A part of each step's reward is known (info["known_reward"]): it passes through, and the rest is decomposed."""
    warmup_steps: Count | Auto = "auto"
    """Random steps before learning; auto is 5000 (InvertedPendulum 500), at most a tenth; more where envs need them."""
    warmup_noise: Literal["uniform", "sizes", "varied"] = "uniform"
    """Random actions: uniform; sizes: normal, of another size in each episode; varied: its colour and bias too."""
    restart_agent_at: Fraction = 0.0
    """Begin a seed's agent anew, once, when the fit_r2 of its rewards first rises to this; replay stays; 0: never."""
    chunk_steps: Count = 200
    """Environment steps per seed in a chunk; a chunk is collected while the one before is learnt from."""
    envs: Count = 1
    """Environments that share the steps of a seed concurrently: faster with a GPU, but an episode ends later."""
    checkpoint_every: CountOrNone | Auto = "auto"
    """Environment steps between two checkpoints; auto is about every five minutes, 0 writes none."""
    keep_checkpoint: CountOrNone = 500
    """A complete run keeps its last checkpoint up to this many megabytes, for resume --steps; 0: never."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where learning runs; auto takes a GPU if there is one. Environments and acting stay on the CPU."""
    devices: Count | Literal["all"] = 1
    """How many devices of that kind the seeds are spread over; all: every one of this machine."""
    workers: CountOrNone | Auto = "auto"
    """Processes that collect, and as many that evaluate; 0: none. The result does not depend on this."""
    env_retries: CountOrNone = 3
    """Faults of an environment in a row (it raised, died, hung, gave NaN) that a run survives; episodes are dropped."""
    isolate_envs: bool = False
    """Step every environment in a process of its own, so that a run survives one that dies or hangs."""
    step_seconds: Positive = 60.0
    """With isolate_envs: the longest time a step or a reset may take."""
    from_run: Annotated[str, tyro.conf.arg(name="from", metavar="RUN")] = ""
    """A finished run whose nets this one begins with, critics and normalisers included; optimisers begin anew."""
    imports: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE")]] = ()
    """A module to import first, for the environments it registers."""
    env_kwargs: EnvKwargs = field(default_factory=dict, hash=False)
    """An argument of the environment by its name, e.g. --env-kwargs.map-name 8x8; in a file a table [env_kwargs]."""
    method: MethodConfig = field(default_factory=DiasterConfig)
    agent: AgentConfig = field(default_factory=XqcConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    image: ImageConfig = field(default_factory=ImageConfig)

    @property
    def feedback(self) -> Feedback:
        """How feedback on its episodes comes."""
        from diaster.types import Feedback  # with NumPy, which help does without

        return Feedback(self.feedback_every, self.known_rewards)


def default_config(method: Any, agent: Any) -> RunConfig:
    """The defaults of a run with this method and this agent."""
    of_method, of_agent = _settings_types(method, agent)
    return RunConfig(method=of_method(), agent=of_agent())


def run_config_type(method: str, agent: str) -> type[RunConfig]:
    """RunConfig with the settings of one method and one agent in the place of "any": what a parser needs."""
    kinds = dict(zip(("method", "agent"), _settings_types(method, agent), strict=True))
    fields = {name: field(default_factory=kind) for name, kind in kinds.items()}
    body = {"__annotations__": kinds, "__doc__": RunConfig.__doc__, "__module__": RunConfig.__module__, **fields}
    return dataclass(frozen=True)(type("RunConfig", (RunConfig,), body))


def _settings_types(method: Any, agent: Any) -> tuple[type[MethodConfig], type[AgentConfig]]:
    return _named("method", method, METHODS), _named("agent", agent, AGENTS)


def _named(what: str, name: Any, known: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        raise unknown(what, str(name), known)
    return known[name].settings


class Schedule(typing.Protocol):
    """Anything that is updated a number of times per number of environment steps."""

    @property
    def updates(self) -> int: ...

    @property
    def every(self) -> int: ...


def updates_due(schedule: Schedule, n_steps: int) -> int:
    """How many updates a schedule asks for in the first n steps.

    One that has `fewer_after` = m asks for √(m/n) times as many per step after m: of those steps it counts the
    integral, 2√(mn) − m, in whole numbers.
    """
    m: int = getattr(schedule, "fewer_after", 0)
    counted = 2 * math.isqrt(m * n_steps) - m if 0 < m < n_steps else n_steps
    return counted * schedule.updates // schedule.every
