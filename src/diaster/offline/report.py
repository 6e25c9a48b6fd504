"""A page about a fit: how good its rewards are, the credit of a few episodes, and how it was made. One file."""

from __future__ import annotations

import base64
import dataclasses
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diaster import __version__
from diaster.analysis.diagnostics import pearson
from diaster.analysis.figures.panels import add_legend, plain_log
from diaster.analysis.figures.style import PAGE, TRUTH, drawing, new_figure, picture_bytes
from diaster.analysis.report import filled_page, resource
from diaster.config import METHODS
from diaster.errors import shortened
from diaster.offline.evidence import Evidence, ShownEpisode
from diaster.offline.measures import text_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from diaster.offline.decomposition import Decomposition

OTHER = "#8a8a8a"  # what is neither learnt nor true
MOST_POINTS = 1000  # of a curve in a picture
MOST_TURNS, MOST_TEXT = 60, 400
BAR = 58.0  # the longest bar, in pixels to each side

Floats = NDArray[np.float64]


class Turn(NamedTuple):
    """A row of a table of turns."""

    number: int
    reward: str
    sign: str
    left: str
    width: str
    text: str


class EpisodeEntry(NamedTuple):
    """An episode of the page: a table of turns, or a picture."""

    title: str
    text: str
    turns: list[Turn]
    picture: str


def report_page(model: Decomposition) -> str:
    """The page of a model that was just fitted."""
    evidence = model.evidence
    assert evidence is not None, "only a model that was just fitted can tell how that went"
    is_binary, is_turns = model.settings.outcome == "binary", not model.form.obs_dim
    what = "outcome" if is_binary else "return"
    unit = "turn" if is_turns else "step"
    learnt = METHODS[model.settings.method.name].colour
    with drawing():
        content = {
            "title": f"Rewards for {shortened(str(model.data['name']).strip(chr(39)), 60)}",
            "unit": unit,
            "belongs": "turn t" if is_turns else "(s_t, a_t): to what was done at step t, where it was done",
            "notes": evidence.notes,
            "fit": _fit_text(model),
            "meaning": _meaning(model, what),
            "fit_alt": f"predicted against true {what} of held-out episodes",
            "fit_picture": _picture(_draw_fit(evidence, is_binary, what, learnt)),
            "credit_text": _credit_text(model, what, unit),
            "episodes": [_entry(episode, is_turns, is_binary, unit, learnt) for episode in evidence.shown],
            "facts": _facts(model),
            "search_text": _search_text(model, evidence),
            "search_picture": _picture(_draw_search(evidence, model.results["updates"], is_binary, learnt)),
            "settings": _settings(model),
            "version": __version__,
        }
    own = files("diaster.offline")
    template, style = (own.joinpath(name).read_text(encoding="utf-8") for name in ("report.html", "report.css"))
    return filled_page(template, content, resource("page.css") + style)


def _fit_text(model: Decomposition) -> str:
    return text_of(model.fit_r2, model.fit_r2_interval) if np.isfinite(model.fit_r2) else "is not defined"


def _meaning(model: Decomposition, what: str) -> str:
    measured, units = model.results["measured_episodes"], model.results["measured_units"]
    of = f"{measured:,} episodes" + (f" in {units:,} groups" if units < measured else "")
    than = "the mean of their group" if model.data["groups"] else "their mean"
    return (
        f"measured on {of} that were neither fitted to nor stopped on: the share of the variance of their {what}s that "
        f"the rewards explain. 1 is all, 0 is no more than {than} does."
    )


def _credit_text(model: Decomposition, what: str, unit: str) -> str:
    text = f"Each {unit}'s reward, from the episode with the least {what} to the one with the largest."
    if model.settings.outcome == "binary":
        text += (
            f" A reward is how much the {unit} changes the predicted probability of a good outcome, which starts at "
            f"{model.base_rate:.2f}, the share of good ones."
        )
    if model.is_exact:
        text += f" Rewards of an episode add up to its {what}: an even share of what is missing is added to each."
    if model.evidence is not None and any(episode.hidden is not None for episode in model.evidence.shown):
        text += " Dashed are the rewards that the data set had, which the fit has seen only as sums."
    return text


def _entry(episode: ShownEpisode, is_turns: bool, is_binary: bool, unit: str, learnt: str) -> EpisodeEntry:
    what = "outcome" if is_binary else "return"
    n = len(episode.rewards)
    text = f"{n:,} {unit}s, {what} {episode.outcome:,.4g}, predicted {episode.predicted:,.4g}"
    total = round(float(episode.rewards.sum()), 9) + 0.0  # a sum that is exact but for rounding is 0, not −4e−17
    text += f", rewards sum to {total:,.4g}"
    if episode.hidden is not None and np.isfinite(r := pearson(episode.rewards, episode.hidden)):
        text += f"; correlation with the data set's own rewards {r:.2f}"
    turns = _turns(episode) if is_turns else []
    if is_turns and n > MOST_TURNS:
        text += f"; the first {MOST_TURNS} are shown"
    picture = "" if is_turns else _picture(_draw_credit(episode, what, learnt))
    return EpisodeEntry(episode.title, _number(f"{text}."), turns, picture)


def _turns(episode: ShownEpisode) -> list[Turn]:
    largest = max(float(np.abs(episode.rewards).max()), 1e-12)
    found = []
    for number, (reward, text) in enumerate(zip(episode.rewards, episode.texts, strict=True)):
        width = BAR * abs(float(reward)) / largest
        left = 60.0 if reward >= 0 else 60.0 - width
        sign = "gain" if reward >= 0 else "loss"
        shown = shortened(text, MOST_TEXT)
        found.append(Turn(number, _number(f"{reward:+.3f}"), sign, f"{left:.1f}", f"{width:.1f}", shown))
    return found[:MOST_TURNS]


