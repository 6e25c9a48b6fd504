"""The watch-repair problem, RUDDER's own benchmark: Diaster, RUDDER and TD compared, tabular.

    python examples/watch_repair.py                           # ten seeds of each, a table and watch-repair.png
    python examples/watch_repair.py --seeds 3 --out few.png
    python examples/watch_repair.py --quick                   # a look at how it runs; too few episodes to learn
    python examples/watch_repair.py --coarse                  # a table that does not count flat tyres

**The problem.** A pocket watch of one of four brands comes in, and the shop decides whether to repair it. A repaired
watch is driven to its buyer. The decision is the first of 51 steps; the other 50 are legs of the drive, each with a
flat tyre by chance, where no action changes anything. The profit is known on arrival, in one number: price less
workshop less 7 for every flat tyre; 0 for a watch that was left as it was. Flat tyres cost 17.5 on average, with a
standard deviation of 10.8, and come alike for every brand. Repairing pays for two brands (+3.5 on average) and not for
the other two (−1.5): a small difference behind 50 steps of noise. The idea is that of the demonstration to RUDDER
(Arjona-Medina et al., 2019), which has four brands, 50 steps and mean profits of this size; the environment is ours.

**The agent** is the same for all three: tabular Q-learning without discount, learning rate 0.1, ε-greedy with
ε = 0.1, ties broken by chance, values 0 at first. Its table is over the environment's state: time, brand, repaired or
not, flat tyres so far. Without the last of these the profit would not depend on the last state alone. After the first
step there is one action, so that the maximum in the update is over one value. Only the rewards differ:

- TD: the raw delayed reward (method `episodic`);
- RUDDER: differences of an LSTM's predictions of the return, with settings as in its authors' demonstration: 16 units,
  step size 0.01, batches of 8 episodes (here of the last 2,000);
- Diaster: its step reward r̂(s, a), with nets of the same size, step size and batches. The variance penalty is 16:
  rewards of an episode that differ little have the sign of its expected profit from the first step on.

The two nets have 25 updates after every 25 episodes. In the first 100 episodes only the nets learn: until then their
agents decide at random, as every agent does before its values change.

**The criterion.** An agent has solved the problem at the first episode after which its greedy decision is right for all
four brands, and stays right after each of the next 999 episodes. The result is the number of episodes up to and with
that first one. The criterion is the same for all three, and is checked after every episode.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import Array

from diaster.analysis.figures.style import FORMATS, method_style
from diaster.config import DiasterConfig, EpisodicConfig, RudderConfig, parse_seeds
from diaster.decomposers import Decomposer
from diaster.decomposers.controls import make_episodic
from diaster.decomposers.diaster import make_diaster
from diaster.decomposers.rudder import make_rudder
from diaster.errors import DiasterError
from diaster.learning.machine import use_compilation_cache
from diaster.learning.updates import stream_key
from diaster.replay.store import EpisodeBlock, EpisodeStore, Steps, init_store, insert
from diaster.types import EnvSpec, Stream, host_random

BRANDS = 4
PRICE = np.array([20.0, 30.0, 40.0, 60.0], np.float32)
WORKSHOP_MEAN = np.array([4.0, 9.0, 19.0, 44.0], np.float32)
WORKSHOP_STD = 2.0
LEGS = 50
FLAT_CHANCE, FLAT_COST = 0.05, 7.0
EXPECTED_PROFIT = PRICE - WORKSHOP_MEAN - LEGS * FLAT_CHANCE * FLAT_COST  # of repairing
BEST = EXPECTED_PROFIT > 0.0

LEAVE, REPAIR = 0, 1
STEPS = LEGS + 1
OBS_DIM = BRANDS + 4
SPEC = EnvSpec("watch-repair", OBS_DIM, 2, np.zeros(2, np.float32), np.ones(2, np.float32), (), STEPS, discrete=True)

LEARNING_RATE, EXPLORATION = 0.1, 0.1
KEPT = 1000  # episodes in a row for which the greedy decisions have to be right
RING = 2000  # episodes that a net's batches are drawn from


# --- the environment ------------------------------------------------------------------------------------------


class Trips(NamedTuple):
    """All that is left to chance in some episodes; no decision changes it."""

    brand: Any  # [E]
    workshop: Any  # [E] what the repair costs
    flat: Any  # [E, LEGS] whether this leg has a flat tyre


def draw_trips(random: np.random.Generator, n: int) -> Trips:
    """Chance in n episodes."""
    brand = random.integers(BRANDS, size=n)
    workshop = random.normal(WORKSHOP_MEAN[brand], WORKSHOP_STD).astype(np.float32)
    return Trips(brand, workshop, random.random((n, LEGS)) < FLAT_CHANCE)


def observe(xp: Any, trips: Trips, repaired: int) -> Any:
    """What is seen before each step and after the last one, by NumPy or JAX's NumPy.  # [E, STEPS + 1, OBS_DIM]

    The brand as four flags; whether the watch was repaired; whether the last leg had a flat tyre; how many there were;
    and the time, from 0 to 1 at the last step.
    """
    n = trips.brand.shape[0]
    nothing = xp.zeros((n, 1), "float32")
    flat = xp.concatenate([nothing, trips.flat.astype("float32"), nothing], axis=1)
    time = xp.broadcast_to(xp.arange(STEPS + 1, dtype="float32") / LEGS, flat.shape)
    is_brand = (trips.brand[:, None, None] == np.arange(BRANDS)).astype("float32")
    return xp.concatenate(
        [
            xp.broadcast_to(is_brand, (*flat.shape, BRANDS)),
            xp.stack([repaired * (time > 0.0), flat, xp.cumsum(flat, axis=1), time], axis=-1).astype("float32"),
        ],
        axis=-1,
    )


def profit(xp: Any, trips: Trips, repaired: int) -> Any:
    """The one number of each episode.  # [E]"""
    return repaired * (xp.asarray(PRICE)[trips.brand] - trips.workshop - FLAT_COST * trips.flat.sum(axis=1))


