"""A tiny run from end to end, by the commands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import toy_envs
from command_line import Output, run

from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import CONFIG, DECOMPOSER, DONE, METADATA, POLICY, PROGRESS, read_config
from diaster.rundir.results import read_progress
from diaster.rundir.trust import SIGNATURE

SETTINGS = {
    "workers": "0",
    "steps": "200",
    "warmup-steps": "50",
    "chunk-steps": "50",
    "seeds": "3,7",
    "method.hidden": "8",
    "method.updates": "10",
    "method.every": "50",
    "agent.hidden": "8",
    "agent.batch-size": "16",
    "agent.updates": "10",
    "agent.every": "50",
    "evaluation.every": "100",
    "evaluation.episodes": "2",
}
TINY = ["--import", "toy_envs", *(part for name, value in SETTINGS.items() for part in (f"--{name}", value))]


class Trained(NamedTuple):
    path: Path
    again: Path
    output: Output
    quiet: Output


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A tiny run, and the same once more from its own configuration: quietly and with TensorBoard."""
    folder = tmp_path_factory.mktemp("runs")
    path, again = folder / "toy", folder / "again"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr("diaster.training.evaluations.POOR_FIT", float("inf"))  # every fit is poor: there is a warning
        output = run("train", "Toy-v0", *TINY, "--out", path)
        assert output.code == 0, output.err
        patch.setattr("diaster.training.evaluations.POOR_FIT", -float("inf"))
        quiet = run("train", "--config", path / CONFIG, "--out", again, "--quiet", "--tensorboard")
        assert quiet.code == 0, quiet.err
        yield Trained(path, again, output, quiet)


def test_a_run_directory_holds_the_files_that_are_promised_and_no_other(trained: Trained) -> None:
    expected = {CONFIG, PROGRESS, METADATA, POLICY, DECOMPOSER, DONE, SIGNATURE}
    assert {item.name for item in trained.path.iterdir()} == expected
    assert expected == {
        "config.toml", "progress.csv", "metadata.json", "policy.safetensors", "decomposer.safetensors", "DONE",
        "signature",
    }  # fmt: skip


def test_the_configuration_of_a_run_is_resolved(trained: Trained) -> None:
    config = read_config(trained.path)
    assert (config.env, config.steps, config.seeds, config.imports) == ("Toy-v0", 200, (3, 7), ("toy_envs",))
    assert config.horizon == toy_envs.HORIZON
    assert config.agent.batch_size == 16


def test_progress_has_a_row_per_seed_and_evaluation(trained: Trained) -> None:
    table = read_progress(trained.path)
    assert list(zip(table["step"], table["seed"], strict=True)) == [(100, 3), (100, 7), (200, 3), (200, 7)]
    assert table["episodes"].tolist() == [10, 10, 20, 20]
    assert table["length_mean"].tolist() == [10.0] * 4
    assert len(set(table["return_mean"].tolist())) == 4


def test_metadata_say_how_the_run_was_made(trained: Trained) -> None:
    found = json.loads((trained.path / METADATA).read_text(encoding="utf-8"))
    assert {"command", "commit", "versions", "device", "wall_seconds"} <= found.keys()
    assert {"python", "jax", "numpy", "gymnasium"} <= found["versions"].keys()
    assert found["wall_seconds"] > 0


def test_training_without_a_terminal_prints_a_line_per_evaluation(trained: Trained) -> None:
    lines = trained.output.err.splitlines()
    assert lines[0].startswith("Toy-v0: diaster (default) + sac, seeds 3, 7, 200 steps each")
    assert [line.split()[:2] for line in lines if line.startswith("step")] == [["step", "100"], ["step", "200"]]
    assert trained.output.out.startswith(f"done: {trained.path.name} ")
    assert "\r" not in trained.output.err


