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
    AGENTS,
    METHODS,
    PAPER_TASKS,
    PRESET_HELP,
    PRESETS,
    EvaluationConfig,
    IrcrConfig,
    RdConfig,
    ReplayConfig,
    RrdConfig,
    RunConfig,
    SacConfig,
    Td3Config,
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


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a configuration with its dotted name and its type."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hints[field.name]


# Each method with the default learner, and each learner with the default method: every setting there is.
CHOICES: dict[str, dict[str, str]] = {
    **{name: {"method": name} for name in METHODS},
    **{name: {"agent": name} for name in AGENTS},
}
SETTINGS = {name: dict(leaves(build_config(**choice))) for name, choice in CHOICES.items()}


def choices_with(setting: str) -> list[str]:
    """Which methods or learners have a setting of their own; for one of the run itself, any."""
    group, _, _ = setting.rpartition(".")
    known = {"decomposer": METHODS, "learner": AGENTS}.get(group, ["diaster"])
    return [name for name in known if setting in SETTINGS[name]]


def wherever_it_is(cases: list[tuple[str, Any]]) -> list[tuple[str, str, Any]]:
    """Settings and their values, for every method or learner that has them."""
    assert all(choices_with(setting) for setting, _ in cases)
    return [(choice, setting, value) for setting, value in cases for choice in choices_with(setting)]


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

FILE = 'env = "Ant-v5"\nsteps = 7000\n[decomposer]\nhead = "cumulative"\nbatch_episodes = 5\n'


def test_without_anything_the_defaults_hold() -> None:
    assert build_config() == RunConfig()


def test_a_preset_goes_before_the_defaults() -> None:
    config = build_config("paper")
    assert config.preset == "paper"
    assert (config.method.head, config.method.loss, config.evaluation.every) == ("final", "sum", 1000)
    assert config.agent == RunConfig().learner


def test_a_file_goes_before_the_preset(tmp_path: Path) -> None:
    config = build_config("paper", write(tmp_path, FILE))
    assert (config.method.head, config.method.batch_episodes) == ("cumulative", 5)
    assert (config.method.loss, config.steps, config.env) == ("sum", 7000, "Ant-v5")


def test_settings_go_before_the_file(tmp_path: Path) -> None:
    config = build_config("paper", write(tmp_path, FILE), steps=9, decomposer={"batch_episodes": 6})
    assert (config.steps, config.method.batch_episodes, config.method.head) == (9, 6, "cumulative")


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
    config = parsed("Walker2d-v5", "--config", path, "--preset=paper", "--method.batch-episodes", "6", "--steps", "9")
    assert (config.env, config.preset, config.steps) == ("Walker2d-v5", "paper", 9)
    assert (config.method.head, config.method.batch_episodes) == ("cumulative", 6)
    assert config.method.loss == "sum"


def test_a_flag_may_restore_a_default_that_a_preset_has_changed(parsed: Callable[..., RunConfig]) -> None:
    config = parsed("Hopper-v5", "--preset", "paper", "--method.head", "cumulative")
    assert (config.method.head, config.method.loss) == ("cumulative", "sum")


def test_the_papers_scale_of_returns_depends_on_the_task_wherever_its_name_stands(
    tmp_path: Path, parsed: Callable[..., RunConfig]
) -> None:
    scale = PAPER_TASKS["HumanoidStandup-v5"].return_scale
    assert scale != build_config("paper", env="Hopper-v5").decomposer.return_scale
    assert build_config("paper", env="HumanoidStandup-v5").decomposer.return_scale == scale
    path = write(tmp_path, 'env = "HumanoidStandup-v5"\npreset = "paper"\n')
    assert build_config(file=path).decomposer.return_scale == scale
    assert parsed("HumanoidStandup-v5", "--preset", "paper").decomposer.return_scale == scale
    assert parsed("--preset", "paper", "HumanoidStandup-v5").decomposer.return_scale == scale
    assert parsed("--steps", "9", "HumanoidStandup-v5", "--preset", "paper").decomposer.return_scale == scale


def test_presets_and_their_help_have_the_same_names() -> None:
    assert tuple(PRESET_HELP) == PRESETS


# Methods and learners


