import numpy as np
import pytest
from data_sets import agent_turns, flat, told, walks

from diaster.errors import DiasterError
from diaster.offline.faults import Faults
from diaster.offline.opening import open_source
from diaster.offline.progress import Quiet
from diaster.offline.survey import survey


def surveyed(data, is_binary: bool = False, skip: bool = False):
    return survey(open_source(data, Faults(skip)), is_binary, Quiet())


def test_it_tells_lengths_returns_and_the_longest_episode() -> None:
    stored = told(walks(12))
    found = surveyed(stored)
    lengths = [len(e["actions"]) for e in stored]
    assert found.lengths.tolist() == lengths and found.spec.horizon == max(lengths)
    assert found.outcomes.tolist() == [e["return"] for e in stored] and not found.has_groups
    assert (found.spec.obs_dim, found.spec.action_dim, found.spec.discrete) == (3, 2, False)


def test_actions_within_their_bounds_stay_as_they_are() -> None:
    spec = surveyed(told(walks(12))).spec
    assert spec.from_env(np.array([[0.25, -1.0]])).tolist() == [[0.25, -1.0]]


def test_actions_in_other_units_have_a_deviation_of_one_half() -> None:
    stored = [{**e, "actions": 40.0 + 7.0 * e["actions"]} for e in told(walks(12))]
    spec = surveyed(stored).spec
    actions = np.concatenate([e["actions"] for e in stored])
    seen = spec.from_env(actions)
    assert np.allclose(seen.mean(axis=0), 0.0, atol=1e-5) and np.allclose(seen.std(axis=0), 0.5, atol=1e-5)


def test_an_action_that_never_changes_is_no_reason_to_divide_by_zero() -> None:
    stored = [{**e, "actions": np.full_like(e["actions"], 9.0)} for e in told(walks(6))]
    assert not surveyed(stored).spec.from_env(np.full((1, 2), 9.0)).any()


def test_discrete_actions_begin_where_the_least_is() -> None:
    stored = [{**e, "actions": np.arange(len(e["actions"])) % 4 + 2} for e in told(walks(6))]
    spec = surveyed(stored).spec
    assert (spec.discrete, spec.action_dim, spec.first_action) == (True, 4, 2)


def test_whole_numbers_in_a_wide_range_are_no_choice_among_actions() -> None:
    stored = [{**e, "actions": np.arange(len(e["actions"])) * 100_000} for e in told(walks(6))]
    found = surveyed(stored)
    assert not found.spec.discrete and not found.form.discrete


def test_groups_have_numbers_and_episodes_without_one_have_none() -> None:
    stored = told(walks(5))
    for episode, group in zip(stored, ["b", None, "a", "b", 7], strict=True):
        episode["group"] = group
    found = surveyed(stored)
    assert found.groups.tolist() == [0, -1, 1, 0, 2] and found.has_groups


def test_turns_have_no_observations_and_their_numbers_have_one_size() -> None:
    records, _ = agent_turns(12)
    found = surveyed(records, is_binary=True)
    assert found.form.obs_dim == 0 and found.form.features == ("embedding", "key") and found.spec.obs_dim == 1
    numbers = np.array([[*turn["embedding"], turn["key"]] for record in records for turn in record["turns"]])
    assert np.allclose(found.spec.from_env(numbers).std(axis=0), 0.5, atol=1e-4)


def test_skipped_episodes_have_no_steps() -> None:
    stored = told(walks(6))
    stored[2]["return"] = None
    found = surveyed(stored, skip=True)
    assert found.lengths[2] == 0 and found.is_sound.tolist() == [True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (told(walks(3)), "the data set has 3 episodes, and at least 4 are needed"),
        ([{**e, "return": 2.0} for e in told(walks(6))], "all 6 episodes of the data set have the return 2"),
        ([], "the data set has 0 episodes"),
    ],
)
def test_what_cannot_be_fitted_is_refused(data, sentence: str) -> None:
    with pytest.raises(DiasterError, match=sentence):
        surveyed(data)


def test_too_few_sound_episodes_say_how_many_were_bad() -> None:
    stored = told(walks(5))
    for episode in stored[:2]:
        episode["return"] = None
    with pytest.raises(DiasterError, match="has 3 episodes after 2 bad ones were skipped"):
        surveyed(stored, skip=True)


def test_the_moments_do_not_depend_on_how_steps_are_dealt_out() -> None:
    arrays = flat([{**e, "actions": 3.0 + 5.0 * e["actions"]} for e in walks(8)])
    whole = {**arrays, "lengths": np.array([10, 10, 10, arrays["lengths"].sum() - 30])}
    one, other = surveyed(arrays).spec, surveyed(whole).spec
    assert np.allclose(one.action_low, other.action_low) and np.allclose(one.action_high, other.action_high)
