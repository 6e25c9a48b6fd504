"""JSON Lines: one episode per line, of steps or of an agent's turns.

{"observations": [[…], …], "actions": [[…], …], "return": 3.5}
{"turns": [{"embedding": [...], "text": "…"}, {"tool": 1, "error": 0}], "outcome": 1, "group": "prompt 7"}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diaster.errors import DiasterError
from diaster.offline.columns import columns_of
from diaster.offline.episodes import Recorded
from diaster.offline.faults import Faults
from diaster.offline.relabelled import Relabelled
from diaster.rundir.files import written_in_pieces

SUFFIXES = (".jsonl", ".ndjson")
CARRIED = ("id", "text", "metadata", "turn_rewards", "truncated")  # of an episode; nobody looks at them
ABSENT = ("lengths",)
TEXT = "text"
MOST_LINE_BYTES = 2**30


class JsonLinesSource:
    """A data set in a file of JSON Lines."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path, self.name, self.faults = path, f"'{path}'", faults
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise DiasterError(f"{self.name} cannot be read: {error.strerror}; check its name.") from None

    def episodes(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[Recorded]:
        """Its episodes, in order."""
        for number, (line, content) in enumerate(self._lines()):
            if wanted is None or wanted[number]:
                label = f"episode {number} (line {line})"
                given = parsed(content)
                if isinstance(given, str):
                    yield Recorded(number, label, fault=given)
                else:
                    yield recorded(number, label, given, self.name, self.faults)

    def close(self) -> None:
        """There is nothing to let go of."""

    def write(self, out: Path, relabelled: Relabelled) -> None:
        """A copy with these rewards, and what it had as rewards beside them."""
        rewards = iter(relabelled.by_episode())
        with written_in_pieces(out) as temporary, temporary.open("wb") as made:
            for number, (_, content) in enumerate(self._lines()):
                if relabelled.is_kept[number]:
                    episode = with_rewards(json.loads(content), next(rewards))
                    made.write(json.dumps(episode, ensure_ascii=False).encode() + b"\n")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that hold something, with their numbers from 1."""
        with self.path.open("rb") as file:
            line = 0
            while content := file.readline(MOST_LINE_BYTES):
                line += 1
                if content.strip():
                    yield line, content


def parsed(content: bytes) -> dict[str, Any] | str:
    """The episode that a line stands for, or what is wrong with the line."""
    try:
        given = json.loads(content)
    except (ValueError, RecursionError):
        is_cut = not content.endswith(b"\n")
        return "the file ends within it: it was cut off" if is_cut else "the line is not valid JSON"
    return given if isinstance(given, dict) else "the line is no JSON object"


def recorded(number: int, label: str, given: Mapping[str, Any], where: str, faults: Faults) -> Recorded:
    """An episode from its fields by name, as a line of JSON or a caller in Python gives them."""
    columns = columns_of(given, f"{label} of {where}", faults, others=("turns", *CARRIED), absent=ABSENT)
    found = {name: given[stored] for name, stored in columns.items()}
    common = Recorded(
        number,
        label,
        rewards=found.get("original_rewards", found.get("rewards")),
        outcome=found.get("returns"),
        terminated=_ended(found),
        group=found.get("groups"),
    )
    if "turns" in found:
        features, vectors, fault = _turns(found["turns"])
        texts = () if fault else tuple(str(turn.get(TEXT, "")) for turn in found["turns"])
        return common._replace(actions=vectors, features=features, texts=texts, fault=fault)
    return common._replace(
        actions=found.get("actions"),
        observations=found.get("observations"),
        next_observations=found.get("next_observations"),
        fault=None if "observations" in found else "it has neither observations and actions nor turns",
    )


def _ended(found: Mapping[str, Any]) -> bool:
    """Whether the episode terminated, by its own word or by its last step's."""
    terminals = np.ravel(np.asarray(found.get("terminals", ()), object))
    return bool(found.get("terminated", terminals[-1] if len(terminals) else False))


def with_rewards(episode: dict[str, Any], rewards: NDArray[np.float64]) -> dict[str, Any]:
    """The same episode with these rewards; what it had as rewards is kept."""
    name = "turn_rewards" if "turns" in episode else "rewards"
    made = {key: value for key, value in episode.items() if key not in ("rewards", "reward", "turn_rewards")}
    before = next((episode[key] for key in ("rewards", "reward") if key in episode), None)
    if before is not None and "original_rewards" not in episode and "original_reward" not in episode:
        made["original_rewards"] = before
    return {**made, name: rewards.tolist()}


def _turns(turns: Any) -> tuple[tuple[str, ...], list[list[float]], str | None]:
    """What a turn's numbers are called, the numbers of every turn, and what is wrong with them."""
    if not isinstance(turns, list | tuple):
        return (), [], "its turns are no list"
    names: tuple[str, ...] = ()
    rows: list[list[float]] = []
    for place, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            return names, rows, f"turn {place} is no object with an embedding or named numbers"
        embedding = turn.get("embedding", ())
        if not isinstance(embedding, list | tuple | np.ndarray):
            return names, rows, f"the embedding of turn {place} is no list of numbers"
        others = sorted(key for key in turn if key not in ("embedding", TEXT))
        here = (*(["embedding"] if len(embedding) else []), *others)
        row = [*embedding, *(turn[key] for key in others)]
        if not here:
            return names, rows, f"turn {place} has neither an embedding nor named numbers"
        if not all(isinstance(value, int | float | np.number) for value in row):
            wrong = next((key for key in others if not isinstance(turn[key], int | float | np.number)), "embedding")
            return names, rows, f"'{wrong}' of turn {place} is no number; only '{TEXT}' may be text"
        names = names or here
        if here != names or (rows and len(row) != len(rows[0])):
            return names, rows, f"turn {place} has {_told(here, row)}, and turn 0 has {_told(names, rows[0])}"
        rows.append([float(value) for value in row])
    return names, rows, None


def _told(names: tuple[str, ...], row: list[float]) -> str:
    """A turn's numbers, for a message."""
    length = len(row) - len(names) + 1
    return ", ".join(f"an embedding of {length}" if name == "embedding" else name for name in names[:8])
