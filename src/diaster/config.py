"""Every setting of a run: frozen dataclasses, presets, TOML, validation. Imports neither JAX nor Gymnasium.

Order of precedence: defaults < preset < file < flags. Nothing is written to after it has been resolved.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from diaster.errors import DiasterError, unknown

Auto = Literal["auto"]


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


@dataclass(frozen=True)
class DiasterConfig:
    """The decomposer: how returns become step rewards."""

    hidden: int = 256
    """Units of the GRU and of each of the two hidden layers of the step reward."""
    head: Literal["cumulative", "final"] = "cumulative"
    """cumulative: a segment's reward is a sum over its steps; final: it is read off its last state (the paper)."""
    segments: Literal["sampled", "all"] = "sampled"
    """sampled: each update looks at some short segments of an episode; all: at whole episodes, cut (the paper)."""
    n_cuts: int | Auto = "auto"
    """Cut points per episode with segments=all, 0 to horizon - 1; auto is the paper's 1."""
    segment_length: int = 4
    """Steps per segment with segments=sampled."""
    segments_per_episode: int = 16
    """Segments drawn per episode with segments=sampled."""
    batch_episodes: int = 4
    """Episodes per update."""
    batch_steps: int = 0
    """Budget of steps per update with segments=all; 0 gives every episode of the batch room for the horizon."""
    loss: Literal["mean", "sum"] = "mean"
    """Compare the mean per step with R/L, or the sum with R (the paper)."""
    variance_penalty: float = 0.015625
    """Weight of the variance of an episode's differences; the paper has 0."""
    learning_rate: float = 3e-4
    """Adam's step size for both nets."""
    reward_source: Literal["step_reward", "difference"] = "step_reward"
    """Learn from the step reward, or from the differences themselves (the paper's ablation)."""
    terminal_target: Literal["model", "return"] = "model"
    """What the last difference leads up to: the model's total, or the true return (the published code)."""
    normalize_inputs: bool = True
    """Normalise observations by their running mean and deviation before they enter the decomposer."""
    return_scale: float | Auto = "auto"
    """Returns are divided by this; auto takes it from the returns seen so far."""
    episode_draw: Literal["length", "uniform"] = "length"
    """Draw episodes in proportion to their length, or uniformly."""
    updates: int = 250
    """Updates per `every` environment steps."""
    every: int = 1000
    """See updates."""
    relabel_every: int = 5000
    """With reward_source=difference: environment steps between two renewals of all stored labels."""


@dataclass(frozen=True)
class SacConfig:
    """The learner: soft actor-critic with a learnt temperature."""

    hidden: int = 256
    """Units of each of the two hidden layers."""
    batch_size: int = 256
    """Transitions per update."""
    learning_rate: float = 3e-4
    """Adam's step size for actor, critics and temperature."""
    discount: float = 0.99
    """Discount per step."""
    target_rate: float = 0.005
    """Share of the critics that flows into their targets in each update."""
    initial_temperature: float = 1.0
    """Weight of the entropy at the start; it is learnt from there."""
    updates: int = 1
    """Updates per `every` environment steps."""
    every: int = 1
    """See updates."""


@dataclass(frozen=True)
class ReplayConfig:
    """The store of episodes."""

    capacity: int = 1_000_000
    """Observations kept; the oldest whole episodes make room."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How the policy and the decomposition are judged, on environments of their own."""

    every: int = 5000
    """Environment steps between two evaluations (the paper: 1000)."""
    episodes: int = 5
    """Deterministic episodes per evaluation (the paper: 10)."""
    held_out: int = 50
    """Evaluation episodes, from all of the run, to measure the decomposition on (one evaluation at the least)."""


