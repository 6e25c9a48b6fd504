"""What there is: the overview, the help of each command, and the lists."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from command_line import run

import diaster
from diaster import cli
from diaster.analysis.figures import FIGURES
from diaster.config import AGENTS, METHODS, PAPER_TASKS, PRESETS


def test_the_overview_names_all_commands() -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        for command in (
            *("train", "resume", "sweep", "evaluate", "plot", "record", "figure", "report", "video", "list", "demo"),
            "bench",
        ):
            assert re.search(rf"^  {command} +\w", out, re.MULTILINE), command


def test_every_command_has_help() -> None:
    for command in cli.COMMANDS:
        code, out, err = run(command, "--help")
        assert (code, err) == (0, ""), command
        assert f"usage: diaster {command}" in out, command


def test_no_help_shows_what_a_parser_calls_things() -> None:
    for command in cli.COMMANDS:
        out = run(command, "--help").out
        assert "None}" not in out and "[STR]" not in out, command


def test_the_help_of_train_has_the_settings_of_the_method_and_the_agent_that_are_named() -> None:
    flags = {"rrd": "--method.subset", "diaster": "--method.segments"}
    flags |= {"xqc": "--agent.atoms", "sac": "--agent.gradient-clip", "td3": "--agent.target-noise"}
    for chosen, expected in (
        ([], {"diaster", "xqc"}),
        (["--method", "rrd"], {"rrd", "xqc"}),
        (["--method=rrd", "--agent", "td3"], {"rrd", "td3"}),
        (["--preset", "paper"], {"diaster", "sac"}),
        (["--preset=paper", "--agent", "xqc"], {"diaster", "xqc"}),
    ):
        out = run("train", *chosen, "--help").out
        assert {name for name, flag in flags.items() if f"{flag} " in out} == expected, chosen


@pytest.mark.parametrize(("flag", "known"), [("--method", METHODS), ("--agent", AGENTS)])
def test_the_help_of_train_has_the_names_of_all_methods_and_agents(flag: str, known: dict[str, object]) -> None:
    for chosen in [[], ["--method", "rrd", "--agent", "td3"]]:
        words = "".join(sign for sign in run("train", *chosen, "--help").out if sign not in "│ \n")
        assert f"{flag}{{{','.join(known)}}}" in words


def test_the_help_says_where_evaluations_fall() -> None:
    words = " ".join(run("train", "--help").out.replace("│", " ").split())
    assert "each is at the end of its chunk (--chunk-steps)" in words


def test_the_version_is_the_packages() -> None:
    assert run("--version") == (0, f"diaster {diaster.__version__}\n", "")


def test_help_needs_neither_jax_nor_gymnasium_nor_matplotlib(python: Callable) -> None:
    heavy = {"jax", "jaxlib", "gymnasium", "matplotlib", "optax", "scipy"}
    commands = [["--help"], ["train", "--help"], ["plot", "--help"], ["list", "presets"]]
    text = f"""
import sys
from diaster.cli import main
for arguments in {commands!r}:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code or 0
    print("HEAVY", arguments, code, sorted({heavy!r} & set(sys.modules)))
"""
    done = python("-c", text)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    assert found == [f"HEAVY {arguments} 0 []" for arguments in commands]


def test_the_module_is_the_command(python: Callable) -> None:
    good, bad = python("-m", "diaster", "--version"), python("-m", "diaster", "trian")
    assert (good.returncode, good.stdout) == (0, f"diaster {diaster.__version__}\n")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("diaster: unknown command 'trian'")


def test_the_help_of_figure_names_all_of_them() -> None:
    out = run("figure", "--help").out
    assert all(name in out for name in FIGURES)


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
