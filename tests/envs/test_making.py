import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from gymnasium import spaces

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.actors.collector import Collector
from diaster.config import PAPER_TASKS
from diaster.envs.making import (
    TRUE_REWARD,
    EpisodicReward,
    describe_env,
    find_horizon,
    gym_spec,
    import_modules,
    make_env,
)
from diaster.errors import DiasterError
from diaster.types import EnvSpec


def play(env: gym.Env, n_steps: int, seed: int = 5) -> list[tuple]:
    """Steps of one episode with actions that depend on nothing but their number."""
    env.reset(seed=seed)
    actions = np.random.default_rng(3).uniform(-1.0, 1.0, (n_steps, *env.action_space.shape)).astype(np.float32)
    return [env.step(action) for action in actions]


def rewards(steps: list[tuple]) -> list[float]:
    return [float(step[1]) for step in steps]


def spec_of(env_id: str) -> EnvSpec:
    horizon = find_horizon(env_id, "auto")
    env = make_env(env_id, horizon)
    try:
        return describe_env(env, env_id, horizon)
    finally:
        env.close()


def refusal(env_id: str) -> str:
    with pytest.raises(DiasterError) as caught:
        spec_of(env_id)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# EpisodicReward


def test_the_reward_is_zero_until_the_episode_ends_and_then_exactly_the_sum() -> None:
    plain = rewards(play(gym.make("Toy-v0"), toy_envs.HORIZON))
    hidden = rewards(play(EpisodicReward(gym.make("Toy-v0")), toy_envs.HORIZON))
    assert len(set(plain)) == toy_envs.HORIZON
    assert hidden == [0.0] * (toy_envs.HORIZON - 1) + [sum(plain)]


def test_the_sum_is_also_given_where_the_environment_terminates_by_itself() -> None:
    plain = rewards(play(gym.make("ToyTerminates-v0"), 7))
    steps = play(EpisodicReward(gym.make("ToyTerminates-v0")), 7)
    assert rewards(steps) == [0.0] * 6 + [sum(plain)]
    assert [step[2] for step in steps] == [False] * 6 + [True]


def test_the_sum_starts_anew_with_each_episode_even_one_that_was_left_early() -> None:
    env = EpisodicReward(gym.make("Toy-v0"))
    play(env, 4)
    again = rewards(play(env, toy_envs.HORIZON))
    assert again[-1] == sum(rewards(play(gym.make("Toy-v0"), toy_envs.HORIZON)))