@dataclass(frozen=True)
class RunConfig:
    """A run: together with its seeds these settings determine every byte of its result on a given machine."""

    env: tyro.conf.Positional[str] = ""
    """Gymnasium id of the environment."""
    steps: int = 100_000
    """Environment steps per seed."""
    seeds: Seeds = (0,)
    """How many seeds (5 means 0 to 4) or which (3,7,11); they train together."""
    method: str = "diaster"
    """How returns are decomposed."""
    agent: str = "sac"
    """What learns from the step rewards."""
    preset: str = "default"
    """A named set of settings: default, or paper (to the letter)."""
    horizon: int | Auto = "auto"
    """Longest episode; auto is 1000 for the paper's tasks, else the environment's own limit."""
    warmup_steps: int | Auto = "auto"
    """Steps of random actions before learning; auto is 5000 (InvertedPendulum 500), at most a tenth of the run."""
    chunk_steps: int = 200
    """Environment steps per seed between two exchanges with the learner; collection runs one chunk ahead."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where learning runs; auto takes a GPU if there is one. Environments and acting stay on the CPU."""
    workers: int | Auto = "auto"
    """Processes that step environments; 0 steps them in this process. The result does not depend on it."""
    imports: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="MODULE")]] = ()
    """A module to import first, for the environments it registers."""
    decomposer: DiasterConfig = field(default_factory=DiasterConfig)
    learner: SacConfig = field(default_factory=SacConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


class Schedule(typing.Protocol):
    """Anything that is updated so many times per so many environment steps."""

    @property
    def updates(self) -> int: ...

    @property
    def every(self) -> int: ...


class Task(typing.NamedTuple):
    """What the paper, or its published code, uses for one of its tasks."""

    steps: int
    warmup_steps: int = 5000
    horizon: int = 1000
    return_scale: float = 10.0


PAPER_TASKS: dict[str, Task] = {
    "InvertedPendulum-v5": Task(50_000, warmup_steps=500),
    "Hopper-v5": Task(500_000),
    "Swimmer-v5": Task(1_000_000),
    "Walker2d-v5": Task(1_000_000),
    "Ant-v5": Task(1_000_000),
    "Humanoid-v5": Task(2_000_000),
    "HumanoidStandup-v5": Task(2_000_000, return_scale=500.0),
}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "decomposer": {
            "head": "final",
            "segments": "all",
            "n_cuts": 1,
            "batch_episodes": 64,
            "loss": "sum",
            "variance_penalty": 0.0,
            "normalize_inputs": False,
            "return_scale": 10.0,
            "updates": 20,
        },
        "evaluation": {"every": 1000, "episodes": 10},
    },
}
PRESET_HELP = {
    "default": "one setting for all tasks: cumulative head, sampled segments, variance penalty",
    "paper": "the paper to the letter: final head, one cut, whole episodes, evaluation every 1000 steps",
}
METHOD_HELP = {"diaster": "differences of implicitly assigned sub-trajectory rewards (Lin et al., 2024)"}
AGENT_HELP = {"sac": "soft actor-critic with a learnt temperature, for continuous actions"}


