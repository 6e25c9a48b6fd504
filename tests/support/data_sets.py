"""Small data sets whose rewards are known, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = dict[str, Any]


def walks(n: int = 40, seed: int = 0, obs_dim: int = 3, action_dim: int = 2, most: int = 24) -> list[Record]:
    """Episodes of a slow random walk; a step's reward is linear in where it is and what is done there."""
    random = np.random.default_rng(seed)
    episodes = []
    for _ in range(n):
        length = int(random.integers(5, most))
        start = random.normal(size=(1, obs_dim))
        obs = start + np.cumsum(0.05 * random.normal(size=(length + 1, obs_dim)), axis=0)
        actions = random.uniform(-1.0, 1.0, size=(length, action_dim))
        rewards = 0.5 * (obs[:-1, 0] + obs[1:, 0]) + 0.5 * actions[:, 0]
        episodes.append({"observations": obs.astype(np.float32), "actions": actions, "rewards": rewards})
    return episodes


def told(episodes: list[Record]) -> list[Record]:
    """The same without rewards, with one number each."""
    return [
        {"observations": e["observations"], "actions": e["actions"], "return": float(e["rewards"].sum())}
        for e in episodes
    ]


def agent_turns(n: int = 60, seed: int = 0, attempts: int = 4) -> tuple[list[Record], list[int]]:
    """Attempts of an agent, four at each task; one turn has decided each, and its place."""
    random = np.random.default_rng(seed)
    records, decisive = [], []
    for number in range(n):
        length = int(random.integers(3, 8))
        place, is_good = int(random.integers(length)), bool(random.random() < 0.5)
        turns = [
            {
                "embedding": random.normal(0.0, 0.1, size=2).round(3).tolist(),
                "key": (1.0 if is_good else -1.0) if turn == place else 0.0,
                "text": f"turn {turn}",
            }
            for turn in range(length)
        ]
        records.append({"turns": turns, "outcome": int(is_good), "group": f"task {number // attempts}"})
        decisive.append(place)
    return records, decisive


def flat(episodes: list[Record], with_last: bool = False) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file; rewards among them, so that returns are their sums."""
    end = None if with_last else -1
    return {
        "observations": np.concatenate([e["observations"][:end] for e in episodes]),
        "actions": np.concatenate([e["actions"] for e in episodes]),
        "rewards": np.concatenate([e["rewards"] for e in episodes]),
        "lengths": np.array([len(e["rewards"]) for e in episodes]),
    }


def write_npz(path: Path, arrays: dict[str, Any], compressed: bool = False) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def write_hdf5(path: Path, episodes: list[Record], **others: Any) -> Path:
    import h5py

    arrays = flat(episodes)
    lengths = arrays.pop("lengths")
    ends = np.zeros(lengths.sum(), bool)
    ends[np.cumsum(lengths) - 1] = True
    with h5py.File(path, "w") as file:
        for name, values in {**arrays, "terminals": ends & False, "timeouts": ends, **others}.items():
            file.create_dataset(name, data=values)
    return path


def write_parquet(path: Path, episodes: list[Record], **others: Any) -> Path:
    import pyarrow
    import pyarrow.parquet

    arrays = flat(episodes)
    lengths = arrays.pop("lengths")
    columns = {name: pyarrow.array(values.tolist()) for name, values in arrays.items()}
    columns["episode_id"] = pyarrow.array(np.repeat([f"run-{n}" for n in range(len(lengths))], lengths).tolist())
    columns |= {name: pyarrow.array(values) for name, values in others.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=64)
    return path


def write_json_lines(path: Path, records: list[Record]) -> Path:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else value

    lines = [json.dumps({name: plain(value) for name, value in record.items()}) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_minari(name: str, episodes: list[Record], env: str | None = None, dictionary: bool = False) -> str:
    """A data set below MINARI_DATASETS_PATH."""
    import gymnasium as gym
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage
    from minari.storage.datasets_root_dir import get_dataset_path

    folder = Path(get_dataset_path(name)) / "data"
    folder.mkdir(parents=True)
    width = episodes[0]["observations"].shape[1]
    box = spaces.Box(-np.inf, np.inf, (width,), np.float32)
    space: Any = spaces.Dict({"a": box, "b": box}) if dictionary else box
    action = spaces.Box(-1.0, 1.0, episodes[0]["actions"].shape[1:], np.float64)
    spec = None if env is None else gym.spec(env)
    storage = MinariStorage.new(folder, space, action, spec)
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__, "algorithm_name": "chance"})
    buffers = []
    for episode in episodes:
        ends = np.arange(len(episode["rewards"])) == len(episode["rewards"]) - 1
        obs = episode["observations"]
        buffers.append(
            EpisodeBuffer(
                observations={"a": obs, "b": 0 * obs} if dictionary else obs,
                actions=episode["actions"],
                rewards=episode["rewards"],
                terminations=ends & False,
                truncations=ends,
                infos={"distance": np.arange(len(obs), dtype=np.float64)},
            )
        )
    storage.update_episodes(buffers)
    return name
