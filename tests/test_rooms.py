"""Which room may import from which: a table, and nothing else to keep in step with the code."""

import ast
from pathlib import Path

import pytest

import diaster

ROOT = Path(diaster.__file__).parent
FREE = {"errors", "signals", "types"}  # files next to the rooms, which every room may import
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "signals": set(),
    "types": set(),
    "config": set(),
    "nn": set(),
    "replay": {"config", "nn"},
    "envs": {"config"},
    "actors": {"envs"},
    "decomposers": {"config", "nn", "replay"},
    "agents": {"config", "nn", "actors"},
    "learning": {"config", "nn", "replay", "decomposers", "agents", "actors"},
    "rundir": {"config"},
    "analysis": {"config", "rundir"},
    "policy": {"actors", "rundir"},
    "media": {"config", "envs", "actors", "rundir", "analysis"},
    "run": {
        "config",
        "nn",
        "decomposers",
        "agents",
        "learning",
        "envs",
        "actors",
        "rundir",
        "analysis",
        "policy",
        "media",
    },
    "decomposed": {"config", "replay", "decomposers", "learning", "envs", "analysis"},
    "sb3": {"config", "decomposed"},
    "training": {
        "config",
        "nn",
        "replay",
        "decomposers",
        "agents",
        "learning",
        "envs",
        "actors",
        "rundir",
        "analysis",
        "run",
    },
    "offline": {"config", "nn", "replay", "decomposers", "learning", "rundir", "analysis"},
    "sweep": {"config", "replay", "learning", "envs", "rundir", "run", "training", "media"},
}
ROOMS["cli"] = set(ROOMS)  # what a person types leads everywhere
JAX = {"jax", "jaxlib", "optax"}
WITHOUT = {  # what must not be imported in a room, not even inside a function
    "config": JAX | {"gymnasium", "matplotlib"},
    "envs": JAX | {"matplotlib"},
    "actors": JAX | {"matplotlib"},
    "policy": JAX | {"matplotlib"},
    "rundir": JAX | {"gymnasium", "matplotlib"},
    "analysis": JAX | {"gymnasium", "mujoco"},
}


def room_of(file: Path) -> str:
    """The folder of the package that a file is in, or the file itself."""
    return file.relative_to(ROOT).with_suffix("").parts[0]


FILES = sorted(file for file in ROOT.rglob("*.py") if room_of(file) not in ("__init__", "__main__"))


def imports_of(tree: ast.AST) -> set[str]:
    """Every module that a piece of code imports anywhere, by its full name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "relative imports hide where a name comes from"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_in(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("diaster.")} & set(ROOMS)


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_every_file_is_in_a_room() -> None:
    assert {room_of(file) for file in FILES} == set(ROOMS)


def test_rooms_import_one_way() -> None:
    def reached(room: str) -> set[str]:
        return ROOMS[room].union(*(reached(other) for other in ROOMS[room] - {room}))

    assert not [room for room in ROOMS if room != "cli" and room in reached(room)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_in_its_row(room: str) -> None:
    for file in FILES:
        if room_of(file) == room:
            names = imports_of(parsed(file))
            assert rooms_in(names) <= ROOMS[room] | FREE | {room}, file
            assert {name.split(".")[0] for name in names}.isdisjoint(WITHOUT.get(room, set())), file


def test_what_workers_run_loads_no_jax(python) -> None:  # type: ignore[no-untyped-def]
    code = "import diaster.actors.workers, diaster.envs.isolation, sys; print('jax' in sys.modules)"
    assert python("-c", code).stdout == "False\n"


def test_help_needs_nothing_slow(python) -> None:  # type: ignore[no-untyped-def]
    code = "import diaster.cli, sys; print({'jax', 'gymnasium', 'matplotlib', 'numpy'} & set(sys.modules))"
    assert python("-c", code).stdout == "set()\n"


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    assert not [f"{file.relative_to(ROOT)}: {n}" for file in FILES if (n := len(file.read_text().splitlines())) > 400]
