"""Tiny environments for the tests, registered when this module is imported (`--import toy_envs`)."""

import ctypes
import os
import signal
import threading
import time
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

HORIZON = 10
HANG = 900  # seconds: longer than any limit


class Toy(gym.Env):
    """A point that is pushed about: the reward of a step is how near it stays to a place."""

    def __init__(self, terminate_at: int | None = None, constant: bool = False) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.terminate_at, self.constant = terminate_at, constant

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3).astype(np.float32)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        push = np.zeros(3, np.float32)
        push[:2] = np.ravel(action)[:2]
        self.place = 0.9 * self.place + 0.3 * push
        return self.observe(), self.reward(), self.time == self.terminate_at, False, {}

    def observe(self) -> Any:
        return self.place.copy()

    def reward(self) -> Any:
        return 1.0 if self.constant else 1.0 - float(np.square(self.place - 0.5).sum())


class NearlyConstantToy(Toy):
    """Its returns hardly differ from each other."""

    def reward(self) -> Any:
        return 100.0 + 0.001 * super().reward()


class ForkingToy(Toy):
    """Forks a process at its first reset, which inherits every open handle and lives on for a while."""

    child = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not self.child:
            self.child = os.fork()
            if self.child == 0:
                time.sleep(HANG)
                os._exit(0)
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        if self.child:
            os.kill(self.child, signal.SIGKILL)


class MovingToy(Toy):
    """Changes the working directory when it is made."""

    def __init__(self) -> None:
        super().__init__()
        os.chdir(os.environ["TOY_ELSEWHERE"])


class TalkingToy(Toy):
    """Prints at every reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        print("hello from the environment")
        return super().reset(seed=seed, options=options)


class ClosingToy(Toy):
    """Cannot be closed."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = error

    def close(self) -> None:
        if self.error == "hangs":
            time.sleep(HANG)
        raise RuntimeError("stuck") if self.error == "raises" else SystemExit(0)


class UnmadeToy(Toy):
    """Cannot be made, and takes its process along or does not let it go."""

    def __init__(self, error: str) -> None:
        os._exit(7) if error == "dies" else time.sleep(HANG)


class SpreadToy(Toy):
    """Rewards are multiples of 1/8, so that sums are exact; late: every second step pays for two."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late, self.owed = late, 0.0

    def reward(self) -> Any:
        earned = round(8.0 * super().reward()) / 8.0
        if not self.late:
            return earned
        self.owed = earned if self.time % 2 else self.owed + earned
        return 0.0 if self.time % 2 else self.owed


class PlainToy(Toy):
    """The reward of a step can be read off the observation it leads to, to the last bit."""

    def reward(self) -> Any:
        return float(self.place[0])


class EpisodicToy(Toy):
    """Silent until its last step, by its own nature."""

    total = 0.0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, _, _, info = super().step(action)
        self.total = reward if self.time == 1 else self.total + reward
        last = self.time == HORIZON
        return obs, self.total if last else 0.0, False, last, info


class MarkingToy(Toy):
    """Marks spans at random times, some of them without a number, and tells a part of every reward."""

    since = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.since = 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        known = 0.25 * (self.time % 2)
        info: dict[str, Any] = {"known_reward": known}
        self.since += reward + known
        chance = self.np_random.random()
        if chance < 0.4:
            info["feedback"] = None if chance < 0.1 else self.since
            self.since = 0.0
        return obs, reward + known, terminated, truncated, info


class SayingToy(Toy):
    """Says in every step's `info` what it is told to."""

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__()
        self.info = info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, dict(self.info)


class WideToy(Toy):
    """Shows as many numbers as it is told, and how long a word is."""

    def __init__(self, width: int = 3, word: str = "", rows: Any = ()) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.width, self.word, self.rows = width, word, rows

    def observe(self) -> Any:
        return np.resize(self.place, self.width) + np.float32(len(self.word) + sum(map(sum, self.rows)))


class DictToy(Toy):
    """Its observation comes in named parts, one of them a matrix."""

    def __init__(self) -> None:
        super().__init__()
        part = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        self.observation_space = spaces.Dict({"place": self.observation_space, "grid": part})

    def observe(self) -> Any:
        return {"place": self.place.copy(), "grid": np.full((2, 2), float(self.time))}


class BoundedToy(Toy):
    """Actions are a matrix with other bounds for each entry; one outside of them is an error."""

    def __init__(self) -> None:
        super().__init__()
        low = np.array([[-2.0, 0.0, -0.1], [3.0, -1e3, -7.5]], np.float32)
        high = np.array([[6.0, 0.25, 0.7], [4.0, 250.0, -2.5]], np.float32)
        self.action_space = spaces.Box(low, high, dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return super().step(action / 1e3)


class DiscreteToy(Toy):
    """Pushes one way or the other, or not at all; an action it has no name for is an error."""

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(3, start=start)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        return super().step(np.full(2, float(action - self.action_space.start) - 1.0))


class DotToy(Toy):
    """A dot that is pushed about on a picture: the reward of a step is how near it stays to a place."""

    def __init__(self, is_coloured: bool, is_discrete: bool = False) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (12, 16, 3) if is_coloured else (12, 16), np.uint8)
        if is_discrete:
            self.action_space = spaces.Discrete(4)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        pushes = ([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0])
        return super().step(pushes[action] if isinstance(self.action_space, spaces.Discrete) else action)

    def observe(self) -> Any:
        picture = np.zeros(self.observation_space.shape, np.uint8)
        row, column = (int(np.clip(5.0 + 2.5 * self.place[axis], 0.0, 9.0)) for axis in (0, 1))
        picture[row : row + 3, column : column + 3] = 255
        return picture


