"""A tiny run from end to end, by the commands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import pytest
import toy_envs
from command_line import Output, run

from diaster.rundir.checkpoint import DIRECTORY
from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import (
    BEST,
    CONFIG,
    DECOMPOSER,
    DONE,
    METADATA,
    NETS,
    POLICY,
    PROGRESS,
    read_config,
    read_metadata,
)
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
    "agent": "sac",
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
    expected = {CONFIG, PROGRESS, METADATA, POLICY, BEST, DECOMPOSER, NETS, DIRECTORY, DONE, SIGNATURE}
    assert {item.name for item in trained.path.iterdir()} == expected
    assert expected == {
        "config.toml", "progress.csv", "metadata.json", "policy.safetensors", "policy-best.safetensors",
        "decomposer.safetensors", "nets.safetensors", "checkpoint", "DONE", "signature",
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
    assert {folder.name for folder in (trained.again / "tensorboard").iterdir()} == {"seed-3", "seed-7"}
    for folder in (trained.again / "tensorboard").iterdir():
        [events] = folder.iterdir()
        assert "tfevents" in events.name
        content = events.read_bytes()
        assert all(name in content for name in (b"return_mean", b"fit_r2", b"episode_return"))
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


def test_evaluate_says_why_columns_are_empty_where_returns_hardly_vary(trained: Trained, empty_cwd: Path) -> None:
    code, out, err = run("evaluate", trained.path, "--episodes", 1)
    assert (code, err) == (0, "")
    rows, remark = out.splitlines()[1:3], out.splitlines()[-1]
    assert all(row.split()[6] == row.split()[8] == "–" for row in rows)  # fit and gap
    assert remark.startswith("No fit and no gap where returns hardly vary (± at most 1 % of their root mean square)")


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
    shutil.copytree(trained.path, tmp_path, dirs_exist_ok=True)
    (tmp_path / POLICY).write_bytes(b"garbage")
    code, out, err = run("evaluate", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"diaster: '{tmp_path / POLICY}' is damaged")
    assert err.count("\n") == 1


def test_evaluate_has_a_row_for_each_episode_on_demand(trained: Trained, empty_cwd: Path) -> None:
    code, out, err = run("evaluate", trained.path, "--episodes", 2, "--per-episode")
    assert (code, err) == (0, "")
    head, *lines = [line.split() for line in out.splitlines()]
    assert head == ["seed", "episode", "return", "length", "reward_sum", "time_limit"]
    assert [line[:2] for line in lines] == [["3", "0"], ["3", "1"], ["7", "0"], ["7", "1"]]
    code, out, _ = run("evaluate", trained.path, "--episodes", 2, "--per-episode", "--json", "--seed", 7)
    rows = json.loads(out)
    assert code == 0 and [row["seed"] for row in rows] == [7, 7]
    assert [f"{row['return']:.6g}" for row in rows] == [line[2] for line in lines[2:]]


def test_evaluate_takes_the_best_policies_on_demand(trained: Trained, tmp_path: Path) -> None:
    run_directory = Path(shutil.copytree(trained.path, tmp_path / "run"))
    shutil.copy(run_directory / POLICY, run_directory / BEST)
    last, best = (run("evaluate", run_directory, "--json", *more) for more in ([], ["--best"]))
    assert last.code == 0 and last.out == best.out
    (run_directory / BEST).unlink()
    code, out, err = run("evaluate", run_directory, "--best")
    assert (code, out) == (2, "") and "has no policy-best.safetensors" in err


def test_resume_makes_a_complete_run_longer(trained: Trained, tmp_path: Path) -> None:
    run_directory = Path(shutil.copytree(trained.path, tmp_path / "run"))
    code, out, err = run("resume", run_directory, "--steps", 300)
    assert code == 0 and out.startswith("done: "), err
    assert read_progress(run_directory)["step"].tolist() == [100, 100, 200, 200, 300, 300]
    code, _, err = run("resume", run_directory, "--steps", 300)
    assert code == 2 and "steps=300 make it no longer" in err


def test_a_run_that_stops_early_says_why(empty_cwd: Path) -> None:
    code, out, _ = run("train", "Toy-v0", *TINY, "--out", "run", "--evaluation.stop-at", "-1e9")
    assert code == 0
    assert out.splitlines()[0].startswith("stopped early: at step 100 the mean return ")
    assert out.splitlines()[1].startswith("done: run ")


def test_a_run_begins_with_the_nets_of_another(trained: Trained, empty_cwd: Path) -> None:
    code, _, err = run("train", "Toy-v0", *TINY, "--out", "run", "--from", trained.path)
    assert code == 0, err
    assert read_metadata(empty_cwd / "run")["from"]["run"] == str(trained.path)
    code, _, err = run("train", "Toy-v0", *TINY, "--out", "other", "--from", "nowhere")
    assert code == 2 and "'" + str(empty_cwd / "nowhere") + "' holds no run" in err


def test_plot_draws_the_runs_and_says_where(trained: Trained, empty_cwd: Path) -> None:
    assert run("plot", trained.path, trained.again, "-o", "both.png") == (0, "wrote both.png\n", "")
    assert (empty_cwd / "both.png").read_bytes().startswith(b"\x89PNG")
    assert [item.name for item in empty_cwd.iterdir()] == ["both.png"]


def test_plot_has_a_name_for_the_picture_of_its_own(trained: Trained, empty_cwd: Path) -> None:
    assert run("plot", trained.path).code == 0
    assert [item.name for item in empty_cwd.iterdir()] == ["curve.png"]


def test_plot_draws_any_column_of_the_table(trained: Trained, empty_cwd: Path) -> None:
    assert run("plot", trained.path, "--metric", "critic_loss").out.startswith("wrote curve.png\n")


def test_runs_of_a_folder_are_chosen_and_named(trained: Trained, tmp_path: Path, empty_cwd: Path) -> None:
    for name in ("a/one", "a/two", "b"):
        shutil.copytree(trained.path, tmp_path / name)
    choice = ("--only", "a/one", "b", "--label", "a=first", "b=second", "--only", "a/two")
    code, out, err = run("figure", "performance", tmp_path, *choice, "-o", "x.svg")
    assert (code, err) == (0, "") and out.startswith("wrote x.svg\n")
    code, out, err = run("report", tmp_path, "--only", "a", "--label", "a/*=first")
    assert (code, err) == (0, "") and "first" in Path("report.html").read_text(encoding="utf-8")


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


def test_a_run_whose_module_is_not_in_its_settings_is_read_with_the_flag_that_the_sentence_asks_for(
    trained: Trained, tmp_path: Path, empty_cwd: Path
) -> None:
    """As a run is that a script has trained in an environment of its own."""
    path = Path(shutil.copytree(trained.path, tmp_path / "toy"))
    settings = (path / CONFIG).read_text(encoding="utf-8")
    (path / CONFIG).write_text(settings.replace('["toy_envs"]', "[]").replace("Toy-v0", "Hidden-v0"), encoding="utf-8")
    (empty_cwd / "hidden_envs.py").write_text(
        "import gymnasium\ngymnasium.register('Hidden-v0', entry_point='toy_envs:Toy', max_episode_steps=10)\n"
    )
    try:
        for command in (["evaluate", path, "--episodes", 1], ["record", path, "--episodes", 1]):
            code, _, err = run(*command)
            assert code == 2 and "unknown environment 'Hidden-v0'" in err and "--import PACKAGE" in err
            gym.registry.pop("Hidden-v0", None)
            sys.modules.pop("hidden_envs", None)
            assert run(*command, "--import", "hidden_envs").code == 0
            gym.registry.pop("Hidden-v0", None)
    finally:
        sys.modules.pop("hidden_envs", None)


def test_a_run_that_can_go_on_is_not_said_to_be_none(trained: Trained, tmp_path: Path, empty_cwd: Path) -> None:
    path = Path(shutil.copytree(trained.path, tmp_path / "toy"))
    for name in (POLICY, DECOMPOSER, PROGRESS, DONE):
        (path / name).unlink()
    for command in ("evaluate", "record", "video"):
        code, _, err = run(command, path)
        assert code == 2 and "has no policy yet" in err and f"'diaster resume {path}' goes on with it" in err
    (path / DONE).touch()  # then something is missing
    assert "has no policy yet" not in run("evaluate", path).err


def test_what_cannot_be_drawn_cannot_be_filmed(trained: Trained, empty_cwd: Path) -> None:
    code, out, err = run("video", trained.path)
    assert (code, out) == (2, "")
    assert "'Toy-v0' cannot be drawn here" in err
    assert list(empty_cwd.iterdir()) == []