def test_the_true_reward_of_a_step_is_in_info_and_nowhere_else() -> None:
    plain = play(gym.make("Toy-v0"), toy_envs.HORIZON)
    hidden = play(EpisodicReward(gym.make("Toy-v0")), toy_envs.HORIZON)
    assert [step[4][TRUE_REWARD] for step in hidden] == rewards(plain)
    assert not any(rewards(hidden)[:-1])
    for before, after in zip(plain, hidden, strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        assert before[2:4] == after[2:4]


def test_an_environment_that_is_episodic_already_keeps_its_rewards() -> None:
    plain = rewards(play(gym.make("ToyEpisodic-v0"), toy_envs.HORIZON))
    assert plain[-1] != 0.0
    assert rewards(play(EpisodicReward(gym.make("ToyEpisodic-v0")), toy_envs.HORIZON)) == plain


def test_wrapping_twice_changes_neither_the_rewards_nor_the_true_rewards() -> None:
    once = play(EpisodicReward(gym.make("Toy-v0")), toy_envs.HORIZON)
    twice = play(EpisodicReward(EpisodicReward(gym.make("Toy-v0"))), toy_envs.HORIZON)
    assert rewards(twice) == rewards(once)
    assert [step[4] for step in twice] == [step[4] for step in once]


def test_make_env_wraps_once_even_where_the_registration_has_wrapped_already() -> None:
    spec = gym.spec("Toy-v0")
    wrapper = gym.envs.registration.WrapperSpec("EpisodicReward", "diaster.envs.making:EpisodicReward", {})
    spec.additional_wrappers = (wrapper,)
    for given in ("Toy-v0", spec):
        env, found = make_env(given, 10), 0
        while isinstance(env, gym.Wrapper):
            found += isinstance(env, EpisodicReward)
            env = env.env
        assert found == 1


# Observations


def test_dict_observations_are_flattened() -> None:
    env = make_env("ToyDict-v0", 10)
    spec = describe_env(env, "ToyDict-v0", 10)
    first, _ = env.reset(seed=1)
    second = env.step(np.zeros(2, np.float32))[0]
    assert spec.obs_dim == 7
    assert first.shape == second.shape == (7,)
    np.testing.assert_array_equal(first[:4], 0.0)  # 'grid' goes before 'place'
    np.testing.assert_array_equal(second[:4], 1.0)


def test_point_maze_works_with_its_dict_of_observation_and_goals() -> None:
    pytest.importorskip("gymnasium_robotics")
    spec = spec_of("PointMaze_UMaze-v3")
    assert (spec.obs_dim, spec.action_dim, spec.horizon) == (8, 2, 300)
    env = make_env("PointMaze_UMaze-v3", 3)
    try:
        collector = Collector(lambda: env, spec._replace(horizon=3), TANH_GAUSSIAN, seed=0)
        episodes = collector.collect(None, 0, 6)
    finally:
        env.close()
    assert [episode.obs.shape for episode in episodes] == [(4, 8), (4, 8)]


@pytest.mark.parametrize("env_id", ["ToyImage-v0", "ToyGreyImage-v0", "ToyImageInDict-v0"])
def test_images_are_refused(env_id: str) -> None:
    sentence = refusal(env_id)
    assert env_id in sentence
    assert "images" in sentence
    assert "(8, 8" in sentence


def test_observations_that_are_no_numbers_are_refused() -> None:
    assert "ToyText-v0" in refusal("ToyText-v0")


# Actions


@pytest.mark.parametrize(("env_id", "first"), [("ToyDiscrete-v0", 0), ("ToyDiscreteFrom5-v0", 5)])
def test_discrete_actions_are_numbered_as_the_environment_does(env_id: str, first: int) -> None:
    spec = spec_of(env_id)
    space = gym.make(env_id).action_space
    assert spec.discrete
    assert (spec.action_dim, spec.first_action, spec.action_shape) == (3, first, ())
    one_hot = np.eye(3, dtype=np.float32)
    assert [int(spec.to_env(row)) for row in one_hot] == [first, first + 1, first + 2]
    assert all(space.contains(spec.to_env(row)) for row in one_hot)
    np.testing.assert_array_equal(spec.from_env(spec.to_env(one_hot)), one_hot)


def test_box_actions_are_not_discrete() -> None:
    assert not spec_of("Toy-v0").discrete


@pytest.mark.parametrize(
    ("env_id", "kind"),
    [
        ("ToyMultiDiscrete-v0", "MultiDiscrete([3 2])"),
        ("ToyMultiBinary-v0", "MultiBinary(3)"),
        ("ToyDictActions-v0", "Dict('push'"),
    ],
)
def test_actions_of_another_kind_are_refused_with_what_is_supported(env_id: str, kind: str) -> None:
    sentence = refusal(env_id)
    assert sentence.startswith(f"'{env_id}' has actions of the kind {kind}")
    assert "only Box and Discrete actions are supported" in sentence


@pytest.mark.parametrize("env_id", ["ToyUnbounded-v0", "ToyNoRoom-v0"])
def test_actions_without_finite_bounds_or_room_between_them_are_refused(env_id: str) -> None:
    sentence = refusal(env_id)
    assert env_id in sentence
    assert "bounds" in sentence


def test_actions_are_scaled_and_shifted_into_asymmetric_bounds_of_any_shape() -> None:
    spec = spec_of("ToyBounded-v0")
    space = gym.make("ToyBounded-v0").action_space
    assert spec.action_dim == 6
    ones = np.ones(6, np.float32)
    np.testing.assert_array_equal(spec.to_env(-ones), space.low)
    np.testing.assert_allclose(spec.to_env(ones), space.high, rtol=1e-6)
    np.testing.assert_allclose(spec.to_env(0 * ones), (space.low + space.high) / 2, rtol=1e-6)
    assert spec.to_env(ones).shape == (2, 3)
    assert spec.to_env(ones).dtype == np.float32


def test_actions_outside_of_the_unit_box_are_clipped_to_the_bounds() -> None:
    spec = spec_of("ToyBounded-v0")
    np.testing.assert_array_equal(spec.to_env(np.full(6, 1.5, np.float32)), spec.to_env(np.ones(6, np.float32)))


def test_from_env_is_the_inverse_of_to_env_for_single_actions_and_batches() -> None:
    spec = spec_of("ToyBounded-v0")
    unit = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 6)).astype(np.float32)
    assert spec.to_env(unit).shape == (5, 2, 3)
    np.testing.assert_allclose(spec.from_env(spec.to_env(unit)), unit, atol=1e-5)
    np.testing.assert_allclose(spec.from_env(spec.to_env(unit[2])), unit[2], atol=1e-5)


