"""Agents that begin anew once their rewards have become good.

While r̂ is poor a policy may settle where r̂ was wrong, and stay there when it no longer is. Then fresh nets, with the
same replay and the same r̂, may do better than nets that have to unlearn.

Which seeds begin anew is read off the table alone, so a run that was cut off needs to keep nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diaster.config import RunConfig
from diaster.learning.shards import AnyLearner
from diaster.rundir.records import RESTARTED
from diaster.rundir.results import ResultRow
from diaster.rundir.writer import RunWriter
from diaster.training.evaluations import Evaluations
from diaster.training.progress import Reporter
from diaster.training.schedule import Chunk, is_evaluated


def became_good(rows: Sequence[ResultRow], threshold: float) -> dict[int, int]:
    """The step at which each seed's `fit_r2`, smaller before, first reached the threshold. `rows` in their order.

    A seed whose first number is good has had no poor rewards to learn from, and one without a number tells nothing.
    """
    were_poor: set[int] = set()
    found: dict[int, int] = {}
    for row in rows:
        seed, fit = int(row["seed"]), float(row["fit_r2"])
        if fit < threshold:
            were_poor.add(seed)
        elif fit >= threshold and seed in were_poor:
            found.setdefault(seed, int(row["step"]))
    return found


class Restarts:
    """Begins agents anew where the settings ask for it.

    As with the end of a run it is asked where the next evaluation is due: when the last one has ended does not matter.
    """

    def __init__(
        self,
        config: RunConfig,
        evaluations: Evaluations,
        learner: AnyLearner,
        writer: RunWriter,
        reporter: Reporter,
    ) -> None:
        self._config, self._evaluations, self._learner = config, evaluations, learner
        self._writer, self._reporter = writer, reporter

    def begin(self, chunk: Chunk) -> None:
        """Before a chunk is learnt from, begin agents anew whose rewards the last evaluation found good."""
        threshold, seeds = self._config.restart_agent_at, self._config.seeds
        if not (threshold and is_evaluated(self._config, chunk)):
            return
        self._evaluations.finish()
        rows = self._writer.rows
        found = became_good(rows, threshold)
        which = np.array([bool(rows) and found.get(seed) == rows[-1]["step"] for seed in seeds])
        if not which.any():
            return
        self._learner.restart_agents(which)
        self._writer.note(RESTARTED, {str(seed): step for seed, step in found.items()}, now=True)
        names = ", ".join(str(seed) for seed, is_one in zip(seeds, which, strict=True) if is_one)
        self._reporter.note(
            f"before step {chunk.end} agents begin anew (seeds {names}): their step rewards have become good "
            f"(fit_r2 of {threshold:g} or more)."
        )
