"""Names of curves: the shortest text that tells a curve from every other one in the same folder.

Method, preset and agent come first. Settings of the method and the agent are named where curves with the same method,
preset and agent differ in them; then, where curves of one environment would still have the same name, how long they
were trained, other settings, how far they have come and, at last, their folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from diaster.analysis.notes import steps_text
from diaster.analysis.settings import LENGTH, NO_MATTER, changed_settings, flat, setting_text
from diaster.config import DEFAULT_AGENT, RunConfig, task_name
from diaster.errors import LONGEST_NAME, DiasterError, printable

FEW = 3  # settings in a name; more only where fewer do not tell it from others
OWN = ("method.", "agent.")  # settings that make another kind of run, on whatever environment


class Subject(NamedTuple):
    """What a name is made of."""

    config: RunConfig
    reached: str
    """How far an unfinished run has come; empty where it is complete."""
    folder: str
    label: str = ""
    """The name that the user has given, instead of all others."""

    @property
    def task(self) -> Hashable:
        return task_name(self.config), self.config.horizon


def names_of(subjects: Sequence[Subject]) -> list[str]:
    """A name for each; those on one environment have different ones."""
    _check_labels(subjects)
    settings = _settings_apart(subjects)
    many_agents = len({subject.config.agent.name for subject in subjects}) > 1
    names = [
        subject.label or ", ".join([kind_text(subject.config, many_agents), *texts])
        for subject, texts in zip(subjects, settings, strict=True)
    ]
    for part in (_lengths, _other_settings, _states, _folders):
        names = _refined(names, subjects, part)
    return names


def kind_text(config: RunConfig, with_agent: bool) -> str:
    """Method, preset and agent, but not the usual ones: `rrd`, `diaster (paper, td3)`, `dense (reference)`."""
    parts = [config.preset] if config.preset != "default" else []
    parts += [config.agent.name] if with_agent and config.agent.name != DEFAULT_AGENT else []
    parts += ["reference"] if config.method.name == "dense" else []
    return f"{config.method.name} ({', '.join(parts)})" if parts else config.method.name


def _check_labels(subjects: Sequence[Subject]) -> None:
    counts = Counter((subject.task, subject.label) for subject in subjects if subject.label)
    for (task, label), n in counts.items():
        if n > 1:
            alike = [one.folder for one in subjects if (one.task, one.label) == (task, label)]
            raise DiasterError(
                f"the label '{label}' would name {n} different curves of one environment, those of "
                f"{', '.join(alike[:5])}{' …' if n > 5 else ''}; give each a label of its own."
            )


def _settings_apart(subjects: Sequence[Subject]) -> list[list[str]]:
    """Of each: the settings of method and agent that tell it from others with its method, preset and agent."""
    texts: list[list[str]] = [[] for _ in subjects]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place, subject in enumerate(subjects):
        if not subject.label:
            config = subject.config
            groups.setdefault((config.method.name, config.preset, config.agent.name), []).append(place)
    for places in groups.values():
        changed = [
            {name: value for name, value in changed_settings(subjects[place].config).items() if name.startswith(OWN)}
            for place in places
        ]
        names = [name for name in dict.fromkeys(name for one in changed for name in one) if _differs(name, changed)]
        apart = [{name: one[name] for name in names if name in one} for one in changed]
        for place, mine in zip(places, apart, strict=True):
            texts[place] = _few(mine, apart)
    return texts


def _differs(name: str, settings: Sequence[dict[str, Any]]) -> bool:
    usual = object()
    first, *others = (one.get(name, usual) for one in settings)
    return any(other != first for other in others)


def _few(mine: dict[str, Any], of_all: Sequence[dict[str, Any]]) -> list[str]:
    """All of the settings where they are few, else as many as tell them from every other's."""
    if len(mine) <= FEW:
        return [setting_text(name, value) for name, value in mine.items()]
    usual = object()
    chosen: list[str] = []
    rivals = [one for one in of_all if any(one.get(name, usual) != value for name, value in mine.items())]
    while rivals:
        best = max(mine, key=lambda name: sum(one.get(name, usual) != mine[name] for one in rivals))
        chosen.append(best)
        rivals = [one for one in rivals if one.get(best, usual) == mine[best]]
    return [*(setting_text(name, mine[name]) for name in mine if name in chosen), "…"]


Parts = Callable[[Sequence[Subject]], list[str]]


def _refined(names: Sequence[str], subjects: Sequence[Subject], part: Parts) -> list[str]:
    """The names, with a part added where those of one environment are the same."""
    clashes: dict[Hashable, list[int]] = {}
    for place, (name, subject) in enumerate(zip(names, subjects, strict=True)):
        clashes.setdefault((subject.task, name), []).append(place)
    found = list(names)
    for places in clashes.values():
        texts = part([subjects[place] for place in places])
        if len(set(texts)) < 2:
            continue
        for place, text in zip(places, texts, strict=True):
            if text and not subjects[place].label:
                found[place] += f", {text}"
    return found


def _lengths(subjects: Sequence[Subject]) -> list[str]:
    return [f"{steps_text(float(subject.config.steps))} steps" for subject in subjects]


def _other_settings(subjects: Sequence[Subject]) -> list[str]:
    if len({(one.config.method.name, one.config.agent.name) for one in subjects}) > 1:
        return [""] * len(subjects)  # one has the name of another as its label
    settings = [flat(subject.config) for subject in subjects]
    names = [name for name in settings[0] if name != LENGTH and name not in NO_MATTER and not name.endswith(".name")]
    apart = [name for name in names if _differs(name, settings)]
    return [", ".join(setting_text(name, one[name]) for name in apart) for one in settings]


def _states(subjects: Sequence[Subject]) -> list[str]:
    return [subject.reached for subject in subjects]


def _folders(subjects: Sequence[Subject]) -> list[str]:
    folders = [printable(subject.folder) for subject in subjects]
    ends = [folder if len(folder) <= LONGEST_NAME else f"…{folder[-LONGEST_NAME:]}" for folder in folders]
    return [f"in {folder}" for folder in (ends if len(set(ends)) == len(ends) else folders)]
