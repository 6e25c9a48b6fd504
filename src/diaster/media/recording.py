"""Records episodes of a trained run, so that figures can be drawn from its directory alone.

There are two kinds of episodes, about equally many: those of the policy, and a spread of behaviours from the policy to
random actions, since what a good policy does differs little from step to step. In a maze the spread starts in all cells
and has one goal.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diaster.actors.acting import random_actions
from diaster.actors.rollout import Rollout
from diaster.analysis.diagnostics import has_step_rewards
from diaster.envs.creating import Env
from diaster.envs.delayed import TRUE_REWARD
from diaster.errors import DiasterError
from diaster.media.rendering import Picture, picture_of, rendering_env, shrunk
from diaster.media.subject import Subject
from diaster.rundir.recordings import Maze, Rollouts, nets_digest, read_rollouts, write_rollouts
from diaster.rundir.tidying import locked_if_free, tidy
from diaster.types import Episode, EvaluationEpisode, FloatArray, Stream, host_random, reset_seed

FRAMES = 6
FRAME_SIDE = 160
MOST_EPISODES = 1000
HOLD = 4
# A map needs episodes from everywhere: of a maze the spread has more of them, some from each cell.
STARTS_PER_CELL, MOST_STARTS = 8, 64
FORWARD = "x_position"  # where Gymnasium's robots say how far they have come

Act = Callable[[FloatArray], FloatArray]


class Recorded(NamedTuple):
    """An episode, and what else figures need of it."""

    of: EvaluationEpisode
    position: NDArray[np.float64]  # [L+1, P]
    goal: NDArray[np.float64]  # [2] or [0]


class Places(NamedTuple):
    """Where an observation holds the position and the goal, if anywhere."""

    position: list[int]
    goal: list[int]


def check_number(episodes: int) -> None:
    """Refuse a number that no recording has, before a run is loaded."""
    if not 1 <= episodes <= MOST_EPISODES:
        raise DiasterError(f"{episodes} episodes were asked for; give a number from 1 to {MOST_EPISODES}.")


def record_rollouts(run: Subject, episodes: int) -> None:
    """Record `episodes` episodes of each seed's policy, and the spread, unless they are there already."""
    check_number(episodes)
    path = run.path
    tidy(path)
    nets = nets_digest(path)
    with contextlib.suppress(DiasterError):  # there is none, or none that can be used
        there = read_rollouts(path)
        if min(there.of_policy(seed) for seed in run.seeds) >= episodes:
            return
    maze = _maze_of(run)
    found = [
        (seed, is_spread, item)
        for seed in run.seeds
        for is_spread in (False, True)
        for item in _episodes(run, maze, seed, episodes, is_spread)
    ]
    rewards: dict[int, list[NDArray[np.float64]]] = {
        seed: run.step_rewards([item.of for of, _, item in found if of == seed], seed) for seed in run.seeds
    }
    step_reward = [values for seed in run.seeds for values in rewards[seed]]
    if any(np.isnan(values).any() for values in step_reward) and not all(
        item.of.episode.to_decompose.is_rated.all() for _, _, item in found
    ):
        raise DiasterError(
            f"the method '{run.config.method.name}' has no rewards for steps without feedback, which the episodes of "
            f"'{path}' have; only methods that fit a step reward can be recorded there."
        )
    if not all(np.isfinite(values).all() for values in step_reward):
        raise DiasterError(f"the step rewards of '{path}' are not finite; the run has diverged, train it again.")
    items = [item for _, _, item in found]
    is_known = has_step_rewards([item.of for item in items])
    width = min(item.position.shape[1] for item in items)  # a position that some episodes lack is not used
    rollouts = Rollouts(
        seed=np.array([seed for seed, _, _ in found], np.int64),
        is_spread=np.array([is_spread for _, is_spread, _ in found], bool),
        length=np.array([item.of.episode.length for item in items], np.int64),
        episode_return=np.array([item.of.episode.episode_return for item in items], np.float64),
        goal=np.stack([item.goal for item in items]),
        obs=np.concatenate([_recorded_obs(run, item.of.episode) for item in items]),
        action=np.concatenate([item.of.episode.action for item in items]),
        step_reward=np.concatenate(step_reward),
        true_reward=np.concatenate([_true_reward(item.of, is_known) for item in items]),
        position=np.concatenate([item.position[:-1, :width] for item in items]),
        next_position=np.concatenate([item.position[1:, :width] for item in items]),
        frames=np.zeros((0, 1, 1, 3), np.uint8),
        frame_step=np.zeros(0, np.int64),
        maze=maze,
    )
    # A graphics driver may crash the process: write what was recorded before anything is drawn.
    _write(path, rollouts, nets)
    frames, frame_step = _frames(run, items[0])
    if len(frames):
        _write(path, rollouts._replace(frames=frames, frame_step=frame_step), nets)


def _write(path: Path, rollouts: Rollouts, nets: str) -> None:
    with locked_if_free(path):  # else another recording would take the unfinished file for a killed one's
        write_rollouts(path, rollouts, nets)


def _recorded_obs(run: Subject, episode: Episode) -> FloatArray:
    """Observations in which actions were taken; images, of which a few episodes take gigabytes, are left out."""
    return episode.obs[:-1] if run.spec.image is None else np.zeros((episode.length, 0), np.float32)


def _true_reward(item: EvaluationEpisode, is_known: bool) -> NDArray[np.float64]:
    if item.true_reward is None or not is_known:
        return np.full(item.episode.length, np.nan)
    return item.true_reward.astype(np.float64)


