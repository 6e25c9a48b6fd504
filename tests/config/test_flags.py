"""Settings on the command line: every one has a flag with its help, and flags go before files and presets."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from all_settings import CHOICES, SETTINGS, lookup, nested, settings_file

from diaster import cli
from diaster.config import PAPER_TASKS, IrcrConfig, RunConfig, XqcConfig, build_config

Parse = Callable[..., RunConfig]
FILE = 'env = "Ant-v5"\nsteps = 7000\n[method]\nhead = "cumulative"\nbatch_episodes = 5\n'


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """What `diaster train` would run with these arguments."""
    import diaster.training.train

    seen: list[RunConfig] = []

    class StopError(Exception):
        pass

    def stop(config: RunConfig, *_: object) -> None:
        seen.append(config)
        raise StopError

    monkeypatch.setattr(diaster.training.train, "run_training", stop)

    def parse(*arguments: str) -> RunConfig:
        with pytest.raises(StopError):
            cli.train(arguments)
        return seen[-1]

    return parse


# Precedence


def test_flags_go_before_a_file_a_file_before_a_preset_and_that_before_defaults(tmp_path: Path, parsed: Parse) -> None:
    path = str(settings_file(tmp_path, FILE))
    assert parsed("Hopper-v5") == build_config(env="Hopper-v5")
    assert parsed("Hopper-v5", "--preset", "paper") == build_config("paper", env="Hopper-v5")
    assert parsed("--preset", "paper", "--config", path) == build_config("paper", Path(path))
    config = parsed("Walker2d-v5", "--config", path, "--preset=paper", "--method.batch-episodes", "6", "--steps", "9")
    assert (config.env, config.preset, config.steps) == ("Walker2d-v5", "paper", 9)
    assert (config.method.head, config.method.batch_episodes) == ("cumulative", 6)
    assert config.method.loss == "sum"


def test_the_agent_of_the_papers_preset_is_sac_with_its_flags_wherever_the_preset_is_named(
    tmp_path: Path, parsed: Parse
) -> None:
    path = str(settings_file(tmp_path, 'env = "Hopper-v5"\npreset = "paper"\n'))
    expected = build_config("paper", env="Hopper-v5", agent={"gradient_clip": 1.0})
    assert expected.agent.name == "sac"
    for arguments in (
        ("Hopper-v5", "--preset", "paper", "--agent.gradient-clip", "1"),
        ("Hopper-v5", "--agent.gradient-clip", "1", "--preset=paper"),
        ("--config", path, "--agent.gradient-clip", "1"),
    ):
        assert parsed(*arguments) == expected
    assert parsed("--config", path, "--preset", "default", "--agent.size", "full").agent == XqcConfig(size="full")
    for arguments in (("--config", path), ("Hopper-v5", "--preset", "paper")):
        assert parsed(*arguments, "--agent", "xqc", "--agent.atoms", "51").agent == XqcConfig(atoms=51)


def test_a_flag_may_restore_a_default_that_a_preset_has_changed(parsed: Parse) -> None:
    config = parsed("Hopper-v5", "--preset", "paper", "--method.head", "cumulative")
    assert (config.method.head, config.method.loss) == ("cumulative", "sum")


def test_the_papers_scale_of_returns_depends_on_the_task_wherever_its_name_stands(parsed: Parse) -> None:
    scale = PAPER_TASKS["HumanoidStandup-v5"].return_scale
    for arguments in (
        ("HumanoidStandup-v5", "--preset", "paper"),
        ("--preset", "paper", "HumanoidStandup-v5"),
        ("--steps", "9", "HumanoidStandup-v5", "--preset", "paper"),
    ):
        assert parsed(*arguments).method.return_scale == scale


# Values


def flag_of(dotted: str) -> str:
    renamed = {"imports": "import", "from_run": "from", "method.name": "method", "agent.name": "agent"}
    return "--" + renamed.get(dotted, dotted).replace("_", "-")


VALUES = [
    ("steps", "77", 77),
    ("seeds", "3,7", (3, 7)),
    ("seeds", "2", (0, 1)),
    ("horizon", "9", 9),
    ("horizon", "auto", "auto"),
    ("device", "cpu", "cpu"),
    ("imports", "a.b", ("a.b",)),
    ("method.n_cuts", "5", 5),
    ("method.return_scale", "2", 2.0),
    ("method.return_scale", "auto", "auto"),
    ("method.head", "final", "final"),
    ("agent.discount", "0.5", 0.5),
    ("replay.capacity", "1234", 1234),
    ("evaluation.held_out", "12", 12),
    ("evaluation.stop_at", "900", 900.0),
    ("evaluation.stop_at", "-1.5", -1.5),
    ("evaluation.stop_at", "never", "never"),
    ("from_run", "runs/hopper", "runs/hopper"),
]


def test_a_flag_sets_its_setting_and_nothing_else(parsed: Parse) -> None:
    for name, text, value in VALUES:
        config = parsed("Hopper-v5", flag_of(name), text)
        assert lookup(config, name) == value
        assert config == build_config(env="Hopper-v5", **nested(name, value))


OF_A_CHOICE = [
    ("rrd", "method.subset", "9", 9),
    ("rd", "method.hidden", "9", 9),
    ("rudder", "method.auxiliary_weight", "0.25", 0.25),
    ("ircr", "method.credit", "return", "return"),
    ("ircr", "method.elite_episodes", "auto", "auto"),
    ("dense", "method.return_scale", "3", 3.0),
    ("td3", "agent.policy_every", "5", 5),
    ("xqc", "agent.atoms", "51", 51),
    ("xqc", "agent.layers", "auto", "auto"),
    ("xqc", "agent.reward_scale", "2.5", 2.5),
    ("xqc", "agent.annealing_updates", "0", 0),
    ("ddpg", "agent.exploration_noise", "0.5", 0.5),
    ("dqn", "agent.target_every", "7", 7),
]


def test_a_flag_of_the_chosen_method_or_agent_sets_its_setting_before_or_after_the_choice(parsed: Parse) -> None:
    for choice, name, text, value in OF_A_CHOICE:
        [(what, chosen)] = CHOICES[choice].items()
        expected = build_config(env="Hopper-v5", **nested(name, value, **CHOICES[choice]))
        assert lookup(expected, name) == value
        assert parsed("Hopper-v5", f"--{what}", chosen, flag_of(name), text) == expected
        assert parsed(flag_of(name), text, f"--{what}={chosen}", "Hopper-v5") == expected


def test_the_last_of_two_methods_counts(parsed: Parse) -> None:
    expected = build_config(env="Hopper-v5", method={"name": "rrd", "unbiased": True})
    for first, last in itertools.product(
        (["--method", "rd"], ["--method=rd"]), (["--method", "rrd"], ["--method=rrd"])
    ):
        assert parsed("Hopper-v5", *first, *last, "--method.unbiased") == expected


def test_a_file_may_choose_the_method_whose_flags_there_are(tmp_path: Path, parsed: Parse) -> None:
    path = str(settings_file(tmp_path, 'env = "Hopper-v5"\nmethod = "rrd"\n[agent]\nname = "td3"\n'))
    config = parsed("--config", path, "--method.unbiased", "--agent.policy-every", "4")
    assert config == build_config(
        env="Hopper-v5", method={"name": "rrd", "unbiased": True}, agent={"name": "td3", "policy_every": 4}
    )
    assert parsed("--config", path, "--method", "ircr").method == IrcrConfig()


def test_a_preset_on_the_command_line_is_that_of_the_chosen_method(parsed: Parse) -> None:
    config = parsed("Hopper-v5", "--method", "ircr", "--preset", "paper", "--agent.batch-size", "64")
    assert config == build_config("paper", env="Hopper-v5", method="ircr", agent={"batch_size": 64})
    assert config.agent.critic_loss == "huber"


def test_arguments_of_the_environment_have_flags_of_their_own_names(tmp_path: Path, parsed: Parse) -> None:
    config = parsed("Toy-v0", "--env-kwargs.map-name", "8x8", "--env-kwargs.wind=0.5", "--steps", "7000")
    assert config == build_config(env="Toy-v0", steps=7000, env_kwargs={"map_name": "8x8", "wind": 0.5})
    file = settings_file(tmp_path, 'env = "Toy-v0"\n[env_kwargs]\nwind = 0.1\nrows = [[1], [2]]\n')
    assert parsed("--config", str(file), "--env-kwargs.wind", "2").env_kwargs == {"wind": 2, "rows": [[1], [2]]}
    assert parsed("--config", str(file)).env_kwargs == {"wind": 0.1, "rows": [[1], [2]]}


def test_several_modules_can_be_imported(parsed: Parse) -> None:
    assert parsed("--import", "a", "--import", "b", "Hopper-v5").imports == ("a", "b")


def test_a_switch_can_be_turned_off(parsed: Parse) -> None:
    assert parsed("Hopper-v5", "--method.no-normalize-inputs").method.normalize_inputs is False


# Help


@cache
def help_of(*arguments: str) -> str:
    """What `diaster train … --help` prints, without frames and line breaks."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        patch.setenv("COLUMNS", "80")  # one column of frames
        with pytest.raises(SystemExit) as stop:
            cli.train([*arguments, "--help"])
    assert stop.value.code == 0
    return " ".join(" ".join(line.strip("│╭╰╮╯─ ") for line in text.getvalue().splitlines()).split())


