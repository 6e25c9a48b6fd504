"""What goes before what, and what a method, an agent and a preset choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from all_settings import CHOICES, refusal, settings_file

from diaster.config import (
    AGENTS,
    DEFAULT_AGENT,
    METHODS,
    PAPER_TASKS,
    PRESET_HELP,
    PRESETS,
    IrcrConfig,
    RdConfig,
    ReplayConfig,
    RrdConfig,
    RunConfig,
    SacConfig,
    Td3Config,
    XqcConfig,
    build_config,
)
from diaster.rundir.records import CONFIG, read_config

FILE = 'env = "Ant-v5"\nsteps = 7000\n[method]\nhead = "cumulative"\nbatch_episodes = 5\n'


def test_without_anything_the_defaults_hold() -> None:
    assert build_config() == RunConfig()


def test_a_preset_goes_before_the_defaults() -> None:
    config = build_config("paper")
    assert config.preset == "paper"
    assert (config.method.head, config.method.loss, config.evaluation.every) == ("final", "sum", 1000)
    assert config.agent == SacConfig()


def test_a_file_goes_before_the_preset(tmp_path: Path) -> None:
    config = build_config("paper", settings_file(tmp_path, FILE))
    assert (config.method.head, config.method.batch_episodes) == ("cumulative", 5)
    assert (config.method.loss, config.steps, config.env) == ("sum", 7000, "Ant-v5")


def test_settings_go_before_the_file(tmp_path: Path) -> None:
    config = build_config("paper", settings_file(tmp_path, FILE), steps=9, method={"batch_episodes": 6})
    assert (config.steps, config.method.batch_episodes, config.method.head) == (9, 6, "cumulative")


def test_a_file_may_name_its_preset_and_an_explicit_one_goes_before_it(tmp_path: Path) -> None:
    path = settings_file(tmp_path, 'preset = "paper"\n')
    assert build_config(file=path).method.head == "final"
    assert build_config("default", path).method.head == "cumulative"
    assert build_config("default", path).preset == "default"


def test_the_agent_is_xqc_and_that_of_the_papers_preset_sac_wherever_the_preset_is_named(tmp_path: Path) -> None:
    assert RunConfig().agent == build_config().agent == XqcConfig()
    path = settings_file(tmp_path, 'preset = "paper"\n')
    for config in (build_config("paper"), build_config(preset="paper"), build_config(file=path)):
        assert config.agent == SacConfig()
    assert build_config("paper", agent={"gradient_clip": 1.0}).agent == SacConfig(gradient_clip=1.0)
    assert build_config("default", path).agent == XqcConfig()
    for method in METHODS:
        assert build_config("paper", method=method).agent.name == "sac"


def test_an_agent_that_is_named_goes_before_the_one_of_the_preset(tmp_path: Path) -> None:
    assert build_config("paper", agent="xqc").agent == XqcConfig()
    path = settings_file(tmp_path, 'preset = "paper"\nagent = "td3"\n')
    assert build_config(file=path).agent == build_config("paper", path).agent == Td3Config()
    assert build_config("paper", settings_file(tmp_path, 'agent = "xqc"\n')).agent == XqcConfig()
    assert build_config(file=path, preset="default").preset == "default"


def test_an_unknown_preset_is_refused_of_whatever_type_it_is_and_a_misspelt_one_gets_the_nearest() -> None:
    for value in ("papper", 3, ["paper"], {"a": 1}):
        assert "preset" in refusal(lambda value=value: build_config(preset=value))
    assert refusal(lambda: build_config("papper")).endswith("Did you mean 'paper'?")


def test_presets_and_their_help_have_the_same_names() -> None:
    assert tuple(PRESET_HELP) == PRESETS


# Methods and agents


def test_a_name_alone_stands_for_a_table_with_that_name() -> None:
    for name in METHODS:
        assert build_config(method=name) == build_config(method={"name": name})
    for name in AGENTS:
        assert build_config(agent=name) == build_config(agent={"name": name})


def test_method_and_agent_choose_which_settings_there_are() -> None:
    for choice in CHOICES.values():
        config, method, agent = (
            build_config(**choice),
            choice.get("method", "diaster"),
            choice.get("agent", DEFAULT_AGENT),
        )
        assert type(config) is RunConfig
        assert type(config.method) is METHODS[method].settings
        assert type(config.agent) is AGENTS[agent].settings
        assert (config.method.name, config.agent.name) == (method, agent)
        assert config == build_config(**choice)


def test_methods_and_agents_have_a_line_of_help_and_settings_that_begin_with_their_name() -> None:
    for known in (METHODS, AGENTS):
        for name, entry in known.items():
            assert entry.help and "\n" not in entry.help
            assert next(iter(entry.settings.__dataclass_fields__)) == "name"
            assert entry.settings().name == name


def test_methods_differ_in_their_colours_and_markers() -> None:
    assert len({method.colour for method in METHODS.values()}) == len(METHODS)
    assert len({method.marker for method in METHODS.values()}) == len(METHODS)


def test_a_setting_of_another_method_or_agent_is_refused() -> None:
    assert "'method.subset'" in refusal(lambda: build_config(method={"subset": 9}))
    assert "'method.head'" in refusal(lambda: build_config(method={"name": "rrd", "head": "final"}))
    assert "'agent.gradient_clip'" in refusal(lambda: build_config(agent={"gradient_clip": 2.0}))
    assert build_config(method={"name": "rrd", "unbiased": True}).method == RrdConfig(unbiased=True)
    assert build_config(agent={"name": "td3", "policy_every": 3}).agent == Td3Config(policy_every=3)


def test_the_size_of_xqc_names_its_layers_and_each_number_can_be_given_by_itself() -> None:
    assert XqcConfig().sizes == ((256,) * 2, (256,) * 2)
    assert XqcConfig(size="full").sizes == ((512,) * 4, (256,) * 4)
    assert XqcConfig(layers=1, hidden=8).sizes == ((8,), (256,))
    assert XqcConfig(size="full", actor_hidden=16).sizes == ((512,) * 4, (16,) * 4)


def test_a_run_from_before_xqc_was_the_default_keeps_the_agent_it_had(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(
        'env = "Hopper-v5"\nsteps = 1000\nseeds = [3]\n[agent]\nname = "sac"\nhidden = 64\nlearning_rate = 0.001\n'
    )
    assert read_config(tmp_path).agent == SacConfig(hidden=64, learning_rate=0.001)
    for named, agent in (
        ("", SacConfig()),  # it named none
        ("[agent]\nhidden = 64\n", SacConfig(hidden=64)),
        ('agent = "sac"\n[learner]\nhidden = 64\n', SacConfig(hidden=64)),
        ('[agent]\nname = "xqc"\nsize = "full"\n', XqcConfig(size="full", potential=False)),
    ):
        (tmp_path / CONFIG).write_text(f'env = "Hopper-v5"\nsteps = 1000\n{named}')
        assert read_config(tmp_path).agent == agent


def test_what_fits_nothing_has_no_updates_to_set() -> None:
    for method in ("ircr", "uniform", "episodic", "dense"):
        for name in ("updates", "every"):
            sentence = refusal(lambda method=method, name=name: build_config(method={"name": method, name: 3}))
            assert f"'method.{name}'; known: method." in sentence
        assert build_config(method=method).method.updates == 0


def test_a_file_may_choose_method_and_agent_and_an_explicit_choice_goes_before_it(tmp_path: Path) -> None:
    path = settings_file(tmp_path, 'method = "rrd"\nagent = "td3"\n')
    config = build_config(file=path)
    assert (type(config.method), type(config.agent)) == (RrdConfig, Td3Config)
    config = build_config(file=path, method="rd", agent="sac")
    assert (config.method, config.agent) == (RdConfig(), SacConfig())
    chosen = settings_file(tmp_path, '[method]\nname = "rrd"\nunbiased = true\n')
    assert build_config(file=chosen).method == RrdConfig(unbiased=True)
    # The file's settings are those of its own method.
    assert "'method.unbiased'" in refusal(lambda: build_config(file=chosen, method="rd"))


def test_an_unknown_method_or_agent_is_refused_of_whatever_type_its_name_is() -> None:
    for what, value in (("method", "diastr"), ("agent", "sacc"), ("method", 3), ("agent", ["sac"])):
        named = {what: {"name": value}}
        assert refusal(lambda named=named: build_config(**named)).startswith(f"unknown {what} '")


def test_every_method_has_the_preset_of_its_own_paper() -> None:
    ours, theirs, plain = (build_config("paper", method=method) for method in ("diaster", "ircr", "rrd"))
    for config in (ours, theirs, plain):
        assert (config.evaluation.every, config.evaluation.episodes) == (1000, 10)
    assert (ours.method.head, ours.replay, ours.agent) == ("final", ReplayConfig(), SacConfig())
    assert (plain.method, plain.agent, plain.replay) == (RrdConfig(), SacConfig(), ReplayConfig())
    assert (theirs.method, theirs.replay.capacity) == (IrcrConfig(), 300_000)
    agent = theirs.agent
    assert (agent.critic_loss, agent.target_rate, agent.batch_size) == ("huber", 0.001, 1024)
    assert agent.gradient_clip > 0.0
    # The agent's part is its own paper's SAC and nothing for another agent.
    assert build_config("paper", method="ircr", agent="td3").agent == Td3Config()


def test_the_papers_scale_of_returns_depends_on_the_task_wherever_its_name_stands(tmp_path: Path) -> None:
    scale = PAPER_TASKS["HumanoidStandup-v5"].return_scale
    assert scale != build_config("paper", env="Hopper-v5").method.return_scale
    assert build_config("paper", env="HumanoidStandup-v5").method.return_scale == scale
    path = settings_file(tmp_path, 'env = "HumanoidStandup-v5"\npreset = "paper"\n')
    assert build_config(file=path).method.return_scale == scale


def test_the_papers_scale_of_returns_is_for_its_own_method_alone() -> None:
    assert build_config("paper", env="Hopper-v5", method="rrd").method.return_scale == "auto"


@pytest.mark.parametrize("what", ["method", "agent"])
def test_a_setting_alone_leaves_method_and_agent_as_they_are(what: str) -> None:
    config = build_config(**{what: {"hidden": 7}})
    assert (config.method.name, config.agent.name) == ("diaster", "xqc")
    assert getattr(config, what).hidden == 7