def _episodes(run: Subject, maze: Maze | None, seed: int, n: int, is_spread: bool) -> list[Recorded]:
    """Episodes of the policy, or of behaviours between it and random actions."""
    make = (lambda: SpreadStarts(run.make_env())) if is_spread else run.make_env
    rollout = Rollout(make, run.spec, f"seed {seed}'s recording", run.config.feedback)
    places, policy, found = _places(run), run.actor(seed), []
    if is_spread and maze is not None:
        n = max(n, min(STARTS_PER_CELL * int((~maze.walls).sum()), MOST_STARTS))
    try:
        for number in range(n):
            start = reset_seed(seed, Stream.RECORD_RESET, int(is_spread), number)
            act = policy
            if is_spread:
                act = _mixed(run, policy, seed, number, share=(number + 0.5) / n)
            found.append(_episode(rollout, act, start, places))
    finally:
        rollout.close()
    return found


def _mixed(run: Subject, policy: Act, seed: int, number: int, share: float) -> Act:
    """The policy, replaced by a random action for this share of the time; each is held for a few steps.

    Pushes that change at every step cancel out.
    """
    random = host_random(seed, Stream.RECORD_ACTION, number)
    held: list[FloatArray | None] = []

    def act(obs: FloatArray) -> FloatArray:
        if not held:
            push = random_actions(random, 1, run.spec)[0] if random.random() < share else None
            held.extend([push] * HOLD)
        push = held.pop()
        return policy(obs) if push is None else push

    return act


def _episode(rollout: Rollout, act: Act, seed: int, places: Places) -> Recorded:
    obs = rollout.reset(seed)
    goal = obs[places.goal].astype(np.float64)
    positions, hidden_rewards, episode = [_position(obs, rollout.info, places)], [], None
    while episode is None:
        obs, episode = rollout.step(act(obs))
        positions.append(_position(obs, rollout.info, places))
        hidden_rewards.append(rollout.info[TRUE_REWARD])
    width = min(map(len, positions))  # a position that some steps lack is not used
    position = np.array([place[:width] for place in positions], np.float64).reshape(len(positions), width)
    return Recorded(EvaluationEpisode(episode, np.asarray(hidden_rewards, np.float32)), position, goal)


def _places(run: Subject) -> Places:
    """Where tasks with a goal in a plane have both; of others, `info` may say how far they have come."""
    space = run.raw_observation_space
    names = ("achieved_goal", "desired_goal")
    if isinstance(space, spaces.Dict) and all(
        isinstance(part := space.spaces.get(name), spaces.Box) and part.shape == (2,) for name in names
    ):
        indices: Any = spaces.unflatten(space, np.arange(run.spec.obs_dim))
        position, goal = ([int(index) for index in indices[name]] for name in names)
        return Places(position, goal)
    return Places([], [])


def _position(obs: FloatArray, info: dict[str, Any], places: Places) -> list[float]:
    if places.position:
        return [float(value) for value in obs[places.position]]
    value = info.get(FORWARD)
    return [float(value)] if isinstance(value, int | float | np.floating) and np.isfinite(value) else []


def _frames(run: Subject, first: Recorded) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures of an episode, drawn while its actions are repeated; none where nothing can be drawn."""
    episode = first.of.episode
    wanted = np.unique(np.linspace(0, episode.length, FRAMES).round().astype(int)).tolist()
    pictures: list[Picture] = []
    with contextlib.suppress(Exception), rendering_env(run.make_env, run.config.env) as env:
        obs, _ = env.reset(seed=reset_seed(run.seeds[0], Stream.RECORD_RESET, 0, 0))
        for step in range(episode.length + 1):
            if step in wanted:
                if not np.array_equal(np.asarray(obs, episode.obs.dtype), episode.obs[step]):
                    break  # more than seed and actions decides what happens: this is another episode
                pictures.append(shrunk(picture_of(env), FRAME_SIDE))
            if step < episode.length:
                obs, *_ = env.step(run.spec.to_env(episode.action[step]))
    if len(pictures) < len(wanted) or len({picture.shape for picture in pictures}) > 1:
        return np.zeros((0, 1, 1, 3), np.uint8), np.zeros(0, np.int64)
    return np.stack(pictures), np.array(wanted, np.int64)


class SpreadStarts(gym.Wrapper[Any, Any, Any, Any]):
    """Starts the episodes of a maze in one open cell after the other, all with one goal; changes no other env."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._cells = open_cells(_walls(env))
        self._number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._cells:
            start, goal = self._cells[self._number % len(self._cells)], self._cells[-1]
            options = {"reset_cell": np.array(start), "goal_cell": np.array(goal)}
            self._number += 1
        return self.env.reset(seed=seed, options=options)


def open_cells(walls: NDArray[np.bool_] | None) -> list[tuple[int, int]]:
    """The open cells of a maze, by their distance from the first; the last is the farthest."""
    if walls is None or walls.all():
        return []
    first = tuple(int(index) for index in np.argwhere(~walls)[0])
    found, ahead = [(first[0], first[1])], deque([(first[0], first[1])])
    while ahead:
        row, column = ahead.popleft()
        for cell in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            inside = 0 <= cell[0] < walls.shape[0] and 0 <= cell[1] < walls.shape[1]
            if inside and not walls[cell] and cell not in found:
                found.append(cell)
                ahead.append(cell)
    return found


def _walls(env: Env) -> NDArray[np.bool_] | None:
    """The map of an environment of Gymnasium-Robotics that has one; anything but a wall is open."""
    maze = getattr(env.unwrapped, "maze", None)
    rows = getattr(maze, "maze_map", None)
    return None if rows is None else np.array([[cell == 1 for cell in row] for row in rows], bool)


def _maze_of(run: Subject) -> Maze | None:
    env = run.make_env()
    try:
        walls = _walls(env)
        cell = getattr(getattr(env.unwrapped, "maze", None), "maze_size_scaling", 1.0)
        return None if walls is None else Maze(walls, float(cell))
    finally:
        env.close()