def test_a_poor_fit_late_in_the_run_is_warned_of_once(trained: Trained) -> None:
    warnings = [line for line in trained.output.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "fit_r2" in warnings[0]
    assert "step 100" in warnings[0]


def test_quiet_prints_nothing(trained: Trained) -> None:
    assert trained.quiet == (0, "", "")


def test_a_runs_configuration_gives_the_same_bytes_again(trained: Trained) -> None:
    for name in (PROGRESS, POLICY, DECOMPOSER, CONFIG):
        assert (trained.again / name).read_bytes() == (trained.path / name).read_bytes(), name


def test_tensorboard_writes_event_files_with_the_numbers(trained: Trained) -> None:
    [events] = (trained.again / "tensorboard").iterdir()
    assert "tfevents" in events.name
    content = events.read_bytes()
    for name in (b"return_mean/seed3", b"return_mean/seed7", b"fit_r2/seed3"):
        assert name in content
    assert not (trained.path / "tensorboard").exists()


def test_a_second_run_into_the_same_directory_is_refused(trained: Trained, empty_cwd: Path) -> None:
    before = (trained.path / PROGRESS).read_bytes()
    code, _, err = run("train", "Toy-v0", *TINY, "--out", trained.path)
    assert code == 2
    assert "already holds a run" in err
    assert (trained.path / PROGRESS).read_bytes() == before


def test_evaluate_prints_a_table_with_a_row_per_seed_and_their_mean(trained: Trained, empty_cwd: Path) -> None:
    code, out, err = run("evaluate", trained.path, "--episodes", 3)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == ["seed", "3", "7", "mean"]
    assert len(lines[1]) == len(lines[2]) == 11
    assert lines[1][5] == "10.0"  # length
    assert float(lines[3][1]) == pytest.approx((float(lines[1][1]) + float(lines[2][1])) / 2, abs=0.11)


def test_evaluate_prints_json_that_every_parser_reads(trained: Trained, empty_cwd: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    code, out, err = run("evaluate", trained.path, "--episodes", 1, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=refuse)
    assert list(found) == ["3", "7"]
    for of_seed in found.values():
        assert of_seed["length_mean"] == 10.0
        assert of_seed["return_min"] == of_seed["return_mean"] == of_seed["return_max"]
        assert of_seed["fit_r2"] is None  # one return has no spread to explain
        assert -1.0 <= of_seed["reward_correlation"] <= 1.0


def test_evaluate_can_be_told_one_seed_and_gives_the_same_numbers_again(trained: Trained, empty_cwd: Path) -> None:
    both = json.loads(run("evaluate", trained.path, "--episodes", 2, "--json").out)
    one = json.loads(run("evaluate", trained.path, "--episodes", 2, "--json", "--seed", 7).out)
    assert one == {"7": both["7"]}
    assert both["3"] != both["7"]


def test_what_evaluate_cannot_do_is_a_sentence(trained: Trained) -> None:
    for flag, value, words in (("--seed", 99, "no seed 99; it has 3, 7."), ("--episodes", 0, "0 episodes were asked")):
        code, out, err = run("evaluate", trained.path, flag, value)
        assert (code, out) == (2, ""), flag
        assert words in err and err.count("\n") == 1, flag


def test_evaluate_names_what_is_damaged(trained: Trained, tmp_path: Path) -> None:
    for item in trained.path.iterdir():
        (tmp_path / item.name).write_bytes(item.read_bytes())
    (tmp_path / POLICY).write_bytes(b"garbage")
    code, out, err = run("evaluate", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"diaster: '{tmp_path / POLICY}' is damaged")
    assert err.count("\n") == 1


def test_plot_draws_the_runs_and_says_where(trained: Trained, empty_cwd: Path) -> None:
    assert run("plot", trained.path, trained.again, "-o", "both.png") == (0, "wrote both.png\n", "")
    assert (empty_cwd / "both.png").read_bytes().startswith(b"\x89PNG")
    assert [item.name for item in empty_cwd.iterdir()] == ["both.png"]


def test_plot_has_a_name_for_the_picture_of_its_own(trained: Trained, empty_cwd: Path) -> None:
    assert run("plot", trained.path).code == 0
    assert [item.name for item in empty_cwd.iterdir()] == ["curve.png"]


def test_a_run_is_recorded_drawn_and_reported(trained: Trained, tmp_path: Path, empty_cwd: Path) -> None:
    path = Path(shutil.copytree(trained.path, tmp_path / "toy"))
    assert run("record", path, "--episodes", 1) == (0, f"recorded: {path / ROLLOUTS}\n", "")
    code, out, err = run("figure", "credit", path)
    assert (code, err) == (0, "")
    assert out.startswith("wrote credit.png\n  Toy-v0, diaster, seed 3: one episode of the policy (toy).")
    code, out, err = run("report", path)
    assert (code, err) == (0, "")
    assert out.startswith("wrote report.html\n  proxy-reward: no run in ")
    assert sorted(item.name for item in empty_cwd.iterdir()) == ["credit.png", "report.html"]


def test_what_cannot_be_drawn_cannot_be_filmed(trained: Trained, empty_cwd: Path) -> None:
    code, out, err = run("video", trained.path)
    assert (code, out) == (2, "")
    assert "'Toy-v0' cannot be drawn here" in err
    assert list(empty_cwd.iterdir()) == []
