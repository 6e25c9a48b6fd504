"""Bad input: one sentence on standard error, exit code 2, and nothing written."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import run

from diaster import cli
from diaster.config import build_config, write_toml
from diaster.rundir.records import CONFIG

IMPORT = ["--import", "toy_envs", "--workers", "0"]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with some files to name, outside of the working directory."""
    folder = tmp_path / "given"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / CONFIG).write_text(write_toml(build_config(env="Toy-v0")), encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "file").touch()
    (folder / "bad.toml").write_text("steps = [\n", encoding="utf-8")
    (folder / "typo.toml").write_text("[method]\nhed = 'final'\n", encoding="utf-8")
    (folder / "type.toml").write_text("steps = 'many'\n", encoding="utf-8")
    (folder / "seeds.toml").write_text("env = 'Toy-v0'\nseeds = 1.5\n", encoding="utf-8")
    (folder / "method.toml").write_text("method = 'ruder'\n", encoding="utf-8")
    (folder / "sweep.toml").write_text("[axes]\nenv = 'Hopper-v5'\n[axis]\nmethod = 'rrd'\n", encoding="utf-8")
    (folder / "rrd.toml").write_text("[method]\nname = 'rrd'\nunbiased = true\n", encoding="utf-8")
    return folder


def refuse_all(commands: Mapping[str, Sequence[str]], given: Path, cwd: Path) -> None:
    """Each command is refused with a sentence that has these words in it."""
    before = sorted(given.rglob("*"))
    for command, words in commands.items():
        arguments = command.format(given=given).split()
        if "Toy" in command:
            arguments[2:2] = ["--import", "toy_envs"] if "--import" not in arguments else []
            arguments[2:2] = ["--workers", "0"] if "--workers" not in arguments else []
        if arguments[:1] == ["train"] and not {"--steps", "--config"} & set(arguments):
            arguments[1:1] = ["--steps", "2000"]  # a case that is not refused any more ends soon, and says which it is
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), command
        assert err.startswith("diaster: "), command
        assert err.endswith("\n") and err.count("\n") == 1, command
        assert [word.format(given=given) for word in words if word.format(given=given) not in err] == [], (command, err)
        assert list(cwd.rglob("*")) == [], command
        assert sorted(given.rglob("*")) == before, command


NAMES = {
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
    "train Toy-v0 --method.subset 32": ["--method.subset is a setting of rrd", "'diaster'", "add --method rrd"],
    "train Toy-v0 --method rd --method.unbiased": ["--method.unbiased"],
    "train Toy-v0 --method rrd --method.unbiasd": ["unbiasd", "Did you mean --method.unbiased?"],
    "train Toy-v0 --method rrd --method.head final": ["--method.head"],
    "train Toy-v0 --method ircr --method.updates 3": ["--method.updates"],
    "train Toy-v0 --method dense --method.return-scale raw": ["--method.return-scale", "'raw'"],
    "train Toy-v0 --method rrd --method.base cubic": ["'cubic'", "--method.base", "linear"],
    "train Toy-v0 --agent.gradient-clip 1": ["--agent.gradient-clip is a setting of sac", "'xqc'", "add --agent sac"],
    "train Toy-v0 --agent ddpg --agent.no-double": ["--agent.no-double is a setting of dqn", "add --agent dqn"],
    "train Toy-v0 --preset paper --agent.policy-every 2": ["is a setting of xqc and td3, and the agent is 'sac'"],
    "train Toy-v0 --agent td3 --agent.policy-evry 2": ["Did you mean --agent.policy-every?"],
    "train Toy-v0 --agent ddpg --agent.initial-temperature 2": ["--agent.initial-temperature"],
    "train Toy-v0 --agent xqc --agent.atms 51": ["Did you mean --agent.atoms?"],
    "train Toy-v0 --agent xqc --agent.size large": ["'large'", "--agent.size", "full", "small"],
    "train Toy-v0 --agent xqc --agent.precision float16": ["'float16'", "--agent.precision", "bfloat16"],
    "train Toy-v0 --agent sac --agent.atoms 51": ["--agent.atoms is a setting of xqc"],
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
}


def test_what_has_an_unknown_name_or_no_place_is_refused(given: Path, empty_cwd: Path) -> None:
    refuse_all(NAMES, given, empty_cwd)


