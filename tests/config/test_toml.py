"""Settings in files, there and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from all_settings import CHOICES, SETTINGS, refusal, settings_file

from diaster.config import PRESETS, build_config, write_toml


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_survives_being_written_and_read(preset: str, tmp_path: Path) -> None:
    for choice in CHOICES.values():
        config = build_config(preset, env="Hopper-v5", seeds=(4, 2), imports=("a", "b.c"), horizon=70, **choice)
        assert build_config(file=settings_file(tmp_path, write_toml(config))) == config


ODD_TEXTS = (
    'a"b', "a\\b", "a\\", "a'b", '"""', "ünïcode – 中", "# no comment", "[no] = table", "a\nb", "a\tb", "\x7f\x00",
)  # fmt: skip


def test_odd_texts_survive_being_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for text in ODD_TEXTS:
        config = build_config(env=text, imports=(text, text))
        path.write_bytes(write_toml(config).encode())
        assert build_config(file=path) == config


def test_numbers_survive_being_written_and_read(tmp_path: Path) -> None:
    for number in (1e-9, 1e300, 123456789.123, 0.1 + 0.2, 1e16, 5e-324):
        config = build_config(method={"return_scale": number})
        assert build_config(file=settings_file(tmp_path, write_toml(config))) == config


def test_every_setting_is_written_in_its_table_the_name_first() -> None:
    for name, choice in CHOICES.items():
        lines = write_toml(build_config(**choice)).splitlines()
        # A table of arguments is there where there are some.
        names = [setting.rpartition(".")[2] for setting in SETTINGS[name] if setting != "env_kwargs"]
        assert [line.split(" = ")[0] for line in lines if " = " in line] == names
        tables = [line for line in lines if line.startswith("[")]
        assert tables == ["[method]", "[agent]", "[replay]", "[evaluation]", "[image]"]
        for table in tables[:2]:
            assert lines[lines.index(table) + 1].startswith('name = "')


def test_seeds_in_a_file_are_a_count_a_list_or_the_text_of_the_flag(tmp_path: Path) -> None:
    for text, seeds in (("seeds = 3", (0, 1, 2)), ("seeds = [3]", (3,)), ('seeds = "3,7"', (3, 7))):
        assert build_config(file=settings_file(tmp_path, text + "\n")).seeds == seeds


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert f"'{path}' cannot be read: No such file" in refusal(lambda: build_config(file=path))


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for content in (b"steps = \n", b"steps 3\n", b"[method\n", b"\xff\xfe\n", b"a = 1\na = 2\n"):
        path.write_bytes(content)
        assert f"'{path}' is not valid TOML" in refusal(lambda: build_config(file=path))