def explanations(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass, from the source, or where the field is inherited from."""
    inherited = {
        name: text for base in kind.__bases__ if base is not object for name, text in explanations(base).items()
    }
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return inherited | {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def explained(config: RunConfig) -> dict[str, str]:
    """The text below every setting of a configuration, by its dotted name."""
    groups: dict[str, Any] = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        **explanations(RunConfig),
        **{
            f"{group}.{name}": text
            for group, settings in groups.items()
            if dataclasses.is_dataclass(settings)
            for name, text in explanations(type(settings)).items()
        },
    }


def entries(name: str, text: str) -> list[str]:
    """What a help text has on a setting."""
    flag = "--env-kwargs.NAME" if name == "env_kwargs" else flag_of(name)
    return re.findall(rf"(?<=\s){re.escape(flag)}[ ,].*?\((?:default: .*?|repeatable)\)", text)


def test_every_setting_has_a_line_of_help() -> None:
    for name, choice in CHOICES.items():
        texts = explained(build_config(**choice))
        assert texts.keys() == SETTINGS[name].keys()
        assert all(text.endswith(".") for text in texts.values())


def test_every_setting_has_a_dotted_flag_with_its_help_and_its_default() -> None:
    texts = explained(RunConfig())
    for name in SETTINGS["diaster"]:
        if name != "env":
            [entry] = entries(name, help_of())
            assert re.search(re.escape(texts[name]) + r" \((default: |repeatable)", entry), name


@pytest.mark.parametrize("choice", [name for name in CHOICES if name not in ("diaster", "sac")])
def test_help_shows_the_settings_of_the_chosen_method_and_agent_and_of_no_other(choice: str) -> None:
    [(what, name)] = CHOICES[choice].items()
    text, texts = help_of(f"--{what}", name), explained(build_config(**CHOICES[choice]))
    for setting in SETTINGS[choice]:
        if setting != "env":
            [entry] = entries(setting, text)
            assert texts[setting] in entry
    others = {setting for settings in SETTINGS.values() for setting in settings} - SETTINGS[choice].keys()
    assert others
    assert [setting for setting in others if f"{flag_of(setting)} " in text or f"{flag_of(setting)}," in text] == []


def test_help_shows_the_settings_of_the_method_that_a_file_chooses(tmp_path: Path) -> None:
    text = help_of("--config", str(settings_file(tmp_path, '[method]\nname = "rrd"\nsubset = 17\n')))
    [entry] = entries("method.subset", text)
    assert "(default: 17)" in entry
    assert entries("method.head", text) == []


def test_the_help_of_a_preset_shows_the_presets_values() -> None:
    head = explained(RunConfig())["method.head"]
    assert f"{head} (default: cumulative)" in help_of()
    assert f"{head} (default: final)" in help_of("Hopper-v5", "--preset", "paper")