def test_no_action_leaves_the_bounds_by_rounding() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        ends = np.sort(random.normal(scale=10.0 ** random.integers(-3, 4), size=(2, 4)).astype(np.float32), axis=0)
        spec = EnvSpec("any", 1, 4, ends[0], ends[1], (4,), 10)
        box = spaces.Box(ends[0], ends[1], dtype=np.float32)
        for unit in (-1.0, 1.0):
            action = spec.to_env(np.full(4, unit, np.float32))
            assert box.contains(action), f"{action!r} for {unit} in {box}"


# Horizon


@pytest.mark.parametrize("env_id", sorted(PAPER_TASKS))
def test_the_papers_tasks_have_a_horizon_of_1000(env_id: str) -> None:
    assert find_horizon(env_id, "auto") == 1000


def test_other_environments_keep_their_own_horizon() -> None:
    assert find_horizon("Toy-v0", "auto") == toy_envs.HORIZON
    assert find_horizon("Reacher-v5", "auto") == 50


@pytest.mark.parametrize("env_id", ["Toy-v0", "Hopper-v5", "ToyEndless-v0"])
def test_a_horizon_that_is_given_goes_before_every_other(env_id: str) -> None:
    assert find_horizon(env_id, 17) == 17


def test_an_environment_without_a_limit_asks_for_a_horizon() -> None:
    with pytest.raises(DiasterError, match=r"'ToyEndless-v0' has no time limit.*--horizon"):
        find_horizon("ToyEndless-v0", "auto")


@pytest.mark.parametrize("horizon", [4, 15])
def test_make_env_ends_episodes_at_the_horizon_be_it_shorter_or_longer_than_their_own(horizon: int) -> None:
    steps = play(make_env("Toy-v0", horizon), horizon)
    assert [step[3] for step in steps] == [False] * (horizon - 1) + [True]


def test_a_time_limit_is_a_truncation_and_no_termination() -> None:
    steps = play(make_env("Toy-v0", 6), 6)
    assert steps[-1][2:4] == (False, True)


# Names


def test_an_unknown_environment_gives_the_nearest_name() -> None:
    with pytest.raises(DiasterError, match=r"unknown environment 'Hoper-v5'\. Did you mean 'Hopper-v5'\?") as caught:
        gym_spec("Hoper-v5")
    assert "--import" in str(caught.value)


@pytest.mark.parametrize("env_id", ["xyzzy", "no spaces-v0", "no_such_module:Env-v0", "nowhere/Env-v0", "Hopper"])
def test_names_that_gymnasium_cannot_read_are_an_error_of_one_sentence(env_id: str) -> None:
    with pytest.raises(DiasterError) as caught:
        gym_spec(env_id)
    assert env_id in str(caught.value)
    assert "\n" not in str(caught.value)


def test_modules_that_are_imported_register_their_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import gymnasium\ngymnasium.register('Imported-v0', entry_point='toy_envs:Toy', max_episode_steps=9)\n"
    (tmp_path / "package_of_the_user.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the working directory is searched
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "Imported-v0" not in gym.registry
    try:
        import_modules(["package_of_the_user"])
        assert spec_of("Imported-v0").horizon == 9
    finally:
        sys.modules.pop("package_of_the_user", None)
        gym.registry.pop("Imported-v0", None)


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(DiasterError, match=r"'no_such_module' \(from --import no_such_module\) was not found"):
        import_modules(["no_such_module"])


@pytest.mark.parametrize("name", ["", ".relative"])
def test_a_name_that_cannot_be_a_module_is_refused(name: str) -> None:
    with pytest.raises(DiasterError, match=f"--import '?{name}"):
        import_modules([name])
