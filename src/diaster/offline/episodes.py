"""An episode of a data set: as it is stored, once it has been checked, and as nets see it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from diaster.offline.faults import BadEpisodeError, Faults
from diaster.types import EnvSpec, Episode

MOST_ACTIONS = 4096  # whole numbers in a wider range are no choice among actions
BYTES_TOGETHER, MOST_TOGETHER = 2**25, 2**16
FloatArray = NDArray[np.float32]
Item = TypeVar("Item", "Sound | None", Episode)


class Recorded(NamedTuple):
    """An episode as a data set holds it; nothing has been checked. Fields may hold anything or be missing."""

    number: int  # from 0, in the order of the data set
    label: str  # what a message calls it
    actions: Any = None  # [L, A], or [L]; for turns their numbers [L, F]
    observations: Any = None  # [L, D], or [L+1, D] with the last one; None for turns
    next_observations: Any = None  # [L, D]
    rewards: Any = None  # [L], of the data set itself; never shown to learning, but for their sum
    outcome: Any = None  # the one number of the episode
    terminated: bool = False
    group: Any = None
    features: tuple[str, ...] = ()  # names of a turn's numbers
    texts: tuple[str, ...] = ()  # of turns; only carried along
    fault: str | None = None  # what its reader has found wrong


class Form(NamedTuple):
    """What all episodes of a data set have in common."""

    obs_dim: int  # 0 for turns
    action_dim: int
    discrete: bool  # actions are whole numbers, one per step
    features: tuple[str, ...] = ()

    def text(self) -> str:
        """For messages."""
        what = "1 whole number" if self.discrete else _numbers(self.action_dim)
        return (
            f"turns of {what}" if not self.obs_dim else f"observations of {_numbers(self.obs_dim)}, actions of {what}"
        )


class Sound(NamedTuple):
    """An episode in which everything is there, finite and of one form."""

    number: int
    label: str
    obs: FloatArray  # [L+1, D]; [L+1, 0] for turns
    action: NDArray[Any]  # [L, A], or [L] whole numbers
    outcome: float  # NaN where there is none and none is needed
    rewards: NDArray[np.float64] | None  # [L]
    terminated: bool
    group: str | None
    features: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def length(self) -> int:
        return len(self.action)

    @property
    def form(self) -> Form:
        is_discrete = self.action.ndim == 1
        return Form(self.obs.shape[1], 1 if is_discrete else self.action.shape[1], is_discrete, self.features)


class Source(Protocol):
    """A data set that can be read again and again, episode by episode, in the same order."""

    name: str
    faults: Faults

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order; of those not wanted nothing need be read, and they are left out."""

    def close(self) -> None: ...


def judged_episodes(
    source: Source, needs_outcome: bool, is_binary: bool, wanted: NDArray[np.bool_] | None = None
) -> Iterator[Sound | None]:
    """The episodes of a data set; None in the place of one that is skipped. What is wrong is raised or counted."""
    form: Form | None = None
    for recorded in source.episodes(wanted):
        try:
            episode = checked(recorded, form, needs_outcome, is_binary)
        except BadEpisodeError as error:
            source.faults.bad_episode(recorded.number, str(error))
            yield None
            continue
        form = form or episode.form
        if form.discrete and not episode.form.discrete:
            form = form._replace(discrete=False)  # whole numbers were written without a point
        yield episode


