"""Decomposition: a fitted model that gives every step of an episode a reward."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from diaster.config.fit import FitConfig
from diaster.decomposers import make_decomposer
from diaster.errors import DiasterError
from diaster.learning.reward_model import RewardModel
from diaster.nn.trees import filled, leaf_names
from diaster.offline.episodes import (
    Form,
    Sound,
    Source,
    as_learnt,
    check_actions,
    check_form,
    checked,
    in_groups,
    judged_episodes,
    steps_together,
)
from diaster.offline.evidence import Evidence
from diaster.offline.faults import BadEpisodeError, Faults
from diaster.offline.in_memory import RecordsSource
from diaster.offline.opening import check_out, open_source, write
from diaster.offline.outcomes import credit
from diaster.offline.progress import Progress, Quiet
from diaster.offline.relabelled import Relabelled
from diaster.offline.saved import Facts, read_arrays, read_facts, write_model
from diaster.types import EvaluationEpisode


class Decomposition:
    """A fitted model of rewards: `diaster.fit` returns it. The reward r_t belongs to (s_t, a_t), not to s_{t+1}.

    Examples:
        >>> model = diaster.fit("episodes.npz")
        >>> model.rewards({"observations": obs, "actions": actions})  # one for each step
        >>> model.save("model")
        >>> model = diaster.Decomposition.load("model")
    """

    def __init__(self, facts: Facts, state: Any, evidence: Evidence | None = None) -> None:
        self._facts, self._state = facts, state
        self._decomposer = make_decomposer(facts.config.method, facts.spec.horizon)
        self._model = RewardModel(self._decomposer, facts.spec.horizon)
        self.evidence = evidence
        """What the report shows; a model that was loaded has none."""

    def __repr__(self) -> str:
        form, settings = self._facts.form, self.settings
        return f"Decomposition({settings.method.name}, {settings.outcome}, {form.text()}, fit_r2 {self.fit_r2:.3f})"

    @property
    def settings(self) -> FitConfig:
        """The settings it was fitted with."""
        return self._facts.config

    @property
    def form(self) -> Form:
        """What it takes: observations and actions of some width, or turns."""
        return self._facts.form

    @property
    def base_rate(self) -> float | None:
        """Of outcomes that are 0 or 1, their mean, where predictions start; None where they are sums."""
        return self._facts.base_rate

    @property
    def is_exact(self) -> bool:
        """Whether rewards add up to their episode's return unless a call says otherwise."""
        method = self.settings.method
        return self.settings.exact_sum or not self.form.obs_dim or bool(getattr(method, "exact_sum", False))

    @property
    def results(self) -> dict[str, Any]:
        """fit_r2, its interval, and how the fit came about."""
        return dict(self._facts.results)

    @property
    def data(self) -> dict[str, Any]:
        """What it was fitted to."""
        return dict(self._facts.data)

    @property
    def fit_r2(self) -> float:
        """How much of held-out episodes the rewards explain: 1 is all of it; NaN where that has no meaning."""
        value = self._facts.results.get("fit_r2")
        return float("nan") if value is None else float(value)

    @property
    def fit_r2_interval(self) -> tuple[float, float]:
        """Its 95 % interval, by a bootstrap over held-out episodes, or groups of them."""
        low, high = (self._facts.results.get(name) for name in ("fit_r2_low", "fit_r2_high"))
        return (float("nan"), float("nan")) if low is None or high is None else (float(low), float(high))

    def rewards(self, episode: Mapping[str, Any], exact_sum: bool | None = None) -> NDArray[np.float64]:
        """The rewards of an episode's steps, or of its turns.  # [L]

        An episode is a mapping with `observations` and `actions`, or with `turns`; with its return where rewards are to
        sum to it (`exact_sum`, by default as the model was fitted).
        """
        is_exact = self._is_exact(exact_sum)
        source = RecordsSource([episode], Faults())
        recorded = next(iter(source.episodes()))._replace(label="the episode")
        sound = checked(recorded, None, self._needs_outcome(is_exact), self._facts.base_rate is not None)
        check_form(sound.form, self._facts.form, "the episode")
        check_actions(sound, self._facts.spec)
        return self._rewards([sound], is_exact)[0]

    def relabel(
        self,
        data: Any,
        out: str | os.PathLike[str],
        *,
        exact_sum: bool | None = None,
        skip_bad: bool = False,
        progress: Progress | None = None,
    ) -> Relabelled:
        """Write a copy of a data set with these rewards; its own stay beside them as `original_rewards`."""
        with closing(open_source(data, Faults(skip_bad))) as source:
            check_out(source, out)
            relabelled = self.relabelled(source, exact_sum, progress or Quiet())
            write(source, out, relabelled)
            return relabelled

    def relabelled(self, source: Source, exact_sum: bool | None, progress: Progress) -> Relabelled:
        """Rewards for all sound episodes of a data set."""
        is_exact = self._is_exact(exact_sum)
        parts: list[NDArray[np.float64]] = []
        lengths: list[int] = []
        is_kept: list[bool] = []
        n_steps = 0
        progress.start("relabelling", None)
        for group in in_groups(self._of_this_form(source, is_exact), steps_together(self._facts.spec)):
            there = [episode for episode in group if episode is not None]
            is_kept += [episode is not None for episode in group]
            lengths += [episode.length for episode in there]
            if there:
                parts.append(np.concatenate(self._rewards(there, is_exact)))
                n_steps += len(parts[-1])
            progress.advance(n_steps)
        progress.end()
        if not lengths:
            raise DiasterError(f"{source.name} has no episode that can be relabelled.")
        return Relabelled(np.concatenate(parts), np.array(lengths, np.int64), np.array(is_kept))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into a new or empty folder, with its report where it was just fitted."""
        saved = leaf_names(jax.device_get(self._state), self._decomposer.saved)
        arrays = {name: np.asarray(leaf) for name, leaf in saved}
        report = None
        if self.evidence is not None:
            from diaster.offline.report import report_page

            report = report_page(self)
        write_model(Path(path), self._facts, arrays, report)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Decomposition:
        """A model from the folder that `save` wrote."""
        folder = Path(path)
        facts = read_facts(folder)
        decomposer = make_decomposer(facts.config.method, facts.spec.horizon)
        template = jax.eval_shape(lambda key: decomposer.init(key, facts.spec), jax.random.key(0))
        expected = {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in leaf_names(template, decomposer.saved)}
        return cls(facts, filled(template, read_arrays(folder, expected)))

    def of_sound(self, episodes: Sequence[Sound], exact_sum: bool | None = None) -> list[NDArray[np.float64]]:
        """The rewards of episodes that have been checked."""
        return self._rewards(episodes, self._is_exact(exact_sum))

    def _rewards(self, episodes: Sequence[Sound], is_exact: bool) -> list[NDArray[np.float64]]:
        learnt = [
            EvaluationEpisode(as_learnt(episode, self._facts.spec, np.nan_to_num(episode.outcome)), None)
            for episode in episodes
        ]
        found = self._model_of(max(episode.length for episode in episodes)).of_episodes(self._state, learnt)
        return [
            credit(rewards, episode.outcome, self._facts.base_rate, is_exact)
            for rewards, episode in zip(found, episodes, strict=True)
        ]

    def _model_of(self, longest: int) -> RewardModel:
        """The model for episodes of some length; it may be longer than any that was fitted to."""
        if longest <= self._facts.spec.horizon:
            return self._model
        return RewardModel(self._decomposer, longest)

    def _of_this_form(self, source: Source, is_exact: bool) -> Iterator[Sound | None]:
        """The episodes of a data set; the first that this model cannot be applied to is refused, or skipped."""
        is_binary = self._facts.base_rate is not None
        for episode in judged_episodes(source, self._needs_outcome(is_exact), is_binary):
            if episode is not None:
                try:
                    check_form(episode.form, self._facts.form, episode.label)
                    check_actions(episode, self._facts.spec)
                except BadEpisodeError as error:
                    source.faults.bad_episode(episode.number, str(error).rstrip("."))
                    yield None
                    continue
            yield episode

    def _is_exact(self, exact_sum: bool | None) -> bool:
        return self.is_exact if exact_sum is None else exact_sum

    def _needs_outcome(self, is_exact: bool) -> bool:
        # What is made from the return of its own episode cannot do without.
        return is_exact or self._decomposer.needs_return
