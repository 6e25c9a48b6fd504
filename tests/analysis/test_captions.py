"""What a caption says of curves."""

from pathlib import Path

from made_runs import make_run

from diaster.analysis.captions import panel_notes, seeds_line, settings_notes
from diaster.analysis.curves import Curve, curves_in
from diaster.analysis.notes import Note
from diaster.analysis.results import read_results


def curves_below(path: Path) -> list[Curve]:
    return curves_in(read_results(path))


def test_a_panel_says_which_seeds_are_missing_and_what_ends_early(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 3, 1: [1.0] * 3})
    make_run(tmp_path / "b", {0: [1.0] * 2}, method="rrd")
    assert panel_notes(curves_below(tmp_path)) == [
        Note("rrd on Toy-v0", "seed 1 missing"),
        Note("rrd on Toy-v0", "ends at 200 steps, others there at 300"),
    ]


def test_a_length_that_a_name_tells_is_not_told_again(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0] * 3})
    make_run(tmp_path / "b", {0: [1.0] * 2})
    assert panel_notes(curves_below(tmp_path)) == []


def test_settings_that_all_curves_of_a_kind_have_are_told_once(tmp_path: Path) -> None:
    for env in ("Hopper-v5", "Ant-v5"):
        make_run(tmp_path / env, {0: [1.0]}, env=env, method={"head": "final"}, agent="td3")
    assert settings_notes(curves_below(tmp_path)) == [Note("diaster", "with agent = td3, head = final")]


def test_settings_that_a_name_tells_are_not_told_again(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    make_run(tmp_path / "b", {0: [1.0]}, method={"head": "final"})
    make_run(tmp_path / "c", {0: [1.0]}, agent="td3")
    assert settings_notes(curves_below(tmp_path)) == []


def test_an_agent_other_than_the_default_is_told_once_also_where_a_preset_sets_it(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]}, agent="sac")
    make_run(tmp_path / "b", {0: [1.0]}, method="rrd", preset="paper", agent="sac")
    curves = curves_below(tmp_path)
    assert settings_notes(curves) == [Note(name, "with agent = sac") for name in ("diaster", "rrd (paper)")]
    assert settings_notes([curve._replace(name=f"{curve.method} with SAC") for curve in curves]) == []


def test_a_kind_with_other_settings_on_one_task_says_so(tmp_path: Path) -> None:
    for number, env in enumerate(("Hopper-v5", "Ant-v5", "Swimmer-v5")):
        chunk = 100 if env == "Ant-v5" else 200
        make_run(tmp_path / str(number), {0: [1.0]}, env=env, chunk_steps=chunk)
    assert settings_notes(curves_below(tmp_path)) == [
        Note("diaster on Ant-v5", "with chunk_steps = 100, unlike elsewhere")
    ]


def test_the_first_line_says_how_many_seeds_there_are(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {0: [1.0]})
    assert seeds_line(curves_below(tmp_path)) == "One seed each: no bands."
    make_run(tmp_path / "b", {0: [1.0], 1: [1.0]}, method="rrd")
    assert seeds_line(curves_below(tmp_path)) == "Mean and standard error over 1 to 2 seeds."