def steps_together(spec: EnvSpec) -> int:
    """Steps whose rewards are computed at once: as many as take some tens of megabytes."""
    return max(1, min(MOST_TOGETHER, BYTES_TOGETHER // (4 * (2 * spec.obs_dim + spec.action_dim))))


def in_groups(episodes: Iterable[Item], most_steps: int) -> Iterator[list[Item]]:
    """Episodes in order, about so many steps at a time; None stands for one that is skipped."""
    group: list[Item] = []
    n_steps = 0
    for episode in episodes:
        group.append(episode)
        n_steps += 1 if episode is None else episode.length
        if n_steps >= most_steps:
            yield group
            group, n_steps = [], 0
    if group:
        yield group


def checked(recorded: Recorded, form: Form | None, needs_outcome: bool, is_binary: bool) -> Sound:
    """The episode, if nothing is wrong with it; `form` is that of the episodes before it."""

    def bad(why: str) -> BadEpisodeError:
        return BadEpisodeError(f"{recorded.label}: {why}")

    if recorded.fault is not None:
        raise bad(recorded.fault)
    if recorded.actions is None:
        raise bad("it has no actions")
    if form is not None and recorded.features != form.features:
        raise bad(f"its turns have {_names(recorded.features)}, and those before it {_names(form.features)}")
    what = "actions" if recorded.observations is not None else "turns"
    given = _array(recorded.actions, what, bad)
    if given.ndim and not len(given):
        raise bad("it has no steps")
    action = _actions(given, what, bad)
    length = len(action)
    obs = _observations(recorded, length, bad)
    if form is not None:
        _check_widths(obs, action, form, what, bad)
    rewards = None
    if recorded.rewards is not None:
        rewards = _array(recorded.rewards, "rewards", bad).reshape(-1).astype(np.float64)
        if len(rewards) != length:
            raise bad(f"it has {length} steps and {len(rewards)} rewards")
        _check_finite(rewards, "rewards", bad)
    outcome = _outcome(recorded.outcome, rewards, needs_outcome, what, bad)
    if is_binary and needs_outcome and outcome not in (0.0, 1.0):
        raise bad(f"its outcome is {outcome:g}, and a binary outcome is 0 or 1")
    group = None if recorded.group is None else str(recorded.group)
    return Sound(
        number=recorded.number,
        label=recorded.label,
        obs=obs,
        action=action,
        outcome=outcome,
        rewards=rewards,
        terminated=bool(recorded.terminated),
        group=group,
        features=tuple(recorded.features),
        texts=tuple(recorded.texts),
    )


def as_learnt(episode: Sound, spec: EnvSpec, target: float) -> Episode:
    """The episode as learning sees it: actions as nets see them, and one number."""
    obs = episode.obs if episode.obs.shape[1] else np.zeros((episode.length + 1, 1), np.float32)
    is_number_for_vector = episode.action.ndim == 1 and not spec.discrete  # whole numbers among fractions
    action = episode.action[:, None] if is_number_for_vector else episode.action
    return Episode(obs, spec.from_env(action), target, episode.terminated)


def check_actions(episode: Sound, spec: EnvSpec) -> None:
    """Refuse discrete actions that a model does not know."""
    if spec.discrete:
        place = episode.action - spec.first_action
        unknown = np.flatnonzero((place < 0) | (place >= spec.action_dim))
        if len(unknown):
            row, last = int(unknown[0]), spec.first_action + spec.action_dim - 1
            raise BadEpisodeError(
                f"{episode.label}: row {row} has the action {int(episode.action[row])}, and the model knows "
                f"{spec.first_action} to {last}"
            )


def check_form(found: Form, expected: Form, name: str) -> None:
    """Refuse a data set that is of another form than the one a model was fitted to."""
    if found.features != expected.features:
        has, takes = (
            f"turns with {_names(form.features)}" if form.features else form.text() for form in (found, expected)
        )
        raise BadEpisodeError(f"{name} has {has}, and the model was fitted to {takes}.")
    is_same = (found.obs_dim, found.action_dim) == (expected.obs_dim, expected.action_dim)
    if not is_same or (expected.discrete and not found.discrete):
        raise BadEpisodeError(f"{name} has {found.text()}, and the model was fitted to {expected.text()}.")


def _array(values: Any, what: str, bad: Any) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise bad(f"its {what} {_what_is_wrong(values)}")
    return array


def _what_is_wrong(values: Any) -> str:
    """Why a list of lists is no table of numbers."""
    if isinstance(values, list | tuple) and values and isinstance(values[0], list | tuple):
        widths = [len(row) if isinstance(row, list | tuple) else 0 for row in values]
        for row, width in enumerate(widths):
            if width != widths[0]:
                return f"have {_numbers(widths[0])} in row 0 and {_numbers(width)} in row {row}"
    for row, value in enumerate(_rows(values)):
        flat = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int | float) for one in flat):
            return f"hold something that is no number in row {row}"
    return "are no table of numbers"


