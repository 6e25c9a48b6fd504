"""What a replay refuses: numbers it cannot be made with, and episodes it cannot take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from diaster.config import IrcrConfig
from diaster.config.methods import MethodConfig
from diaster.envs.delayed import LARGEST_RETURN
from diaster.errors import DiasterError
from diaster.learning.machine import device_memory
from diaster.replay.store import store_bytes
from diaster.types import EnvSpec, Episode, Feedback


def check_arguments(horizon: int, capacity: int, seed: int, device: str) -> None:
    """Refuse what no replay can have, before anything is made."""
    for name, value in (("horizon", horizon), ("capacity", capacity), ("seed", seed)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise DiasterError(f"{name}={value!r} was given; it has to be a whole number.")
    if horizon < 1:
        raise DiasterError(f"horizon={horizon} was given; the longest episode has at least one step.")
    if capacity < 2 * (horizon + 1):
        raise DiasterError(
            f"capacity={capacity} is too small for episodes of {horizon} steps; it has to be at least "
            f"{2 * (horizon + 1)}, so that two of them fit."
        )
    if not 0 <= seed < 2**32:
        raise DiasterError(f"seed={seed} leaves the range 0 to 2^32 - 1; choose another one.")
    if device not in ("auto", "cpu", "gpu"):
        raise DiasterError(f"the device {device!r} was given; give 'auto', 'cpu' or 'gpu'.")


def method_table(method: object) -> dict[str, Any]:
    """The settings of a method that was given by its name, or as a table with it."""
    if isinstance(method, str):
        return {"name": method}
    if not isinstance(method, Mapping):
        raise DiasterError(
            f"method={method!r} was given; give its name, or a table of its settings such as "
            "dict(name='rrd', subset=32)."
        )
    return dict(method)


def check_known_rewards(method: MethodConfig, feedback: Feedback) -> None:
    """Refuse known rewards where they cannot be added to those of the method."""
    if feedback.has_known and isinstance(method, IrcrConfig):
        raise DiasterError(
            "the rewards of the method 'ircr' are relative, and known rewards cannot be added to them; use another "
            "method, or leave known_rewards out."
        )


def check_memory(capacity: int, spec: EnvSpec, device: jax.Device, feedback: Feedback) -> None:
    """Refuse a replay that cannot fit, before it is tried."""
    needed, available = store_bytes(capacity, spec.obs_dim, spec.action_dim, feedback), device_memory(device)
    if available is not None and needed > 0.9 * available:
        raise DiasterError(
            f"the replay needs {needed / 1e9:.1f} GB ({capacity} observations of {spec.obs_dim} numbers) and "
            f"{available / 1e9:.1f} GB are free on the {device.platform}; use a smaller capacity."
        )


def check_episode(episode: Episode, spec: EnvSpec, wants_hidden_rewards: bool, feedback: Feedback) -> None:
    """Refuse an episode that would harm what is learnt from it."""
    length, n_obs = episode.length, len(episode.obs)
    if n_obs != length + 1 or length == 0:
        raise DiasterError(
            f"an episode of {n_obs} observations and {length} actions was given; after every action comes an "
            "observation, so there is one more of these, and at least one action."
        )
    if length > spec.horizon:
        raise DiasterError(
            f"an episode of {length} steps was given, and horizon={spec.horizon} is the longest; give a larger horizon."
        )
    if episode.obs.shape[1:] != (spec.obs_dim,) or episode.action.shape[1:] != (spec.action_dim,):
        raise DiasterError(
            f"an episode with vectors of {episode.obs.shape[1:]} and {episode.action.shape[1:]} numbers was given; "
            f"observations have {spec.obs_dim} and actions {spec.action_dim}."
        )
    if not (np.isfinite(episode.obs).all() and np.isfinite(episode.action).all()):
        raise DiasterError("an episode with a number that is not finite was given; leave such episodes out.")
    _check_numbers_of(episode, feedback)
    if wants_hidden_rewards and (episode.hidden_reward is None or len(episode.hidden_reward) != length):
        raise DiasterError("the upper reference, 'dense', needs the true reward of every step; give hidden_reward.")


def _check_numbers_of(episode: Episode, feedback: Feedback) -> None:
    """Refuse feedback that is none, or of another form than the replay was made for."""
    if episode.spans is not None and not feedback.has_gaps:
        raise DiasterError("an episode with spans was given; make the replay with in_pieces=True.")
    numbers = [episode.episode_return] if episode.spans is None else episode.spans.number
    for number in numbers:
        if not (abs(number) <= LARGEST_RETURN or (feedback.has_gaps and np.isnan(number))):
            what = "a span with the number" if feedback.has_gaps else "an episode with the return"
            raise DiasterError(
                f"{what} {number} was given; it has to be a finite number of at most {LARGEST_RETURN:g}."
            )
    known = episode.known_reward
    if (known is not None) != feedback.has_known:
        raise DiasterError(
            "an episode without known_reward was given to a replay with known_rewards=True; give one for each step."
            if feedback.has_known
            else "an episode with known_reward was given; make the replay with known_rewards=True."
        )
    if known is not None and (np.shape(known) != (episode.length,) or not np.isfinite(known).all()):
        raise DiasterError(
            f"a known_reward of shape {np.shape(known)} was given for an episode of {episode.length} steps; give a "
            "finite number for each step."
        )
