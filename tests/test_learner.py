"""The compiled half: labels that need the history, and readiness of a seed."""

from __future__ import annotations

import jax
import numpy as np

from diaster.agents.sac import make_sac
from diaster.config import DiasterConfig, SacConfig
from diaster.decompose.diaster import make_diaster
from diaster.learner import Learner
from diaster.reward_model import RewardModel
from diaster.types import EnvSpec, Episode

HORIZON = 12
SPEC = EnvSpec("toy", 3, 2, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), HORIZON)


def random_episode(random: np.random.Generator) -> Episode:
    length = int(random.integers(1, HORIZON + 1))
    obs = random.normal(size=(length + 1, 3)).astype(np.float32)
    action = random.uniform(-1, 1, (length, 2)).astype(np.float32)
    return Episode(obs, action, float(obs[:, 0].sum()), bool(random.integers(2)))


def make_learner(n_seeds: int = 1, **settings: object) -> tuple[Learner, RewardModel]:
    config = DiasterConfig(hidden=8, batch_episodes=3, **settings)  # type: ignore[arg-type]
    decomposer = make_diaster(config, HORIZON)
    agent = make_sac(SacConfig(hidden=8, batch_size=8))
    learner = Learner(decomposer, agent, SPEC, range(n_seeds), 200, 8, jax.devices("cpu")[0])
    return learner, RewardModel(decomposer, HORIZON)


def stored_labels(learner: Learner, episodes: list[Episode]) -> np.ndarray:
    """Labels of the newest episodes, in order."""
    assert learner.labels is not None
    total = sum(episode.length for episode in episodes)
    end = int(learner.store.next_step[0])
    return np.asarray(learner.labels)[0][np.arange(end - total, end) % learner.labels.shape[1]]


def expected_labels(learner: Learner, model: RewardModel, episodes: list[Episode]) -> np.ndarray:
    state = learner.decomposer_state(0)
    scale = np.asarray(learner._decomposer.scale(state))
    return np.concatenate(model.of_episodes(state, episodes)) / scale


def test_labels_of_new_episodes_are_the_differences_of_the_present_model() -> None:
    random = np.random.default_rng(0)
    for settings in ({"segments": "all"}, {"segments": "sampled", "segment_length": 3}, {"head": "final"}):
        learner, model = make_learner(reward_source="difference", **settings)
        for _ in range(8):
            episodes = [random_episode(random) for _ in range(4)]
            learner.ingest([episodes])
            np.testing.assert_allclose(
                stored_labels(learner, episodes), expected_labels(learner, model, episodes), atol=1e-5
            )


def test_renewing_labels_brings_every_stored_step_up_to_date_also_in_a_ring_that_has_wrapped() -> None:
    random = np.random.default_rng(1)
    learner, model = make_learner(reward_source="difference", segments="all")
    episodes: list[Episode] = []
    for _ in range(20):
        new = [random_episode(random) for _ in range(4)]
        learner.ingest([new])
        episodes += new
    n_live = int(learner.store.n_episodes[0])
    assert n_live < len(episodes)  # the ring has dropped some
    learner.fit_decomposer(np.array([True]), 0, 20)
    live = episodes[-n_live:]
    expected = expected_labels(learner, model, live)
    assert not np.allclose(stored_labels(learner, live), expected, atol=1e-3)
    learner.relabel()
    np.testing.assert_allclose(stored_labels(learner, live), expected, atol=1e-5)


def test_a_seed_that_is_not_ready_keeps_its_nets() -> None:
    random = np.random.default_rng(2)
    learner, _ = make_learner(n_seeds=2)
    learner.ingest([[random_episode(random) for _ in range(4)], []])
    before = jax.device_get(learner.state)
    ready = np.array([True, False])
    metrics = learner.fit_decomposer(ready, 0, 3) | learner.fit_agent(ready, 0, 3)
    after = jax.device_get(learner.state)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
    assert not np.array_equal(before.agent.actor[0].weight[0], after.agent.actor[0].weight[0])
    assert np.isfinite(metrics["critic_loss"][0]) and np.isnan(metrics["critic_loss"][1])
