"""diaster.fit: from episodes and their returns to a reward for every step."""

from __future__ import annotations

import dataclasses
import warnings
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster.config.checks import check_longest
from diaster.config.fit import FIT_SETTINGS, METHOD_OF_TURNS, FitConfig, build_fit
from diaster.config.needs import refuse_idle
from diaster.errors import DiasterError
from diaster.learning.machine import one_blas_thread, use_compilation_cache
from diaster.offline.decomposition import Decomposition
from diaster.offline.episodes import Sound, Source, as_learnt, judged_episodes
from diaster.offline.evidence import Evidence, ShownEpisode
from diaster.offline.faults import Faults
from diaster.offline.fitting import Fitted, Fitter, Held, check_memory, rows_within, scaled
from diaster.offline.holding_out import Split, split
from diaster.offline.measures import Fit, measure, warning
from diaster.offline.opening import open_source
from diaster.offline.outcomes import Expectation, Outcomes, expectation, outcomes_of
from diaster.offline.progress import Progress, Quiet
from diaster.offline.saved import Facts
from diaster.offline.survey import Survey, survey
from diaster.types import EnvSpec, Episode

SHOWN = 4  # held-out episodes in a report


class Task(NamedTuple):
    """A data set that has been looked at, and what is done with each of its episodes."""

    source: Source
    survey: Survey
    parts: Split
    before: Expectation  # what is known of episodes beforehand, from those that are fitted to
    is_binary: bool

    def outcomes(self, numbers: NDArray[np.int64]) -> Outcomes:
        """Those of some episodes. Groups are in one part each, so nothing is expected from what is held out."""
        given, groups = self.survey.outcomes[numbers], self.survey.groups[numbers]
        return outcomes_of(given, groups, self.before, self.is_binary)


def fit(data: Any, *, skip_bad: bool = False, progress: Progress | None = None, **settings: Any) -> Decomposition:
    """Fit rewards of single steps to episodes and their returns.

    `data` is the name of a file (.npz, .parquet, .hdf5, .jsonl) or of a Minari data set, a mapping with the arrays of
    an .npz file, or a list of episodes: mappings with `observations`, `actions` and `return`, or with `turns` and
    `outcome`. Settings are those of `diaster fit --help`: `outcome="binary"`, `method="rrd"`, `updates=5000`.

    Examples:
        >>> model = diaster.fit("episodes.npz")
        >>> model = diaster.fit([{"observations": obs, "actions": actions, "return": 12.5}, ...], outcome="sum")
    """
    with closing(open_source(data, Faults(skip_bad))) as source:
        if "method" not in settings and has_turns(source):
            settings["method"] = METHOD_OF_TURNS
        return fit_source(source, build_fit(**settings), progress)


def has_turns(source: Source) -> bool:
    """Whether a data set's episodes are of an agent's turns, by the first of them."""
    return next((bool(episode.features) for episode in source.episodes()), False)


def fit_source(source: Source, config: FitConfig, progress: Progress | None = None) -> Decomposition:
    """The same for a data set that has been opened. Without `progress`, warnings are Python's."""
    refuse_idle(config.method, FIT_SETTINGS.get(config.method.name), "method.")
    use_compilation_cache()
    shown = progress or Quiet()
    task = _prepared(source, config, shown)
    fitted, stop, measured = _read(task, shown)
    outcomes = [task.outcomes(numbers) for numbers in (task.parts.fitted, task.parts.stop, task.parts.measure)]
    held = [Held(_with_targets(part, of), of) for part, of in zip((fitted, stop), outcomes, strict=False)]
    config = _resolved(config, outcomes[0], task)
    fitter = Fitter(config, task.survey.spec, held[1], sum(episode.length + 1 for episode in fitted))
    with one_blas_thread():
        fitter.add(held[0].episodes)
        result = fitter.fit(held[0] if task.is_binary else None, shown)
    sums = fitter.sums(result.state, _with_targets(_learnt(measured, task.survey.spec), outcomes[2]))
    found = measure(outcomes[2], sums, task.survey.groups[task.parts.measure])
    if fitter.is_told_returns:
        found = found._replace(r2=float("nan"), low=float("nan"), high=float("nan"))
    notes = _notes(task, found, fitter.is_told_returns)
    for note in notes:
        if progress is None:
            warnings.warn(note, stacklevel=3)
        else:
            progress.warn(note)
    results = _results(found, result, fitter.is_told_returns)
    base_rate = task.before.mean if task.is_binary else None
    facts = Facts(config, task.survey.form, task.survey.spec, base_rate, results, _about(task))
    decomposition = Decomposition(facts, result.state)
    decomposition.evidence = Evidence(
        looks=result.looks,
        start_error=result.start_error,
        outcomes=outcomes[2].given,
        predicted=outcomes[2].predicted(sums),
        shown=_shown(decomposition, measured, outcomes[2].predicted(sums)),
        notes=[*notes, *source.faults.summary()],
    )
    return decomposition


