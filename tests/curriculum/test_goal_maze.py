"""The goal maze: one way, as long as it says, and levels along it."""

from __future__ import annotations

import numpy as np
import pytest

from runner.environments.small_tasks import GoalMaze
from runner.testing import check_environment


@pytest.mark.parametrize("size", [3, 5, 9])
def test_the_way_is_the_only_one_and_has_its_length(size: int) -> None:
    env = GoalMaze(size, num_levels=2)
    way = env._way
    assert len(way) - 1 == (size + 1) ** 2 // 2 - 2
    assert len(set(way)) == len(way)
    for place, (row, column) in enumerate(way):
        beside = {(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)} & set(way)
        assert beside == {way[other] for other in (place - 1, place + 1) if 0 <= other < len(way)}


@pytest.mark.parametrize("level", [None, 0, 10, 23])
def test_a_level_is_as_far_as_it_says_and_the_goal_ends_the_episode(level: int | None) -> None:
    env = GoalMaze()
    obs, _ = env.reset(seed=0, options={} if level is None else {"level": level})
    distance = env._way.index(divmod(int(np.argmax(obs)), 9))
    assert distance == 2 * (24 if level is None else level + 1)
    rewards = []
    for here, there in zip(env._way[distance:0:-1], env._way[distance - 1 :: -1], strict=True):
        action = [(-1, 0), (0, 1), (1, 0), (0, -1)].index((there[0] - here[0], there[1] - here[1]))
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
    assert rewards == [0.0] * (distance - 1) + [1.0]
    assert (terminated, truncated, info) == (True, False, {"is_success": True})


def test_walls_stop_and_time_ends() -> None:
    env = GoalMaze(max_steps=3)
    obs, _ = env.reset(seed=0, options={"level": 0})
    for _ in range(3):
        after, reward, terminated, truncated, info = env.step(0)
        assert np.array_equal(after, obs)
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"is_success": False})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"level": 24}, "level must be an integer from 0 to 23, got 24"),
        ({"levle": 1}, "levle is not a known option of GoalMaze"),
    ],
)
def test_options_that_are_not_there_are_refused(options: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        GoalMaze().reset(options=options)


def test_it_is_an_environment_and_draws_itself() -> None:
    assert not check_environment(GoalMaze).warnings
    env = GoalMaze(render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (144, 144, 3)
    assert len({tuple(colour) for row in picture.tolist() for colour in row}) == 4