def test_methods_and_learners_have_settings_and_a_line_of_help_each() -> None:
    from diaster.REG import CONTINUOUS_AGENTS, DISCRETE_AGENTS, METHODS

    assert METHODS.keys() == METHODS.keys() == METHODS.keys()
    assert AGENTS.keys() == AGENTS.keys() == CONTINUOUS_AGENTS.keys() | DISCRETE_AGENTS.keys()


@pytest.mark.parametrize("name", CHOICES)
def test_method_and_learner_choose_which_settings_there_are(name: str) -> None:
    choice = CHOICES[name]
    config = build_config(**choice)
    assert type(config) is RunConfig
    assert type(config.method) is METHODS[choice.get("method", "diaster")].settings
    assert type(config.agent) is AGENTS[choice.get("agent", "sac")].settings
    assert (config.method, config.agent) == (choice.get("method", "diaster"), choice.get("agent", "sac"))
    assert config == build_config(**choice)


def test_a_setting_of_another_method_or_learner_is_refused() -> None:
    assert "'method.unbiased'" in refusal(lambda: build_config(decomposer={"unbiased": True}))
    assert "'method.head'" in refusal(lambda: build_config(method="rrd", decomposer={"head": "final"}))
    assert "'agent.policy_every'" in refusal(lambda: build_config(learner={"policy_every": 2}))
    assert build_config(method="rrd", decomposer={"unbiased": True}).decomposer == RrdConfig(unbiased=True)
    assert build_config(agent="td3", learner={"policy_every": 3}).learner == Td3Config(policy_every=3)


@pytest.mark.parametrize("method", ["ircr", "uniform", "episodic", "dense"])
@pytest.mark.parametrize("name", ["updates", "every"])
def test_what_fits_nothing_has_no_updates_to_set(method: str, name: str) -> None:
    sentence = refusal(lambda: build_config(method=method, decomposer={name: 3}))
    assert f"'decomposer.{name}'; known: decomposer." in sentence
    assert build_config(method=method).decomposer.updates == 0


def test_a_file_may_choose_method_and_learner_and_an_explicit_choice_goes_before_it(tmp_path: Path) -> None:
    path = write(tmp_path, 'method = "rrd"\nagent = "td3"\n')
    config = build_config(file=path)
    assert (type(config.method), type(config.agent)) == (RrdConfig, Td3Config)
    config = build_config(file=path, method="rd", agent="sac")
    assert (type(config.method), type(config.agent)) == (RdConfig, SacConfig)
    chosen = write(tmp_path, 'method = "rrd"\n[decomposer]\nunbiased = true\n')
    assert build_config(file=chosen).decomposer == RrdConfig(unbiased=True)
    # The file's settings are those of its own method.
    assert "'method.unbiased'" in refusal(lambda: build_config(file=chosen, method="rd"))


@pytest.mark.parametrize(
    ("what", "value"), [("method", "diastr"), ("agent", "sacc"), ("method", 3), ("agent", ["sac"])]
)
def test_an_unknown_method_or_learner_is_refused_of_whatever_type_it_is(what: str, value: object) -> None:
    assert refusal(lambda: build_config(**{what: value})).startswith(f"unknown {what} '")


def test_settings_of_another_method_or_learner_are_not_valid() -> None:
    sentence = refusal(lambda: validate(RunConfig(env="x", method="rrd")))
    assert "method 'rrd' was given the settings of another one (DiasterConfig)" in sentence
    sentence = refusal(lambda: validate(RunConfig(env="x", agent="dqn")))
    assert "agent 'dqn' was given the settings of another one (SacConfig)" in sentence


def test_every_method_has_the_preset_of_its_own_paper() -> None:
    ours, theirs, plain = (build_config("paper", method=method) for method in ("diaster", "ircr", "rrd"))
    for config in (ours, theirs, plain):
        assert (config.evaluation.every, config.evaluation.episodes) == (1000, 10)
    assert (ours.decomposer.head, ours.replay, ours.learner) == ("final", ReplayConfig(), SacConfig())
    assert (plain.decomposer, plain.learner, plain.replay) == (RrdConfig(), SacConfig(), ReplayConfig())
    assert (theirs.decomposer, theirs.replay.capacity) == (IrcrConfig(), 300_000)
    learner = theirs.learner
    assert (learner.critic_loss, learner.target_rate, learner.batch_size) == ("huber", 0.001, 1024)
    assert learner.gradient_clip > 0.0
    # The learner's part is its own paper's SAC and nothing for another learner.
    assert build_config("paper", method="ircr", agent="td3").learner == Td3Config()


