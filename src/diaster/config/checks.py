"""Everything that can be known to be wrong with settings before an environment is made."""

from __future__ import annotations

import math
from typing import Any

from diaster.config.agents import AGENT_CONFIGS
from diaster.config.methods import METHOD_CONFIGS, DiasterConfig
from diaster.config.run import RunConfig
from diaster.config.tasks import PRESETS
from diaster.errors import DiasterError, unknown


def validate(config: RunConfig) -> None:
    """Everything that can be known to be wrong before an environment is made."""
    if not config.env:
        raise DiasterError("no environment was named; give a Gymnasium id, e.g. diaster train Hopper-v5.")
    for what, name, known, settings in (
        ("method", config.method, METHOD_CONFIGS, config.decomposer),
        ("agent", config.agent, AGENT_CONFIGS, config.learner),
    ):
        if name not in known:
            raise unknown(what, name, known)
        if not isinstance(settings, known[name]):
            raise DiasterError(
                f"{what} '{name}' was given the settings of another one ({type(settings).__name__}); "
                "let build_config choose them."
            )
    if config.preset not in PRESETS:
        raise unknown("preset", config.preset, PRESETS)
    if not config.seeds:
        raise DiasterError("no seeds were given; give --seeds 5 for seeds 0 to 4, or --seeds 3,7,11.")
    if len(set(config.seeds)) < len(config.seeds):
        raise DiasterError(f"seeds {_listed(config.seeds)} name one twice; give each seed once.")
    if min(config.seeds) < 0 or max(config.seeds) >= 2**32:
        raise DiasterError(f"seeds {_listed(config.seeds)} leave the range 0 to 2^32 - 1; choose others.")
    _validate_ranges(config)
    if isinstance(config.decomposer, DiasterConfig):
        _validate_diaster(config.decomposer)
    if config.envs > config.chunk_steps:
        raise DiasterError(
            f"envs={config.envs} are more than the steps they share, chunk_steps={config.chunk_steps}; "
            "give fewer environments or longer chunks."
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


def _validate_diaster(decomposer: DiasterConfig) -> None:
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


_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "horizon": 1,
    "warmup_steps": 1,
    "chunk_steps": 1,
    "envs": 1,
    "checkpoint_every": 0,
    "devices": 1,
    "workers": 0,
    "env_retries": 0,
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
    "decomposer.subset": 1,
    "decomposer.auxiliary_weight": 0.0,
    "decomposer.elite_episodes": 1,
    "learner.hidden": 1,
    "learner.batch_size": 1,
    "learner.updates": 0,
    "learner.every": 1,
    "learner.gradient_clip": 0.0,
    "learner.exploration_noise": 0.0,
    "learner.target_noise": 0.0,
    "learner.target_noise_clip": 0.0,
    "learner.policy_every": 1,
    "learner.target_every": 1,
    "learner.exploration_steps": 1,
    "learner.annealing_updates": 0,
    "replay.capacity": 2,
    "evaluation.every": 1,
    "evaluation.episodes": 1,
    "evaluation.held_out": 1,
}
# Sizes of arrays; larger ones fit into no machine, and a file could claim them.
_AT_MOST: dict[str, int] = {
    "horizon": 10_000_000,
    "decomposer.hidden": 65_536,
    "decomposer.elite_episodes": 10_000,
    "learner.hidden": 65_536,
}
_ABOVE_ZERO = (
    "step_seconds",
    "decomposer.learning_rate",
    "decomposer.return_scale",
    "learner.learning_rate",
    "learner.initial_temperature",
)
_UNIT_INTERVAL = (
    "learner.discount",
    "learner.target_rate",
    "learner.discrete_entropy",
    "learner.exploration_final",
    "decomposer.averaging",
)


def _validate_ranges(config: RunConfig) -> None:
    for name, least in _AT_LEAST.items():
        value = _lookup(config, name)
        if value is None:
            continue
        if value not in ("auto", "all") and not value >= least:
            raise DiasterError(f"{name}={value} is too small; it has to be at least {least}.")
        if value == math.inf:
            raise DiasterError(f"{name}={value} is no finite number; give one.")
    for name, most in _AT_MOST.items():
        value = _lookup(config, name)
        if isinstance(value, int) and value > most:
            raise DiasterError(f"{name}={value} is too large; it has to be at most {most}.")
    for name in _ABOVE_ZERO:
        value = _lookup(config, name)
        if value not in (None, "auto") and not (value > 0 and math.isfinite(value)):
            raise DiasterError(f"{name}={value} is out of range; it has to be a finite number above 0.")
    for name in _UNIT_INTERVAL:
        value = _lookup(config, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise DiasterError(f"{name}={value} is out of range; it has to lie between 0 and 1.")


def _lookup(config: Any, dotted: str) -> Any:
    """A setting by its name; None where the method or the learner has no such setting."""
    for name in dotted.split("."):
        config = getattr(config, name, None)
    return config


def _listed(seeds: tuple[int, ...]) -> str:
    return ",".join(map(str, seeds))
