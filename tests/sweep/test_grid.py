"""From a sweep's file to its cells, and every way in which the file can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from diaster.config import PAPER_TASKS, DiasterConfig, XqcConfig
from diaster.errors import DiasterError
from diaster.sweep.grid import MOST_CELLS, Grid, read_grid

FOLDER = Path(__file__).parents[2] / "experiments"
CAMPAIGN = sorted(FOLDER.glob("campaign-*.toml"))
EXPERIMENTS = sorted(set(FOLDER.glob("*.toml")) - set(CAMPAIGN))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.toml"


def grid_of(file: Path, text: str) -> Grid:
    file.write_text(text, encoding="utf-8")
    return read_grid(file)


def test_every_combination_of_the_axes_is_a_cell_with_a_name_that_says_which(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [settings]
        method.segments = "all"
        [axes]
        env = ["Hopper-v5", "Ant-v5"]
        "method.n_cuts" = [0, 5]
        """,
    )
    assert [cell.name for cell in grid.cells] == [
        "Hopper-v5_diaster_n-cuts-0",
        "Hopper-v5_diaster_n-cuts-5",
        "Ant-v5_diaster_n-cuts-0",
        "Ant-v5_diaster_n-cuts-5",
    ]
    method = grid.cells[1].config.method
    assert isinstance(method, DiasterConfig)
    assert (method.n_cuts, method.segments) == (5, "all")


def test_a_cells_name_stays_the_same_when_axes_grow(file: Path) -> None:
    before = grid_of(file, "[axes]\nenv = 'Hopper-v5'\nsteps = [1000]")
    after = grid_of(file, "[axes]\nenv = ['Ant-v5', 'Hopper-v5']\nsteps = [1000, 2000]\nmethod = ['diaster', 'rrd']")
    assert [cell.name for cell in before.cells] == ["Hopper-v5_diaster_steps-1000"]
    assert before.cells[0] in after.cells


def test_several_tables_of_axes_add_up_and_a_cell_of_two_of_them_is_there_once(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [[axes]]
        env = ["Hopper-v5", "Ant-v5"]
        method = "rrd"
        [[axes]]
        env = "Hopper-v5"
        method = ["rrd", "ircr"]
        """,
    )
    assert [cell.name for cell in grid.cells] == ["Hopper-v5_rrd", "Ant-v5_rrd", "Hopper-v5_ircr"]


def test_tables_of_an_environment_or_a_method_hold_for_its_cells_and_axes_go_before_them(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [settings]
        steps = 1000
        chunk_steps = 50
        [axes]
        env = ["Hopper-v5", "Ant-v5"]
        method = ["diaster", "ircr"]
        "agent.hidden" = 32
        [env.Hopper-v5]
        steps = 2000
        [method.diaster]
        chunk_steps = 60
        agent.hidden = 64
        method.hidden = 8
        """,
    )
    found = [(cell.config.steps, cell.config.chunk_steps, cell.config.agent.hidden) for cell in grid.cells]
    assert found == [(2000, 60, 32), (2000, 50, 32), (1000, 60, 32), (1000, 50, 32)]


def test_names_may_have_hyphens_as_on_the_command_line(file: Path) -> None:
    grid = grid_of(file, "record-episodes = 3\n[settings]\nenv = 'Hopper-v5'\nagent.batch-size = 7\nwarmup-steps = 9")
    assert grid.record_episodes == 3
    assert grid.cells[0].config.agent.batch_size == 7
    assert grid.cells[0].config.warmup_steps == 9


def test_arguments_of_the_environment_are_axes_and_settings_like_any_other(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [settings]
        env-kwargs.is_slippery = false
        [axes]
        env = "FrozenLake-v1"
        "env_kwargs.map_name" = ["4x4", "8x8"]
        """,
    )
    assert [cell.name for cell in grid.cells] == [
        "FrozenLake-v1_diaster_map-name-4x4",
        "FrozenLake-v1_diaster_map-name-8x8",
    ]
    assert [cell.config.env_kwargs for cell in grid.cells] == [
        {"is_slippery": False, "map_name": "4x4"},
        {"is_slippery": False, "map_name": "8x8"},
    ]


def test_files_with_former_names_of_settings_are_still_read(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [settings]
        decomposer.segments = "all"
        learner = { hidden = 16 }
        [axes]
        env = "Hopper-v5"
        "decomposer.n_cuts" = [0, 5]
        """,
    )
    assert [cell.name for cell in grid.cells] == ["Hopper-v5_diaster_n-cuts-0", "Hopper-v5_diaster_n-cuts-5"]
    assert [cell.config.agent.hidden for cell in grid.cells] == [16, 16]
    assert [cell.config.method.segments for cell in grid.cells] == ["all", "all"]


def test_a_preset_is_a_setting_like_any_other(file: Path) -> None:
    grid = grid_of(file, "[axes]\nenv = 'Hopper-v5'\npreset = ['default', 'paper']")
    assert [cell.name for cell in grid.cells] == ["Hopper-v5_diaster_preset-default", "Hopper-v5_diaster_preset-paper"]
    assert [cell.config.evaluation.every for cell in grid.cells] == [5000, 1000]


def test_names_of_cells_are_names_of_files(file: Path) -> None:
    grid = grid_of(file, "[axes]\nenv = ['a/../b:C-v0', '...']")
    assert [cell.name for cell in grid.cells] == ["a-..-b-C-v0_diaster", "_diaster"]