def test_the_papers_scale_of_returns_is_for_its_own_method_alone() -> None:
    assert build_config("paper", env="Hopper-v5", method="rrd").decomposer.return_scale == "auto"


# TOML


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", CHOICES)
def test_a_configuration_survives_being_written_and_read(name: str, preset: str, tmp_path: Path) -> None:
    config = build_config(preset, env="Hopper-v5", seeds=(4, 2), imports=("a", "b.c"), horizon=70, **CHOICES[name])
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


@pytest.mark.parametrize("name", CHOICES)
def test_every_setting_is_written(name: str) -> None:
    lines = write_toml(build_config(**CHOICES[name])).splitlines()
    names = [setting.rpartition(".")[2] for setting in SETTINGS[name]]
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
        ({"decomposer": {"hed": "final"}}, "method.hed", "method.head"),
        ({"learner": {"batchsize": 3}}, "agent.batchsize", "agent.batch_size"),
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
    assert "'method.head'" in sentence


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
        ("method.head", "both", "'cumulative' or 'final'"),
        ("method.normalize_inputs", 1, "true or false"),
        ("method.learning_rate", "fast", "a number"),
        ("method.learning_rate", True, "a number"),
        ("method.return_scale", "big", "a number or 'auto'"),
        ("agent.batch_size", 16.0, "a whole number"),
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


@pytest.mark.parametrize(
    "kind",
    [
        RunConfig,
        ReplayConfig,
        EvaluationConfig,
        *(method.settings for method in METHODS.values()),
        *(agent.settings for agent in AGENTS.values()),
    ],
)
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
    ("envs", 0),
    ("checkpoint_every", -1),
    ("devices", 0),
    ("workers", -1),
    ("env_retries", -1),
    ("method.hidden", 0),
    ("method.n_cuts", -1),
    ("method.segment_length", 0),
    ("method.segments_per_episode", 0),
    ("method.batch_episodes", 0),
    ("method.batch_steps", -1),
    ("method.variance_penalty", -0.1),
    ("method.variance_penalty", float("nan")),
    ("method.updates", -1),
    ("method.every", 0),
    ("method.relabel_every", 0),
    ("method.subset", 0),
    ("method.auxiliary_weight", -0.1),
    ("method.auxiliary_weight", float("nan")),
    ("method.elite_episodes", 0),
    ("agent.hidden", 0),
    ("agent.batch_size", 0),
    ("agent.updates", -1),
    ("agent.annealing_updates", -1),
    ("agent.every", 0),
    ("agent.gradient_clip", -0.1),
    ("agent.exploration_noise", -0.1),
    ("agent.target_noise", -0.1),
    ("agent.target_noise_clip", -0.1),
    ("agent.target_noise_clip", float("nan")),
    ("agent.policy_every", 0),
    ("agent.target_every", 0),
    ("agent.exploration_steps", 0),
    ("replay.capacity", 1),
    ("evaluation.every", 0),
    ("evaluation.episodes", 0),
    ("evaluation.held_out", 0),
]
OUT_OF_RANGE = [
    (name, value)
    for name in (
        "method.learning_rate",
        "method.return_scale",
        "agent.learning_rate",
        "agent.initial_temperature",
        "step_seconds",
    )
    for value in (0.0, -1.0, float("inf"), float("nan"))
] + [
    (name, value)
    for name in (
        "method.averaging",
        "agent.discount",
        "agent.target_rate",
        "agent.discrete_entropy",
        "agent.exploration_final",
    )
    for value in (-0.1, 1.1, float("nan"))
]


@pytest.mark.parametrize("name", CHOICES)
def test_the_defaults_are_valid_for_every_preset(name: str) -> None:
    for preset in PRESETS:
        config = build_config(preset, **GOOD, **CHOICES[name])
        validate(config)
        assert config.preset == preset


