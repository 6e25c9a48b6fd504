import copy

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from gymnasium import spaces

from diaster.actors.acting import TANH_GAUSSIAN
from diaster.actors.collector import Collector
from diaster.config import ImageConfig
from diaster.envs.creating import find_horizon
from diaster.envs.delayed import TRUE_REWARD, DelayedReward
from diaster.envs.making import describe_env, make_env, raw_observation_space
from diaster.envs.source import find_source
from diaster.errors import DiasterError
from diaster.types import EnvSpec, Image


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


# Rewards that are delayed to the end of the episode


def test_the_reward_is_zero_until_the_episode_ends_and_then_exactly_the_sum() -> None:
    plain = rewards(play(gym.make("Toy-v0"), toy_envs.HORIZON))
    hidden = rewards(play(DelayedReward(gym.make("Toy-v0")), toy_envs.HORIZON))
    assert len(set(plain)) == toy_envs.HORIZON
    assert hidden == [0.0] * (toy_envs.HORIZON - 1) + [sum(plain)]


def test_the_sum_is_also_given_where_the_environment_terminates_by_itself() -> None:
    plain = rewards(play(gym.make("ToyTerminates-v0"), 7))
    steps = play(DelayedReward(gym.make("ToyTerminates-v0")), 7)
    assert rewards(steps) == [0.0] * 6 + [sum(plain)]
    assert [step[2] for step in steps] == [False] * 6 + [True]


def test_the_sum_starts_anew_with_each_episode_even_one_that_was_left_early() -> None:
    env = DelayedReward(gym.make("Toy-v0"))
    play(env, 4)
    again = rewards(play(env, toy_envs.HORIZON))
    assert again[-1] == sum(rewards(play(gym.make("Toy-v0"), toy_envs.HORIZON)))


def test_the_true_reward_of_a_step_is_in_info_and_nowhere_else() -> None:
    plain = play(gym.make("Toy-v0"), toy_envs.HORIZON)
    hidden = play(DelayedReward(gym.make("Toy-v0")), toy_envs.HORIZON)
    assert [step[4][TRUE_REWARD] for step in hidden] == rewards(plain)
    assert not any(rewards(hidden)[:-1])
    for before, after in zip(plain, hidden, strict=True):
        np.testing.assert_array_equal(before[0], after[0])
        assert before[2:4] == after[2:4]


def test_an_environment_that_is_episodic_already_keeps_its_rewards() -> None:
    plain = rewards(play(gym.make("ToyEpisodic-v0"), toy_envs.HORIZON))
    assert plain[-1] != 0.0
    assert rewards(play(DelayedReward(gym.make("ToyEpisodic-v0")), toy_envs.HORIZON)) == plain


def test_wrapping_twice_changes_neither_the_rewards_nor_the_true_rewards() -> None:
    once = play(DelayedReward(gym.make("Toy-v0")), toy_envs.HORIZON)
    twice = play(DelayedReward(DelayedReward(gym.make("Toy-v0"))), toy_envs.HORIZON)
    assert rewards(twice) == rewards(once)
    assert [step[4] for step in twice] == [step[4] for step in once]


def test_make_env_wraps_once_even_where_the_registration_has_wrapped_already() -> None:
    spec = copy.copy(gym.spec("Toy-v0"))
    wrapper = gym.envs.registration.WrapperSpec("DelayedReward", "diaster.envs.delayed:DelayedReward", {})
    spec.additional_wrappers = (wrapper,)
    for given in ("Toy-v0", spec):
        env, found = make_env(given, 10), 0
        while isinstance(env, gym.Wrapper):
            found += isinstance(env, DelayedReward)
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


def test_images_are_seen_small_the_last_few_together_and_laid_flat() -> None:
    spec = spec_of("ToyDot-v0")  # 12 × 16, in colours
    assert (spec.obs_dim, spec.image, spec.obs_dtype) == (64 * 64 * 3, Image(64, 3), np.uint8)
    source = find_source("ToyDot-v0")._replace(image=ImageConfig(side=8, frames=2, colour=True))
    env = make_env(source, 10)
    assert describe_env(env, "ToyDot-v0", 10).image == Image(8, 6)
    assert env.reset(seed=0)[0].shape == (8 * 8 * 6,)
    assert raw_observation_space(env).shape == (12, 16, 3)
    env.close()


def test_images_that_are_not_all_that_is_shown_or_have_no_such_form_are_refused() -> None:
    for env_id, shape in (("ToyImageInDict-v0", "(8, 8, 3)"), ("ToyImageChannelsFirst-v0", "(3, 8, 8)")):
        sentence = refusal(env_id)
        assert f"'{env_id}' shows" in sentence and shape in sentence and "TransformObservation" in sentence


def test_observations_that_are_no_numbers_are_refused() -> None:
    sentence = refusal("ToyText-v0")
    assert "ToyText-v0" in sentence and "TransformObservation" in sentence


def test_an_environment_that_shows_nothing_is_refused() -> None:
    assert "'ToyNothing-v0' shows nothing" in refusal("ToyNothing-v0")


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


@pytest.mark.parametrize(("env_id", "n_actions"), [("ToyMultiDiscrete-v0", 6), ("ToyMultiBinary-v0", 8)])
def test_choices_that_are_made_at_once_are_one_discrete_action(env_id: str, n_actions: int) -> None:
    spec, env = spec_of(env_id), gym.make(env_id)
    assert spec.discrete and spec.action_dim == n_actions
    actions = [spec.to_env(row) for row in np.eye(n_actions, dtype=np.float32)]
    assert all(env.action_space.contains(action) for action in actions)
    assert len({action.tobytes() for action in actions}) == n_actions


def test_choices_with_too_many_combinations_are_refused_with_a_way_to_wrap_them() -> None:
    sentence = refusal("ToyManyChoices-v0")
    assert "MultiDiscrete([9 9 9 9])" in sentence and "6,561" in sentence
    assert "at most 1,000" in sentence and "TransformAction" in sentence


def test_boxes_of_whole_numbers_take_whole_numbers() -> None:
    spec, space = spec_of("ToyWholeNumbers-v0"), gym.make("ToyWholeNumbers-v0").action_space
    assert not spec.discrete
    assert all(space.contains(spec.to_env(np.full(2, unit, np.float32))) for unit in (-1.0, 0.1, 1.0))


def test_actions_of_another_kind_are_refused_with_what_is_supported() -> None:
    sentence = refusal("ToyDictActions-v0")
    assert sentence.startswith("'ToyDictActions-v0' has actions of the kind Dict('push'")
    assert "Box, Discrete, MultiDiscrete and MultiBinary are supported" in sentence
    assert "TransformAction" in sentence


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


# Time limits


@pytest.mark.parametrize("horizon", [4, 15])
def test_make_env_ends_episodes_at_the_horizon_be_it_shorter_or_longer_than_their_own(horizon: int) -> None:
    steps = play(make_env("Toy-v0", horizon), horizon)
    assert [step[3] for step in steps] == [False] * (horizon - 1) + [True]


def test_a_time_limit_is_a_truncation_and_no_termination() -> None:
    steps = play(make_env("Toy-v0", 6), 6)
    assert steps[-1][2:4] == (False, True)