def _prepared(source: Source, config: FitConfig, progress: Progress) -> Task:
    is_binary = config.outcome == "binary"
    found = survey(source, is_binary, progress)
    check_longest(config.method, found.spec.horizon, "the horizon")
    check_memory(config.memory, found.spec)
    parts = split(found, config.held_out, config.seed, rows_within(config.memory, found.spec))
    before = expectation(found.outcomes[parts.fitted], found.groups[parts.fitted])
    if is_binary and not 0.0 < before.mean < 1.0:
        raise DiasterError(
            f"all episodes to fit to have the outcome {before.mean:g}; give more of them, or another --seed."
        )
    return Task(source, found, parts, before, is_binary)


def _read(task: Task, progress: Progress) -> tuple[list[Episode], list[Episode], list[Sound]]:
    """The episodes to fit to, to stop on and to measure on, in the order of their parts."""
    parts, spec = task.parts, task.survey.spec
    wanted = np.zeros(len(task.survey.lengths), bool)
    wanted[np.concatenate([parts.fitted, parts.stop, parts.measure])] = True
    to_show = set(parts.measure.tolist())
    learnt: dict[int, Episode] = {}
    measured: dict[int, Sound] = {}
    progress.start("taking in", int(task.survey.lengths[wanted].sum()))
    n_steps = 0
    for episode in judged_episodes(task.source, needs_outcome=True, is_binary=task.is_binary, wanted=wanted):
        if episode is None:
            raise DiasterError(
                f"{task.source.name} has changed while it was read; try again when nothing writes to it."
            )
        if episode.number in to_show:
            measured[episode.number] = episode
        else:
            learnt[episode.number] = as_learnt(episode, spec, episode.outcome)
        n_steps += episode.length
        progress.advance(n_steps)
    progress.end()
    return (
        [learnt[number] for number in parts.fitted.tolist()],
        [learnt[number] for number in parts.stop.tolist()],
        [measured[number] for number in parts.measure.tolist()],
    )


def _learnt(episodes: list[Sound], spec: EnvSpec) -> list[Episode]:
    return [as_learnt(episode, spec, episode.outcome) for episode in episodes]


def _with_targets(episodes: list[Episode], outcomes: Outcomes) -> list[Episode]:
    targets = outcomes.targets()
    return [e._replace(episode_return=float(target)) for e, target in zip(episodes, targets, strict=True)]


def _resolved(config: FitConfig, outcomes: Outcomes, task: Task) -> FitConfig:
    """With the numbers that the data set decides."""
    lengths = task.survey.lengths[task.parts.fitted].astype(np.float64)
    return dataclasses.replace(config, method=scaled(config.method, outcomes, lengths))


def _notes(task: Task, found: Fit, is_told: bool) -> list[str]:
    """What a user has to know before the rewards are used."""
    notes = []
    if is_told:
        notes.append(
            "this method makes rewards from the return of their own episode, so no held-out error tells how good they "
            "are."
        )
    elif (warned := warning(found, task.is_binary)) is not None:
        notes.append(warned)
    if task.parts.left_out:
        notes.append(
            f"{task.parts.left_out:,} of {task.parts.left_out + len(task.parts.fitted):,} episodes to fit to, drawn at "
            "random, were left out because of --memory."
        )
    return notes


def _results(found: Fit, result: Fitted, is_told: bool) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None  # JSON has no NaN

    return {
        "fit_r2": number(found.r2),
        "fit_r2_low": number(found.low),
        "fit_r2_high": number(found.high),
        "measured_episodes": found.episodes,
        "measured_units": found.units,
        "updates": result.best.update,
        "net_share": result.best.net_share,
        "held_out_error": number(result.best.error),
        "error_without": number(result.start_error),
        "is_told_returns": is_told,
    }


def _about(task: Task) -> dict[str, Any]:
    survey, parts = task.survey, task.parts
    return {
        "name": task.source.name,
        "episodes": int(survey.is_sound.sum()),
        "steps": int(survey.lengths.sum()),
        "skipped": task.source.faults.n_episodes,
        "groups": len(np.unique(survey.groups[survey.groups >= 0])),
        "fitted": len(parts.fitted),
        "stopped_on": len(parts.stop),
        "measured_on": len(parts.measure),
        "left_out": parts.left_out,
        "return_mean": float(survey.outcomes[survey.is_sound].mean()),
        "return_std": float(survey.outcomes[survey.is_sound].std()),
    }


def _shown(decomposition: Decomposition, measured: list[Sound], predicted: NDArray[np.float64]) -> list[ShownEpisode]:
    """A few held-out episodes, from the worst to the best."""
    order = np.argsort([episode.outcome for episode in measured], kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, SHOWN).round().astype(int))
    found = []
    for place in order[places].tolist():
        episode = measured[place]
        rewards = decomposition.of_sound([episode])[0]
        shown = ShownEpisode(
            episode.label, rewards, episode.outcome, float(predicted[place]), episode.rewards, list(episode.texts)
        )
        found.append(shown)
    return found
