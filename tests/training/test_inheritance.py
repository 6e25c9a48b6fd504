"""Runs that begin with the nets of another run: what they take, what begins anew, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from small_agents import continuous_spec, discrete_spec
from small_runs import EVERY_METHOD, QUICK, XQC, StoppingAt, learnt_bytes, small

from diaster.agents import make_agent
from diaster.config import AGENTS, METHODS, build_config
from diaster.decomposers import make_decomposer
from diaster.decomposers.ircr import Elite
from diaster.errors import DiasterError, Stopped
from diaster.learning.snapshot import LearnerState, lasting_arrays
from diaster.run import Run
from diaster.rundir.checkpoint import DIRECTORY
from diaster.rundir.files import read_tensors
from diaster.rundir.records import NETS, POLICY, read_metadata
from diaster.training.progress import Silent
from diaster.training.train import resume_training, run_training


def train(out: Path, reporter: Any = None, **settings: Any) -> Run:
    given = {"env": "Toy-v0", **QUICK, **settings}
    return run_training(build_config(**small(**given)), out, reporter or Silent())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("source") / "run", seeds=[3, 8], method=EVERY_METHOD["rd"]["method"]).path


def nets_of(run: Path) -> dict[str, Any]:
    return read_tensors(run / NETS)


@pytest.mark.parametrize("agent", AGENTS)
def test_what_lasts_of_a_state_is_all_but_its_optimisers(agent: str) -> None:
    for spec in (continuous_spec(2), discrete_spec(3)):
        if AGENTS[agent].discrete if spec.discrete else AGENTS[agent].continuous:
            settings = build_config(agent={"name": agent}).agent
            check_what_lasts(make_agent(settings, spec).init(jax.random.key(0), spec))


@pytest.mark.parametrize("method", METHODS)
def test_what_lasts_of_a_decomposer_is_all_but_its_optimisers_and_episodes(method: str) -> None:
    spec = continuous_spec(2)
    decomposer = make_decomposer(build_config(method={"name": method}).method, spec.horizon)
    check_what_lasts(decomposer.init(jax.random.key(0), spec))


def check_what_lasts(state: Any) -> None:
    def is_left_out(part: Any) -> bool:
        return type(part).__module__.startswith("optax") or isinstance(part, Elite)

    parts = jax.tree.leaves(state, is_leaf=is_left_out)
    n_lasting = sum(not is_left_out(part) for part in parts)
    assert len(lasting_arrays(LearnerState((), state))) == n_lasting


def test_a_run_begins_with_the_nets_of_the_seeds_of_the_same_numbers(source: Path, tmp_path: Path) -> None:
    """No step of learning follows: what the run ends with is what it began with."""
    still = {"agent": {"name": "ddpg", "updates": 0}, "method": {"name": "rd", "hidden": 4, "updates": 0}}
    run = train(tmp_path / "run", seeds=[8, 3], from_run=str(source), **still)
    theirs, ours = read_tensors(source / POLICY), read_tensors(run.path / POLICY)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array[::-1])
    theirs, ours = nets_of(source), nets_of(run.path)
    assert any("critic" in name for name in ours) and any("step_reward" in name for name in ours)
    for name, array in theirs.items():
        if "moments" not in name and "rate" not in name:  # which go on with the new episodes
            np.testing.assert_array_equal(ours[name], array[::-1], err_msg=name)
    facts = read_metadata(run.path)["from"]
    assert facts["run"] == str(source) and facts["takes"] == "agent and decomposer" and len(facts["nets"]) == 64
    assert run.config.from_run == str(source)


def test_a_run_of_one_seed_serves_all(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone")
    still = {"agent": {"name": "ddpg", "updates": 0}}
    run = train(tmp_path / "run", seeds=3, from_run=str(alone.path), **still)
    for name, array in nets_of(alone.path).items():
        if name.startswith("state.agent."):
            np.testing.assert_array_equal(nets_of(run.path)[name], np.repeat(array, 3, axis=0))


def test_the_warm_up_is_collected_by_the_policies_and_not_at_random(source: Path, tmp_path: Path) -> None:
    settings = {"seeds": [3], "steps": 120, "warmup_steps": 119, "method": EVERY_METHOD["rd"]["method"]}
    first, again = (
        train(tmp_path / name, from_run=str(source), **settings).progress["training_return"] for name in ("a", "b")
    )
    random = train(tmp_path / "random", **settings).progress["training_return"]
    np.testing.assert_array_equal(first, again)
    assert first[0] != random[0]


def test_another_method_begins_anew_with_the_agent_of_the_other_run(source: Path, tmp_path: Path) -> None:
    still = {"agent": {"name": "ddpg", "updates": 0}}
    run = train(tmp_path / "run", seeds=[3], from_run=str(source), **still)
    assert read_metadata(run.path)["from"]["takes"] == "agent; the decomposer begins anew, since 'rd' is another method"
    for name, array in read_tensors(source / POLICY).items():
        np.testing.assert_array_equal(read_tensors(run.path / POLICY)[name], array[:1])


def test_the_encoder_of_images_goes_with_the_agent_whatever_the_method(tmp_path: Path) -> None:
    images = {"env": "ToyDot-v0", "image": {"side": 8, "frames": 2}}
    source = train(tmp_path / "source", **images, agent="ddpg", method={"name": "rd", "hidden": 4})
    still = {"agent": {"name": "ddpg", "updates": 0}, "method": "uniform"}
    run = train(tmp_path / "run", **images, **still, from_run=str(source.path))
    taken, theirs = nets_of(run.path), nets_of(source.path)
    names = [name for name in taken if name.startswith(("state.agent.", "state.decomposer.encoder."))]
    assert any("encoder" in name for name in names)
    for name in names:
        np.testing.assert_array_equal(taken[name], theirs[name])


@pytest.mark.parametrize("agent", [{"name": "sac"}, XQC], ids=["sac", "xqc"])
def test_an_interruption_changes_no_byte_whether_before_the_first_checkpoint_or_after(
    tmp_path: Path, agent: dict[str, Any]
) -> None:
    alone = train(tmp_path / "alone", agent=agent)
    settings = {"agent": agent, "from_run": str(alone.path), "checkpoint_every": 40}
    whole = train(tmp_path / "whole", **settings)
    assert learnt_bytes(whole) != learnt_bytes(alone)
    with pytest.raises(Stopped):
        train(tmp_path / "cut", StoppingAt(160), **settings)
    shutil.copytree(tmp_path / "cut", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / DIRECTORY)
    for cut in ("cut", "bare"):
        assert learnt_bytes(resume_training(tmp_path / cut, Silent())) == learnt_bytes(whole)


def test_a_run_does_not_begin_again_with_other_nets_than_before(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    with pytest.raises(Stopped):
        train(tmp_path / "run", StoppingAt(160), seeds=[3], from_run=str(tmp_path / "source"))
    shutil.rmtree(tmp_path / "run" / DIRECTORY)
    nets = {name: array + 1 for name, array in nets_of(source).items()}
    (tmp_path / "source" / NETS).write_bytes(safetensors.numpy.save(nets))
    with pytest.raises(DiasterError, match="is not what this run began with"):
        resume_training(tmp_path / "run", Silent())


def refused(source: Path, tmp_path: Path, **settings: Any) -> str:
    with pytest.raises(DiasterError) as caught:
        train(tmp_path / "refused", **{"seeds": [3], "from_run": str(source), **settings})
    assert not (tmp_path / "refused").exists()
    return str(caught.value)


def test_nets_that_do_not_fit_are_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    assert "the agent 'ddpg', whose nets 'td3' has no use for; add --agent ddpg" in refused(
        source, tmp_path, agent="td3"
    )
    larger = refused(source, tmp_path, agent={"name": "ddpg", "hidden": 16})
    assert "'agent.actor.0.bias' is float32 [8] there and float32 [16] here" in larger
    assert "and none of seed 5" in refused(source, tmp_path, seeds=[3, 5])
    assert "do not fit: 'agent." in refused(source, tmp_path, env="ToyDict-v0")
    assert "holds no run" in refused(tmp_path / "nowhere", tmp_path)


def test_a_run_without_nets_says_how_to_have_them(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "unfinished")
    (tmp_path / "unfinished" / NETS).unlink()
    assert "has no nets.safetensors, which a run writes when it is complete" in refused(
        tmp_path / "unfinished", tmp_path
    )


def test_damaged_nets_are_refused(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "damaged")
    path = tmp_path / "damaged" / NETS
    nets = nets_of(source)
    nan = {name: np.full_like(array, np.nan) if array.dtype == np.float32 else array for name, array in nets.items()}
    for content, sentence in ((safetensors.numpy.save(nan), "not finite"), (b"no tensors", "is damaged")):
        path.write_bytes(content)
        assert sentence in refused(tmp_path / "damaged", tmp_path)