def _facts(model: Decomposition) -> list[tuple[str, str]]:
    data, results = model.data, model.results
    found = [
        ("data", f"{data['name']}: {data['episodes']:,} episodes, {data['steps']:,} steps"),
        ("form", model.form.text()),
        ("method", f"{model.settings.method.name}, {results['updates']:,} updates"),
        ("fitted to", f"{data['fitted']:,} episodes"),
        ("held out", f"{data['stopped_on']:,} episodes to stop on, {data['measured_on']:,} to measure on"),
        ("numbers", _number(f"mean {data['return_mean']:,.4g}, standard deviation {data['return_std']:,.4g}")),
    ]
    if data["groups"]:
        found.append(("groups", f"{data['groups']:,}; each is held out whole"))
    if data["skipped"]:
        found.append(("skipped", f"{data['skipped']:,} bad episodes"))
    if data["left_out"]:
        found.append(("left out", f"{data['left_out']:,} episodes, for lack of room (--memory)"))
    if getattr(model.settings.method, "base", "none") != "none":
        found.append(("net beside the linear reward", f"{results['net_share']:.0%}"))
    return found


def _search_text(model: Decomposition, evidence: Evidence) -> str:
    least = model.results["held_out_error"]
    if model.results["is_told_returns"]:
        return "Rewards of this method are made from their own episode's return, so it ran for all updates."
    return _number(
        f"The fit stopped where the error on the episodes to stop on was least: {least:.4g} after "
        f"{model.results['updates']:,} updates. Without rewards it is {evidence.start_error:.4g}."
    )


def _settings(model: Decomposition) -> str:
    settings = dataclasses.asdict(model.settings)
    lines = [f"{name} = {value}" for name, value in settings.items() if name != "method"]
    lines += [
        f"method.{name} = {value}" for name, value in settings["method"].items() if name not in ("updates", "every")
    ]
    return "\n".join(lines)


def _draw_fit(evidence: Evidence, is_binary: bool, what: str, learnt: str) -> Figure:
    figure = new_figure(PAGE * 0.62, 2.6)
    axes = figure.add_subplot()
    if is_binary:
        edges = np.linspace(0.0, 1.0, 21).tolist()
        for outcome, colour in ((0.0, OTHER), (1.0, learnt)):
            shown = evidence.predicted[evidence.outcomes == outcome]
            axes.hist(shown, edges, histtype="step", color=colour, label=f"outcome {outcome:.0f}")
        axes.set_xlabel("predicted probability")
        axes.set_ylabel("held-out episodes")
        axes.legend()
        return figure
    axes.scatter(evidence.predicted[:MOST_POINTS], evidence.outcomes[:MOST_POINTS], s=6, color=learnt, linewidths=0)
    ends = [float(evidence.outcomes.min()), float(evidence.outcomes.max())]
    axes.plot(ends, ends, color=TRUTH, linestyle="--", linewidth=0.8, label="both are the same")
    axes.set_xlabel(f"predicted {what}")
    axes.set_ylabel(f"true {what}")
    axes.legend()
    axes.grid(True)
    return figure


def _draw_search(evidence: Evidence, chosen: int, is_binary: bool, learnt: str) -> Figure:
    figure = new_figure(PAGE * 0.62, 2.2)
    axes = figure.add_subplot()
    axes.plot([look.update for look in evidence.looks], [look.error for look in evidence.looks], color=learnt)
    axes.axvline(chosen, color=OTHER, linewidth=0.7, linestyle=":", label="the model that is kept")
    axes.axhline(evidence.start_error, color=TRUTH, linewidth=0.8, linestyle="--", label="without rewards")
    axes.set_xlabel("updates")
    axes.set_ylabel("cross-entropy" if is_binary else "squared error")
    if not is_binary:
        plain_log(axes)
    axes.legend()
    axes.grid(True)
    return figure


def _draw_credit(episode: ShownEpisode, what: str, learnt: str) -> Figure:
    figure = new_figure(PAGE, 2.6)
    of_steps, of_sums = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1.0))
    time = np.unique(np.linspace(0, len(episode.rewards) - 1, MOST_POINTS).round().astype(int))
    handles, labels = [], []
    if episode.hidden is not None:
        handles += of_steps.plot(time, episode.hidden[time], color=TRUTH, linewidth=0.8, linestyle="--")
        of_sums.plot(time, np.cumsum(episode.hidden)[time], color=TRUTH, linestyle="--")
        labels.append("the data set's own reward")
    handles += of_steps.plot(time, episode.rewards[time], color=learnt, linewidth=0.9)
    labels.append("learnt reward")
    of_sums.plot(time, np.cumsum(episode.rewards)[time], color=learnt)
    handles.append(of_sums.axhline(episode.outcome, color=OTHER, linewidth=0.7, linestyle=":"))
    labels.append(what)
    of_steps.set_ylabel("reward per step")
    of_sums.set_ylabel("running sum")
    of_sums.set_xlabel("time t (steps)")
    of_sums.xaxis.get_major_locator().set_params(integer=True)
    for axes in (of_steps, of_sums):
        axes.grid(True)
        axes.margins(x=0.01)
    add_legend(figure, handles, labels, PAGE)
    return figure


def _picture(figure: Figure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(picture_bytes(figure, '.svg')).decode()}"


def _number(text: Any) -> str:
    return str(text).replace("-", "−")
