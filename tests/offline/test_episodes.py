import numpy as np
import pytest
from data_sets import walks

from diaster.offline.episodes import Form, Recorded, as_learnt, check_actions, check_form, checked, judged_episodes
from diaster.offline.faults import BadEpisodeError, Faults
from diaster.types import EnvSpec

OBS, ACTIONS = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[0.5], [0.25]]


def recorded(**fields) -> Recorded:
    return Recorded(7, "episode 7", **{"observations": OBS, "actions": ACTIONS, "outcome": 3.0, **fields})


def judged(form: Form | None = None, needs_outcome: bool = True, is_binary: bool = False, **fields):
    return checked(recorded(**fields), form, needs_outcome, is_binary)


def test_a_sound_episode_has_one_observation_more_than_steps() -> None:
    episode = judged()
    assert episode.obs.shape == (3, 2) and episode.action.shape == (2, 1)
    assert (episode.outcome, episode.length, episode.form) == (3.0, 2, Form(2, 1, False))


def test_without_a_last_observation_the_one_before_stands_for_it() -> None:
    episode = judged(observations=OBS[:2])
    assert episode.obs.tolist() == [[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]


def test_next_observations_give_the_last_one() -> None:
    episode = judged(observations=OBS[:2], next_observations=[[2.0, 3.0], [8.0, 9.0]])
    assert episode.obs.tolist() == [[0.0, 1.0], [2.0, 3.0], [8.0, 9.0]]


def test_a_return_that_is_given_goes_before_the_sum_of_rewards() -> None:
    assert judged(rewards=[1.0, 2.5]).outcome == 3.0
    assert judged(rewards=[1.0, 2.5], outcome=None).outcome == 3.5


def test_whole_numbers_one_per_step_are_discrete_actions() -> None:
    assert judged(actions=[0, 3]).form.discrete
    assert judged(actions=[[0], [3]]).form.discrete
    assert not judged(actions=[0.0, 3.0]).form.discrete


def test_values_in_any_shape_are_laid_out_as_rows() -> None:
    assert judged(observations=np.zeros((3, 2, 2))).obs.shape == (3, 4)
    assert judged(observations=[1.0, 2.0, 3.0]).obs.shape == (3, 1)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"observations": [[0.0, 1.0], [2.0, float("nan")], [4.0, 5.0]]}, "row 1 of its observations holds nan"),
        ({"actions": [[0.5], [float("inf")]]}, "row 1 of its actions holds inf"),
        ({"observations": [[0.0, 1.0], [2.0, 1e300], [4.0, 5.0]]}, "row 1 of its observations holds inf"),
        ({"rewards": [1.0, float("nan")]}, "row 1 of its rewards holds nan"),
        ({"rewards": [1.0]}, "it has 2 steps and 1 rewards"),
        ({"actions": [], "observations": []}, "it has no steps"),
        ({"actions": None}, "it has no actions"),
        ({"observations": [[0.0, 1.0], [2.0], [4.0, 5.0]]}, "have 2 numbers in row 0 and 1 number in row 1"),
        ({"actions": [[0.5], ["left"]]}, "its actions hold something that is no number in row 1"),
        ({"observations": OBS[:1]}, "it has 2 actions and 1 observations; give 2, or 3 with the last"),
        ({"outcome": None}, "it has neither a return nor rewards that could be summed"),
        ({"outcome": float("nan")}, "its return is nan"),
        ({"outcome": "much"}, "its return is 'much', which is no number"),
        ({"fault": "the line is not valid JSON"}, "the line is not valid JSON"),
        ({"next_observations": [[1.0]], "observations": OBS[:2]}, "its next_observations have the shape (1, 1)"),
    ],
)
def test_what_is_wrong_is_named_by_episode_and_row(fields, sentence: str) -> None:
    with pytest.raises(BadEpisodeError) as caught:
        judged(**fields)
    assert str(caught.value).startswith("episode 7: ") and sentence in str(caught.value)


def test_a_binary_outcome_is_0_or_1() -> None:
    assert judged(outcome=True, is_binary=True).outcome == 1.0
    with pytest.raises(BadEpisodeError, match="its outcome is 3, and a binary outcome is 0 or 1"):
        judged(is_binary=True)


def test_an_outcome_may_be_missing_where_none_is_needed() -> None:
    assert np.isnan(judged(outcome=None, needs_outcome=False).outcome)


