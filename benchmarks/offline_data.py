"""Data for `offline_fit.py`: all episodes of a run, in order and with their hidden rewards.

    python benchmarks/offline_data.py build/data/ant Ant-v5 --steps 50000 --method dense --agent xqc --agent.size small
    python benchmarks/offline_fit.py --data build/data/ant-*.npz --steps 5000 20000 50000

Everything after the name is what `diaster train` takes. One file per seed: the training episodes, chunk by chunk, and
the evaluation episodes. Learning sees what it always sees; the hidden rewards are only put aside.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from diaster.actors.rollout import Handling
from diaster.learning.learner import Learner
from diaster.training import loop
from diaster.training.held_out import HeldOut
from diaster.types import Episode, EvaluationEpisode


class Data(NamedTuple):
    """What one seed of a run has seen, with hidden rewards."""

    env: str
    chunk_steps: int
    chunks: list[list[Episode]]  # the episodes that ended in each chunk
    evaluations: list[list[Episode]]  # of the deterministic policy
    evaluated_at: list[int]  # steps

    def ended(self, step: int, until: int) -> list[Episode]:
        """Training episodes that ended in (step, until]."""
        return [e for chunk in self.chunks[step // self.chunk_steps : until // self.chunk_steps] for e in chunk]

    def held_out(self, until: int) -> list[EvaluationEpisode]:
        """Evaluation episodes of the run up to a step."""
        kept = [e for at, of in zip(self.evaluated_at, self.evaluations, strict=True) if at <= until for e in of]
        return [EvaluationEpisode(episode, episode.hidden_reward) for episode in kept]


def save(path: Path, data: Data) -> None:
    """One file of arrays, steps end to end."""
    arrays: dict[str, Any] = {"env": data.env, "chunk_steps": data.chunk_steps, "evaluated_at": data.evaluated_at}
    for name, groups in (("chunks", data.chunks), ("evaluations", data.evaluations)):
        episodes = [episode for group in groups for episode in group]
        arrays |= {
            f"{name}.count": [len(group) for group in groups],
            f"{name}.length": [episode.length for episode in episodes],
            f"{name}.return": np.array([episode.episode_return for episode in episodes]),
            f"{name}.terminated": [episode.terminated for episode in episodes],
        }
        for field in ("obs", "action", "hidden_reward"):
            parts = [getattr(episode, field) for episode in episodes]
            arrays[f"{name}.{field}"] = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def load(path: Path) -> Data:
    """What `save` has written."""
    with np.load(path) as file:
        arrays = dict(file)
    chunks, evaluations = (_grouped(arrays, name) for name in ("chunks", "evaluations"))
    steps = [int(step) for step in arrays["evaluated_at"]]
    return Data(str(arrays["env"]), int(arrays["chunk_steps"]), chunks, evaluations, steps)


def _grouped(arrays: dict[str, NDArray[Any]], name: str) -> list[list[Episode]]:
    length = arrays[f"{name}.length"]
    ends = np.cumsum(length)[:-1]
    if len(length) == 0:
        return [[] for _ in arrays[f"{name}.count"]]
    episodes = [
        Episode(obs, action, float(total), bool(terminated), hidden)
        for obs, action, hidden, total, terminated in zip(
            np.split(arrays[f"{name}.obs"], np.cumsum(length + 1)[:-1]),
            np.split(arrays[f"{name}.action"], ends),
            np.split(arrays[f"{name}.hidden_reward"], ends),
            arrays[f"{name}.return"],
            arrays[f"{name}.terminated"],
            strict=True,
        )
    ]
    groups = np.split(np.arange(len(episodes)), np.cumsum(arrays[f"{name}.count"])[:-1])
    return [[episodes[number] for number in group] for group in groups]


def collect(arguments: Sequence[str]) -> list[Data]:
    """Train a run on the command line's terms, and put its episodes aside."""
    from diaster.cli import main as diaster  # heavy

    chunks: list[list[list[Episode]]] = []
    evaluations: list[list[list[EvaluationEpisode]]] = []
    store_episodes, add = Learner.store_episodes, HeldOut.add

    def stored(self: Learner, episodes: Any) -> None:
        chunks.append([list(of_seed) for of_seed in episodes])
        store_episodes(self, episodes)

    def evaluated(self: HeldOut, number: int, of_seeds: Any) -> Any:
        evaluations.append([list(of_seed) for of_seed in of_seeds])
        return add(self, number, of_seeds)

    def with_hidden(**how: Any) -> Handling:
        return Handling(**{**how, "keep_hidden": True})

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Learner, "store_episodes", stored),
        mock.patch.object(HeldOut, "add", evaluated),
        mock.patch.object(loop, "Handling", with_hidden),
    ):
        run = Path(folder) / "run"
        if diaster(["train", *arguments, "--out", str(run)]):
            raise SystemExit("the run has failed")
        import diaster as package

        trained = package.load(run)
        config, steps = trained.config, sorted({int(step) for step in trained.progress["step"]})
    return [
        Data(
            config.env,
            config.chunk_steps,
            [of_seeds[position] for of_seeds in chunks],
            [
                [item.episode._replace(hidden_reward=item.true_reward) for item in of_seeds[position]]
                for of_seeds in evaluations
            ],
            steps,
        )
        for position in range(len(config.seeds))
    ]


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    stem = Path(sys.argv[1])
    for number, data in enumerate(collect(sys.argv[2:])):
        save(stem.with_name(f"{stem.name}-{number}.npz"), data)


if __name__ == "__main__":
    main()