NUMBERS = {
    "train Toy-v0 --steps ten": ["--steps is 'ten'; it takes a whole number, in digits"],
    "train Toy-v0 --steps 1e6": ["--steps is '1e6'; it takes a whole number, in digits"],
    "train Toy-v0 --agent.learning-rate x": ["--agent.learning-rate is 'x'; it takes a number"],
    "train Toy-v0 --feedback-every often": ["is 'often'; it takes a whole number or episode or environment"],
    "train Toy-v0 --method.return-scale x": ["--method.return-scale is 'x'; it takes a number or auto"],
    "train ToyDot-v0 --method.base linear": ["method.base=linear", "images", "--method.base none"],
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
    "train Toy-v0 --step-seconds 5": ["step_seconds=5.0 has no effect", "--isolate-envs"],
    "train Toy-v0 --agent.learning-rate 1e-5": ["final_learning_rate=3e-05 is larger", "--agent.final-learning-rate"],
    "train Toy-v0 --method rudder --method.updates 0": ["method.updates=0 leaves the nets of 'rudder'"],
    "train ToyDot-v0 --method.updates 0": ["method.updates=0 leaves the nets of 'diaster'"],
    "bench Toy-v0 --method.batch-steps 50": ["batch_steps=50 has no effect"],
    "train Toy-v0 --warmup-steps 100 --steps 100": ["warmup_steps=100"],
    "train Toy-v0 --agent xqc --agent.atoms 2": ["agent.atoms=2 is too small", "at least 3"],
    "train Toy-v0 --agent xqc --agent.value-limit 0": ["agent.value_limit=0.0 is out of range"],
    "train Toy-v0 --agent xqc --agent.value-limit inf": ["agent.value_limit=inf is out of range"],
    "train Toy-v0 --agent xqc --agent.reward-scale 0": ["agent.reward_scale=0.0 is out of range"],
    "train Toy-v0 --agent xqc --agent.reward-scale much": ["--agent.reward-scale", "'much'"],
    "train Toy-v0 --agent xqc --agent.layers 0": ["agent.layers=0 is too small", "at least 1"],
    "train Toy-v0 --agent xqc --agent.hidden 0": ["agent.hidden=0 is too small", "at least 1"],
    "train Toy-v0 --agent xqc --agent.actor-hidden 70000": ["agent.actor_hidden=70000 is too large"],
    "train Toy-v0 --agent xqc --agent.batch-size 1": ["agent.batch_size=1 is too small", "at least 2"],
    "train Toy-v0 --agent xqc --agent.learning-rate -1": ["agent.learning_rate=-1.0 is out of range"],
    "train Toy-v0 --agent xqc --agent.final-learning-rate 0": ["agent.final_learning_rate=0.0 is out of range"],
    "train Toy-v0 --agent xqc --agent.annealing-updates -1": ["agent.annealing_updates=-1 is too small"],
    "train Toy-v0 --steps 1000000000000 --replay.capacity 1000000000000": ["the replay needs", "GB are free"],
}


def test_numbers_that_cannot_be_are_refused(given: Path, empty_cwd: Path) -> None:
    refuse_all(NUMBERS, given, empty_cwd)


