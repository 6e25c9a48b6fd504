"""Adding a method is adding an entry to METHODS: settings, flags, help, training, loading and figures follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from all_settings import refusal, settings_file
from command_line import run
from matplotlib.colors import to_hex
from toy_methods import ToySettings

from diaster.analysis.figures.style import method_style
from diaster.config import METHODS, Method, build_config, validate, write_toml
from diaster.run import Run, load
from diaster.types import Episode, EvaluationEpisode

HELP = "rewards read off an observation"
TINY = {
    "import": "toy_envs",
    "workers": 0,
    "steps": 60,
    "chunk-steps": 20,
    "warmup-steps": 20,
    "evaluation.every": 60,
    "evaluation.episodes": 2,
    "agent": "ddpg",
    "agent.hidden": 4,
    "agent.batch-size": 4,
}


@pytest.fixture(scope="module", autouse=True)
def added() -> Iterator[None]:
    """There is one method more, for as long as these tests run."""
    with pytest.MonkeyPatch.context() as patch:
        entry = Method(ToySettings, HELP, "toy_methods:make_toy", "#123456", "*")
        patch.setitem(METHODS, "toy", entry)
        yield


def test_its_settings_are_built_checked_written_and_read(tmp_path: Path) -> None:
    config = build_config(env="ToyPlain-v0", method={"name": "toy", "factor": 2})
    assert config.method == ToySettings(factor=2.0)
    validate(config)
    assert build_config(file=settings_file(tmp_path, write_toml(config))) == config
    assert "known: method.factor, method.name" in refusal(lambda: build_config(method={"name": "toy", "head": 1}))
    broken = build_config(env="ToyPlain-v0", method={"name": "toy", "factor": 0})
    assert refusal(lambda: validate(broken)).startswith("method.factor=0.0 is out of range")


def test_it_is_listed_with_its_line_and_has_a_help_of_its_own() -> None:
    listed = run("list", "methods")
    assert listed.code == 0
    assert [line.split(maxsplit=1) for line in listed.out.splitlines() if "toy" in line] == [["toy", HELP]]
    text = run("train", "--method", "toy", "--help").out
    assert "--method.factor" in text and "What rewards are multiplied by." in text
    assert "--method.head" not in text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("added") / "run"
    flags = [part for name, value in TINY.items() for part in (f"--{name}", value)]
    done = run("train", "ToyPlain-v0", "--method", "toy", "--method.factor", 2, *flags, "--out", out)
    assert done.code == 0, done.err
    return load(out)


def test_it_trains_from_the_command_line_and_loads_again(trained: Run) -> None:
    assert trained.config.method == ToySettings(factor=2.0)
    assert trained.done
    assert np.isfinite(trained.progress["critic_loss"]).all()
    np.testing.assert_allclose(trained.progress["reward_correlation"], 1.0)  # it knows what others have to find out
    obs = np.arange(12, dtype=np.float32).reshape(4, 3)
    episode = EvaluationEpisode(Episode(obs, np.zeros((3, 2), np.float32), 1.0, False), None)
    np.testing.assert_allclose(trained.step_rewards([episode])[0], 2.0 * obs[1:, 0])


def test_figures_draw_it_in_its_colour_with_its_marker() -> None:
    assert (to_hex(method_style("toy").colour), method_style("toy").marker) == ("#123456", "*")
