import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diaster import cli
from diaster.config import (
    PAPER_TASKS,
    PRESET_HELP,
    PRESETS,
    DiasterConfig,
    EvaluationConfig,
    ReplayConfig,
    RunConfig,
    SacConfig,
    build_config,
    parse_seeds,
    validate,
    write_toml,
)
from diaster.errors import DiasterError


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def leaves(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting below a dataclass with its dotted name and its type."""
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def lookup(config: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        config = getattr(config, name)
    return config


def nested(dotted: str, value: Any) -> dict[str, Any]:
    first, _, rest = dotted.partition(".")
    return {first: nested(rest, value) if rest else value}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DiasterError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    """What `diaster train` would run with these arguments."""
    import diaster.training

    seen: list[RunConfig] = []

    class StopError(Exception):
        pass

    def stop(config: RunConfig, *_: object) -> None:
        seen.append(config)
        raise StopError

    monkeypatch.setattr(diaster.training, "run_training", stop)

    def parse(*arguments: str) -> RunConfig:
        with pytest.raises(StopError):
            cli.train(arguments)
        return seen[-1]

    return parse


# Precedence

FILE = 'env = "Ant-v5"\nsteps = 7000\n[decomposer]\nhead = "cumulative"\nbatch_episodes = 5\n'


def test_without_anything_the_defaults_hold() -> None:
    assert build_config() == RunConfig()


def test_a_preset_goes_before_the_defaults() -> None:
    config = build_config("paper")
    assert config.preset == "paper"
    assert (config.decomposer.head, config.decomposer.loss, config.evaluation.every) == ("final", "sum", 1000)
    assert config.learner == RunConfig().learner


def test_a_file_goes_before_the_preset(tmp_path: Path) -> None:
    config = build_config("paper", write(tmp_path, FILE))
    assert (config.decomposer.head, config.decomposer.batch_episodes) == ("cumulative", 5)
    assert (config.decomposer.loss, config.steps, config.env) == ("sum", 7000, "Ant-v5")


def test_settings_go_before_the_file(tmp_path: Path) -> None:
    config = build_config("paper", write(tmp_path, FILE), steps=9, decomposer={"batch_episodes": 6})
    assert (config.steps, config.decomposer.batch_episodes, config.decomposer.head) == (9, 6, "cumulative")


def test_a_file_may_name_its_preset_and_an_explicit_one_goes_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "paper"\n')
    assert build_config(file=path).decomposer.head == "final"
    assert build_config("default", path).decomposer.head == "cumulative"
    assert build_config("default", path).preset == "default"
    assert build_config(file=path, preset="default").preset == "default"


def test_the_command_line_has_the_same_precedence(tmp_path: Path, parsed: Callable[..., RunConfig]) -> None:
    path = str(write(tmp_path, FILE))
    assert parsed("Hopper-v5") == build_config(env="Hopper-v5")
    assert parsed("Hopper-v5", "--preset", "paper") == build_config("paper", env="Hopper-v5")
    assert parsed("--preset", "paper", "--config", path) == build_config("paper", Path(path))
    config = parsed(
        "Walker2d-v5", "--config", path, "--preset=paper", "--decomposer.batch-episodes", "6", "--steps", "9"
    )
    assert (config.env, config.preset, config.steps) == ("Walker2d-v5", "paper", 9)
    assert (config.decomposer.head, config.decomposer.batch_episodes) == ("cumulative", 6)
    assert config.decomposer.loss == "sum"


def test_a_flag_may_restore_a_default_that_a_preset_has_changed(parsed: Callable[..., RunConfig]) -> None:
    config = parsed("Hopper-v5", "--preset", "paper", "--decomposer.head", "cumulative")
    assert (config.decomposer.head, config.decomposer.loss) == ("cumulative", "sum")


def test_the_papers_scale_of_returns_depends_on_the_task_wherever_its_name_stands(
    tmp_path: Path, parsed: Callable[..., RunConfig]
) -> None:
    scale = PAPER_TASKS["HumanoidStandup-v5"].return_scale
    assert scale != PRESETS["paper"]["decomposer"]["return_scale"]
    assert build_config("paper", env="HumanoidStandup-v5").decomposer.return_scale == scale
    path = write(tmp_path, 'env = "HumanoidStandup-v5"\npreset = "paper"\n')
    assert build_config(file=path).decomposer.return_scale == scale
    assert parsed("HumanoidStandup-v5", "--preset", "paper").decomposer.return_scale == scale
    assert parsed("--preset", "paper", "HumanoidStandup-v5").decomposer.return_scale == scale
    assert parsed("--steps", "9", "HumanoidStandup-v5", "--preset", "paper").decomposer.return_scale == scale


def test_presets_and_their_help_have_the_same_names() -> None:
    assert PRESETS.keys() == PRESET_HELP.keys()


# TOML


@pytest.mark.parametrize("preset", PRESETS)
def test_a_configuration_survives_being_written_and_read(preset: str, tmp_path: Path) -> None:
    config = build_config(preset, env="Hopper-v5", seeds=(4, 2), imports=("a", "b.c"), horizon=70)
    assert build_config(file=write(tmp_path, write_toml(config))) == config


@pytest.mark.parametrize(
    "text",
    ['a"b', "a\\b", "a\\", "a'b", '"""', "ünïcode – 中", "# no comment", "[no] = table", "a\nb", "a\tb", "\x7f\x00"],
)
def test_odd_texts_survive_being_written_and_read(text: str, tmp_path: Path) -> None:
    config = build_config(env=text, imports=(text, text))
    path = tmp_path / "run.toml"
    path.write_bytes(write_toml(config).encode())
    assert build_config(file=path) == config


