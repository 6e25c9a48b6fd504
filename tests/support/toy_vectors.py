"""A vector environment whose transitions are known: each of its lanes tells who it is and where in which episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)
LANE, EPISODE, TIME, ACTION, START = range(5)  # what an observation holds


class TellingVector(VectorEnv):
    """Lane i has episodes of 2 + i steps, the odd ones terminate; a step pays 100 · lane + its time.

    It writes to one array over and over, and resets by itself with random numbers of its own.
    """

    stale = False  # whether a step that resets still says that the episode has ended

    def __init__(
        self, num_envs: int = 3, mode: AutoresetMode = AutoresetMode.NEXT_STEP, fault_at: int = -1, **_: Any
    ) -> None:
        self.num_envs, self.mode, self.fault_at = num_envs, mode, fault_at  # the step that fails
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.obs = np.zeros((num_envs, 5), np.float32)
        self.ended = np.zeros(num_envs, bool)
        self.steps = 0
        self.render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if options is None:
            self.obs[:] = 0
            self.obs[:, LANE] = range(self.num_envs)
            self.obs[:, EPISODE] = -1
            which = np.ones(self.num_envs, bool)
        else:
            assert self.mode is AutoresetMode.DISABLED, "nobody else may ask for it"
            which = options["reset_mask"]
            assert (which == self.ended).all()
        self._begin(which)
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions)
        if self.steps == self.fault_at:
            raise RuntimeError("the vector broke")
        self.steps += 1
        idle = self.ended if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        assert self.mode is not AutoresetMode.DISABLED or not self.ended.any(), "reset first"
        self.obs[~idle, TIME] += 1
        self.obs[~idle, ACTION] = actions[~idle, 0]
        rewards = np.where(idle, 0.0, 100.0 * self.obs[:, LANE] + self.obs[:, TIME])
        ended = (self.obs[:, TIME] == 2 + self.obs[:, LANE]) & ~idle
        terminations = ended & (self.obs[:, LANE] % 2 == 1)
        infos: dict[str, Any] = {"x_position": self.obs[:, TIME] / 2, "_x_position": ~idle}
        infos |= {"feedback": 7.0 * self.obs[:, TIME], "_feedback": ~idle & (self.obs[:, TIME] % 2 == 0)}
        if self.mode is AutoresetMode.SAME_STEP:
            infos["final_obs"] = np.full(self.num_envs, None)
            for lane in np.flatnonzero(ended):
                infos["final_obs"][lane] = self.obs[lane].copy()
            infos["_final_obs"] = ended
            self._begin(ended)
        elif self.mode is AutoresetMode.NEXT_STEP:
            self._begin(idle)
        if self.stale:
            terminations = terminations | idle
        self.ended = np.zeros(self.num_envs, bool) if self.mode is AutoresetMode.SAME_STEP else ended
        return self.obs, rewards, terminations, ended & ~terminations, infos

    def render(self) -> Any:
        shades = (10 * self.obs[:, LANE] + self.obs[:, TIME]).astype(np.uint8)
        return tuple(np.full((30, 40, 3), shade) for shade in shades)

    def _begin(self, which: Any) -> None:
        self.ended = self.ended & ~which
        self.obs[which, EPISODE] += 1
        self.obs[which, TIME] = self.obs[which, ACTION] = 0
        self.obs[which, START] = self.np_random.normal(size=int(which.sum()))


def make_telling() -> VectorEnv:
    return TellingVector(mode=AutoresetMode.SAME_STEP)


class DictVector(TellingVector):
    """The same in two named parts, and with discrete actions."""

    def __init__(self, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> None:
        super().__init__(mode=mode)
        part = self.single_observation_space
        self.single_observation_space = spaces.Dict({"tells": part, "twice": part})
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = spaces.Discrete(2, start=1)
        self.discrete = batch_space(self.single_action_space, self.num_envs)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, infos = super().reset(**given)
        return self.named(obs), infos

    def step(self, actions: Any) -> Any:
        assert self.discrete.contains(actions)
        obs, *rest, infos = super().step((actions[:, None] - 1.5).astype(np.float32))
        for number, last in enumerate(infos.get("final_obs", ())):
            infos["final_obs"][number] = None if last is None else self.named(last)
        return self.named(obs), *rest, infos

    def named(self, obs: Any) -> dict[str, Any]:
        return {"tells": obs, "twice": 2 * obs}


gym.register("ToyVector-v0", entry_point="toy_envs:Toy", vector_entry_point="toy_vectors:TellingVector")