@pytest.mark.parametrize(("choice", "name", "value"), wherever_it_is(SMALL))
def test_a_number_that_is_too_small_is_refused_by_its_dotted_name(choice: str, name: str, value: float) -> None:
    sentence = refusal(lambda: validate(build_config(**GOOD, **CHOICES[choice], **nested(name, value))))
    assert sentence.startswith(f"{name}={value} is too small; it has to be at least ")


@pytest.mark.parametrize("choice", CHOICES)
def test_every_whole_number_has_a_least_value_that_is_checked(choice: str) -> None:
    hints = SETTINGS[choice].items()
    whole = {name for name, hint in hints if hint is int or int in typing.get_args(hint)} - {"seeds"}
    assert whole - {name for name, _ in SMALL} == set()


@pytest.mark.parametrize("choice", CHOICES)
def test_every_number_has_a_range_that_is_checked(choice: str) -> None:
    numbers = {name for name, hint in SETTINGS[choice].items() if hint is float or float in typing.get_args(hint)}
    assert numbers - {name for name, _ in SMALL + OUT_OF_RANGE} == set()


@pytest.mark.parametrize(("choice", "name", "value"), wherever_it_is(OUT_OF_RANGE))
def test_a_number_out_of_its_range_is_refused_by_its_dotted_name(choice: str, name: str, value: float) -> None:
    sentence = refusal(lambda: validate(build_config(**GOOD, **CHOICES[choice], **nested(name, value))))
    assert sentence.startswith(f"{name}={value} is out of range; it has to ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": ""}, "no environment was named"),
        (
            {"method": "diastr"},
            f"unknown method 'diastr'; known: {', '.join(sorted(METHODS))}. Did you mean 'diaster'?",
        ),
        ({"agent": "sacc"}, "unknown agent 'sacc'; known: ddpg, dqn, sac, td3. Did you mean 'sac'?"),
        ({"seeds": ()}, "no seeds were given"),
        ({"seeds": (3, 3)}, "seeds 3,3 name one twice"),
        ({"seeds": (-1,)}, "leave the range"),
        ({"seeds": (2**32,)}, "leave the range"),
        ({"decomposer": {"n_cuts": 2}}, "method.n_cuts=2 has no effect on sampled segments"),
        ({"decomposer": {"terminal_target": "return"}}, "method.terminal_target=return needs whole episodes"),
        ({"learner": {"batch_size": 300}, "replay": {"capacity": 299}}, "agent.batch_size=300 is larger than"),
        ({"warmup_steps": 100, "steps": 100}, "warmup_steps=100 leaves nothing to learn from in steps=100"),
        ({"decomposer": {"variance_penalty": float("inf")}}, "method.variance_penalty=inf"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, words: str) -> None:
    assert words in refusal(lambda: validate(build_config(**{**GOOD, **settings})))


def test_what_whole_episodes_need_is_allowed_for_them() -> None:
    config = build_config(**GOOD, decomposer={"segments": "all", "n_cuts": 2, "terminal_target": "return"})
    validate(config)
    assert config.method.n_cuts == 2


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


def explained(config: RunConfig) -> dict[str, str]:
    """The text below every setting of a configuration, by its dotted name."""
    groups = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        **explanations(RunConfig),
        **{
            f"{group}.{name}": text
            for group, settings in groups.items()
            if dataclasses.is_dataclass(settings)
            for name, text in explanations(type(settings)).items()
        },
    }


EXPLAINED = explained(RunConfig())


@pytest.fixture(scope="module")
def train_help() -> str:
    return help_of()


def flag_of(dotted: str) -> str:
    renamed = {"imports": "import"}
    return "--" + renamed.get(dotted, dotted).replace("_", "-")


@pytest.mark.parametrize("choice", CHOICES)
def test_every_setting_has_a_line_of_help(choice: str) -> None:
    texts = explained(build_config(**CHOICES[choice]))
    assert texts.keys() == SETTINGS[choice].keys()
    assert all(text.endswith(".") for text in texts.values())


def entries(name: str, text: str) -> list[str]:
    """What a help text has on a setting."""
    return re.findall(rf"(?<=\s){re.escape(flag_of(name))}[ ,].*?\((?:default: .*?|repeatable)\)", text)


@pytest.mark.parametrize("name", [name for name in SETTINGS["diaster"] if name != "env"])
def test_every_setting_has_a_dotted_flag_with_its_help_and_its_default(name: str, train_help: str) -> None:
    [entry] = entries(name, train_help)
    assert re.search(re.escape(EXPLAINED[name]) + r" \((default: |repeatable)", entry)