@pytest.mark.parametrize("number", [1e-9, 1e300, 123456789.123, 0.1 + 0.2, 1e16, 5e-324])
def test_numbers_survive_being_written_and_read(number: float, tmp_path: Path) -> None:
    config = build_config(decomposer={"return_scale": number})
    assert build_config(file=write(tmp_path, write_toml(config))) == config


def test_every_setting_is_written() -> None:
    lines = write_toml(RunConfig()).splitlines()
    names = [name.rpartition(".")[2] for name, _ in leaves(RunConfig)]
    assert [line.split(" = ")[0] for line in lines if " = " in line] == names
    assert [line for line in lines if line.startswith("[")] == [
        "[decomposer]",
        "[learner]",
        "[replay]",
        "[evaluation]",
    ]


@pytest.mark.parametrize(
    ("text", "seeds"), [("seeds = 3", (0, 1, 2)), ("seeds = [3]", (3,)), ('seeds = "3,7"', (3, 7))]
)
def test_seeds_in_a_file_are_a_count_a_list_or_the_text_of_the_flag(
    text: str, seeds: tuple[int, ...], tmp_path: Path
) -> None:
    assert build_config(file=write(tmp_path, text + "\n")).seeds == seeds


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert f"'{path}' cannot be read: No such file" in refusal(lambda: build_config(file=path))


@pytest.mark.parametrize("content", [b"steps = \n", b"steps 3\n", b"[decomposer\n", b"\xff\xfe\n", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    assert f"'{path}' is not valid TOML" in refusal(lambda: build_config(file=path))


# Names and types


@pytest.mark.parametrize(
    ("settings", "given", "nearest"),
    [
        ({"stepps": 3}, "stepps", "steps"),
        ({"import": ("x",)}, "import", "imports"),
        ({"decomposer": {"hed": "final"}}, "decomposer.hed", "decomposer.head"),
        ({"learner": {"batchsize": 3}}, "learner.batchsize", "learner.batch_size"),
        ({"evaluation": {"episode": 3}}, "evaluation.episode", "evaluation.episodes"),
    ],
)
def test_an_unknown_setting_gives_the_nearest_with_its_dotted_name(settings: dict, given: str, nearest: str) -> None:
    sentence = refusal(lambda: build_config(**settings))
    assert f"'{given}'" in sentence
    assert sentence.endswith(f"Did you mean '{nearest}'?")


def test_an_unknown_setting_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[decomposer]\nhed = 3\n")
    sentence = refusal(lambda: build_config(file=path))
    assert str(path) in sentence
    assert "'decomposer.head'" in sentence


def test_a_name_that_is_like_no_other_gets_the_list_without_a_guess() -> None:
    sentence = refusal(lambda: build_config(qqqqq=3))
    assert "Did you mean" not in sentence
    assert "steps" in sentence


@pytest.mark.parametrize("value", ["papper", 3, ["paper"], {"a": 1}])
def test_an_unknown_preset_is_refused_of_whatever_type_it_is(value: object) -> None:
    assert "preset" in refusal(lambda: build_config(preset=value))


def test_an_unknown_preset_gives_the_nearest() -> None:
    assert refusal(lambda: build_config("papper")).endswith("Did you mean 'paper'?")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("steps", "many", "a whole number"),
        ("steps", 1e5, "a whole number"),
        ("steps", True, "a whole number"),
        ("steps", None, "a whole number"),
        ("env", 3, "a text"),
        ("horizon", "soon", "a whole number or 'auto'"),
        ("horizon", False, "a whole number or 'auto'"),
        ("device", "tpu", "'auto' or 'cpu' or 'gpu'"),
        ("imports", "toy_envs", "a list, each item a text"),
        ("imports", [3], "a text"),
        ("decomposer.head", "both", "'cumulative' or 'final'"),
        ("decomposer.normalize_inputs", 1, "true or false"),
        ("decomposer.learning_rate", "fast", "a number"),
        ("decomposer.learning_rate", True, "a number"),
        ("decomposer.return_scale", "big", "a number or 'auto'"),
        ("learner.batch_size", 16.0, "a whole number"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(name: str, value: object, wanted: str) -> None:
    sentence = refusal(lambda: build_config(**nested(name, value)))
    assert f"'{name}'" in sentence
    assert f"has to be {wanted}." in sentence


def test_a_group_of_settings_is_not_a_number() -> None:
    assert "'decomposer' in the call is a group of settings" in refusal(lambda: build_config(decomposer=3))


@pytest.mark.parametrize("value", [1.5, True, None, ["a"], {"a": 1}, "x"])
def test_seeds_of_the_wrong_type_are_refused(value: object) -> None:
    assert "seeds" in refusal(lambda: validate(build_config(env="Hopper-v5", seeds=value)))


def test_a_whole_number_is_a_number() -> None:
    scale = build_config(decomposer={"return_scale": 3}).decomposer.return_scale
    assert (scale, type(scale)) == (3.0, float)


def test_a_list_is_a_tuple() -> None:
    assert build_config(imports=["a", "b"], seeds=[1, 2]).imports == ("a", "b")
    assert build_config(seeds=[1, 2]).seeds == (1, 2)


@pytest.mark.parametrize("kind", [RunConfig, DiasterConfig, SacConfig, ReplayConfig, EvaluationConfig])
def test_configurations_cannot_be_written_to(kind: type) -> None:
    config = kind()
    name = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, name, 1)


# Seeds


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("5", (0, 1, 2, 3, 4)),
        ("1", (0,)),
        ("3,7,11", (3, 7, 11)),
        ("3,", (3,)),
        ("11,3", (11, 3)),
        (" 3 , 7 ", (3, 7)),
    ],
)
def test_seeds_are_a_count_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-2", "a", "3;7", "1.5", "3,x", "3 7"])
def test_seeds_that_are_neither_are_refused(text: str) -> None:
    assert "--seeds" in refusal(lambda: parse_seeds(text))


