"""Future rewards by position, on walks that can be followed by hand."""

from pathlib import Path

import numpy as np
from made_runs import make_rollouts

from diaster.analysis.figures.heatmap import BINS_PER_CELL, future_rewards, normalised
from diaster.rundir.recordings import Maze, Rollouts

MAZE = Maze(np.array([[0, 0]], bool), 1.0)  # two open cells side by side: x from −1 to 1, y from −0.5 to 0.5


def walk(path: Path, x: list[float], rewards: list[float], spread: bool = True) -> Rollouts:
    position = np.array([[value, 0.1] for value in x])
    return make_rollouts(
        path,
        (len(x),),
        is_spread=np.array([spread]),
        position=position,
        next_position=position,
        step_reward=np.array(rewards, float),
        true_reward=np.zeros(len(x)),
    )


def test_each_bin_has_the_mean_sum_of_the_rewards_that_follow(tmp_path: Path) -> None:
    recorded = walk(tmp_path, [-0.9, -0.9, 0.9, 0.9], [1.0, 2.0, 3.0, 4.0])
    found = future_rewards([recorded], MAZE, window=2, horizon=4)
    assert found.shape == (BINS_PER_CELL, 2 * BINS_PER_CELL)
    # Windows of two steps begin at 0, 1 and 2: 1 + 2 and 2 + 3 on the left, 3 + 4 on the right.
    assert found[1, 0] == 4.0 and found[1, -1] == 7.0
    assert np.isnan(found).sum() == found.size - 2


def test_after_an_early_end_nothing_follows(tmp_path: Path) -> None:
    recorded = walk(tmp_path, [-0.9, 0.9], [1.0, 2.0])
    found = future_rewards([recorded], MAZE, window=2, horizon=4)
    assert (found[1, 0], found[1, -1]) == (3.0, 2.0)


def test_episodes_of_the_policy_alone_have_other_goals_and_do_not_count(tmp_path: Path) -> None:
    recorded = walk(tmp_path, [-0.9, 0.9], [1.0, 2.0], spread=False)
    assert np.isnan(future_rewards([recorded], MAZE, 1, 2)).all()


def test_maps_are_normalised_to_0_to_1_and_constant_ones_are_in_the_middle() -> None:
    assert normalised(np.array([[2.0, np.nan, 6.0, 3.0]]))[0, [0, 2, 3]].tolist() == [0.0, 1.0, 0.25]
    assert normalised(np.array([[2.0, 2.0]])).tolist() == [[0.5, 0.5]]
    assert np.isnan(normalised(np.array([[np.nan]]))).all()
