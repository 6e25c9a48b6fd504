"""Episodes recorded from trained runs: what is in them, and that they can be made again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import toy_envs

import diaster
from diaster.errors import DiasterError
from diaster.media import recording
from diaster.media.recording import SpreadStarts, open_cells
from diaster.rundir.recordings import ROLLOUTS, read_rollouts


def record_rollouts(path: Path, episodes: int) -> None:
    recording.record_rollouts(diaster.load(path), episodes)


@pytest.fixture
def run(runner: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runner, tmp_path / "run"))


@pytest.fixture(scope="session")
def recorded(runner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run"
    shutil.copytree(runner, path)
    record_rollouts(path, 2)
    return path


def test_each_seed_has_the_episodes_of_its_policy_and_as_many_of_the_spread(recorded: Path) -> None:
    found = read_rollouts(recorded)
    assert found.seed.tolist() == [3] * 4 + [8] * 4
    assert found.is_spread.tolist() == [False, False, True, True] * 2
    assert found.length.tolist() == [toy_envs.HORIZON] * 8


def test_the_policys_episodes_are_those_its_deterministic_actions_lead_to(recorded: Path) -> None:
    found, run = read_rollouts(recorded), diaster.load(recorded)
    for episode, seed in ((0, 3), (4, 8)):
        steps = found.steps_of(episode)
        expected = [run.policy(seed)(obs) for obs in found.obs[steps]]
        np.testing.assert_allclose(run.spec.to_env(found.action[steps]), expected, atol=1e-6)


def test_the_spread_takes_other_actions_than_the_policy(recorded: Path) -> None:
    found, run = read_rollouts(recorded), diaster.load(recorded)
    steps = found.steps_of(3)  # the one with most random actions
    expected = np.array([run.policy(3)(obs) for obs in found.obs[steps]])
    assert (np.abs(run.spec.to_env(found.action[steps]) - expected).max(axis=1) > 1e-3).any()


def test_rewards_are_the_runs_own_in_the_environments_units(recorded: Path) -> None:
    found, run = read_rollouts(recorded), diaster.load(recorded)
    steps = found.steps_of(4)
    obs, actions = found.obs[steps], run.spec.to_env(found.action[steps])
    expected = run.step_reward(obs[:-1], actions[:-1], obs[1:], seed=8)  # what the last step led to is not recorded
    np.testing.assert_allclose(found.step_reward[steps][:-1], expected, rtol=1e-4)
    np.testing.assert_allclose(found.true_reward[steps].sum(), found.episode_return[4], rtol=1e-5)


def test_positions_lead_from_step_to_step(recorded: Path) -> None:
    found = read_rollouts(recorded)
    steps = found.steps_of(1)
    np.testing.assert_array_equal(found.position[steps][1:], found.next_position[steps][:-1])
    moved = found.next_position[steps][:, 0] - found.position[steps][:, 0]
    np.testing.assert_allclose(moved[:-1], found.obs[steps][1:, 0], atol=1e-6)  # the toy moves by its first place


def test_frames_are_of_the_first_episode_from_its_start_to_its_end(recorded: Path) -> None:
    found = read_rollouts(recorded)
    assert found.frame_step.tolist() == [0, 2, 4, 6, 8, 10]
    assert found.frames[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160, 200]  # the toy grows lighter with time


def test_enough_is_not_recorded_again_and_too_little_is(recorded: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(recorded, tmp_path / "run"))
    before = (path / ROLLOUTS).stat().st_mtime_ns
    record_rollouts(path, 1)
    assert (path / ROLLOUTS).stat().st_mtime_ns == before
    record_rollouts(path, 3)
    assert read_rollouts(path).of_policy(8) == 3


def test_a_driver_that_takes_the_process_down_leaves_what_was_recorded(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diaster.media.recording._frames", die)
    with pytest.raises(KeyboardInterrupt):
        record_rollouts(run, 1)
    assert len(read_rollouts(run).frames) == 0
    record_rollouts(run, 1)  # enough is there: it is not tried again


def test_a_damaged_recording_is_made_again_with_the_same_bytes(recorded: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(recorded, tmp_path / "run"))
    (path / ROLLOUTS).write_bytes(b"torn")
    record_rollouts(path, 2)
    assert (path / ROLLOUTS).read_bytes() == (recorded / ROLLOUTS).read_bytes()


def test_a_recorded_run_can_still_be_loaded_and_evaluated(recorded: Path) -> None:
    assert set(diaster.load(recorded).evaluate(episodes=1)) == {3, 8}


def test_recording_removes_what_killed_commands_have_left(recorded: Path, tmp_path: Path) -> None:
    run = shutil.copytree(recorded, tmp_path / "run")
    left = run / f".{ROLLOUTS}.0123456789abcdef"
    left.touch()
    before = sorted(run.iterdir())
    record_rollouts(run, 1)
    assert sorted(run.iterdir()) == [item for item in before if item != left]


def test_a_number_of_episodes_that_cannot_be_is_refused(run: Path) -> None:
    for episodes in (0, -1, 10**9):
        with pytest.raises(DiasterError, match=f"{episodes} episodes were asked for"):
            record_rollouts(run, episodes)
        assert not (run / ROLLOUTS).exists(), episodes


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DiasterError, match="holds no run"):
        record_rollouts(tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_position_that_is_not_always_told_is_not_recorded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset = toy_envs.RunnerToy.reset

    def sometimes(self: toy_envs.RunnerToy, *, seed: int | None = None, options: dict | None = None) -> tuple:
        obs, info = reset(self, seed=seed, options=options)
        return obs, info if (seed or 0) % 2 else {}

    monkeypatch.setattr(toy_envs.RunnerToy, "reset", sometimes)
    record_rollouts(run, 4)
    assert read_rollouts(run).position.shape == (2 * 8 * toy_envs.HORIZON, 0)


def test_an_environment_that_fails_while_it_is_drawn_has_no_frames(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: toy_envs.RunnerToy) -> None:
        if self.time > 3:
            raise RuntimeError("the screen is gone")
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(toy_envs.RunnerToy, "render", fail)
    record_rollouts(run, 1)
    assert len(read_rollouts(run).frames) == 0


# Mazes


def test_open_cells_are_in_the_order_of_the_way_from_the_first() -> None:
    walls = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]], bool)
    assert open_cells(walls) == [(1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
    assert open_cells(np.ones((2, 2), bool)) == open_cells(None) == []


def test_the_spread_of_a_maze_starts_in_all_cells_with_one_goal() -> None:
    env = SpreadStarts(toy_envs.MazeToy())
    starts = [env.reset(seed=n)[0] for n in range(3)]
    assert [tuple(obs["achieved_goal"].tolist()) for obs in starts] == [(1, 1), (1, 2), (1, 1)]
    assert {tuple(obs["desired_goal"].tolist()) for obs in starts} == {(1, 2)}


def test_environments_without_a_maze_start_as_they_do() -> None:
    env, plain = SpreadStarts(toy_envs.Toy()), toy_envs.Toy()
    np.testing.assert_array_equal(env.reset(seed=5)[0], plain.reset(seed=5)[0])