# Validation

GOOD = {"env": "Hopper-v5"}
SMALL = [
    ("steps", 0),
    ("steps", -1),
    ("horizon", 0),
    ("warmup_steps", 0),
    ("chunk_steps", 0),
    ("workers", -1),
    ("decomposer.hidden", 0),
    ("decomposer.n_cuts", -1),
    ("decomposer.segment_length", 0),
    ("decomposer.segments_per_episode", 0),
    ("decomposer.batch_episodes", 0),
    ("decomposer.batch_steps", -1),
    ("decomposer.variance_penalty", -0.1),
    ("decomposer.variance_penalty", float("nan")),
    ("decomposer.updates", -1),
    ("decomposer.every", 0),
    ("decomposer.relabel_every", 0),
    ("learner.hidden", 0),
    ("learner.batch_size", 0),
    ("learner.updates", -1),
    ("learner.every", 0),
    ("replay.capacity", 1),
    ("evaluation.every", 0),
    ("evaluation.episodes", 0),
    ("evaluation.held_out", 0),
]
OUT_OF_RANGE = [
    (name, value)
    for name in (
        "decomposer.learning_rate",
        "decomposer.return_scale",
        "learner.learning_rate",
        "learner.initial_temperature",
    )
    for value in (0.0, -1.0, float("inf"), float("nan"))
] + [(name, value) for name in ("learner.discount", "learner.target_rate") for value in (-0.1, 1.1, float("nan"))]


def test_the_defaults_are_valid_for_every_preset() -> None:
    for preset in PRESETS:
        config = build_config(preset, **GOOD)
        validate(config)
        assert config.preset == preset


@pytest.mark.parametrize(("name", "value"), SMALL)
def test_a_number_that_is_too_small_is_refused_by_its_dotted_name(name: str, value: float) -> None:
    sentence = refusal(lambda: validate(build_config(**GOOD, **nested(name, value))))
    assert sentence.startswith(f"{name}={value} is too small; it has to be at least ")


def test_every_whole_number_has_a_least_value_that_is_checked() -> None:
    whole = {name for name, hint in leaves(RunConfig) if hint is int or int in typing.get_args(hint)} - {"seeds"}
    assert whole - {name for name, _ in SMALL} == set()


