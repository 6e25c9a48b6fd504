"""Random episodes that differ from each other."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import toy_envs

from diaster.actors import warmup
from diaster.actors.acting import CATEGORICAL, TANH_GAUSSIAN
from diaster.actors.collector import ALL, Collector, Share
from diaster.actors.rollout import Handling, WarmupNoise
from diaster.envs.making import describe_env, make_env
from diaster.types import Episode, host_random

LENGTH = toy_envs.HORIZON
DISCRETE = "ToyDiscrete-v0"
kinds = pytest.mark.parametrize("kind", ["sizes", "varied"])
both_kinds_of_actions = pytest.mark.parametrize("env_id", ["Toy-v0", DISCRETE])


def collector_of(kind: WarmupNoise, env_id: str = "Toy-v0", seed: int = 0, share: Share = ALL) -> Collector:
    make = partial(make_env, env_id, LENGTH)
    policy = CATEGORICAL if env_id == DISCRETE else TANH_GAUSSIAN
    spec = describe_env(make(), env_id, LENGTH)
    return Collector(make, spec, policy, seed, Handling(warmup_noise=kind), share)


def actions_of(episodes: list[Episode]) -> list[np.ndarray]:
    return [episode.action for episode in episodes]


def long_episodes(is_varied: bool, n: int = 200, n_steps: int = 400) -> list[tuple[warmup.Manner, np.ndarray]]:
    """Manners and the actions that follow from them, without an environment."""
    spec = describe_env(make_env("Toy-v0", LENGTH), "Toy-v0", LENGTH)
    found = []
    for number in range(n):
        random = host_random(0, 0, number)
        manner = warmup.draw_manner(random, spec, is_varied)
        actions: list[np.ndarray] = []
        for draw in warmup.noise(random, n_steps, spec):
            actions.append(warmup.act(manner, actions[-1] if actions else None, draw, spec))
        found.append((manner, np.stack(actions)))
    return found


@kinds
@both_kinds_of_actions
def test_actions_are_ones_that_nets_may_see(kind: WarmupNoise, env_id: str) -> None:
    actions = np.concatenate(actions_of(collector_of(kind, env_id).collect(None, 0, 30 * LENGTH)))
    assert actions.dtype == np.float32
    assert np.abs(actions).max() <= 1.0
    if env_id == DISCRETE:
        np.testing.assert_array_equal(np.sort(actions, axis=1), np.tile(np.eye(3)[2], (len(actions), 1)))


def test_sizes_differ_between_episodes_from_near_none_to_the_whole_box_and_nothing_else_does() -> None:
    episodes = long_episodes(is_varied=False)
    deviations = np.array([actions.std() for _, actions in episodes])
    assert deviations.min() < 0.05
    assert deviations.max() > 0.6
    for manner, actions in episodes:
        assert abs(actions.mean()) < 0.15  # no bias
        assert abs(np.corrcoef(actions[:-1, 0], actions[1:, 0])[0, 1]) < 0.25  # no colour
        if manner.size < 0.3:  # hardly anything is cut off
            assert actions.std() == pytest.approx(manner.size, rel=0.15)


def test_varied_episodes_have_a_bias_and_a_colour_of_their_own_as_well() -> None:
    episodes = long_episodes(is_varied=True)
    means = np.array([actions.mean(axis=0) for _, actions in episodes])
    assert np.abs(means).max() > 0.6
    colour = np.array([np.corrcoef(actions[:-1, 0], actions[1:, 0])[0, 1] for _, actions in episodes])
    memory = np.array([manner.memory for manner, _ in episodes])
    assert np.corrcoef(colour, memory)[0, 1] > 0.9
    assert memory.min() < 0.1 < 0.97 < memory.max()


def test_coloured_noise_is_as_large_as_plain_noise() -> None:
    spec = describe_env(make_env("Toy-v0", LENGTH), "Toy-v0", LENGTH)
    manner = warmup.Manner(0.2, 0.9, np.zeros(2, np.float32))
    actions: list[np.ndarray] = []
    for draw in warmup.noise(host_random(0, 0), 20_000, spec):
        actions.append(warmup.act(manner, actions[-1] if actions else None, draw, spec))
    assert np.std(actions) == pytest.approx(0.2, rel=0.05)


def test_discrete_actions_have_preferences_that_differ_between_episodes_and_varied_ones_repeat_themselves() -> None:
    def frequencies_and_repeats(kind: WarmupNoise) -> tuple[np.ndarray, float]:
        actions = actions_of(collector_of(kind, DISCRETE).collect(None, 0, 300 * LENGTH))
        same = [(one == other).all() for of_episode in actions for one, other in pairwise(of_episode)]
        return np.array([of_episode.mean(axis=0) for of_episode in actions]), float(np.mean(same))

    uniform, seldom = frequencies_and_repeats("uniform")
    sizes, _ = frequencies_and_repeats("sizes")
    varied, often = frequencies_and_repeats("varied")
    assert uniform.var(axis=0).mean() < 0.7 * sizes.var(axis=0).mean() < varied.var(axis=0).mean()
    assert often > seldom + 0.2


@kinds
@both_kinds_of_actions
@pytest.mark.parametrize("n_before", [3, LENGTH - 1, LENGTH, LENGTH + 4])
def test_a_collector_that_was_restored_goes_on_as_the_one_it_was_taken_from(
    kind: WarmupNoise, env_id: str, n_before: int
) -> None:
    collector, other = collector_of(kind, env_id), collector_of(kind, env_id)
    collector.collect(None, 0, n_before)
    assert other.restore(collector.state(), n_before)
    expected, found = (one.collect(None, 1, 3 * LENGTH) for one in (collector, other))
    for one, same in zip(actions_of(expected), actions_of(found), strict=True):
        np.testing.assert_array_equal(one, same)


@kinds
def test_seeds_and_environments_of_a_seed_have_manners_of_their_own(kind: WarmupNoise) -> None:
    first, other_seed = (collector_of(kind, seed=seed).collect(None, 0, 2 * LENGTH) for seed in (0, 1))
    shares = [collector_of(kind, share=Share(number, 2)).collect(None, 0, 4 * LENGTH) for number in (0, 1)]
    sizes = [action.std() for episodes in (first, other_seed, *shares) for action in actions_of(episodes)]
    assert len(set(sizes)) == len(sizes) - 2  # the first environment is the one that there is without others


def test_uniform_actions_are_what_they_were_before_there_was_a_choice() -> None:
    episodes = collector_of("uniform").collect(None, 0, LENGTH)
    drawn = host_random(0, 5, 0).uniform(-1.0, 1.0, (LENGTH, 2)).astype(np.float32)
    np.testing.assert_array_equal(episodes[0].action, drawn)