class TableToy(Toy):
    """A walk over a table, as in Gymnasium's toy texts: whole numbers go in and come out, also as the reward."""

    MOVES: ClassVar[dict[int, int]] = {0: -1, 1: 1}

    def __init__(self) -> None:
        super().__init__()
        self.observation_space, self.action_space = spaces.Discrete(5, start=3), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(5))
        return self.cell + 3, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        self.cell = min(max(self.cell + self.MOVES[action], 0), 4)
        return np.asarray(self.cell + 3), np.asarray(self.cell), np.bool_(False), 0, {}  # type: ignore[return-value]


class RunnerToy(Toy):
    """Tells how far it has come, and can draw itself."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode, self.far = render_mode, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self.far = 0.0
        return obs, {**info, "x_position": self.far}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        self.far += float(self.place[0])
        return obs, reward, terminated, truncated, {**info, "x_position": self.far}

    def render(self) -> Any:
        return np.full((30, 40, 3), min(255, 20 * self.time), np.uint8)


class UndrawnToy(Toy):
    """Says that it can draw, and does not."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode


class BlankToy(UndrawnToy):
    """Draws nothing."""

    def render(self) -> Any:
        return None


class MujocoToy(UndrawnToy):
    """Has a name like those that draw with a driver, and lacks it."""

    def render(self) -> Any:
        raise RuntimeError("no driver")


class MazeToy(Toy):
    """A point with a goal in a maze of two open cells; it says where it is told to start."""

    class Map:
        maze_map = ((1, 1, 1, 1), (1, "r", "g", 1), (1, 1, 1, 1))
        maze_size_scaling = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.maze, self.goal = self.Map(), np.zeros(2)
        part = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = spaces.Dict({"observation": part, "achieved_goal": part, "desired_goal": part})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        cells = options or {"reset_cell": (1, 1), "goal_cell": (1, 1)}
        self.goal = np.array(cells["goal_cell"], float)
        super().reset(seed=seed)
        self.place[:2] = cells["reset_cell"]
        return self.observe(), {}

    def observe(self) -> Any:
        place = self.place[:2].astype(float)
        return {"observation": np.zeros(2), "achieved_goal": place, "desired_goal": self.goal}


class SpacesToy(Toy):
    """Any spaces at all; only ever asked what they are."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        box = self.observation_space
        if kind == "image with channels first":
            self.observation_space = spaces.Box(0, 255, (3, 8, 8), np.uint8)
        elif kind == "image in a dict":
            self.observation_space = spaces.Dict({"place": box, "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8)})
        elif kind == "nothing":
            self.observation_space = spaces.Box(-1.0, 1.0, (0,))
        elif kind == "text":
            self.observation_space = spaces.Text(5)
        elif kind == "several discrete actions":
            self.action_space = spaces.MultiDiscrete([3, 2])
        elif kind == "many choices":
            self.action_space = spaces.MultiDiscrete([9] * 4)
        elif kind == "whole numbers":
            self.action_space = spaces.Box(-3, 8, (2,), np.int16)
        elif kind == "binary actions":
            self.action_space = spaces.MultiBinary(3)
        elif kind == "dict actions":
            self.action_space = spaces.Dict({"push": self.action_space})
        elif kind == "unbounded":
            self.action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        elif kind == "no room":
            self.action_space = spaces.Box(1.0, 1.0, (2,), np.float32)


class BrokenToy(Toy):
    """Something goes wrong at one step of its life, counted over all episodes; 0 is the first reset."""

    def __init__(self, fault: str, at: int) -> None:
        super().__init__()
        self.fault, self.at, self.steps = fault, at, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        return super().step(action)

    def observe(self) -> Any:
        place = super().observe()
        if self.steps < self.at:
            return place
        if self.fault == "die":
            os._exit(7)
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "hang":
            time.sleep(HANG)
        if self.fault == "hang in C":
            ctypes.PyDLL(None).sleep(HANG)  # no other thread of Python runs meanwhile
        if self.fault == "raise":
            raise RuntimeError("the toy fell off the table")
        if self.fault == "nan observation":
            place[1] = np.nan
        if self.fault == "infinite observation":
            place[2] = -np.inf
        return place[:2] if self.fault == "shape" else place

    def reward(self) -> Any:
        bad = self.steps == self.at
        if bad and self.fault == "nan reward":
            return float("nan")
        if bad and self.fault == "infinite reward":
            return float("inf")
        return np.ones(2) if bad and self.fault == "reward shape" else super().reward()


class ProcessToy(Toy):
    """Shows the number of the process it is in, in two parts that are exact in 32 bits."""

    def observe(self) -> Any:
        return np.array([*divmod(os.getpid(), 4096), 0], np.float32)


class MoodyToy(Toy):
    """Depends on how many episodes this very object has seen: its episodes cannot be repeated by another one."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        return super().observe() + np.float32(0.01 * self.episodes)