def build_config(preset: str | None = None, file: Path | None = None, **settings: Any) -> RunConfig:
    """Defaults < preset < file < settings. A file may name its preset; an explicit one goes before it."""
    from_file = read_toml(file) if file else {}
    preset = preset or settings.get("preset") or from_file.get("preset") or "default"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    config: RunConfig = merge(RunConfig(), PRESETS[preset], f"preset '{preset}'")
    env = settings.get("env") or from_file.get("env")
    if preset == "paper" and env in PAPER_TASKS:
        scale = {"decomposer": {"return_scale": PAPER_TASKS[env].return_scale}}
        config = merge(config, scale, f"preset '{preset}'")
    config = merge(config, from_file, str(file))
    config = merge(config, {**settings, "preset": preset}, "the call")
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DiasterError(f"the configuration '{path}' cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DiasterError(f"the configuration '{path}' is not valid TOML: {error}.") from None


def write_toml(config: RunConfig) -> str:
    """The inverse of `build_config(file=…)`: every setting, so that a run can be repeated from it."""
    values = dataclasses.asdict(config)
    tables = {name: value for name, value in values.items() if isinstance(value, dict)}
    lines = [f"{name} = {_toml_value(value)}" for name, value in values.items() if name not in tables]
    for table, entries in tables.items():
        lines += ["", f"[{table}]", *(f"{name} = {_toml_value(value)}" for name, value in entries.items())]
    return "\n".join(lines) + "\n"


def merge(config: Any, settings: Mapping[str, Any], source: str, prefix: str = "") -> Any:
    """A copy of a (nested) configuration with some settings replaced; names and types are checked."""
    hints = typing.get_type_hints(type(config))  # without Annotated
    changes = {}
    for name, value in settings.items():
        dotted = prefix + name
        if name not in hints:
            raise unknown(f"setting in {source}", dotted, [prefix + known for known in hints])
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise DiasterError(f"'{dotted}' in {source} is a group of settings and takes a table, not {value!r}.")
            changes[name] = merge(getattr(config, name), value, source, dotted + ".")
        elif dotted == "seeds":
            changes[name] = expand_seeds(value)
        else:
            changes[name] = _checked(value, hints[name], dotted, source)
    return dataclasses.replace(config, **changes)


def validate(config: RunConfig) -> None:
    """Everything that can be known to be wrong before an environment is made."""
    if not config.env:
        raise DiasterError("no environment was named; give a Gymnasium id, e.g. diaster train Hopper-v5.")
    if config.method not in METHOD_HELP:
        raise unknown("method", config.method, METHOD_HELP)
    if config.agent not in AGENT_HELP:
        raise unknown("agent", config.agent, AGENT_HELP)
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    if not config.seeds:
        raise DiasterError("no seeds were given; give --seeds 5 for seeds 0 to 4, or --seeds 3,7,11.")
    if len(set(config.seeds)) < len(config.seeds):
        raise DiasterError(f"seeds {_listed(config.seeds)} name one twice; give each seed once.")
    if min(config.seeds) < 0 or max(config.seeds) >= 2**32:
        raise DiasterError(f"seeds {_listed(config.seeds)} leave the range 0 to 2^32 - 1; choose others.")
    _validate_ranges(config)
    decomposer = config.decomposer
    if decomposer.segments == "sampled":
        if decomposer.n_cuts != "auto":
            raise DiasterError(
                f"decomposer.n_cuts={decomposer.n_cuts} has no effect on sampled segments; "
                "add --decomposer.segments all to cut whole episodes, or leave n_cuts out."
            )
        if decomposer.terminal_target == "return":
            raise DiasterError("decomposer.terminal_target=return needs whole episodes; add --decomposer.segments all.")
    if decomposer.terminal_target == "return" and decomposer.reward_source == "difference":
        raise DiasterError(
            "decomposer.terminal_target=return shapes the targets of the step reward, and reward_source=difference has "
            "none; leave one of the two out."
        )
    if config.learner.batch_size > config.replay.capacity:
        raise DiasterError(
            f"learner.batch_size={config.learner.batch_size} is larger than replay.capacity={config.replay.capacity}; "
            "make the batch smaller or the replay larger."
        )
    if isinstance(config.warmup_steps, int) and config.warmup_steps >= config.steps:
        raise DiasterError(
            f"warmup_steps={config.warmup_steps} leaves nothing to learn from in steps={config.steps}; "
            "give more steps or a shorter warm-up."
        )


_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "horizon": 1,
    "warmup_steps": 1,
    "chunk_steps": 1,
    "workers": 0,
    "decomposer.hidden": 1,
    "decomposer.n_cuts": 0,
    "decomposer.segment_length": 1,
    "decomposer.segments_per_episode": 1,
    "decomposer.batch_episodes": 1,
    "decomposer.batch_steps": 0,
    "decomposer.variance_penalty": 0.0,
    "decomposer.updates": 0,
    "decomposer.every": 1,
    "decomposer.relabel_every": 1,
    "learner.hidden": 1,
    "learner.batch_size": 1,
    "learner.updates": 0,
    "learner.every": 1,
    "replay.capacity": 2,
    "evaluation.every": 1,
    "evaluation.episodes": 1,
    "evaluation.held_out": 1,
}
_ABOVE_ZERO = (
    "decomposer.learning_rate",
    "decomposer.return_scale",
    "learner.learning_rate",
    "learner.initial_temperature",
)
_UNIT_INTERVAL = ("learner.discount", "learner.target_rate")


def _validate_ranges(config: RunConfig) -> None:
    for name, least in _AT_LEAST.items():
        value = _lookup(config, name)
        if value != "auto" and not value >= least:
            raise DiasterError(f"{name}={value} is too small; it has to be at least {least}.")
        if value == math.inf:
            raise DiasterError(f"{name}={value} is no finite number; give one.")
    for name in _ABOVE_ZERO:
        value = _lookup(config, name)
        if value != "auto" and not (value > 0 and math.isfinite(value)):
            raise DiasterError(f"{name}={value} is out of range; it has to be a finite number above 0.")
    for name in _UNIT_INTERVAL:
        value = _lookup(config, name)
        if not 0.0 <= value <= 1.0:
            raise DiasterError(f"{name}={value} is out of range; it has to lie between 0 and 1.")


def _lookup(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def _listed(seeds: tuple[int, ...]) -> str:
    return ",".join(map(str, seeds))


def _checked(value: Any, hint: Any, name: str, source: str) -> Any:
    """The value if it fits the annotated type (an int is a float, a list a tuple), else an error."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal and value in arguments and isinstance(value, str):
        return value
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _checked(value, option, name, source)
            except DiasterError:
                continue
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, arguments[0], name, source) for item in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise DiasterError(f"'{name}' in {source} is {value!r}; it has to be {_described(hint)}.")


def _described(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " or ".join(f"'{argument}'" for argument in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is tuple:
        return f"a list, each item {_described(arguments[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)  # Python writes numbers as TOML does
