"""What is wrong with a data set: a sentence that ends the work, or a count where bad episodes are skipped."""

from __future__ import annotations

from diaster.errors import DiasterError

SHOWN = 10  # sentences that are kept; the others are counted


class BadEpisodeError(DiasterError):
    """Something is wrong with one episode of a data set; its text names the episode and, where it can, the row."""


class Faults:
    """What was found wrong. With `skip` it is noted and counted, else the first thing is raised."""

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.sentences: list[str] = []
        self._episodes: set[int] = set()
        self._columns: set[str] = set()

    @property
    def n_episodes(self) -> int:
        """Episodes that were skipped."""
        return len(self._episodes)

    def bad_episode(self, number: int, sentence: str) -> None:
        """An episode that cannot be used. It may be met again: a data set is read more than once."""
        if not self.skip:
            raise BadEpisodeError(f"{sentence}; --skip-bad goes on without such episodes.")
        if number not in self._episodes:
            self._episodes.add(number)
            self._note(sentence)

    def unused_column(self, name: str, sentence: str) -> None:
        """A column that nobody knows. Where every episode names its own, it is told of the first one."""
        if not self.skip:
            raise DiasterError(f"{sentence}; --skip-bad goes on without using it.")
        if name not in self._columns:
            self._columns.add(name)
            self._note(sentence)

    def _note(self, sentence: str) -> None:
        if len(self.sentences) < SHOWN:
            self.sentences.append(sentence)

    def summary(self) -> list[str]:
        """What there is to say in the end: a line for each thing, and one for all that were not kept."""
        n_more = self.n_episodes + len(self._columns) - len(self.sentences)
        lines = [f"{sentence}." for sentence in self.sentences]
        lines += [f"… and {n_more:,} more."] if n_more else []
        if self.n_episodes:
            lines.append(f"{self.n_episodes:,} bad episode{'s' * (self.n_episodes > 1)} skipped.")
        return lines