@pytest.mark.parametrize("choice", [name for name in CHOICES if name not in ("diaster", "sac")])
def test_help_shows_the_settings_of_the_chosen_method_and_learner_and_of_no_other(choice: str) -> None:
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
    text = help_of("--config", str(write(tmp_path, 'method = "rrd"\n[decomposer]\nsubset = 17\n')))
    [entry] = entries("method.subset", text)
    assert "(default: 17)" in entry
    assert entries("method.head", text) == []


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
        ("method.n_cuts", "5", 5),
        ("method.return_scale", "2", 2.0),
        ("method.return_scale", "auto", "auto"),
        ("method.head", "final", "final"),
        ("agent.discount", "0.5", 0.5),
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


@pytest.mark.parametrize(
    ("choice", "name", "text", "value"),
    [
        ("rrd", "method.subset", "9", 9),
        ("rd", "method.hidden", "9", 9),
        ("rudder", "method.auxiliary_weight", "0.25", 0.25),
        ("ircr", "method.credit", "return", "return"),
        ("ircr", "method.elite_episodes", "auto", "auto"),
        ("dense", "method.return_scale", "3", 3.0),
        ("td3", "agent.policy_every", "5", 5),
        ("ddpg", "agent.exploration_noise", "0.5", 0.5),
        ("dqn", "agent.target_every", "7", 7),
    ],
)
def test_a_flag_of_the_chosen_method_or_learner_sets_its_setting(
    choice: str, name: str, text: str, value: object, parsed: Callable[..., RunConfig]
) -> None:
    [(what, chosen)] = CHOICES[choice].items()
    expected = build_config(env="Hopper-v5", **CHOICES[choice], **nested(name, value))
    assert lookup(expected, name) == value
    assert parsed("Hopper-v5", f"--{what}", chosen, flag_of(name), text) == expected
    assert parsed(flag_of(name), text, f"--{what}={chosen}", "Hopper-v5") == expected


def test_the_last_of_two_methods_counts(parsed: Callable[..., RunConfig]) -> None:
    expected = build_config(env="Hopper-v5", method="rrd", decomposer={"unbiased": True})
    for first, last in itertools.product(
        (["--method", "rd"], ["--method=rd"]), (["--method", "rrd"], ["--method=rrd"])
    ):
        assert parsed("Hopper-v5", *first, *last, "--method.unbiased") == expected


def test_a_file_may_choose_the_method_whose_flags_there_are(tmp_path: Path, parsed: Callable[..., RunConfig]) -> None:
    path = str(write(tmp_path, 'env = "Hopper-v5"\nmethod = "rrd"\nagent = "td3"\n'))
    config = parsed("--config", path, "--method.unbiased", "--agent.policy-every", "4")
    assert config == build_config(
        env="Hopper-v5", method="rrd", agent="td3", decomposer={"unbiased": True}, learner={"policy_every": 4}
    )
    assert parsed("--config", path, "--method", "ircr").decomposer == IrcrConfig()


def test_a_preset_on_the_command_line_is_that_of_the_chosen_method(parsed: Callable[..., RunConfig]) -> None:
    config = parsed("Hopper-v5", "--method", "ircr", "--preset", "paper", "--agent.batch-size", "64")
    assert config == build_config("paper", env="Hopper-v5", method="ircr", learner={"batch_size": 64})
    assert config.agent.critic_loss == "huber"


def test_several_modules_can_be_imported(parsed: Callable[..., RunConfig]) -> None:
    assert parsed("--import", "a", "--import", "b", "Hopper-v5").imports == ("a", "b")


def test_a_switch_can_be_turned_off(parsed: Callable[..., RunConfig]) -> None:
    assert parsed("Hopper-v5", "--method.no-normalize-inputs").decomposer.normalize_inputs is False


def test_the_help_of_a_preset_shows_the_presets_values(train_help: str) -> None:
    default, paper = (
        EXPLAINED["method.head"] + " (default: cumulative)",
        EXPLAINED["method.head"] + " (default: final)",
    )
    assert default in train_help
    assert paper in help_of("Hopper-v5", "--preset", "paper")
