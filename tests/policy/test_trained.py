"""A policy as an object: it acts as the run does, is pickled without the run, and loads without JAX."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diaster.errors import DiasterError
from diaster.policy.trained import Policy
from diaster.run import Run


@pytest.fixture
def policy(trained: Callable[..., Run]) -> Policy:
    return trained(method="uniform", agent="ddpg", seeds=[4, 9]).policy(seed=9)


def test_a_policy_says_whose_it_is(policy: Policy) -> None:
    assert repr(policy) == "Policy(Toy-v0, seed 9, last)"
    assert (policy.spec.id, policy.seed, policy.which) == ("Toy-v0", 9, "last")


def test_a_policy_maps_observations_one_by_one_and_in_batches(policy: Policy) -> None:
    obs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    together = policy(obs)
    assert together.shape == (4, 2)
    np.testing.assert_allclose(together, np.stack([policy(row) for row in obs]), atol=1e-6)
    np.testing.assert_allclose(policy.spec.to_env(policy.act(obs)), together)


def test_a_pickled_policy_acts_the_same_and_its_process_loads_no_jax(
    policy: Policy, tmp_path: Path, python: Callable[..., Any]
) -> None:
    obs = np.full(3, 0.25, np.float32)
    again = pickle.loads(pickle.dumps(policy))
    np.testing.assert_array_equal(again(obs), policy(obs))
    assert repr(again) == repr(policy)
    (tmp_path / "policy").write_bytes(pickle.dumps(policy))
    code = (
        "import pickle, sys; policy = pickle.load(open(sys.argv[1], 'rb')); "
        "print(policy([0.25, 0.25, 0.25]).tolist(), 'jax' in sys.modules)"
    )
    assert python("-c", code, str(tmp_path / "policy")).stdout == f"{policy(obs).tolist()} False\n"


def test_an_export_is_refused_where_it_cannot_be_written(policy: Policy, tmp_path: Path) -> None:
    for name, sentence in (("policy.pt", "ends in .onnx"), ("gone/policy.onnx", "does not exist; make it first")):
        with pytest.raises(DiasterError, match=sentence):
            policy.export(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
