"""Whole sweeps of tiny cells, by the command; what is done, broken, foreign or changed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import Output
from command_line import run as command

import diaster
from diaster.config import build_config, write_toml
from diaster.errors import DiasterError
from diaster.rundir.checkpoint import DIRECTORY, generations
from diaster.rundir.lock import RunLock
from diaster.rundir.records import CONFIG, DONE, METADATA, PROGRESS, read_config
from diaster.sweep.conduct import FILE, LOGS, Site, local_site, look_at, make_plan, state_of_unseen
from diaster.sweep.describe import describe_plan
from diaster.sweep.resources import Wishes, find_machine
from diaster.sweep.status import STATUS

ROOT = Path(__file__).parents[2]

SWEEP = """
[settings]
imports = ["toy_envs"]
steps = 240
chunk_steps = 40
warmup_steps = 80
agent = { hidden = 8, batch_size = 16 }
evaluation = { every = 120, episodes = 2 }

[axes]
env = ["Toy-v0", "ToyShape-v0"]
method = "uniform"
"""


class Swept(NamedTuple):
    file: Path
    out: Path
    output: Output


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swept]:
    """A sweep of two cells, one of which fails."""
    folder = tmp_path_factory.mktemp("sweep")
    file, out = folder / "some.toml", folder / "out"
    file.write_text(SWEEP, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        yield Swept(file, out, command("sweep", file, "--out", out))


@pytest.fixture
def copy(swept: Swept, tmp_path: Path) -> Swept:
    """The same results, to be spoilt."""
    out, file = tmp_path / "out", tmp_path / "some.toml"
    shutil.copytree(swept.out, out)
    shutil.copy(swept.file, file)
    return Swept(file, out, swept.output)


def refused(*arguments: object) -> str:
    """The one sentence of a command that does nothing."""
    code, out, err = command("sweep", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("diaster: ")
    assert err.count("\n") == 1
    return err


def state_of(output: Output) -> dict[str, str]:
    rows = [line.split() for line in output.out.splitlines()[1:]]
    return {row[0]: row[1] for row in rows if row[0].startswith("Toy")}


def test_a_cell_that_fails_stops_no_other_and_the_end_says_which(swept: Swept) -> None:
    code, out, err = swept.output
    assert code == 2
    assert state_of(swept.output) == {"Toy-v0_uniform": "done", "ToyShape-v0_uniform": "failed"}
    first, *_, last = err.splitlines()
    assert first.startswith("2 cells, 0 done; ") and "left (an estimate" in first
    assert last.startswith("diaster: 1 of 2 cells failed; the first, 'ToyShape-v0_uniform': the environment")
    assert last.endswith("The same command tries them again.")
    assert "done: " not in out


def test_results_are_run_directories_with_the_file_a_record_and_logs(swept: Swept) -> None:
    assert sorted(item.name for item in swept.out.iterdir()) == ["Toy-v0_uniform", LOGS, STATUS, FILE]
    assert (swept.out / FILE).read_bytes() == swept.file.read_bytes()
    assert (swept.out / "Toy-v0_uniform" / DONE).exists()
    rows = json.loads((swept.out / STATUS).read_text(encoding="utf-8"))["cells"]
    assert rows["Toy-v0_uniform"]["state"] == "done"
    assert "returned an observation of shape" in rows["ToyShape-v0_uniform"]["failure"]
    assert "step       120" in (swept.out / LOGS / "Toy-v0_uniform.txt").read_text(encoding="utf-8")
    metadata = json.loads((swept.out / "Toy-v0_uniform" / METADATA).read_text(encoding="utf-8"))
    assert metadata["command"][:2] == ["diaster", "sweep"]


def test_a_dry_run_shows_every_cell_and_starts_nothing(swept: Swept) -> None:
    before = sorted(swept.out.rglob("*"))
    output = command("sweep", swept.file, "--out", swept.out, "--dry-run")
    assert (output.code, output.err) == (0, "")
    assert state_of(output) == {"Toy-v0_uniform": "done", "ToyShape-v0_uniform": "waiting"}
    heads, _, waiting, counts, remark = output.out.splitlines()
    assert heads.split() == ["cell", "state", "steps", "seeds", "time", "memory"]
    assert waiting.split() == ["ToyShape-v0_uniform", "waiting", "240", "1"]
    assert counts.startswith("2 cells, 1 done; ")
    assert remark == "Without a time: cells that import toy_envs; a dry run imports nothing."
    assert sorted(swept.out.rglob("*")) == before


def plan_of(swept: Swept) -> list[str]:
    """What a dry run would say if it could look at all environments."""
    plan = make_plan(swept.file, swept.out)
    return describe_plan(plan, local_site(find_machine(), Wishes(None, None, None), plan)).splitlines()


def test_a_plan_has_the_time_that_cells_took_or_may_take(swept: Swept) -> None:
    _, done, waiting, last = plan_of(swept)
    assert "~" not in done
    assert "~" in waiting
    assert "from the speed of 1 finished cell" in last


@pytest.mark.parametrize(
    "elsewhere", [{"platform": "gpu", "device": "NVIDIA H200"}, {"cores": 4096}, {"platform": None}], ids=str
)
def test_cells_that_another_machine_has_trained_tell_nothing_of_how_long_others_take_here(
    elsewhere: dict[str, Any], copy: Swept, tmp_path: Path
) -> None:
    file = copy.out / "Toy-v0_uniform" / METADATA
    metadata = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**metadata, "wall_seconds": 1e6, **elsewhere}), encoding="utf-8")
    _, done, waiting, last = plan_of(copy)
    assert "11.6 days" in done
    assert "rough figures of other machines" in last
    assert waiting.split() == plan_of(copy._replace(out=tmp_path / "none"))[2].split()


def test_a_cell_tells_how_long_others_take_on_a_gpu_of_its_name_with_as_many_cores() -> None:
    h200 = {"platform": "gpu", "device": "NVIDIA H200", "cores": 2}
    site = Site(1, 2, True, lambda cells, watcher, interruption: None, frozenset({("cpu", 2), ("NVIDIA H200", 2)}))
    assert site.has_made(h200, on_gpu=True)
    for other in ({"cores": 1}, {"device": "NVIDIA A100"}, {"device": "cpu", "platform": "cpu"}, {"device": []}):
        assert not site.has_made({**h200, **other}, on_gpu=True), other
    assert not site.has_made(h200, on_gpu=False) and not site.has_made({}, on_gpu=True)


def test_a_dry_run_does_not_take_what_a_run_has_resolved_for_other_settings(tmp_path: Path) -> None:
    wanted = build_config(env="Toy-v0", imports=("toy_envs",), agent="xqc")
    resolved = dataclasses.replace(
        wanted, horizon=40, warmup_steps=5000, agent=dataclasses.replace(wanted.agent, annealing_updates=95_000)
    )
    (tmp_path / CONFIG).write_text(write_toml(resolved), encoding="utf-8")
    assert state_of_unseen(tmp_path, wanted) == "broken"
    (tmp_path / DONE).touch()
    assert state_of_unseen(tmp_path, wanted) == "done"
    with pytest.raises(DiasterError, match="steps=100000, and the sweep now says 7"):
        state_of_unseen(tmp_path, dataclasses.replace(wanted, steps=7))


def test_a_dry_run_makes_no_directory(swept: Swept, tmp_path: Path) -> None:
    output = command("sweep", swept.file, "--out", tmp_path / "new", "--dry-run")
    assert output.code == 0
    assert "rough figures of other machines" in output.out
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_was_cut_off_is_broken_and_what_is_left_of_it_is_less(copy: Swept) -> None:
    (copy.out / "Toy-v0_uniform" / DONE).unlink()
    output = command("sweep", copy.file, "--out", copy.out, "--dry-run")
    assert state_of(output) == {"Toy-v0_uniform": "broken", "ToyShape-v0_uniform": "waiting"}
    assert plan_of(copy)[1].split()[-3] == "~0:00"  # its last evaluation was at its last step


def test_when_all_cells_are_done_nothing_is_started(copy: Swept) -> None:
    copy.file.write_text(SWEEP.replace('"ToyShape-v0"', ""), encoding="utf-8")
    done = copy.out / "Toy-v0_uniform" / DONE
    before = done.stat().st_mtime_ns
    output = command("sweep", copy.file, "--out", copy.out)
    assert (output.code, output.err) == (0, "")
    assert output.out.splitlines()[-1] == f"done: 1 cell in {copy.out}"
    assert done.stat().st_mtime_ns == before
    assert command("sweep", copy.file, "--out", copy.out, "--quiet") == (0, "", "")


def test_a_sweep_goes_on_where_its_small_files_were_unpacked(
    copy: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from results import pack

    archive, elsewhere = tmp_path / "kept.tar.gz", tmp_path / "elsewhere"
    pack(copy.out, archive, is_unfinished=False)
    with tarfile.open(archive) as kept:
        kept.extractall(elsewhere, filter="data")
    assert state_of(command("sweep", copy.file, "--out", elsewhere, "--dry-run")) == {
        "Toy-v0_uniform": "done",
        "ToyShape-v0_uniform": "waiting",
    }


@pytest.mark.parametrize("kept", sorted((ROOT / "results").glob("campaign-*")), ids=lambda folder: folder.name)
def test_the_runs_that_are_kept_are_done_to_the_sweep_that_made_them(kept: Path) -> None:
    plan = make_plan(ROOT / "experiments" / f"{kept.name}.toml", kept)
    cells = look_at(plan, local_site(find_machine(), Wishes(None, None, None), plan)).cells
    done = {name for name, cell in cells.items() if cell.state == "done"}
    assert done == {run.parent.name for run in kept.glob(f"*/{DONE}")}


def test_settings_that_are_not_those_of_a_cell_are_refused_before_anything_starts(copy: Swept) -> None:
    copy.file.write_text(SWEEP.replace("hidden = 8", "hidden = 9"), encoding="utf-8")
    before = sorted(copy.out.rglob("*"))
    for flags in ([], ["--dry-run"]):
        err = refused(copy.file, "--out", copy.out, *flags)
        assert f"'{copy.out / 'Toy-v0_uniform'}' was trained with agent.hidden=8, and the sweep now says 9" in err
    assert sorted(copy.out.rglob("*")) == before
    assert (copy.out / FILE).read_bytes() == SWEEP.encode()


def test_a_second_sweep_into_the_same_directory_is_refused(copy: Swept) -> None:
    lock = RunLock(copy.out)
    lock.take()
    assert "is being trained by process" in refused(copy.file, "--out", copy.out)
    lock.release()


def test_a_cell_without_a_configuration_is_refused_if_it_holds_anything(copy: Swept) -> None:
    (copy.out / "Toy-v0_uniform" / CONFIG).unlink()
    assert "and no run; remove the directory" in refused(copy.file, "--out", copy.out)


def test_what_a_killed_sweep_has_left_is_no_hindrance_and_is_removed(copy: Swept) -> None:
    left = [copy.out / f".{name}.0123456789abcdef" for name in ("sweep.toml", "sweep.json")]
    for item in left:
        item.touch()
    command("sweep", copy.file, "--out", copy.out)
    assert not any(item.exists() for item in left)
    shutil.rmtree(copy.out)
    copy.out.mkdir()
    left[0].touch()
    code, _, err = command("sweep", copy.file, "--out", copy.out, "--dry-run")
    assert code == 0, err


def test_a_directory_that_is_no_sweeps_is_refused(copy: Swept) -> None:
    for place in (copy.out / "sweep.json", copy.out / "sweep.json" / "deeper"):
        assert f"'{copy.out / 'sweep.json'}' is a file" in refused(copy.file, "--out", place)
    assert "is not empty and holds no sweep" in refused(copy.file, "--out", copy.file.parent)


BAD_CELLS = {
    ("Toy-v0", "Toi-v0"): "Did you mean 'Toy-v0'?",
    ("toy_envs", "toi_envs"): "'toi_envs'",
    ('method = "uniform"', 'method = "diaster"\n"method.n_cuts" = 3'): "n_cuts=3 has no effect",
    ('method = "uniform"', 'method = "uniform"\nrestart_agent_at = 0.9'): "restart_agent_at=0.9 has no effect",
    ('method = "uniform"', '"method.base" = "linear"\n"method.reward_source" = "difference"'): "base=linear goes with",
    ('method = "uniform"', 'method = "rrd"\n"method.subset" = 1\n"method.unbiased" = true'): "subset=1 has no variance",
    ('"ToyShape-v0"]\nmethod = "uniform"', '"ToyDot-v0"]\n"method.base" = "linear"'): "base=linear needs observations",
    ('"ToyShape-v0"]\nmethod = "uniform"', '"ToyDot-v0"]\nmethod = "ircr"'): "'ircr' keeps episodes of its own",
    ('method = "uniform"', 'agent = "dqn"'): "'dqn' cannot act in 'Toy-v0'",
    ("batch_size = 16", "batch_size = 16.5"): "a whole number",
}


def test_a_cell_that_cannot_be_run_is_found_before_anything_starts(tmp_path: Path) -> None:
    for change, words in BAD_CELLS.items():
        (tmp_path / "some.toml").write_text(SWEEP.replace(*change), encoding="utf-8")
        err = refused(tmp_path / "some.toml", "--out", tmp_path / "out")
        assert err.startswith("diaster: cell 'To") and words in err, (change, err)
        assert not (tmp_path / "out").exists(), change


def test_a_cell_that_is_there_may_have_settings_without_effect_and_a_new_one_may_not(copy: Swept) -> None:
    config = copy.out / "Toy-v0_uniform" / CONFIG
    config.write_text(config.read_text(encoding="utf-8").replace("step_seconds = 60.0", "step_seconds = 5.0"))
    copy.file.write_text(SWEEP.replace("steps = 240", "step_seconds = 5\nsteps = 240"), encoding="utf-8")
    for flags in ([], ["--dry-run"]):
        err = refused(copy.file, "--out", copy.out, *flags)
        assert err.startswith("diaster: cell 'ToyShape-v0_uniform' of ") and "step_seconds=5.0 has no effect" in err
    copy.file.write_text(copy.file.read_text(encoding="utf-8").replace(', "ToyShape-v0"', ""), encoding="utf-8")
    output = command("sweep", copy.file, "--out", copy.out, "--dry-run")
    assert state_of(output) == {"Toy-v0_uniform": "done"}


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A sweep of one cell that would take hours."""
    text = SWEEP.replace("steps = 240", "steps = 1_000_000").replace(', "ToyShape-v0"', "")
    (tmp_path / "some.toml").write_text(text, encoding="utf-8")
    places = [str(Path(diaster.__file__).parents[1]), str(Path(__file__).parents[1] / "support")]
    process = subprocess.Popen(
        [sys.executable, "-m", "diaster", "sweep", "some.toml", "--out", "out", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.terminate()
    process.communicate()


def test_a_signal_lets_cells_write_checkpoints_and_the_last_line_says_how_to_go_on(
    tmp_path: Path, endless: subprocess.Popen[str]
) -> None:
    cell = tmp_path / "out" / "Toy-v0_uniform"
    deadline = time.monotonic() + 300
    while not (cell / PROGRESS).exists():
        assert endless.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    endless.send_signal(signal.SIGTERM)
    _, err = endless.communicate(timeout=300)
    assert endless.returncode == 143
    answer, last = err.splitlines()
    assert answer == "the cells that run finish their chunks, then write checkpoints"
    assert last == (
        "diaster: stopped with 0 of 1 cells done; go on with the same command: "
        "diaster sweep some.toml --out out --quiet"
    )
    assert generations(cell / DIRECTORY)
    assert read_config(cell).steps == 1_000_000
    rows: dict[str, Any] = json.loads((tmp_path / "out" / STATUS).read_text(encoding="utf-8"))["cells"]
    assert rows["Toy-v0_uniform"]["state"] == "stopped"
    assert not (tmp_path / "out" / "lock").exists()
