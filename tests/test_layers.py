import ast
from pathlib import Path

import pytest

import diaster

ROOT = Path(diaster.__file__).parent
ORDER = [
    "errors",
    "interruption",
    "children",
    "parcels",
    "lock",
    "types",
    "acting",
    "config",
    "lean",
    "envs",
    "collect",
    "isolation",
    "workers",
    "evaluate",
    "trees",
    "nets",
    "gru_kernels",
    "gru",
    "replay",
    "packing",
    "decompose",
    "agents",
    "registry",
    "policies",
    "learner",
    "reward_model",
    "shards",
    "machine",
    "files",
    "checkpoint",
    "records",
    "run",
    "report",
    "schedule",
    "board",
    "evaluations",
    "training",
    "bench",
    "rollouts",
    "rendering",
    "recording",
    "results",
    "aggregate",
    "figures",
    "plots",
    "video",
    "page",
    "sweep",
    "cli",
]
IN_WORKERS = (
    "errors",
    "interruption",
    "children",
    "parcels",
    "types",
    "acting",
    "config",
    "lean",
    "envs",
    "collect",
    "isolation",
    "workers",
)
NO_MODULE = {"__init__", "__main__"}  # the package itself and the way into it


def layer_of(file: Path) -> str:
    """The module at the top of the package that a file is, or is a part of."""
    return file.relative_to(ROOT).with_suffix("").parts[0]


FILES = sorted(file for file in ROOT.rglob("*.py") if layer_of(file) not in NO_MODULE)


def files_of(module: str) -> list[Path]:
    """The file of a module, or all those of a package."""
    found = [file for file in FILES if layer_of(file) == module]
    assert found
    return found


def imports_of(file: Path) -> set[str]:
    """Every module that a file imports anywhere, by its full name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} has a relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own_layers(file: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports_of(file) if name.startswith("diaster.")}
    return {name for name in names if (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists()}


def test_every_module_has_its_place_in_the_order() -> None:
    assert {layer_of(file) for file in FILES} == set(ORDER)
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_imports_only_from_those_above_it(file: Path) -> None:
    layer = layer_of(file)
    above = set(ORDER[: ORDER.index(layer)])
    own = {layer} if file.parent != ROOT else set()  # files of one folder may know each other
    assert own_layers(file) - above - own == set()


def test_the_parser_of_imports_sees_them_all() -> None:
    assert own_layers(ROOT / "training.py") >= {"config", "envs", "learner", "run", "workers"}
    assert "plots" in own_layers(ROOT / "cli.py")  # imported inside a function
    assert "acting" in own_layers(ROOT / "agents" / "sac.py")  # from diaster import acting


@pytest.mark.parametrize("module", IN_WORKERS)
def test_modules_that_workers_use_import_no_jax(module: str) -> None:
    for file in files_of(module):
        heads = {name.split(".")[0] for name in imports_of(file)}
        assert heads & {"jax", "jaxlib", "optax", "equinox", "matplotlib"} == set()
        assert own_layers(file) <= set(IN_WORKERS)


@pytest.mark.parametrize("module", ["errors", "config", "cli"])
def test_modules_that_help_needs_import_nothing_slow_at_their_top(module: str) -> None:
    for file in files_of(module):
        names = set()
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add((node.module or "").split(".")[0])
        assert names & {"jax", "gymnasium", "matplotlib", "numpy"} == set()


@pytest.mark.parametrize("module", ["results", "aggregate", "figures", "rollouts", "plots", "page"])
def test_modules_that_draw_recorded_files_import_neither_jax_nor_environments(module: str) -> None:
    for file in files_of(module):
        heads = {name.split(".")[0] for name in imports_of(file)}
        assert heads & {"jax", "jaxlib", "optax", "gymnasium", "mujoco"} == set()
        assert own_layers(file).isdisjoint({"run", "envs", "collect", "training", "learner", "recording", "rendering"})


def test_a_package_is_looked_into() -> None:
    assert {file.name for file in files_of("config")} >= {"__init__.py", "methods.py", "agents.py", "run.py"}
