"""Files with the names that settings had in earlier versions are read as those with the present ones."""

from __future__ import annotations

from pathlib import Path

from all_settings import refusal, settings_file

from diaster.config import RrdConfig, Td3Config, as_they_were, build_config, combine, present_name
from diaster.config.former_names import present_names

# Each pair: a file as it was written once, and the same settings by their present names.
FILES = [
    ('method = "rrd"\n', '[method]\nname = "rrd"\n'),
    ('agent = "td3"\n', '[agent]\nname = "td3"\n'),
    ('[decomposer]\nhead = "final"\n', '[method]\nhead = "final"\n'),
    ("[learner]\nbatch_size = 32\n", "[agent]\nbatch_size = 32\n"),
    (
        'env = "Hopper-v5"\nmethod = "rrd"\nagent = "td3"\nseeds = [3, 7]\n'
        "[decomposer]\nsubset = 5\nunbiased = true\n[learner]\npolicy_every = 3\n[replay]\ncapacity = 9000\n",
        'env = "Hopper-v5"\nseeds = [3, 7]\n[method]\nname = "rrd"\nsubset = 5\nunbiased = true\n'
        '[agent]\nname = "td3"\npolicy_every = 3\n[replay]\ncapacity = 9000\n',
    ),
    (
        'preset = "paper"\nmethod = "ircr"\nagent = "sac"\n[learner]\nbatch_size = 64\n',
        'preset = "paper"\n[method]\nname = "ircr"\n[agent]\nname = "sac"\nbatch_size = 64\n',
    ),
]


def test_a_file_with_former_names_gives_the_settings_of_one_with_the_present_ones(tmp_path: Path) -> None:
    defaults = build_config()
    for former, present in FILES:
        config = build_config(file=settings_file(tmp_path, former))
        assert config == build_config(file=settings_file(tmp_path, present)) != defaults
    config = build_config(file=settings_file(tmp_path, FILES[4][0]))
    assert (config.method, config.agent) == (RrdConfig(subset=5, unbiased=True), Td3Config(policy_every=3))


def test_settings_of_a_call_may_have_their_former_names_too() -> None:
    former = build_config(method="rrd", agent="td3", decomposer={"subset": 5}, learner={"hidden": 9})
    assert former == build_config(method={"name": "rrd", "subset": 5}, agent={"name": "td3", "hidden": 9})


def test_former_names_in_a_file_give_way_to_present_ones_in_a_call(tmp_path: Path) -> None:
    path = settings_file(tmp_path, 'method = "rrd"\n[decomposer]\nsubset = 5\nhidden = 8\n')
    assert build_config(file=path, method={"subset": 6}).method == RrdConfig(subset=6, hidden=8)


def test_where_a_table_has_both_names_the_present_one_goes_before() -> None:
    both = {"decomposer": {"hidden": 8, "batch_episodes": 3}, "method": {"name": "rrd", "hidden": 9}}
    assert build_config(**both).method == RrdConfig(hidden=9, batch_episodes=3)


def test_a_mistake_in_a_former_table_is_told_by_its_present_name(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "[decomposer]\nhed = 'final'\n")
    assert refusal(lambda: build_config(file=path)).endswith("Did you mean 'method.head'?")


def test_what_is_no_table_is_refused_by_the_name_it_was_given() -> None:
    for name in ("decomposer", "learner"):
        assert f"'{name}'" in refusal(lambda name=name: build_config(**{name: 3}))
    assert present_names({"decomposer": 3, "method": "rrd"}) == {"decomposer": 3, "method": {"name": "rrd"}}


def test_present_names_leave_what_they_were_given_and_all_else_as_it_is() -> None:
    given = {"steps": 3, "decomposer": {"hidden": 8}, "agent": "td3", "replay": {"capacity": 9}}
    before = {name: dict(value) if isinstance(value, dict) else value for name, value in given.items()}
    assert present_names(given) == {
        "steps": 3,
        "method": {"hidden": 8},
        "agent": {"name": "td3"},
        "replay": {"capacity": 9},
    }
    assert given == before


def test_a_dotted_name_has_its_present_form() -> None:
    for dotted, present in (
        ("decomposer.hidden", "method.hidden"),
        ("learner.batch_size", "agent.batch_size"),
        ("method.hidden", "method.hidden"),
        ("method", "method.name"),
        ("agent", "agent.name"),
        ("steps", "steps"),
        ("replay.capacity", "replay.capacity"),
    ):
        assert present_name(dotted) == present
    for table, present in (("decomposer", "method"), ("learner", "agent"), ("method", "method"), ("replay", "replay")):
        assert present_name(table, is_table=True) == present


def test_a_run_keeps_what_it_had_where_a_setting_that_came_later_would_change_it():
    old = as_they_were({"env": "x", "method": {"name": "diaster"}, "agent": {"name": "xqc"}})
    config = combine(None, old, "a run")
    assert (config.method.base, config.agent.potential) == ("none", False)
    new = as_they_were({"env": "x", "method": {"base": "mixed"}, "agent": {"name": "xqc", "potential": True}})
    config = combine(None, new, "a run")
    assert (config.method.base, config.agent.potential) == ("mixed", True)
    assert as_they_were({})["agent"]["name"] == "sac"
    assert as_they_were({"method": "rrd"})["method"] == {"name": "rrd"}
    assert as_they_were({"agent": 3})["agent"] == 3