BAD = {
    "": ["names no environment", "[axes]", "[settings]"],
    "[axes": ["not valid TOML"],
    "[axis]\nenv = 'x'": ["unknown entry in", "'axis'", "Did you mean 'axes'?"],
    "axes = 3": ["'axes' in", "a table, headed [axes]"],
    "settings = 3": ["'settings' in", "a table"],
    "[axes]\nenv = []": ["axis 'env' in", "no values"],
    "[axes]\nenv = ['x', 'x']": ["one value twice"],
    "[axes]\nenv = [['x']]": ["axis 'env'", "['x']", "give texts"],
    "[axes]\nenv = 'x'\nseeds = [0, 1]": ["'seeds'", "train together", "[settings]"],
    "[axes]\nenv = 'x'\nstps = [1]": ["unknown setting", "'stps'", "Did you mean 'steps'?"],
    "[axes]\nenv = 'x'\n'method.n_cutz' = [1]": ["'method.n_cutz'", "Did you mean 'method.n_cuts'?"],
    "[axes]\nenv = 'x'\nmethod = 'diastr'": ["unknown method 'diastr'", "Did you mean 'diaster'?"],
    "[axes]\nenv = 'x'\nsteps = ['many']": ["cell 'x_diaster_steps-many'", "'many'", "a whole number"],
    "[axes]\nenv = 'x'\nsteps = [0]": ["cell 'x_diaster_steps-0'", "steps=0 is too small"],
    "[settings]\nmethod.hidden = 8\n[axes]\nenv = 'x'\nmethod = 'ircr'": ["'method.hidden'"],
    "[axes]\nenv = 'Hopper-v5'\n[env.Hoper-v5]\nsteps = 1": ["no cell has it", "Did you mean 'Hopper-v5'?"],
    "[axes]\nenv = 'x'\n[method.rrd]\nsteps = 1": ["'rrd'", "known: diaster"],
    "[axes]\nenv = 'x'\n[env]\nx = 3": ["'env.x' in", "a table"],
    "[axes]\nenv = ['a b', 'a-b']": ["are called 'a-b_diaster' and differ"],
    "[[axes]]\nenv = 'x'\n[[axes]]\nenv = 'x'\nsteps = 100_000": [
        "'x_diaster' and 'x_diaster_steps-100000'",
        "same run",
    ],
    "record_episodes = -1\n[axes]\nenv = 'x'": ["'record_episodes'", "0 or more"],
    "record_episodes = true\n[axes]\nenv = 'x'": ["'record_episodes'"],
    f"[axes]\nenv = 'x'\nsteps = {list(range(1, 50))}\nchunk_steps = {list(range(1, 50))}": [
        "span 2,401 cells",
        f"at most {MOST_CELLS:,}",
    ],
}


def test_what_is_wrong_with_a_file_is_a_sentence(file: Path) -> None:
    for text, words in BAD.items():
        with pytest.raises(DiasterError) as error:
            pytest.fail(f"{text}: {grid_of(file, text)}")
        assert [word for word in words if word not in str(error.value)] == [], (text, str(error.value))


def test_a_cell_that_names_no_agent_has_that_of_its_preset_with_the_tables_for_it(file: Path) -> None:
    grid = grid_of(
        file,
        """
        [settings]
        env = "Hopper-v5"
        [[axes]]
        preset = ["default", "paper"]
        [[axes]]
        preset = ["paper"]
        agent = ["xqc"]
        [agent.xqc]
        steps = 1000
        [agent.sac]
        steps = 2000
        agent.gradient_clip = 1.0
        """,
    )
    found = [(cell.config.preset, cell.config.agent.name, cell.config.steps) for cell in grid.cells]
    assert found == [("default", "xqc", 1000), ("paper", "sac", 2000), ("paper", "xqc", 1000)]


def test_every_experiment_names_its_agent_and_the_size_of_its_nets() -> None:
    for file in (*EXPERIMENTS, *CAMPAIGN):
        text = file.read_text("utf-8")
        for cell in read_grid(file).cells:
            assert f'"{cell.config.agent.name}"' in text, (file, cell.name)
            if isinstance(cell.config.agent, XqcConfig):
                sizes = f'size" = "{cell.config.agent.size}"', f'size" = ["{cell.config.agent.size}"]'
                assert any(size in text for size in sizes), (file, cell.name)


def test_every_figure_has_an_experiment_and_a_small_twin() -> None:
    names = {file.stem for file in EXPERIMENTS}
    figures = {"performance", "proxy-reward", "heatmap", "cut-points", "step-reward", "feedback", "credit", "summary"}
    assert names == figures | {f"{name}-small" for name in figures}


def test_every_experiment_can_be_read_and_the_large_ones_have_the_papers_step_budgets() -> None:
    for file in EXPERIMENTS:
        cells = read_grid(file).cells
        assert cells, file
        for cell in cells:
            if "small" not in file.stem and cell.config.env in PAPER_TASKS:
                assert cell.config.steps == PAPER_TASKS[cell.config.env].steps, (file, cell.name)


def test_the_campaign_has_five_seeds_or_ten_and_no_more_steps_than_the_paper() -> None:
    names = {"default", "feedback", "level", "linear", "mixed", "options", "paper", "potential", "sac", "xqc"}
    names |= {"ideas", "stuck", "v4"}
    assert {file.stem for file in CAMPAIGN} == {f"campaign-{name}" for name in names}
    for file in CAMPAIGN:
        for cell in read_grid(file).cells:
            n_seeds = 10 if file.stem == "campaign-stuck" else 5
            assert cell.config.seeds == tuple(range(n_seeds)), (file, cell.name)
            if cell.config.env in PAPER_TASKS:
                assert cell.config.steps <= PAPER_TASKS[cell.config.env].steps, (file, cell.name)
