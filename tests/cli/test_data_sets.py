import numpy as np
import pytest
from data_sets import agent_turns, flat, told, walks, write_json_lines, write_npz

from diaster.cli import COMMANDS, main

QUICK = ("--updates", "0", "--method.hidden", "8")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    path = write_npz(folder / "episodes.npz", flat(walks(40)))
    assert main(["fit", str(path), "-o", str(folder / "model"), "--quiet", *QUICK]) == 0
    return folder


def test_the_two_commands_lead_from_returns_to_rewards(tmp_path, capsys) -> None:
    path = write_npz(tmp_path / "episodes.npz", flat(walks(40)))
    assert main(["fit", str(path), "-o", str(tmp_path / "model"), *QUICK]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("fit_r2 ") and "95 % interval" in said.out and "diaster relabel" in said.out
    assert "reading: " in said.err and "fitting: " in said.err and "held-out error" in said.err
    out = tmp_path / "dense.npz"
    assert main(["relabel", str(path), "--model", str(tmp_path / "model"), "-o", str(out)]) == 0
    said = capsys.readouterr()
    assert "the reward at t belongs to (s_t, a_t)" in said.out and "relabelling: " in said.err
    found = np.load(out)
    assert np.corrcoef(found["rewards"], found["original_rewards"])[0, 1] > 0.95


def test_quiet_says_nothing_but_warnings(fitted, tmp_path, capsys) -> None:
    out = tmp_path / "dense.npz"
    command = ["relabel", str(fitted / "episodes.npz"), "--model", str(fitted / "model"), "-o", str(out), "--quiet"]
    assert main(command) == 0
    assert capsys.readouterr() == ("", "")


def test_exact_sum_is_a_flag_of_relabel(fitted, tmp_path) -> None:
    out = tmp_path / "dense.npz"
    command = ["relabel", str(fitted / "episodes.npz"), "--model", str(fitted / "model"), "-o", str(out), "--exact-sum"]
    assert main([*command, "--quiet"]) == 0
    found = np.load(out)
    ends = np.cumsum(found["lengths"])[:-1]
    sums, returns = ([part.sum() for part in np.split(found[name], ends)] for name in ("rewards", "original_rewards"))
    assert sums == pytest.approx(returns, abs=1e-9)


def test_turns_get_the_method_that_serves_them_best(tmp_path, capsys) -> None:
    path = write_json_lines(tmp_path / "turns.jsonl", agent_turns(60)[0])
    assert main(["fit", str(path), "-o", str(tmp_path / "model"), "--outcome", "binary", *QUICK]) == 0
    assert '"name": "rrd"' in (tmp_path / "model" / "decomposition.json").read_text()
    capsys.readouterr()
    assert main(["relabel", str(path), "--model", str(tmp_path / "model"), "-o", str(tmp_path / "new.jsonl")]) == 0
    assert "the reward at t belongs to turn t" in capsys.readouterr().out


def test_turns_are_not_for_a_model_of_steps(fitted, tmp_path, capsys) -> None:
    path = write_json_lines(tmp_path / "turns.jsonl", agent_turns(4)[0])
    command = ["relabel", str(path), "--model", str(fitted / "model"), "-o", str(tmp_path / "new.jsonl")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "has turns with embedding, key, and the model was fitted to observations of 3 numbers, actions of 2" in said


def test_a_fit_that_no_held_out_error_judges_shows_no_figure(tmp_path, capsys) -> None:
    path = write_npz(tmp_path / "episodes.npz", flat(walks(12)))
    assert main(["fit", str(path), "-o", str(tmp_path / "model"), "--method", "uniform"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("no fit_r2; 0 updates\n") and "nan" not in said.out
    assert "warning: this method makes rewards from the return of their own episode" in said.err


def test_bad_episodes_are_skipped_and_counted_on_demand(tmp_path, capsys) -> None:
    stored = told(walks(30))
    stored[3]["return"] = None
    path, model = write_json_lines(tmp_path / "set.jsonl", stored), tmp_path / "model"
    assert main(["fit", str(path), "-o", str(model), *QUICK]) == 2
    assert "diaster: episode 3 (line 4): it has neither a return nor rewards" in capsys.readouterr().err
    assert not model.exists()
    assert main(["fit", str(path), "-o", str(model), "--skip-bad", *QUICK]) == 0
    assert "1 bad episode skipped." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit"], "no data set was given; give a file"),
        (["fit", "nowhere.npz"], "no folder for the model was given"),
        (["fit", "nowhere.npz", "-o", "model"], "there is no file 'nowhere.npz'"),
        (["fit", "episodes.npz", "-o", "model", "--outcome", "votes"], "invalid choice"),
        (["fit", "episodes.npz", "-o", "model", "--method", "rdd"], "unknown method 'rdd'"),
        (["fit", "episodes.npz", "-o", "model", "--held-out", "0.99"], "held_out=0.99 is too large"),
        (["relabel"], "no data set was given; give a file"),
        (["relabel", "episodes.npz"], "no model was given; fit one with 'diaster fit'"),
        (["relabel", "episodes.npz", "--model", "nowhere"], "no place for the result was given"),
        (["relabel", "episodes.npz", "--model", "nowhere", "-o", "dense.npz"], "'nowhere' holds no model"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(empty_cwd, capsys, arguments, sentence: str) -> None:
    write_npz(empty_cwd / "episodes.npz", flat(walks(12)))
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert [path.name for path in empty_cwd.iterdir()] == ["episodes.npz"]


def test_the_input_is_not_written_over(fitted, capsys) -> None:
    path = fitted / "episodes.npz"
    before = path.read_bytes()
    assert main(["relabel", str(path), "--model", str(fitted / "model"), "-o", str(path)]) == 2
    assert "which is never changed" in capsys.readouterr().err and path.read_bytes() == before


def test_a_folder_that_holds_something_is_refused_before_anything_is_read(fitted, capsys) -> None:
    assert main(["fit", "nowhere.npz", "-o", str(fitted)]) == 2
    assert "is there already and not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["fit", "relabel"])
def test_help_names_what_the_reward_of_a_step_is(capsys, command: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and command in COMMANDS and "episode" in said
