import numpy as np
import pytest

from diaster.errors import DiasterError
from diaster.offline import holding_out
from diaster.offline.episodes import Form
from diaster.offline.holding_out import split
from diaster.offline.survey import Survey
from diaster.types import EnvSpec

SPEC = EnvSpec("toy", 1, 1, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), 10)


def a_survey(n: int, groups=None, length: int = 10) -> Survey:
    lengths = np.full(n, length)
    of_groups = np.full(n, -1) if groups is None else np.array(groups)
    return Survey(Form(1, 1, False), SPEC, lengths, np.arange(n, dtype=float), of_groups, False)


def test_parts_share_no_episode_and_leave_none_out() -> None:
    parts = split(a_survey(100), 0.2, seed=0, most_rows=10**6)
    assert [len(part) for part in parts[:3]] == [80, 10, 10] and parts.left_out == 0
    assert sorted(np.concatenate(parts[:3]).tolist()) == list(range(100))


def test_the_seed_decides_which() -> None:
    one, same, other = (split(a_survey(50), 0.2, seed, 10**6) for seed in (0, 0, 1))
    assert np.array_equal(one.stop, same.stop) and not np.array_equal(one.stop, other.stop)


@pytest.mark.parametrize("n", range(3, 12))
@pytest.mark.parametrize("share", [0.01, 0.2, 0.9])
def test_each_part_has_an_episode_at_least(n: int, share: float) -> None:
    parts = split(a_survey(n), share, seed=n, most_rows=10**6)
    assert all(len(part) for part in parts[:3]) and sum(map(len, parts[:3])) == n


def test_groups_stay_together() -> None:
    groups = np.arange(60) % 15
    parts = split(a_survey(60, groups), 0.3, seed=3, most_rows=10**6)
    in_parts = [set(groups[part].tolist()) for part in parts[:3]]
    assert not in_parts[0] & in_parts[1] and not in_parts[0] & in_parts[2] and not in_parts[1] & in_parts[2]
    assert len(parts.stop) + len(parts.measure) == pytest.approx(18, abs=4)


def test_skipped_episodes_are_in_no_part() -> None:
    found = a_survey(20)
    found.lengths[[3, 7]] = 0
    parts = split(found, 0.3, seed=0, most_rows=10**6)
    assert not {3, 7} & set(np.concatenate(parts[:3]).tolist()) and sum(map(len, parts[:3])) == 18


def test_what_there_is_no_room_for_is_left_out() -> None:
    parts = split(a_survey(100), 0.2, seed=0, most_rows=11 * 30 + 5)
    assert len(parts.fitted) == 30 and parts.left_out == 50


def test_judges_are_not_more_than_is_useful(monkeypatch) -> None:
    monkeypatch.setattr(holding_out, "MOST_EPISODES", 7)
    monkeypatch.setattr(holding_out, "MOST_STEPS", 55)
    parts = split(a_survey(100), 0.5, seed=0, most_rows=10**6)
    assert (len(parts.stop), len(parts.measure), len(parts.fitted)) == (5, 5, 50)


def test_two_groups_are_too_few() -> None:
    with pytest.raises(DiasterError, match="the episodes are of 2 groups, and at least 3 are needed"):
        split(a_survey(10, [0] * 5 + [1] * 5), 0.2, seed=0, most_rows=10**6)