def test_other_widths_than_before_are_refused() -> None:
    with pytest.raises(BadEpisodeError, match="its observations have 2 numbers in row 0, and those before it 3"):
        judged(Form(3, 1, False))
    with pytest.raises(BadEpisodeError, match="its actions have 1 number in row 0, and those before it 2 numbers"):
        judged(Form(2, 2, False))


def test_other_names_than_before_are_refused() -> None:
    with pytest.raises(BadEpisodeError, match="its turns have cost, and those before it cost, error"):
        judged(Form(0, 2, False, ("cost", "error")), observations=None, features=("cost",))


class Listed:
    name = "a list"

    def __init__(self, records: list[Recorded], skip: bool) -> None:
        self.records, self.faults = records, Faults(skip)

    def episodes(self, wanted=None):
        return iter(self.records)


def test_bad_episodes_are_skipped_and_counted_or_end_the_work() -> None:
    records = [recorded(), recorded(outcome=None), recorded()]
    records = [record._replace(number=number) for number, record in enumerate(records)]
    source = Listed(records, skip=True)
    for _ in range(2):  # a data set is read more than once, and a bad episode is one all the same
        found = list(judged_episodes(source, True, False))
    assert [episode is None for episode in found] == [False, True, False]
    assert source.faults.n_episodes == 1 and source.faults.summary()[-1] == "1 bad episode skipped."
    with pytest.raises(BadEpisodeError, match="--skip-bad goes on without such episodes"):
        list(judged_episodes(Listed(records, skip=False), True, False))


def test_whole_numbers_that_others_write_with_a_point_are_not_discrete() -> None:
    source = Listed([recorded(actions=[1, 0]), recorded(actions=[0.5, 1.0])], skip=False)
    first, second = judged_episodes(source, True, False)
    spec = EnvSpec("toy", 2, 1, -np.ones(1, np.float32), np.ones(1, np.float32), (1,), 2)
    assert as_learnt(first, spec, 0.0).action.tolist() == [[1.0], [0.0]]
    assert as_learnt(second, spec, 0.0).action.tolist() == [[0.5], [1.0]]


def test_nets_see_actions_in_their_bounds_and_discrete_ones_as_one_hot() -> None:
    spec = EnvSpec("toy", 2, 1, np.zeros(1, np.float32), np.full(1, 2.0, np.float32), (1,), 2)
    assert as_learnt(judged(actions=[[2.0], [1.0]]), spec, 5.0).action.tolist() == [[1.0], [0.0]]
    discrete = EnvSpec("toy", 2, 3, np.zeros(1, np.float32), np.ones(1, np.float32), (), 2, True, 1)
    learnt = as_learnt(judged(actions=[3, 1]), discrete, 5.0)
    assert learnt.action.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]] and learnt.episode_return == 5.0


def test_a_discrete_action_that_a_model_does_not_know_is_named() -> None:
    discrete = EnvSpec("toy", 2, 3, np.zeros(1, np.float32), np.ones(1, np.float32), (), 2, True, 1)
    with pytest.raises(BadEpisodeError, match="episode 7: row 1 has the action 4, and the model knows 1 to 3"):
        check_actions(judged(actions=[3, 4]), discrete)


def test_turns_are_actions_before_observations_that_say_nothing() -> None:
    episode = judged(observations=None, actions=[[1.0, 2.0], [3.0, 4.0]], features=("a", "b"))
    spec = EnvSpec("toy", 1, 2, -np.ones(2, np.float32), np.ones(2, np.float32), (2,), 2)
    learnt = as_learnt(episode, spec, 0.0)
    assert learnt.obs.tolist() == [[0.0], [0.0], [0.0]] and learnt.action.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_data_of_another_form_than_the_model_is_refused() -> None:
    with pytest.raises(
        BadEpisodeError, match="x has observations of 2 numbers, actions of 1 number, and the model was"
    ):
        check_form(Form(2, 1, False), Form(3, 1, False), "x")
    with pytest.raises(BadEpisodeError, match="x has turns with cost, and the model was fitted to turns with error"):
        check_form(Form(0, 1, False, ("cost",)), Form(0, 1, False, ("error",)), "x")
    check_form(Form(2, 1, True), Form(2, 1, False), "x")  # whole numbers are numbers


def test_the_walks_are_sound() -> None:
    records = [
        Recorded(n, f"episode {n}", e["actions"], e["observations"], rewards=e["rewards"])
        for n, e in enumerate(walks(3))
    ]
    assert all(episode is not None for episode in judged_episodes(Listed(records, skip=False), True, False))