class WatchRepair(gym.Env[np.ndarray, Any]):
    """The problem as an ordinary environment: 51 steps, the reward on arrival.

    Actions are 0, leave the watch as it is, and 1, repair it; only the first one counts.
    """

    def __init__(self) -> None:
        high = np.array([1.0] * BRANDS + [1.0, 1.0, LEGS, STEPS / LEGS], np.float32)
        self.observation_space = spaces.Box(np.zeros(OBS_DIM, np.float32), high)
        self.action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._trips = draw_trips(self.np_random, 1)
        self._seen = observe(np, self._trips, LEAVE)[0]
        self._profit, self._time = 0.0, 0
        return self._seen[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._time == 0:
            self._seen = observe(np, self._trips, int(action))[0]
            self._profit = float(profit(np, self._trips, int(action))[0])
        self._time += 1
        arrived = self._time == STEPS
        return self._seen[self._time], self._profit if arrived else 0.0, arrived, False, {}


# --- tabular Q-learning, one seed; the caller adds vmap -------------------------------------------------------


class Table(NamedTuple):
    """Q: of the two decisions for each brand, and of every state on the way."""

    decision: Array  # [BRANDS, 2]
    on_the_way: Array  # [LEGS · BRANDS · 2 · (LEGS + 1)]


class Coins(NamedTuple):
    """Chance in the agent's decisions."""

    explores: Any  # [E]
    guess: Any  # [E]


def init_table() -> Table:
    """All values are 0."""
    return Table(jnp.zeros((BRANDS, 2)), jnp.zeros(LEGS * BRANDS * 2 * (LEGS + 1)))


def places(trips: Trips, coarse: bool) -> Array:
    """Where a table holds the states on the way, for a watch that was not repaired.  # [E, LEGS]"""
    flats = 0 if coarse else jnp.cumsum(trips.flat, axis=1)
    found: Array = (jnp.arange(LEGS) * BRANDS + trips.brand[:, None]) * 2 * (LEGS + 1) + flats
    return found


def q_update(table: Table, rate: Array, brand: Array, action: Array, place: Array, reward: Array) -> Table:
    """One episode. Every state is visited once, so all its steps can be updated at the same time.

    place  # [LEGS], of the states on the way; reward  # [STEPS]
    """
    value = table.on_the_way[place]
    target = reward + jnp.concatenate([value, jnp.zeros(1)])
    return Table(
        table.decision.at[brand, action].add(rate * (target[0] - table.decision[brand, action])),
        table.on_the_way.at[place].add(rate * (target[1:] - value), unique_indices=True),
    )


def both_episodes(trips: Trips) -> tuple[Array, Array, Array]:
    """What is seen, done and earned in each trip after either decision.

    Returns  # [2, E, STEPS + 1, OBS_DIM], [2, E, STEPS, 2], [2, E]
    """
    decisions = (LEAVE, REPAIR)
    obs = jnp.stack([observe(jnp, trips, decision) for decision in decisions])
    first = jnp.arange(STEPS) == 0
    repairs = jnp.stack([first & (decision == REPAIR) for decision in decisions])  # on the way the action is 0
    action = jax.nn.one_hot(repairs.astype(int), 2)[:, None]
    action = jnp.broadcast_to(action, (*obs.shape[:2], STEPS, 2))
    return obs, action, jnp.stack([profit(jnp, trips, decision) for decision in decisions])


def redistribute(decomposer: Decomposer, state: Any, obs: Array, action: Array, earned: Array) -> Array:
    """The rewards of both episodes of each trip, in the environment's units.  # [2, E, STEPS]"""
    n = earned.size

    def rows(values: Array) -> Array:
        return jnp.moveaxis(values.reshape(n, STEPS, -1), 0, 1)  # [STEPS, 2·E, …]

    step = jnp.broadcast_to(jnp.arange(STEPS)[:, None], (STEPS, n))
    steps = Steps(
        obs=rows(obs[:, :, :-1]),
        action=rows(action),
        next_obs=rows(obs[:, :, 1:]),
        terminal=step == STEPS - 1,
        time=step,
        length=jnp.full((STEPS, n), STEPS),
        episode_return=jnp.broadcast_to(earned.reshape(-1), (STEPS, n)),
    )
    rewards = (decomposer.label or decomposer.reward)(state, steps) * decomposer.scale(state)
    return rewards.T.reshape(*earned.shape, STEPS)


def play(
    decomposer: Decomposer, coarse: bool, state: Any, table: Table, trips: Trips, coins: Coins, rate: Array
) -> tuple[Table, Array, Array]:
    """Decide and learn, episode by episode, with the decomposer as it is.

    Returns the table, the decisions  # [E], and after each episode whether the greedy one is to repair  # [E, BRANDS]
    """
    rewards = redistribute(decomposer, state, *both_episodes(trips))
    place = places(trips, coarse)

    def episode(table: Table, now: tuple[Array, ...]) -> tuple[Table, tuple[Array, Array]]:
        brand, explores, guess, place, rewards = now
        value = table.decision[brand]
        by_chance = explores | (value[LEAVE] == value[REPAIR])
        action = jnp.where(by_chance, guess, jnp.argmax(value))
        table = q_update(table, rate, brand, action, place + action * (LEGS + 1), rewards[action])
        return table, (action, table.decision[:, REPAIR] > table.decision[:, LEAVE])

    table, (action, repairs) = jax.lax.scan(
        episode, table, (trips.brand, coins.explores, coins.guess, place, jnp.swapaxes(rewards, 0, 1))
    )
    return table, action, repairs


def fit(
    decomposer: Decomposer,
    n_updates: int,
    store: EpisodeStore,
    state: Any,
    trips: Trips,
    decision: Array,
    seed_key: Array,
    first: Array,
) -> tuple[EpisodeStore, Any]:
    """Store the episodes that were played, from the numbered one on, and update the decomposer."""
    draw, update = decomposer.draw, decomposer.update
    assert draw is not None and update is not None
    obs, action, earned = both_episodes(trips)
    n = decision.shape[0]
    chosen = (decision, jnp.arange(n))
    shape = (n, STEPS + 1)
    block = EpisodeBlock(
        obs=obs[chosen].reshape(-1, OBS_DIM),
        action=jnp.pad(action[chosen], ((0, 0), (0, 1), (0, 0))).reshape(-1, 2),
        row_episode=jnp.broadcast_to(jnp.arange(n)[:, None], shape).reshape(-1),
        row_step=jnp.broadcast_to(jnp.arange(STEPS + 1), shape).reshape(-1),
        length=jnp.full(n, STEPS),
        episode_return=earned[chosen],
        terminated=jnp.ones(n, bool),
    )
    store = insert(store, block)
    state = decomposer.ingest(state, store, block)

    def step(state: Any, key: Array) -> tuple[Any, None]:
        return update(state, draw(state, store, key))[0], None

    keys = jax.random.split(stream_key(seed_key, Stream.UPDATE_DECOMPOSER, first), n_updates)
    state, _ = jax.lax.scan(step, state, keys)
    return store, state


# --- the comparison -------------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """A source of rewards for the agent."""

    name: str
    decomposer: Decomposer
    budget: int
    """Episodes after which a seed that has not solved the problem is given up."""
    block: int = 25
    """Episodes between two fits of the decomposer, if it has one."""
    updates: int = 25
    """In a fit."""
    head_start: int = 100
    """Episodes that only the decomposer learns from."""


class Result(NamedTuple):
    """What a contender did with all seeds."""

    name: str
    budget: int
    needed: np.ndarray  # [S] episodes; infinite where the criterion was not met
    repairs: np.ndarray  # [S, N, BRANDS] the greedy decisions after each episode
    seconds: float


def contenders(quick: bool) -> list[Contender]:
    """The three, with their settings."""
    diaster = DiasterConfig(base="none", hidden=16, learning_rate=0.01, batch_episodes=8, variance_penalty=16.0)
    rudder = RudderConfig(hidden=16, learning_rate=0.01, batch_episodes=8)
    few, many, updates = (200, 2000, 5) if quick else (10_000, 200_000, 25)
    return [
        Contender("Diaster", make_diaster(diaster, STEPS), few, updates=updates),
        Contender("RUDDER", make_rudder(rudder, STEPS), few, updates=updates),
        # Nothing is fitted, so blocks are for speed alone.
        Contender("TD", make_episodic(EpisodicConfig(return_scale=1.0), STEPS), many, block=1000, head_start=0),
    ]


def episodes_needed(right: np.ndarray, kept: int = KEPT) -> float:
    """The number of the first episode that begins a row of `kept` right ones; infinite if none does.  right  # [N]"""
    wrong = np.flatnonzero(np.concatenate([[True], ~right, [True]]))  # 0 is before the first episode
    long_enough = np.diff(wrong) > kept
    return float(wrong[:-1][long_enough][0] + 1) if long_enough.any() else np.inf


def compare(
    contender: Contender, seeds: Sequence[int], coarse: bool = False, report: Callable[[str], object] = lambda _: None
) -> Result:
    """Let one contender learn with every seed, until all have solved the problem or the budget is spent."""
    begin, decomposer = time.perf_counter(), contender.decomposer
    keys = jax.vmap(jax.random.key)(np.asarray(seeds, np.uint32))

    def init(key: Array) -> tuple[Table, EpisodeStore, Any]:
        store = init_store(RING * (STEPS + 1), OBS_DIM, 2)
        return init_table(), store, decomposer.init(stream_key(key, Stream.INIT_DECOMPOSER, 0), SPEC)

    table, store, state = jax.jit(jax.vmap(init))(keys)
    playing = jax.jit(jax.vmap(partial(play, decomposer, coarse), in_axes=(0, 0, 0, 0, None)), donate_argnums=1)
    if decomposer.update is not None:
        fit_all = jax.vmap(partial(fit, decomposer, contender.updates), in_axes=(0, 0, 0, 0, 0, None))
        fitting = jax.jit(fit_all, donate_argnums=(0, 1))
    repairs: list[np.ndarray] = []
    needed = np.full(len(seeds), np.inf)
    for done in range(0, contender.budget, contender.block):
        trips, coins = draw_block(seeds, done, contender.block)
        rate = np.float32(0.0 if done < contender.head_start else LEARNING_RATE)
        table, decision, greedy = playing(state, table, trips, coins, rate)
        if decomposer.update is not None:
            store, state = fitting(store, state, trips, decision, keys, np.int32(done))
        repairs.append(np.asarray(greedy))
        if (done + contender.block) % KEPT == 0:
            right = (np.concatenate(repairs, axis=1) == BEST).all(axis=-1)
            solved_before = np.isfinite(needed).sum()
            needed = np.array([episodes_needed(of_seed) for of_seed in right])
            solved = np.isfinite(needed).sum()
            if solved > solved_before:
                report(f"{contender.name}: {solved} of {len(seeds)} after {done + contender.block:,} episodes")
            if solved == len(seeds):
                break
    return Result(
        contender.name, contender.budget, needed, np.concatenate(repairs, axis=1), time.perf_counter() - begin
    )


def draw_block(seeds: Sequence[int], first: int, n: int) -> tuple[Trips, Coins]:
    """Chance in n episodes of every seed, from the numbered one on; [S, n, …]"""
    drawn = []
    for seed in seeds:
        random = host_random(seed, Stream.COLLECT_RESET, first)
        choice = host_random(seed, Stream.COLLECT_ACTION, first)
        drawn.append((draw_trips(random, n), Coins(choice.random(n) < EXPLORATION, choice.integers(2, size=n))))
    trips, coins = jax.tree.map(lambda *parts: np.stack(parts), *drawn)
    return trips, coins


# --- what a person sees ---------------------------------------------------------------------------------------


def right_afterwards(result: Result) -> float:
    """Of the episodes after a seed met the criterion's thousand, the share after which all its decisions were right."""
    right = (result.repairs == BEST).all(axis=-1)
    later = [
        of_seed[int(needed) - 1 + KEPT :]
        for of_seed, needed in zip(right, result.needed, strict=True)
        if np.isfinite(needed)
    ]
    return float(np.concatenate([*later, np.zeros(0)]).mean()) if sum(map(len, later)) else np.nan


def count_text(episodes: float, budget: int) -> str:
    """A number of episodes, or that it was more than there were."""
    return f"{episodes:,.0f}" if np.isfinite(episodes) else f"> {budget:,}"


def table_text(results: Sequence[Result]) -> str:
    """The results as a Markdown table. Quartiles are values of single seeds, the upper where two are as near."""
    lines = [
        "| method | median | quartiles | of each seed | right afterwards | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        text = partial(count_text, budget=result.budget)
        low, middle, high = np.quantile(result.needed, [0.25, 0.5, 0.75], method="higher")
        afterwards = right_afterwards(result)
        lines.append(
            f"| {result.name} | {text(middle)} | {text(low)} to {text(high)} | {', '.join(map(text, result.needed))} | "
            f"{'–' if np.isnan(afterwards) else f'{afterwards:.0%}'} | {result.seconds:.0f} |"
        )
    return "\n".join(lines)


def plot(results: Sequence[Result], out: Path) -> None:
    """Above, what the greedy decisions earn on average; below, when each seed met the criterion."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    looks = map(
        method_style, ("diaster", "rudder", "episodic")
    )  # TD learns from the profit alone, as that control does
    with plt.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (above, below) = plt.subplots(
            2, 1, figsize=(6.0, 4.8), sharex=True, height_ratios=(2, 1), layout="constrained"
        )
        for row, (result, (colour, line, marker)) in enumerate(zip(results, looks, strict=True)):
            earned = (result.repairs * EXPECTED_PROFIT).mean(axis=-1)  # [S, N]
            bins = np.unique(np.geomspace(10, earned.shape[1], 60).astype(int))
            middle = np.array([earned[:, a:b].mean() for a, b in pairwise(bins)])
            curve = {"color": colour, "linestyle": line, "marker": marker, "markevery": (3 * row, 12), "markersize": 5}
            above.plot(bins[1:], middle, linewidth=2.0, label=result.name, **curve)
            solved = result.needed[np.isfinite(result.needed)]
            below.scatter(solved, np.full(len(solved), row), color=colour, marker=marker, alpha=0.6, linewidths=0)
            if len(solved) < len(result.needed):  # hollow: given up here
                below.scatter([earned.shape[1]], [row], facecolors="none", edgecolors=colour, marker=marker)
        best = np.maximum(EXPECTED_PROFIT, 0.0).mean()
        for value, text in ((best, "the best there is"), (EXPECTED_PROFIT.mean(), "repair every watch")):
            above.axhline(value, color="0.5", linewidth=0.8)
            above.annotate(text, (10, value), (0, 3), textcoords="offset points", color="0.35", fontsize=9)
        above.set_ylabel("profit per watch of\ngreedy decisions")
        above.margins(y=0.1)
        figure.legend(*above.get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=3)
        below.set_yticks(range(len(results)), [result.name for result in results])
        below.set_ylim(len(results) - 0.5, -0.5)
        below.set_ylabel("solved, by seed")
        below.set_xscale("log")
        below.set_xlabel("episodes")
        below.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
        for axes in (above, below):
            axes.grid(alpha=0.25)
        try:
            figure.savefig(out, dpi=200)
        except OSError as error:
            raise DiasterError(f"'{out}' cannot be written: {error.strerror}.") from None
        finally:
            plt.close(figure)


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise DiasterError(f"{message}; --help lists what is known.")


def parse(arguments: Sequence[str] | None) -> tuple[tuple[int, ...], Path, bool, bool]:
    """Seeds, picture, quick, coarse; refused before anything is computed."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", help="a count, or seeds separated by commas; 10, with --quick 2")
    parser.add_argument("--out", type=Path, default=Path("watch-repair.png"), help="the picture to write")
    parser.add_argument("--quick", action="store_true", help="a few episodes, to see that it runs")
    parser.add_argument("--coarse", action="store_true", help="leave flat tyres out of the table of values")
    given = parser.parse_args(arguments)
    seeds = parse_seeds(given.seeds or ("2" if given.quick else "10"))
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= 2**32:
        raise DiasterError(
            f"seeds '{given.seeds}' are no different whole numbers from 0 on; give --seeds 10 or 3,7,11."
        )
    if given.out.suffix not in FORMATS:
        raise DiasterError(f"'{given.out}' is no picture this can write; end its name in {', '.join(FORMATS)}.")
    if not given.out.parent.is_dir():
        raise DiasterError(f"the folder '{given.out.parent}' for '{given.out.name}' does not exist; make it first.")
    return seeds, given.out, given.quick, given.coarse


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, write the picture."""
    try:
        seeds, out, quick, coarse = parse(arguments)
        use_compilation_cache()
        report = partial(print, file=sys.stderr, flush=True)
        results = [compare(contender, seeds, coarse, report) for contender in contenders(quick)]
        plot(results, out)
    except DiasterError as error:
        print(f"watch_repair: {error}", file=sys.stderr)
        return 2
    print(
        f"Episodes until the greedy decisions are right for all brands, and for {KEPT:,} in a row; {len(seeds)} seeds."
    )
    print(table_text(results))
    print(f"The picture is in {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
