"""Credit for the turns of an agent: a synthetic tool-using agent whose decisive turns are known.

    python examples/turns.py                     # about a minute: a table and turns.png
    python examples/turns.py --prompts 60        # with fewer tasks

**The agent** is a stand-in: no language model is run. It is given tasks, some harder than others, and makes several
attempts at each, as it is done to train with group-relative methods. An attempt has 5 to 14 turns. Each turn calls one
of six tools and comes with an embedding of 16 numbers, as an encoder of its text would give: a direction for the tool,
one for what the turn achieved, one for the task, and noise. Two turns of an attempt decide how it ends: the one that
finds the right file, and the one that edits it. Each can go wrong, more likely in hard tasks. An attempt in which both
went right succeeds, but for one in twenty, and others fail, but for one in twenty. All other turns change nothing.

**What is compared** is the credit for single turns: uniform (each turn has the same share of the outcome), discounted
(0.9 for every turn until the end) and learnt (`diaster.fit`, which sees embeddings, outcomes and which attempts are at
one task). The share of credit on the two decisive turns is Σ |credit of these| / Σ |credit of all turns|, over tasks
that were not fitted to.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import diaster
from diaster.analysis.figures.style import TRUTH, drawing, new_figure, write_picture
from diaster.config import METHODS

TOOLS = ("plan", "search", "read", "edit", "run", "think")
WIDTH, ATTEMPTS = 16, 8
LUCK = 0.05
DISCOUNT = 0.9
LEARNT, UNIFORM = METHODS["rrd"].colour, METHODS["uniform"].colour  # turns are fitted by rrd
NEITHER = "#bdbdbd"  # no method's
FRESH = 40  # tasks that credit is compared on
FIND, EDIT = 1, 3  # tools of the decisive turns


class Attempt(NamedTuple):
    """An episode as `diaster.fit` takes it, and which turns have decided it."""

    episode: dict[str, Any]
    decisive: tuple[int, int]
    went_right: tuple[bool, bool]


class World(NamedTuple):
    """What directions in the space of embeddings stand for."""

    tool: NDArray[np.float64]  # [tools, WIDTH]
    success: NDArray[np.float64]  # [tools, WIDTH] what a turn that went right looks like, less one that went wrong
    task: NDArray[np.float64]  # [WIDTH, WIDTH]


def make_world(random: np.random.Generator) -> World:
    """Directions drawn by chance."""
    return World(
        tool=random.normal(size=(len(TOOLS), WIDTH)),
        success=0.6 * random.normal(size=(len(TOOLS), WIDTH)),
        task=0.3 * random.normal(size=(WIDTH, WIDTH)),
    )


def attempts_at(world: World, prompt: int, random: np.random.Generator) -> list[Attempt]:
    """Some attempts at one task."""
    difficulty = random.uniform(0.1, 0.6)
    look = world.task @ random.normal(size=WIDTH)
    return [one_attempt(world, prompt, difficulty, look, random) for _ in range(ATTEMPTS)]


def one_attempt(
    world: World, prompt: int, difficulty: float, look: NDArray[np.float64], random: np.random.Generator
) -> Attempt:
    """One attempt. Turns that decide nothing look as if they went right or wrong, too: a search may find nothing."""
    n = int(random.integers(5, 15))
    find, edit = sorted(random.choice(n, size=2, replace=False).tolist())
    others = [tool for tool in range(len(TOOLS)) if tool not in (FIND, EDIT)]
    tools = random.choice(others, size=n)
    tools[[find, edit]] = FIND, EDIT
    right = random.random(n) < 1.0 - difficulty
    noise = 0.4 * random.normal(size=(n, WIDTH))
    sign = np.where(right, 0.5, -0.5)[:, None]
    vectors = world.tool[tools] + sign * world.success[tools] + look + noise
    turns = [
        {"embedding": vector.round(4).tolist(), "text": f"{TOOLS[tool]}: {'fine' if is_right else 'nothing useful'}"}
        for vector, tool, is_right in zip(vectors, tools.tolist(), right.tolist(), strict=True)
    ]
    is_good = bool(right[find] and right[edit]) != (random.random() < LUCK)
    episode = {"turns": turns, "outcome": int(is_good), "group": f"prompt {prompt}"}
    return Attempt(episode, (find, edit), (bool(right[find]), bool(right[edit])))


Credit = dict[str, list[NDArray[np.float64]]]  # of each kind, for every turn of every attempt


def uniform(attempt: Attempt, expected: float) -> NDArray[np.float64]:
    """Each turn has the same share of what the outcome is better than expected."""
    n = len(attempt.episode["turns"])
    return np.full(n, (attempt.episode["outcome"] - expected) / n)


def discounted(attempt: Attempt, expected: float) -> NDArray[np.float64]:
    """Later turns have more of it."""
    weights = DISCOUNT ** np.arange(len(attempt.episode["turns"]))[::-1]
    credit: NDArray[np.float64] = (attempt.episode["outcome"] - expected) * weights / weights.sum()
    return credit


def share(credit: list[NDArray[np.float64]], attempts: list[Attempt]) -> tuple[float, float]:
    """The mean share on decisive turns, and its standard error."""
    shares = [
        np.abs(of_turns[list(attempt.decisive)]).sum() / np.abs(of_turns).sum()
        for of_turns, attempt in zip(credit, attempts, strict=True)
    ]
    return float(np.mean(shares)), float(np.std(shares, ddof=1) / len(shares) ** 0.5)


def draw(credit: Credit, attempts: list[Attempt], out: Path) -> None:
    """Shares as bars, and the credit of an attempt that failed because of one turn."""
    shown = next(n for n, a in enumerate(attempts) if sum(a.went_right) == 1 and not a.episode["outcome"])
    attempt, learnt = attempts[shown], credit["learnt"][shown]
    with drawing():
        figure = new_figure(6.75, 2.6)
        bars, turns = figure.subplots(1, 2, width_ratios=(1.0, 1.4))
        for name, of_kind in credit.items():
            mean, error = share(of_kind, attempts)
            colour = LEARNT if "learnt" in name else UNIFORM if name == "uniform" else NEITHER
            bars.bar(name.replace(", ", ",\n"), mean, yerr=error, color=colour)
        bars.set_ylabel("share on the two decisive turns")
        places = np.arange(len(learnt))
        is_decisive = np.isin(places, attempt.decisive)
        turns.bar(places[~is_decisive], learnt[~is_decisive], color=NEITHER, label="other turns")
        turns.bar(places[is_decisive], learnt[is_decisive], color=LEARNT, label="decisive turns")
        labels = [turn["text"].replace(": ", ":\n") for turn in attempt.episode["turns"]]
        turns.set_xticks(places, labels, rotation=90)
        turns.set_title("an attempt that failed: change of the predicted probability")
        turns.axhline(0.0, color=TRUTH, linewidth=0.6)
        turns.legend()
        write_picture(figure, out)


def main() -> None:
    """Fit, compare, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=150, help="tasks, with eight attempts at each")
    parser.add_argument("--updates", type=int, default=20_000, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("turns.png"))
    arguments = parser.parse_args()
    began, random = time.perf_counter(), np.random.default_rng(arguments.seed)
    world = make_world(random)
    attempts = [attempt for prompt in range(arguments.prompts) for attempt in attempts_at(world, prompt, random)]
    fresh = [attempt for prompt in range(FRESH) for attempt in attempts_at(world, arguments.prompts + prompt, random)]
    settings = {"outcome": "binary", "seed": arguments.seed, "updates": arguments.updates}
    model = diaster.fit([attempt.episode for attempt in attempts], **settings)
    expected = float(np.mean([attempt.episode["outcome"] for attempt in attempts]))
    credit: Credit = {
        "uniform": [uniform(attempt, expected) for attempt in fresh],
        "discounted": [discounted(attempt, expected) for attempt in fresh],
        "learnt": [model.rewards(attempt.episode, exact_sum=False) for attempt in fresh],
        "learnt, exact": [model.rewards(attempt.episode) for attempt in fresh],
    }
    low, high = model.fit_r2_interval
    print(f"{len(attempts)} attempts at {arguments.prompts} tasks, of which {expected:.0%} succeed")
    print(f"fit_r2 {model.fit_r2:.2f} (95 % interval {low:.2f} to {high:.2f})\n")
    print("credit          share on the decisive turns of fresh tasks")
    for name, of_kind in credit.items():
        mean, error = share(of_kind, fresh)
        print(f"{name:<15} {mean:.2f} ± {error:.2f}")
    largest = np.mean([int(np.abs(c).argmax()) in a.decisive for c, a in zip(credit["learnt"], fresh, strict=True)])
    print(f"\nthe turn with the largest learnt credit is a decisive one in {largest:.0%} of attempts")
    draw(credit, fresh, arguments.out)
    print(f"wrote {arguments.out} after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