def test_every_number_has_a_range_that_is_checked() -> None:
    numbers = {name for name, hint in leaves(RunConfig) if hint is float or float in typing.get_args(hint)}
    assert numbers - {name for name, _ in SMALL + OUT_OF_RANGE} == set()


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_number_out_of_its_range_is_refused_by_its_dotted_name(name: str, value: float) -> None:
    sentence = refusal(lambda: validate(build_config(**GOOD, **nested(name, value))))
    assert sentence.startswith(f"{name}={value} is out of range; it has to ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": ""}, "no environment was named"),
        ({"method": "diastr"}, "unknown method 'diastr'; known: diaster. Did you mean 'diaster'?"),
        ({"agent": "sacc"}, "unknown agent 'sacc'; known: sac. Did you mean 'sac'?"),
        ({"seeds": ()}, "no seeds were given"),
        ({"seeds": (3, 3)}, "seeds 3,3 name one twice"),
        ({"seeds": (-1,)}, "leave the range"),
        ({"seeds": (2**32,)}, "leave the range"),
        ({"decomposer": {"n_cuts": 2}}, "decomposer.n_cuts=2 has no effect on sampled segments"),
        ({"decomposer": {"terminal_target": "return"}}, "decomposer.terminal_target=return needs whole episodes"),
        ({"learner": {"batch_size": 300}, "replay": {"capacity": 299}}, "learner.batch_size=300 is larger than"),
        ({"warmup_steps": 100, "steps": 100}, "warmup_steps=100 leaves nothing to learn from in steps=100"),
        ({"decomposer": {"variance_penalty": float("inf")}}, "decomposer.variance_penalty=inf"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, words: str) -> None:
    assert words in refusal(lambda: validate(build_config(**{**GOOD, **settings})))


def test_what_whole_episodes_need_is_allowed_for_them() -> None:
    config = build_config(**GOOD, decomposer={"segments": "all", "n_cuts": 2, "terminal_target": "return"})
    validate(config)
    assert config.decomposer.n_cuts == 2


# The command line


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
    """The text below each field of a dataclass, from the source."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


EXPLAINED = {
    **explanations(RunConfig),
    **{
        f"{group}.{name}": text
        for group, kind in typing.get_type_hints(RunConfig).items()
        if dataclasses.is_dataclass(kind)
        for name, text in explanations(kind).items()
    },
}


@pytest.fixture(scope="module")
def train_help() -> str:
    return help_of()


def flag_of(dotted: str) -> str:
    renamed = {"imports": "import"}
    return "--" + renamed.get(dotted, dotted).replace("_", "-")


def test_every_setting_has_a_line_of_help() -> None:
    assert EXPLAINED.keys() == dict(leaves(RunConfig)).keys()
    assert all(text.endswith(".") for text in EXPLAINED.values())


@pytest.mark.parametrize("name", [name for name, _ in leaves(RunConfig) if name != "env"])
def test_every_setting_has_a_dotted_flag_with_its_help_and_its_default(name: str, train_help: str) -> None:
    [entry] = re.findall(rf"(?<=\s){re.escape(flag_of(name))}[ ,].*?\((?:default: .*?|repeatable)\)", train_help)
    assert re.search(re.escape(EXPLAINED[name]) + r" \((default: |repeatable)", entry)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("steps", "77", 77),
        ("seeds", "3,7", (3, 7)),
        ("seeds", "2", (0, 1)),
        ("horizon", "9", 9),
        ("horizon", "auto", "auto"),
        ("device", "cpu", "cpu"),
        ("imports", "a.b", ("a.b",)),
        ("decomposer.n_cuts", "5", 5),
        ("decomposer.return_scale", "2", 2.0),
        ("decomposer.return_scale", "auto", "auto"),
        ("decomposer.head", "final", "final"),
        ("learner.discount", "0.5", 0.5),
        ("replay.capacity", "1234", 1234),
        ("evaluation.held_out", "12", 12),
    ],
)
def test_a_flag_sets_its_setting_and_nothing_else(
    name: str, text: str, value: object, parsed: Callable[..., RunConfig]
) -> None:
    config = parsed("Hopper-v5", flag_of(name), text)
    assert lookup(config, name) == value
    assert config == build_config(env="Hopper-v5", **nested(name, value))


def test_several_modules_can_be_imported(parsed: Callable[..., RunConfig]) -> None:
    assert parsed("--import", "a", "--import", "b", "Hopper-v5").imports == ("a", "b")


def test_a_switch_can_be_turned_off(parsed: Callable[..., RunConfig]) -> None:
    assert parsed("Hopper-v5", "--decomposer.no-normalize-inputs").decomposer.normalize_inputs is False


def test_the_help_of_a_preset_shows_the_presets_values(train_help: str) -> None:
    default, paper = (
        EXPLAINED["decomposer.head"] + " (default: cumulative)",
        EXPLAINED["decomposer.head"] + " (default: final)",
    )
    assert default in train_help
    assert paper in help_of("Hopper-v5", "--preset", "paper")
