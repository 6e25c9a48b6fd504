"""Policies as ONNX: another program computes the same actions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from small_runs import XQC

from diaster.actors.acting import TANH_GAUSSIAN, HostParameters
from diaster.config import AGENTS
from diaster.errors import DiasterError
from diaster.policy.onnx_model import policy_model
from diaster.policy.trained import Policy
from diaster.run import Run
from diaster.types import EnvSpec

OBS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32) * 3.0


def answers(model: bytes | Path, obs: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model if isinstance(model, bytes) else str(model), options)
    [found] = session.run(["action"], {"obs": obs})
    return found


CASES: dict[str, dict[str, Any]] = {
    "sac": {"agent": "sac"},
    "sac, discrete": {"agent": "sac", "env": "ToyDiscreteFrom5-v0"},
    "td3": {"agent": "td3"},
    "ddpg": {"agent": "ddpg"},
    "dqn": {"agent": "dqn", "env": "ToyDiscreteFrom5-v0"},
    "xqc": {"agent": XQC},
    "xqc, discrete": {"agent": XQC, "env": "ToyDiscreteFrom5-v0"},
    "bounds of a matrix": {"agent": "ddpg", "env": "ToyBounded-v0"},
    "whole numbers": {"agent": "ddpg", "env": "ToyWholeNumbers-v0"},
    "several choices": {"agent": "dqn", "env": "ToyMultiDiscrete-v0"},
    "images": {"agent": "sac", "env": "ToyDot-v0", "image": {"side": 8, "frames": 2, "colour": True}},
    "images, discrete": {"agent": "dqn", "env": "ToyDotDiscrete-v0", "image": {"side": 16, "frames": 1}},
}


def test_every_agent_is_among_those_that_are_exported() -> None:
    assert {case.split(",")[0] for case in CASES} >= set(AGENTS)


def shown_to(policy: Policy) -> Any:
    if policy.spec.image is None:
        return OBS
    side, channels = policy.spec.image
    patches = (
        np.random.default_rng(0).integers(0, 2, (50, 4, 4, channels)) * 255
    )  # features of mere noise are all alike
    return patches.repeat(side // 4, axis=1).repeat(side // 4, axis=2).reshape(50, -1).astype(np.uint8)


@pytest.mark.parametrize("case", CASES)
def test_the_exported_policy_gives_the_actions_of_the_policy(
    case: str, trained: Callable[..., Run], tmp_path: Path
) -> None:
    policy = trained(method="uniform", **CASES[case]).policy()
    path = policy.export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == [path]
    obs = shown_to(policy)
    expected = np.stack([np.asarray(policy(row)) for row in obs])
    found = answers(path, obs)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if policy.spec.discrete or policy.spec.action_type != "float32":
        assert found.tolist() == expected.tolist()
        assert len(np.unique(found, axis=0)) > 1
    else:
        span = policy.spec.action_high - policy.spec.action_low
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(span.max()))
        assert found.std(axis=0).min() > 0.0
    assert answers(path, obs[:1]).shape == expected[:1].shape


def test_actions_never_leave_their_bounds_and_reach_both() -> None:
    low, high = np.array([-2.0, 0.1], np.float32), np.array([6.0, 0.7], np.float32)
    spec = EnvSpec("X-v0", 1, 2, low, high, (2,), 10)
    layers = ((np.array([[9.0, -9.0, 5.0, 5.0]], np.float32), np.zeros(4, np.float32)),)
    obs = np.array([[-9.0], [0.0], [9.0]], np.float32)
    found = answers(policy_model(TANH_GAUSSIAN, HostParameters(layers, 0.0), spec), obs)
    np.testing.assert_array_equal(found[[0, 2]], np.array([[-2.0, 0.7], [6.0, 0.1]], np.float32))
    np.testing.assert_allclose(found[1], [2.0, 0.4], rtol=1e-6)


def test_without_its_package_an_export_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Callable[..., Run]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(DiasterError, match=r"pip install 'diaster\[onnx\]'"):
        trained(method="uniform", agent="ddpg").policy().export(tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_policy_of_an_unknown_kind_is_refused() -> None:
    spec = EnvSpec("X-v0", 1, 1, np.zeros(1, np.float32), np.ones(1, np.float32), (1,), 10)
    parameters = HostParameters(((np.ones((1, 1), np.float32), np.zeros(1, np.float32)),), 0.0)
    other = TANH_GAUSSIAN._replace(name="another")
    with pytest.raises(DiasterError, match="kind 'another' has no form in ONNX"):
        policy_model(other, parameters, spec)
    assert Policy(spec, 0, "last", None, other, parameters).seed == 0  # type: ignore[arg-type]
