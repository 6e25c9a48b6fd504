"""Minari's data sets, by name: those on this machine. Written ones are valid Minari data sets.

Observations may be vectors, or dictionaries and tuples of them, which are laid end to end; actions are vectors or
whole numbers. The rewards that a data set had are in `infos["original_rewards"]`: as other infos they begin at the
reset, so that the one of step t is at t + 1.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.episodes import Recorded, Source
from diaster.offline.extras import extra
from diaster.offline.faults import Faults
from diaster.offline.relabelled import Relabelled

NAME = re.compile(r"[^.\s]+(/[^\s]+)*-v\d+")
ORIGINAL = "original_rewards"
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AssertionError)  # in the words of the library
COPIED = (
    "algorithm_name",
    "author",
    "author_email",
    "code_permalink",
    "requirements",
    "ref_min_score",
    "ref_max_score",
)


def is_name(text: str) -> bool:
    """Whether a text can be a Minari data set's name, such as mujoco/hopper/medium-v0."""
    return NAME.fullmatch(text) is not None


class MinariSource:
    """A data set of Minari's on this machine."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.name, self.faults = f"the Minari data set '{name}'", faults
        minari = extra("minari", "minari", "Minari's data sets")
        try:
            self.dataset: Any = minari.load_dataset(name)
        except FileNotFoundError:
            raise DiasterError(f"{self.name} is not on this machine; get it with: minari download {name}") from None
        except (ImportError, *DAMAGE) as error:
            raise DiasterError(f"{self.name} cannot be read: {str(error).rstrip('.')}.") from None

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        for number, index in enumerate(self.dataset.episode_indices.tolist()):
            if wanted is None or wanted[number]:
                try:
                    episode = next(iter(self.dataset.iterate_episodes([index])))
                except DAMAGE as error:
                    yield Recorded(number, f"episode {number}", fault=f"it cannot be read: {str(error).rstrip('.')}")
                else:
                    yield _recorded(number, episode)

    def close(self) -> None:
        """There is nothing to let go of."""

    def write(self, out: str, relabelled: Relabelled) -> None:
        """A new data set with these rewards."""
        kept = (
            next(iter(self.dataset.iterate_episodes([index])))
            for index, is_kept in zip(self.dataset.episode_indices.tolist(), relabelled.is_kept, strict=True)
            if is_kept
        )
        buffers = (
            _buffer(
                episode.observations,
                episode.actions,
                rewards,
                _original(episode),
                np.asarray(episode.terminations),
                np.asarray(episode.truncations),
                episode.infos,
            )
            for episode, rewards in zip(kept, relabelled.by_episode(), strict=True)
        )
        metadata = self.dataset.storage.metadata
        kind = metadata.get("data_format", "hdf5")
        copied = {name: metadata[name] for name in COPIED if name in metadata}
        eval_env = metadata.get("eval_env_spec")
        copied |= {} if eval_env is None else {"eval_env_spec": eval_env}
        spaces = self.dataset.observation_space, self.dataset.action_space
        _write(out, buffers, *spaces, self.dataset.env_spec, copied, f"{self.dataset.id} with", kind)


def write_minari_set(out: str, source: Source, relabelled: Relabelled) -> None:
    """A Minari data set from another format. It names no environment, because the data set does not."""
    from gymnasium import spaces

    wanted = relabelled.is_kept
    first = next(source.episodes(wanted))
    if first.observations is None:
        raise DiasterError("turns have no observations, and Minari's data sets do; write JSON Lines (.jsonl).")
    actions = np.asarray(first.actions)
    width = np.asarray(first.observations).reshape(len(first.observations), -1).shape[1]
    if actions.ndim == 1 and actions.dtype.kind in "biu":
        values = [np.asarray(episode.actions) for episode in source.episodes(wanted)]
        low = min(int(value.min()) for value in values)
        n = max(int(value.max()) for value in values) - low + 1
        action_space: Any = spaces.Discrete(n, start=low)
    else:
        action_space = spaces.Box(-np.inf, np.inf, actions.reshape(len(actions), -1).shape[1:], np.float32)
    observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
    buffers = (
        _of_recorded(episode, rewards)
        for episode, rewards in zip(source.episodes(wanted), relabelled.by_episode(), strict=True)
    )
    _write(out, buffers, observation_space, action_space, None, {}, "Episodes with", "hdf5")


def check_name(out: str) -> None:
    """Refuse a name that is taken, or none, before anything is computed."""
    extra("minari", "minari", "Minari's data sets")
    if _folder(out).exists():
        raise DiasterError(f"the Minari data set '{out}' is there already; choose another name or version.")


def _recorded(number: int, episode: Any) -> Recorded:
    label = f"episode {number}"
    obs, actions = _laid_out(episode.observations), _laid_out(episode.actions)
    if obs is None or actions is None:
        kind = "observations" if obs is None else "actions"
        return Recorded(number, label, fault=f"its {kind} are neither vectors nor made of vectors")
    terminations = np.asarray(episode.terminations)
    terminated = bool(len(terminations) and terminations[-1])
    return Recorded(number, label, actions, obs, rewards=_original(episode), terminated=terminated)


def _original(episode: Any) -> Any:
    """The rewards of the data set itself, also where it has been relabelled."""
    infos = episode.infos or {}
    return np.asarray(infos[ORIGINAL])[1:] if ORIGINAL in infos else np.asarray(episode.rewards)


def _laid_out(values: Any) -> NDArray[Any] | None:
    """Vectors of a dictionary or a tuple end to end, by their names."""
    if isinstance(values, dict):
        values = [values[key] for key in sorted(values)]
    if isinstance(values, list | tuple):
        parts = [_laid_out(part) for part in values]
        if not parts or any(part is None for part in parts):
            return None
        rows = [np.asarray(part).reshape(len(part), -1) for part in parts if part is not None]
        return np.concatenate(rows, axis=1)
    array = np.asarray(values)
    return array if array.dtype.kind in "biuf" and array.ndim else None


def _of_recorded(episode: Recorded, rewards: NDArray[np.float64]) -> Any:
    obs = np.asarray(episode.observations, np.float32).reshape(len(episode.observations), -1)
    if len(obs) == len(rewards):
        last = obs[-1:] if episode.next_observations is None else np.asarray(episode.next_observations)[-1:]
        obs = np.concatenate([obs, last.reshape(1, -1).astype(np.float32)])
    actions = np.asarray(episode.actions)
    if actions.ndim > 1 or actions.dtype.kind == "f":
        actions = actions.reshape(len(actions), -1).astype(np.float32)
    ends = np.arange(len(rewards)) == len(rewards) - 1
    before = None if episode.rewards is None else np.asarray(episode.rewards, np.float64)
    terminated = bool(episode.terminated)
    return _buffer(obs, actions, rewards, before, ends & terminated, ends & (not terminated), None)


def _buffer(obs: Any, actions: Any, rewards: Any, before: Any, terminations: Any, truncations: Any, infos: Any) -> Any:
    from minari.data_collector import EpisodeBuffer

    infos = dict(infos or {})
    if before is not None:
        infos[ORIGINAL] = np.concatenate([[0.0], before])
    return EpisodeBuffer(
        observations=obs,
        actions=actions,
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        infos=infos or None,
    )


def _write(
    out: str, buffers: Iterable[Any], obs: Any, action: Any, env: Any, copied: dict[str, Any], what: str, kind: str
) -> None:
    """A data set beside its place, which is moved there when it is whole."""
    import minari
    from minari.dataset.minari_storage import MinariStorage

    folder = _folder(out)
    temporary = folder.parent / f".{folder.name}.part"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        _make_namespace(out)
        (temporary / "data").mkdir(parents=True)
        storage = MinariStorage.new(temporary / "data", obs, action, env, kind)
        about = {"dataset_id": out, "minari_version": minari.__version__}
        said = f"{what} rewards learnt from one number per episode; the reward at t belongs to (s_t, a_t)."
        storage.update_metadata({**copied, **about, "description": said})
        storage.update_episodes(buffers)
        temporary.rename(folder)
    except OSError as error:
        raise DiasterError(f"the Minari data set '{out}' cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _make_namespace(out: str) -> None:
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = parse_dataset_id(out)[0]
    if namespace is not None and namespace not in list_local_namespaces():
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")
            create_namespace(namespace)


def _folder(name: str) -> Path:
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path(name))
