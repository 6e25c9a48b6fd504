import contextlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import toy_envs
from command_line import Output, run

import diaster
from diaster import cli
from diaster.analysis.figures import FIGURES
from diaster.config import AGENTS, METHODS, PAPER_TASKS, PRESETS, build_config, write_toml
from diaster.rundir.recordings import ROLLOUTS
from diaster.rundir.records import CONFIG, DECOMPOSER, DONE, METADATA, POLICY, PROGRESS, read_config
from diaster.rundir.results import read_progress

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
IMPORT = ["--import", "toy_envs", "--workers", "0"]


# Help


def test_the_overview_names_all_commands() -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        for command in (
            *("train", "resume", "sweep", "evaluate", "plot", "record", "figure", "report", "video", "list", "demo"),
        ):
            assert re.search(rf"^  {command} +\w", out, re.MULTILINE)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: diaster {command}" in out


def test_the_version_is_the_packages() -> None:
    assert run("--version") == (0, f"diaster {diaster.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["plot", "--help"], ["list", "presets"]])
def test_help_needs_neither_jax_nor_gymnasium_nor_matplotlib(arguments: list[str], python: Callable) -> None:
    heavy = {"jax", "jaxlib", "gymnasium", "matplotlib", "optax", "scipy"}
    text = f"""
import sys
from diaster.cli import main
try:
    code = main({arguments!r})
except SystemExit as stop:
    code = stop.code or 0
print("HEAVY", sorted({heavy!r} & set(sys.modules)))
sys.exit(code)
"""
    done = python("-c", text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("HEAVY []\n")


def test_the_module_is_the_command(python: Callable) -> None:
    good, bad = python("-m", "diaster", "--version"), python("-m", "diaster", "trian")
    assert (good.returncode, good.stdout) == (0, f"diaster {diaster.__version__}\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("diaster: unknown command 'trian'")


# Bad input


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with some files to name, beside the working directory."""
    folder = tmp_path / "given"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / CONFIG).write_text(write_toml(build_config(env="Toy-v0")), encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "file").touch()
    (folder / "bad.toml").write_text("steps = [\n", encoding="utf-8")
    (folder / "typo.toml").write_text("[decomposer]\nhed = 'final'\n", encoding="utf-8")
    (folder / "type.toml").write_text("steps = 'many'\n", encoding="utf-8")
    (folder / "seeds.toml").write_text("env = 'Toy-v0'\nseeds = 1.5\n", encoding="utf-8")
    (folder / "method.toml").write_text("method = 'ruder'\n", encoding="utf-8")
    (folder / "sweep.toml").write_text("[axes]\nenv = 'Hopper-v5'\n[axis]\nmethod = 'rrd'\n", encoding="utf-8")
    (folder / "rrd.toml").write_text("method = 'rrd'\n[decomposer]\nunbiased = true\n", encoding="utf-8")
    return folder


BAD = {
    # commands and names
    "trian": ["unknown command 'trian'", "Did you mean 'train'?"],
    "list method": ["'method'", "Did you mean 'methods'?"],
    "list envs --import no_such_module": ["'no_such_module'"],
    "train": ["no environment was named"],
    "train Toi-v0 --import toy_envs": ["unknown environment 'Toi-v0'", "Did you mean 'Toy-v0'?"],
    "train no_such_module:Env-v0": ["'no_such_module:Env-v0'"],
    "train Toy-v0 --import no_such_module": ["'no_such_module'"],
    "train Toy-v0 --method diastr": ["unknown method 'diastr'", "Did you mean 'diaster'?"],
    "train Toy-v0 --agent sacc": ["unknown agent 'sacc'", "Did you mean 'sac'?"],
    "train Toy-v0 --preset papper": ["unknown preset 'papper'", "Did you mean 'paper'?"],
    "train Toy-v0 --method": ["--method"],
    "train Toy-v0 --agent": ["--agent"],
    "train Toy-v0 --preset": ["--preset"],
    "train Toy-v0 --config": ["--config"],
    "train Toy-v0 --method.hed final": ["--method.hed", "Did you mean --method.head?"],
    "train Toy-v0 --method.n-cutz 5": ["--method.n-cutz", "Did you mean --method.n-cuts?"],
    "train Toy-v0 --method.unbiased": ["--method.unbiased"],
    "train Toy-v0 --method rd --method.unbiased": ["--method.unbiased"],
    "train Toy-v0 --method rrd --method.unbiasd": ["unbiasd", "Did you mean --method.unbiased?"],
    "train Toy-v0 --method rrd --method.head final": ["--method.head"],
    "train Toy-v0 --method ircr --method.updates 3": ["--method.updates"],
    "train Toy-v0 --method dense --method.return-scale auto": ["--method.return-scale", "'auto'"],
    "train Toy-v0 --agent.policy-every 2": ["--agent.policy-every"],
    "train Toy-v0 --agent td3 --agent.policy-evry 2": ["Did you mean --agent.policy-every?"],
    "train Toy-v0 --agent ddpg --agent.initial-temperature 2": ["--agent.initial-temperature"],
    "train Toy-v0 --stepps 5": ["--stepps", "Did you mean --steps?"],
    "train Toy-v0 --method.head finl": ["'finl'", "--method.head", "cumulative", "final"],
    "train Toy-v0 --device tpu": ["'tpu'", "--device", "cpu"],
    "train Toy-v0 and more": ["and"],
    "evaluate": ["directory"],
    "plot": ["directory"],
    "sweep": ["no file was given"],
    "sweep {given}/none.toml": ["'{given}/none.toml' cannot be read"],
    "sweep {given}/sweep.toml": ["unknown entry in {given}/sweep.toml 'axis'", "Did you mean 'axes'?"],
    "sweep {given}/sweep.toml --jobs 0": ["--jobs is 0"],
    "sweep {given}/sweep.toml --jobs many": ["--jobs", "'many'"],
    "sweep {given}/sweep.toml --gpus 2": ["--gpus is 2.0", "0 to 1"],
    "sweep {given}/sweep.toml --launcher slurm": ["'slurm'", "local", "ray"],
    "sweep {given}/sweep.toml --address 10.0.0.1:6379": ["--address", "--launcher ray"],
    "sweep {given}/sweep.toml --launcher ray --jobs 3": ["--jobs", "--cpus"],
    "sweep {given}/sweep.toml --dryrun": ["--dryrun", "Did you mean --dry-run?"],
    # numbers
    "train Toy-v0 --steps ten": ["--steps", "'ten'"],
    "train Toy-v0 --steps 0": ["steps=0 is too small"],
    "train Toy-v0 --steps -5": ["steps=-5 is too small"],
    "train Toy-v0 --seeds 0": ["at least one is needed"],
    "train Toy-v0 --seeds 3,3": ["3,3", "twice"],
    "train Toy-v0 --seeds a": ["'a'", "--seeds 5"],
    "train Toy-v0 --horizon 0": ["horizon=0"],
    "train Toy-v0 --agent.batch-size 300 --replay.capacity 299": ["batch_size=300", "capacity=299"],
    "train Toy-v0 --replay.capacity 300": ["replay.capacity=300 is too small", "10 steps"],
    "train Toy-v0 --envs 40 --replay.capacity 1000": ["10 steps in 40 environments", "at least 1600"],
    "train Toy-v0 --envs 201": ["envs=201 are more than the steps they share, chunk_steps=200"],
    "train Toy-v0 --method.segments all --method.n-cuts 10": ["n_cuts=10", "horizon 10", "9"],
    "train Toy-v0 --method.segments all --method.batch-steps 9": ["batch_steps=9", "10"],
    "train Toy-v0 --method.n-cuts 1": ["n_cuts=1 has no effect"],
    "train Toy-v0 --warmup-steps 100 --steps 100": ["warmup_steps=100"],
    "train Toy-v0 --steps 1000000000000 --replay.capacity 1000000000000": ["the replay needs", "GB are free"],
    # environments
    "train ToyImage-v0": ["'ToyImage-v0' shows images", "(8, 8, 3)"],
    "train ToyMultiDiscrete-v0": ["'ToyMultiDiscrete-v0' has actions of the kind", "only Box and Discrete"],
    "train ToyDiscrete-v0 --agent td3": [
        "'td3' cannot act in 'ToyDiscrete-v0', which has 3 discrete actions; use --agent dqn or --agent sac."
    ],
    "train Toy-v0 --agent dqn": ["'dqn' cannot act in 'Toy-v0', which has continuous actions; use", "--agent sac"],
    "train ToyUnbounded-v0": ["'ToyUnbounded-v0'", "finite bounds"],
    "train ToyEndless-v0": ["'ToyEndless-v0' has no time limit", "--horizon"],
    "train ToyNan-v0 --quiet --env-retries 0": ["'ToyNan-v0' returned nan", "seed 0's training step 13"],
    "train ToyNan-v0 --quiet --env-retries 0 --tensorboard": ["'ToyNan-v0' returned nan"],
    "train ToyNanReward-v0 --quiet --env-retries 0": [
        "'ToyNanReward-v0' returned a reward of nan",
        "seed 0's training step 13",
    ],
    "train ToyShape-v0 --quiet": ["'ToyShape-v0' returned an observation of shape (2,)", "seed 0's training step 13"],
    "train ToyNanStart-v0 --quiet": ["'ToyNanStart-v0'", "seed 0's training step 0"],
    "train ToyFunction-v0 --workers 1": ["'ToyFunction-v0'", "--workers 0"],
    "train ToyDies-v0 --quiet --workers 1": ["exit code 7"],
    # files
    "train Toy-v0 --out {given}/run": ["'{given}/run' already holds a run"],
    "train Toy-v0 --out {given}/file": ["'{given}/file' is a file"],
    "train Toy-v0 --out {given}": ["'{given}' is not empty"],
    "train Toy-v0 --config {given}/none.toml": ["'{given}/none.toml' cannot be read"],
    "train Toy-v0 --config {given}/empty": ["'{given}/empty' cannot be read"],
    "train Toy-v0 --config {given}/bad.toml": ["'{given}/bad.toml' is not valid TOML"],
    "train Toy-v0 --config {given}/typo.toml": ["{given}/typo.toml", "Did you mean 'method.head'?"],
    "train Toy-v0 --config {given}/type.toml": ["{given}/type.toml", "a whole number"],
    "train --config {given}/seeds.toml": ["seeds"],
    "train Toy-v0 --config {given}/method.toml": ["unknown method 'ruder'", "Did you mean 'rudder'?"],
    "train Toy-v0 --config {given}/rrd.toml --method.head final": ["--method.head"],
    "train Toy-v0 --config {given}/rrd.toml --method rd": ["{given}/rrd.toml", "'method.unbiased'"],
    "evaluate {given}/empty": ["'{given}/empty' holds no run"],
    "evaluate {given}/none": ["'{given}/none' holds no run"],
    "evaluate {given}/empty --episodes many": ["--episodes", "'many'"],
    "plot {given}/empty": ["'{given}/empty' holds no run"],
    "plot {given}/none -o x.png": ["'{given}/none' holds no run"],
    "plot {given}/run -o x.gif": ["'x.gif'", ".png"],
    "plot {given}/run -o gone/x.png": ["'gone'"],
    "demo --steps 0": ["steps=0"],
    # what is drawn of recorded files
    "record": ["directory"],
    "record {given}/empty": ["'{given}/empty' holds no run"],
    "record {given}/run --episodes 0": ["0 episodes were asked for", "1 to 1000"],
    "figure": ["a figure and a folder"],
    "figure performance": ["a figure and a folder"],
    "figure perfomance {given}": ["unknown figure 'perfomance'", "Did you mean 'performance'?"],
    "figure performance {given}/empty": ["'{given}/empty' holds no runs"],
    "figure performance {given}/none": ["'{given}/none' is no folder"],
    "figure performance {given}": ["'{given}' has an evaluation yet"],
    "figure performance {given} -o x.gif": ["'x.gif'", ".png"],
    "figure performance {given} -o gone/x.png": ["'gone'"],
    "figure performance {given} --width 1": ["width of 1 inches", "2.5"],
    "figure performance {given} --width wide": ["--width", "'wide'"],
    "report": ["folder"],
    "report {given}/empty": ["'{given}/empty' holds no runs"],
    "report {given} -o x.pdf": ["'x.pdf'", ".html"],
    "report {given} -o gone/x.html": ["'gone'"],
    "video": ["directory"],
    "video {given}/empty": ["'{given}/empty' holds no run"],
    "video {given}/run -o x.avi": ["'x.avi'", ".mp4"],
    "video {given}/run -o gone/x.mp4": ["'gone'"],
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_sentence_with_exit_code_2_and_nothing_written(
    command: str, given: Path, empty_cwd: Path
) -> None:
    arguments = command.format(given=given).split()
    if "Toy" in command:
        arguments[2:2] = ["--import", "toy_envs"] if "--import" not in arguments else []
        arguments[2:2] = ["--workers", "0"] if "--workers" not in arguments else []
    before = sorted(given.rglob("*"))
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("diaster: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for words in BAD[command]:
        assert words.format(given=given) in err
    assert list(empty_cwd.rglob("*")) == []
    assert sorted(given.rglob("*")) == before


def test_a_replay_that_does_not_fit_is_refused_with_what_it_needs_and_what_there_is(empty_cwd: Path) -> None:
    huge = ["--steps", 10**12, "--replay.capacity", 10**12, "--seeds", 5]
    _, _, err = run("train", "Toy-v0", *IMPORT, *huge)
    numbers = re.search(r"needs ([\d.]+) GB \(5 × 1000000000000 observations .* and ([\d.]+) GB are free", err)
    assert numbers is not None
    needed, free = map(float, numbers.groups())
    assert needed > 5 * 4 * 5 * 1e3  # five numbers of four bytes for each step of each seed
    assert 0 < free < needed


def test_a_gpu_that_is_not_there_is_refused(empty_cwd: Path) -> None:
    import jax

    with contextlib.suppress(RuntimeError):
        jax.devices("gpu")
        pytest.skip("there is one")
    code, out, err = run("train", "Toy-v0", *IMPORT, "--device", "gpu")
    assert (code, out) == (2, "")
    assert err.startswith("diaster: a GPU was asked for and JAX finds none;")
    assert err.count("\n") == 1
    assert list(empty_cwd.iterdir()) == []


def test_a_launcher_that_is_not_installed_is_refused(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run("sweep", given / "sweep.toml", "--launcher", "ray")
    assert (code, out) == (2, "")
    assert err == "diaster: --launcher ray needs Ray; install it with pip install 'diaster[ray]'.\n"


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_sentence_does_not_depend_on_the_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, _, err = run("train", "Toy-v0", "--method.segments-per-episod", "3")
    assert "--method.segments-per-episod" in err
    assert "Did you mean --method.segments-per-episode?" in err
    assert "  " not in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "UTF-8"])
def test_the_sentence_does_not_depend_on_the_encoding_of_the_terminal(encoding: str) -> None:
    expected = run("train", "Toy-v0", "--steps", "ten")
    assert "'ten'" in expected.err
    assert run("train", "Toy-v0", "--steps", "ten", encoding=encoding) == expected


def test_an_interruption_is_a_sentence_with_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "list", (interrupt, ""))
    code, out, err = run("list")
    assert (code, out) == (130, "")
    assert err.startswith("diaster: interrupted")


# Lists


def test_the_list_names_methods_agents_presets_and_tasks() -> None:
    code, out, err = run("list")
    assert (code, err) == (0, "")
    for name in (*METHODS, *AGENTS, *PRESETS, *PAPER_TASKS):
        assert re.search(rf"^  {re.escape(name)} +\w", out, re.MULTILINE)


def test_one_kind_can_be_listed_alone() -> None:
    code, out, _ = run("list", "presets")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(PRESETS)


def test_environments_are_listed_with_those_of_imported_modules() -> None:
    code, out, _ = run("list", "envs", "--import", "toy_envs")
    names = out.split()
    assert code == 0
    assert {"Toy-v0", "Hopper-v5"} <= set(names)
    assert names == sorted(names)


# A run from end to end


class Trained(NamedTuple):
    path: Path
    again: Path
    output: Output
    quiet: Output


@pytest.fixture(scope="module")
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
    expected = {CONFIG, PROGRESS, METADATA, POLICY, DECOMPOSER, DONE}
    assert {item.name for item in trained.path.iterdir()} == expected
    assert expected == {
        "config.toml", "progress.csv", "metadata.json", "policy.safetensors", "method.safetensors", "DONE",
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
    assert trained.output.out.startswith(f"done: {trained.path} ")
    assert "\r" not in trained.output.err


def test_a_poor_fit_late_in_the_run_is_warned_of_once(trained: Trained) -> None:
    warnings = [line for line in trained.output.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "fit_r2" in warnings[0]
    assert "step 100" in warnings[0]


def test_quiet_prints_nothing(trained: Trained) -> None:
    assert trained.quiet == (0, "", "")


@pytest.mark.parametrize("name", [PROGRESS, POLICY, DECOMPOSER, CONFIG])
def test_a_runs_configuration_gives_the_same_bytes_again(name: str, trained: Trained) -> None:
    assert (trained.again / name).read_bytes() == (trained.path / name).read_bytes()


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
    assert len(lines[1]) == len(lines[2]) == 9
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--seed", "99"], "no seed 99; it has 3, 7."), (["--episodes", "0"], "0 episodes were asked for")],
)
def test_what_evaluate_cannot_do_is_a_sentence(arguments: list[str], words: str, trained: Trained) -> None:
    code, out, err = run("evaluate", trained.path, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


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


def test_the_help_of_figure_names_all_of_them() -> None:
    out = run("figure", "--help").out
    assert all(name in out for name in FIGURES)
