"""Numbers that come late: for the store, the decomposer and the stored rewards it is as if they had come in time."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from toy_methods import make_remembering

from diaster.config import METHODS, build_config
from diaster.decomposers import make_decomposer
from diaster.learning.late_feedback import LateFeedback
from diaster.learning.learner import Learner
from diaster.types import EnvSpec, Episode, Feedback, Spans

OBS, ACTIONS, HORIZON, CAPACITY, BATCH = 3, 2, 8, 60, 64
SPEC = EnvSpec("toy", OBS, ACTIONS, -np.ones(2, np.float32), np.ones(2, np.float32), (ACTIONS,), HORIZON)
READY, NONE = np.array([True]), float("nan")


def episode(number: int, *numbers: float) -> Episode:
    """Of eight steps, in two spans."""
    random = np.random.default_rng(number)
    obs = random.normal(size=(HORIZON + 1, OBS)).astype(np.float32)
    action = random.uniform(-1, 1, (HORIZON, ACTIONS)).astype(np.float32)
    spans = Spans(np.array([3, 8]), np.array(numbers))
    return Episode(obs, action, 0.0, False, np.zeros(HORIZON, np.float32), spans)


def learner_of(method: str, **settings: Any) -> tuple[Learner, LateFeedback]:
    fields = METHODS[method].settings.__dataclass_fields__
    small = {"hidden": 4, "subset": 2, "batch_episodes": 3, "normalize_inputs": True}
    given = {"name": method, **{name: value for name, value in small.items() if name in fields}, **settings}
    decomposer = make_decomposer(build_config(env="x", method=given).method, HORIZON)
    devices, feedback = jax.devices("cpu"), Feedback("environment")
    learner = Learner(decomposer, make_remembering(BATCH), SPEC, [0], CAPACITY, BATCH, devices[0], feedback)
    return learner, LateFeedback(decomposer, HORIZON)


def give(learner: Learner, late: LateFeedback, spans: list[int], values: list[float]) -> list[bool]:
    states, learner.store, waited, _ = late.give(
        learner.state.decomposer, learner.store, learner.labels, [spans], [values]
    )
    learner.state = learner.state._replace(decomposer=states)
    return waited[0].tolist()


CASES: dict[str, dict[str, Any]] = {name: {} for name in METHODS} | {
    "diaster": {"base": "linear"},
    "rrd": {"exact_sum": True},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_learner_that_is_given_a_number_late_is_the_one_that_had_it_in_time(method: str) -> None:
    (prompt, _), (tardy, late) = learner_of(method, **CASES[method]), learner_of(method, **CASES[method])
    for learner in (prompt, tardy):
        learner.store_episodes([[episode(0, 1.0, -2.0), episode(1, 0.5, 3.0)]])
    prompt.store_episodes([[episode(2, 4.0, 6.0)]])
    tardy.store_episodes([[episode(2, NONE, NONE)]])
    assert give(tardy, late, [4, 5, -1], [4.0, 6.0, 9.0]) == [True, True, False]
    for kind in ("store", "state"):
        one, other = (jax.device_get(getattr(learner, kind)) for learner in (prompt, tardy))
        # The observation between the two spans is one of both: it counts twice where they are taken in one by one.
        has_moments = kind == "state" and hasattr(one.decomposer, "moments")
        if has_moments:
            one, other = (
                x._replace(decomposer=x.decomposer._replace(moments=0, base=0, base_means=0))
                if hasattr(x.decomposer, "base")
                else x._replace(decomposer=x.decomposer._replace(moments=0))
                for x in (one, other)
            )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)
    if tardy.labels.are_learnt:
        # What is stored is of the net and the statistics as they are, for the new spans alone.
        found = np.asarray(tardy.labels.values)[0]
        tardy.labels.renew_all(tardy.state.decomposer, tardy.store, np.array([24]))
        np.testing.assert_allclose(found[16:24], np.asarray(tardy.labels.values)[0][16:24], rtol=1e-5, atol=1e-6)
        assert np.abs(found[16:24]).max() > 0.0


def test_what_was_overwritten_or_is_no_span_changes_nothing() -> None:
    learner, late = learner_of("uniform")
    learner.store_episodes([[episode(0, 1.0, NONE)]])
    for number in range(1, 8):  # six of them fit
        learner.store_episodes([[episode(number, 1.0, 2.0)]])
    before = jax.device_get((learner.state, learner.store))
    assert give(learner, late, [1, 99, 4], [7.0, 7.0, 7.0]) == [False, False, False]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get((learner.state, learner.store)), before)


def test_an_agent_learns_from_a_span_once_its_number_is_there() -> None:
    learner, late = learner_of("uniform", return_scale=1.0)
    learner.store_episodes([[episode(0, 3.0, NONE), episode(1, 6.0, NONE)]])
    learner.fit_agent(READY, 0, 1)
    assert set(np.asarray(learner.state.agent.batch.reward)[0].tolist()) == {1.0, 2.0}
    give(learner, late, [3], [50.0])
    learner.fit_agent(READY, 1, 1)
    assert set(np.asarray(learner.state.agent.batch.reward)[0].tolist()) == {1.0, 2.0, 10.0}
