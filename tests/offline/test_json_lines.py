import json

import numpy as np
import pytest
from data_sets import agent_turns, told, walks, write_json_lines

from diaster.errors import DiasterError
from diaster.offline.episodes import judged_episodes
from diaster.offline.faults import Faults
from diaster.offline.json_lines import JsonLinesSource
from diaster.offline.relabelled import Relabelled


def episodes_of(path, skip: bool = False):
    return list(judged_episodes(JsonLinesSource(path, Faults(skip)), True, False))


def relabelled(lengths: list[int], is_kept: list[bool] | None = None) -> Relabelled:
    kept = np.ones(len(lengths), bool) if is_kept is None else np.array(is_kept)
    rewards = np.concatenate([np.full(n, float(place)) for place, n in enumerate(lengths)])
    return Relabelled(rewards, np.array(lengths), kept)


def test_a_line_is_an_episode(tmp_path) -> None:
    stored = told(walks(4))
    found = episodes_of(write_json_lines(tmp_path / "set.jsonl", stored))
    for episode, given in zip(found, stored, strict=True):
        assert np.allclose(episode.obs, given["observations"]) and np.allclose(episode.action, given["actions"])
        assert episode.outcome == pytest.approx(given["return"])


def test_empty_lines_are_no_episodes(tmp_path) -> None:
    path = write_json_lines(tmp_path / "set.jsonl", told(walks(2)))
    path.write_text("\n" + path.read_text().replace("\n", "\n\n"))
    assert [episode.label for episode in episodes_of(path)] == ["episode 0 (line 2)", "episode 1 (line 4)"]


def test_turns_have_an_embedding_named_numbers_or_both(tmp_path) -> None:
    records, _ = agent_turns(6)
    found = episodes_of(write_json_lines(tmp_path / "set.jsonl", records))
    assert found[0].features == ("embedding", "key") and found[0].obs.shape == (len(records[0]["turns"]) + 1, 0)
    turn = records[2]["turns"][1]
    assert found[2].action[1].tolist() == [*turn["embedding"], turn["key"]]
    assert found[5].group == "task 1" and found[5].texts[2] == "turn 2"
    named = [{"turns": [{"cost": 1, "error": 0.5}, {"error": 1, "cost": 2}], "outcome": 0.5}]
    only_named = episodes_of(write_json_lines(tmp_path / "named.jsonl", named))
    assert only_named[0].features == ("cost", "error") and only_named[0].action.tolist() == [[1.0, 0.5], [2.0, 1.0]]


def test_episodes_that_are_not_wanted_are_not_read(tmp_path) -> None:
    path = write_json_lines(tmp_path / "set.jsonl", told(walks(3)))
    path.write_text(path.read_text().replace('{"obs', "not JSON", 1))
    wanted = np.array([False, True, False])
    found = list(judged_episodes(JsonLinesSource(path, Faults()), True, False, wanted))
    assert [episode.number for episode in found] == [1]


def test_a_copy_has_the_new_rewards_and_all_else(tmp_path) -> None:
    stored = [{**e, "id": f"run {n}"} for n, e in enumerate(walks(3))]
    path = write_json_lines(tmp_path / "set.jsonl", stored)
    before = path.read_bytes()
    JsonLinesSource(path, Faults()).write(tmp_path / "new.jsonl", relabelled([len(e["rewards"]) for e in stored]))
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert path.read_bytes() == before
    assert [line["id"] for line in lines] == ["run 0", "run 1", "run 2"]
    assert lines[1]["rewards"] == [1.0] * len(stored[1]["rewards"])
    assert lines[1]["original_rewards"] == pytest.approx(stored[1]["rewards"].tolist())
    assert episodes_of(tmp_path / "new.jsonl")[1].outcome == pytest.approx(stored[1]["rewards"].sum())


def test_a_copy_of_turns_has_turn_rewards_beside_the_texts(tmp_path) -> None:
    records, _ = agent_turns(4)
    path = write_json_lines(tmp_path / "set.jsonl", records)
    kept = [True, False, True, True]
    lengths = [len(record["turns"]) for record, is_in in zip(records, kept, strict=True) if is_in]
    JsonLinesSource(path, Faults()).write(tmp_path / "new.jsonl", relabelled(lengths, kept))
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert [line["turns"] for line in lines] == [records[0]["turns"], records[2]["turns"], records[3]["turns"]]
    assert [len(line["turn_rewards"]) for line in lines] == lengths
    assert len(episodes_of(tmp_path / "new.jsonl")) == 3  # it can be read again


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"observations": [[1], [2]]', "the line is not valid JSON"),
        ("[1, 2]", "the line is no JSON object"),
        ('{"actions": [[1]], "return": 1}', "it has neither observations and actions nor turns"),
        ('{"observations": [[1], [NaN]], "actions": [[1], [2]], "return": 1}', "row 1 of its observations holds nan"),
        ('{"observations": [[1]], "actions": [[1]]}', "it has neither a return nor rewards"),
        ('{"turns": [{"tool_error": 1}]}', "it has no outcome"),
        ('{"turns": "many", "outcome": 1}', "its turns are no list"),
        ('{"turns": [], "outcome": 1}', "it has no steps"),
        ('{"turns": ["hello"], "outcome": 1}', "turn 0 is no object with an embedding or named numbers"),
        ('{"turns": [{"text": "hello"}], "outcome": 1}', "turn 0 has neither an embedding nor named numbers"),
        ('{"turns": [{"tool": "search"}], "outcome": 1}', "'tool' of turn 0 is no number; only 'text' may be text"),
        ('{"turns": [{"embedding": "abc"}], "outcome": 1}', "the embedding of turn 0 is no list of numbers"),
        ('{"turns": [{"embedding": ["a"]}], "outcome": 1}', "'embedding' of turn 0 is no number"),
        (
            '{"turns": [{"embedding": [1, 2]}, {"embedding": [1]}], "outcome": 1}',
            "turn 1 has an embedding of 1, and turn 0 has an embedding of 2",
        ),
        ('{"turns": [{"cost": 1}, {"costs": 1}], "outcome": 1}', "turn 1 has costs, and turn 0 has cost"),
    ],
)
def test_what_is_wrong_is_named_by_episode_and_line(tmp_path, line: str, sentence: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{line}\n")
    with pytest.raises(DiasterError) as caught:
        episodes_of(path)
    assert str(caught.value).startswith("episode 0 (line 1): ") and sentence in str(caught.value)


def test_a_file_that_was_cut_off_names_its_last_episode(tmp_path) -> None:
    path = write_json_lines(tmp_path / "set.jsonl", told(walks(3)))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DiasterError, match=r"^episode 2 \(line 3\): the file ends within it: it was cut off"):
        episodes_of(path)
    assert [episode is None for episode in episodes_of(path, skip=True)] == [False, False, True]


def test_an_unknown_field_is_named(tmp_path) -> None:
    path = write_json_lines(tmp_path / "set.jsonl", [{**told(walks(1))[0], "retrun": 3.0}])
    with pytest.raises(DiasterError, match=r"episode 0 \(line 1\) of .* has an unknown column 'retrun' \(did you mean"):
        episodes_of(path)


def test_an_unknown_field_of_all_episodes_is_told_once(tmp_path) -> None:
    path = write_json_lines(tmp_path / "set.jsonl", [{**one, "retrun": 3.0, "sead": 1} for one in told(walks(20))])
    faults = Faults(skip=True)
    assert len(list(judged_episodes(JsonLinesSource(path, faults), True, False))) == 20
    assert ["episode 0 (line 1)" in line for line in faults.summary()] == [True, True]