ENVIRONMENTS = {
    "train ToyImageInDict-v0": ["'ToyImageInDict-v0' shows Box", "(8, 8, 3)", "TransformObservation"],
    "train ToyDot-v0 --method ircr": ["the method 'ircr' keeps episodes of its own", "images"],
    "train ToyDot-v0 --image.side 4": ["image.side=4", "at least 8"],
    "train ToyManyChoices-v0": ["'ToyManyChoices-v0' has actions of the kind", "at most 1,000"],
    "train ToyDiscrete-v0 --agent td3": [
        "'td3' cannot act in 'ToyDiscrete-v0', which has 3 discrete actions; use --agent dqn or --agent sac or "
        "--agent xqc."
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
    "train ToyUnsendable-v0 --workers 1": ["'ToyUnsendable-v0'", "--workers 0"],
    "train ToyWide-v0 --env-kwargs.widht 3": ["'ToyWide-v0' cannot be made", "widht"],
    "train ToyWide-v0 --env-kwargs.width": ["needs a name and a value"],
    "train ToyWide-v0 --env-kwargs.word None": ["None is nothing that a file of settings can hold"],
    "train toy_envs:nothing": ["'toy_envs:nothing' names nothing that makes environments"],
    "train toy_envs:WideToy": ["'toy_envs:WideToy' has no time limit", "--horizon"],
    "train <Toy>": ["'Toy' was given in Python", "diaster.load(path, env=…)"],
    "train ToyDies-v0 --quiet --workers 1": ["exit code 7"],
}


def test_environments_that_cannot_be_trained_are_refused(given: Path, empty_cwd: Path) -> None:
    refuse_all(ENVIRONMENTS, given, empty_cwd)


FILES = {
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
    "plot {given}/run --metric fit": ["unknown metric 'fit'", "Did you mean 'fit_r2'?"],
    "plot {given}/run --metric": ["--metric"],
    "demo --steps 0": ["steps=0"],
}


def test_files_that_cannot_be_read_or_written_are_refused(given: Path, empty_cwd: Path) -> None:
    refuse_all(FILES, given, empty_cwd)


RECORDED = {
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
    "figure performance {given} --only x* run": ["--only 'x*' fits no run in '{given}'", "there are run"],
    "figure performance {given} --label mine": ["'mine'", "PATTERN=TEXT"],
    "figure performance {given} --label x=mine": ["--label 'x' fits no run in '{given}'", "there are run"],
    "report": ["folder"],
    "report {given} --only x*": ["--only 'x*' fits no run in '{given}'", "there are run"],
    "report {given} --label =mine": ["'=mine'", "PATTERN=TEXT"],
    "report {given}/empty": ["'{given}/empty' holds no runs"],
    "report {given} -o x.pdf": ["'x.pdf'", ".html"],
    "report {given} -o gone/x.html": ["'gone'"],
    "video": ["directory"],
    "video {given}/empty": ["'{given}/empty' holds no run"],
    "video {given}/run -o x.avi": ["'x.avi'", ".mp4"],
    "video {given}/run -o gone/x.mp4": ["'gone'"],
}


def test_what_cannot_be_recorded_or_drawn_is_refused(given: Path, empty_cwd: Path) -> None:
    refuse_all(RECORDED, given, empty_cwd)


FORMER = {
    "--decomposer.subset 3": "--decomposer.subset is called --method.subset now; use that name.",
    "--learner.batch-size=3": "--learner.batch-size is called --agent.batch-size now; use that name.",
    "--learner.batch_size 3": "--learner.batch_size is called --agent.batch_size now; use that name.",
    "--decomposer.no-normalize-inputs": (
        "--decomposer.no-normalize-inputs is called --method.no-normalize-inputs now; use that name."
    ),
}


@pytest.mark.parametrize("flags", [["--workers", "0"], ["--workers", "1"], ["--workers", "0", "--isolate-envs"]])
def test_debug_shows_where_an_error_came_from_also_from_other_processes(flags: list[str], empty_cwd: Path) -> None:
    line = ["train", "ToyRaises-v0", *IMPORT[:2], *flags, "--env-retries", "0", "--quiet"]
    plain, shown = run(*line), run(*line, "--debug")
    assert plain.code == shown.code == 2
    assert "Traceback" not in plain.err and plain.err.count("\n") == 1
    assert shown.err.endswith(plain.err)
    assert "Traceback" in shown.err and "toy_envs.py" in shown.err and 'raise RuntimeError("the toy fell' in shown.err


def test_debug_goes_with_every_command_and_stands_anywhere(given: Path) -> None:
    for line in (["--debug", "evaluate", given / "none"], ["plot", "--debug", given / "none"], ["trian", "--debug"]):
        shown, plain = run(*line), run(*(item for item in line if item != "--debug"))
        assert "Traceback" in shown.err and shown.err.endswith(plain.err) and "Traceback" not in plain.err


def test_debug_shows_what_a_sentence_took_the_place_of(given: Path) -> None:
    assert "tomllib.TOMLDecodeError" in run("train", "--config", given / "bad.toml", "--debug").err


def test_a_flag_with_a_former_name_is_refused_with_its_present_name() -> None:
    for flag, sentence in FORMER.items():
        assert run("train", "Toy-v0", *flag.split()) == (2, "", f"diaster: {sentence}\n"), flag


def test_elsewhere_than_on_posix_the_program_says_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diaster.cli.os", SimpleNamespace(name="nt"))
    for arguments in (["--help"], ["train", "Toy-v0"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err == "diaster: diaster runs on Linux and macOS; on Windows, run it in WSL.\n"


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


def test_the_sentence_does_not_depend_on_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("60", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        _, _, err = run("train", "Toy-v0", "--method.segments-per-episod", "3")
        assert "--method.segments-per-episod" in err, columns
        assert "Did you mean --method.segments-per-episode?" in err, columns
        assert "  " not in err, columns


def test_the_sentence_does_not_depend_on_the_encoding_of_the_terminal() -> None:
    expected = run("train", "Toy-v0", "--steps", "ten")
    assert "'ten'" in expected.err
    for encoding in ("ascii", "latin-1", "UTF-8"):
        assert run("train", "Toy-v0", "--steps", "ten", encoding=encoding) == expected, encoding


def test_an_interruption_is_a_sentence_with_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "list", cli.Command(interrupt, ""))
    code, out, err = run("list")
    assert (code, out) == (130, "")
    assert err.startswith("diaster: interrupted")