def _rows(values: Any) -> Iterable[Any]:
    return values if isinstance(values, list | tuple) else []


def _actions(array: NDArray[Any], what: str, bad: Any) -> NDArray[Any]:
    if array.ndim == 0:
        raise bad(f"its {what} are a single number; give one per step")
    if array.ndim == 1 and array.dtype.kind in "biu":
        return array.astype(np.int64)
    if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "biu":
        return array[:, 0].astype(np.int64)
    flat = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    if flat.shape[1] == 0:
        raise bad(f"its {what} are empty")
    _check_finite(flat, what, bad)
    return flat


def _observations(recorded: Recorded, length: int, bad: Any) -> FloatArray:
    """All L+1 of them. Without the last one, the one before stands for it."""
    if recorded.observations is None:
        return np.zeros((length + 1, 0), np.float32)
    obs = _flat_rows(_array(recorded.observations, "observations", bad), "observations", bad)
    if len(obs) not in (length, length + 1):
        raise bad(f"it has {length} actions and {len(obs)} observations; give {length}, or {length + 1} with the last")
    if len(obs) == length:
        last = obs[-1:]
        if recorded.next_observations is not None:
            following = _flat_rows(_array(recorded.next_observations, "next_observations", bad), "observations", bad)
            if following.shape != obs.shape:
                raise bad(f"its next_observations have the shape {following.shape}, its observations {obs.shape}")
            last = following[-1:]
        obs = np.concatenate([obs, last])
    _check_finite(obs, "observations", bad)
    with np.errstate(over="ignore"):
        narrow = obs.astype(np.float32)
    _check_finite(narrow, "observations", bad)
    return narrow


def _flat_rows(array: NDArray[Any], what: str, bad: Any) -> NDArray[Any]:
    if array.ndim == 0 or array.size == 0:
        raise bad(f"its {what} are empty")
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _check_widths(obs: FloatArray, action: NDArray[Any], form: Form, what: str, bad: Any) -> None:
    width = 1 if action.ndim == 1 else action.shape[1]
    for kind, found, expected in (("observations", obs.shape[1], form.obs_dim), (what, width, form.action_dim)):
        if found != expected:
            raise bad(f"its {kind} have {_numbers(found)} in row 0, and those before it {_numbers(expected)}")


def _check_finite(array: NDArray[Any], what: str, bad: Any) -> None:
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))[0])
        values = np.atleast_1d(array[row]).reshape(-1)
        raise bad(f"row {row} of its {what} holds {values[~np.isfinite(values)][0]}")


def _outcome(given: Any, rewards: NDArray[np.float64] | None, is_needed: bool, what: str, bad: Any) -> float:
    """The episode's one number: the one that is given, or the sum of its rewards."""
    if given is None:
        if rewards is not None:
            return float(rewards.sum())
        if is_needed:
            raise bad(
                "it has no outcome" if what == "turns" else "it has neither a return nor rewards that could be summed"
            )
        return float("nan")
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        raise bad(f"its return is {str(given)[:40]!r}, which is no number") from None
    if not np.isfinite(value):
        raise bad(f"its return is {value}")
    return value


def _numbers(n: int) -> str:
    return f"{n:,} number{'s' * (n != 1)}"


def _names(features: tuple[str, ...]) -> str:
    if not features:
        return "no named numbers"
    return ", ".join(features[:8]) + (f" and {len(features) - 8} more" if len(features) > 8 else "")