class UnluckyToy(Toy):
    """Raises in every third episode or so; which ones follows from the seeds of their resets."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.is_unlucky = seed is not None and seed % 3 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.is_unlucky and self.time == 4:
            raise RuntimeError("no luck")
        return super().step(action)


def make_toy() -> gym.Env:
    return Toy()


def make_wide(width: int = 3, word: str = "", render_mode: str | None = None) -> gym.Env:
    return WideToy(width, word)


def register(name: str, toy: type[Toy], horizon: int | None = HORIZON, **kwargs: Any) -> None:
    entry = f"toy_envs:{toy.__name__}"
    gym.register(f"{name}-v0", entry_point=entry, max_episode_steps=horizon, kwargs=kwargs)


register("Toy", Toy)
register("ToyForks", ForkingToy)
register("ToyMoves", MovingToy)
register("ToyTalks", TalkingToy)
register("ToyCloseRaises", ClosingToy, error="raises")
register("ToyCloseExits", ClosingToy, error="exits")
register("ToyCloseHangs", ClosingToy, error="hangs")
register("ToyMakeDies", UnmadeToy, error="dies")
register("ToyMakeHangs", UnmadeToy, error="hangs")
register("ToyMoody", MoodyToy)
register("ToyProcess", ProcessToy)
register("ToyUnlucky", UnluckyToy)
register("ToyRunner", RunnerToy)
register("ToyUndrawn", UndrawnToy)
register("ToyBlank", BlankToy)
register("ToyMujoco", MujocoToy)
register("ToyMaze", MazeToy)
register("ToyWide", WideToy)
register("ToyConstant", Toy, constant=True)
register("ToyNearlyConstant", NearlyConstantToy)
register("ToyTerminates", Toy, terminate_at=7)
register("ToyOneStep", Toy, terminate_at=1)
register("ToyEndless", Toy, horizon=None)
register("ToyEpisodic", EpisodicToy)
register("ToyPlain", PlainToy)
register("ToySpreadEven", SpreadToy, late=False)
register("ToySpreadLate", SpreadToy, late=True)
register("ToyMarks", MarkingToy)
register("ToySilent", SayingToy, info={})
register("ToyDict", DictToy)
register("ToyBounded", BoundedToy)
register("ToyDiscrete", DiscreteToy)
register("ToyDiscreteFrom5", DiscreteToy, start=5)
register("ToyDot", DotToy, is_coloured=True)
register("ToyLongDot", DotToy, horizon=30, is_coloured=False)
register("ToyDotDiscrete", DotToy, is_coloured=False, is_discrete=True)
register("ToyImageChannelsFirst", SpacesToy, kind="image with channels first")
register("ToyImageInDict", SpacesToy, kind="image in a dict")
register("ToyNothing", SpacesToy, kind="nothing")
register("ToyText", SpacesToy, kind="text")
register("ToyMultiDiscrete", SpacesToy, kind="several discrete actions")
register("ToyMultiBinary", SpacesToy, kind="binary actions")
register("ToyManyChoices", SpacesToy, kind="many choices")
register("ToyWholeNumbers", SpacesToy, kind="whole numbers")
register("ToyTable", TableToy)
register("ToyDictActions", SpacesToy, kind="dict actions")
register("ToyUnbounded", SpacesToy, kind="unbounded")
register("ToyNoRoom", SpacesToy, kind="no room")
register("ToyNanStart", BrokenToy, fault="nan observation", at=0)
register("ToyNan", BrokenToy, fault="nan observation", at=13)
register("ToyInfinite", BrokenToy, fault="infinite observation", at=13)
register("ToyNanReward", BrokenToy, fault="nan reward", at=13)
register("ToyInfiniteReward", BrokenToy, fault="infinite reward", at=13)
register("ToyRewardShape", BrokenToy, fault="reward shape", at=13)
register("ToyShape", BrokenToy, fault="shape", at=13)
register("ToyDies", BrokenToy, fault="die", at=13)
register("ToyCrashes", BrokenToy, fault="crash", at=13)
register("ToyHangs", BrokenToy, fault="hang", at=13)
register("ToyHangsInC", BrokenToy, fault="hang in C", at=13)
register("ToyRaises", BrokenToy, fault="raise", at=13)
gym.register("ToyUnsendable-v0", entry_point=partial(Toy, constant=threading.Lock()), max_episode_steps=HORIZON)
gym.register("ToyFunction-v0", entry_point=make_toy, max_episode_steps=HORIZON)
