"""Whoever has running episodes answers as a list of the episodes themselves would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, block_from_episodes
from runner.pipelines.recorded_episodes import ObservationRows
from runner.rows.running_episodes import RunningEpisodes
from tests.rows.namespaces import BLANKS, NAMESPACES
from tests.rows.test_row_stores import LockStep
from tests.support.episode_list import EpisodeList

LOOKBACK = 2


def in_lock_step() -> RunningEpisodes:
    driver = LockStep(NAMESPACES["numpy"], BLANKS["dict"], 11, 4, LOOKBACK)
    for _ in range(5):
        driver.step()
    driver.rows.cut()
    for _ in range(2):
        driver.step()
    return driver.rows


def recorded() -> RunningEpisodes:
    driver = LockStep(NAMESPACES["numpy"], BLANKS["dict"], 12, 3, 0)
    for _ in range(9):
        driver.step()
    return ObservationRows(driver.rows.cut().block)


def by_hand() -> RunningEpisodes:
    episodes = []
    for length in (0, 1, 4):
        episode = SingleAgentEpisode(f"e{length}")
        episode.add_env_reset(np.array([float(length)]))
        for t in range(length):
            episode.add_env_step(np.array([10.0 * length + t]), t, -float(t), extra_model_outputs={"out": {"h": t / 2}})
        episodes.append(episode)
    episodes[-1].to_numpy()
    return EpisodeList(episodes)


@pytest.mark.parametrize("make", [in_lock_step, recorded, by_hand], ids=lambda make: make.__name__)
def test_answers(make: Callable[[], RunningEpisodes]) -> None:
    episodes = make()
    views = EpisodeList(list(episodes))
    assert len(episodes) == len(views) <= episodes.max_rows
    assert nested.equal(episodes.current_obs, views.current_obs)
    assert episodes.starts_episode.tolist() == [view.t == 0 for view in views]
    for column in (OBS, ACTIONS, REWARDS, "out"):
        for length in range(1, LOOKBACK + 1):
            values, is_there = episodes.history(column, length)
            expected, expected_is_there = views.history(column, length)
            assert nested.equal(values, expected)
            assert is_there.tolist() == expected_is_there.tolist()
    for column in (ACTIONS, "out"):
        newest = nested.map_leaves(lambda leaf: leaf[~views.starts_episode], episodes.newest_step(column))
        expected = [_last(view, column) for view in views if view.t]
        assert nested.equal(newest, nested.stack(expected))
    assert episodes.newest_step("unknown") is None


def _last(view: SingleAgentEpisode, column: str) -> Any:
    buffer = view.actions if column == ACTIONS else view.extra_model_outputs[column]
    return buffer.data[-1] if isinstance(buffer.data, list) else nested.take(buffer.data, -1)


def test_written_observations_of_a_list() -> None:
    episodes = by_hand()
    before = episodes.current_obs
    episodes.write_obs(-before - 1.0)
    assert nested.equal(episodes.current_obs, before)
    assert [episode.get_observations(-1).tolist() for episode in episodes] == (-before - 1.0).tolist()
    block = block_from_episodes(list(episodes)[1:])
    assert block.columns[OBS][-1].tolist() == [-44.0]


def test_a_list_without_steps() -> None:
    episode = SingleAgentEpisode("e")
    episode.add_env_reset(np.zeros(2))
    episodes = EpisodeList([episode])
    assert episodes.newest_step(ACTIONS) is None
    values, is_there = episodes.history(OBS, 3)
    assert (values.shape, is_there.tolist()) == ((1, 3, 2), [[False, False, True]])
    with pytest.raises(ValueError, match="a history of 'actions' needs an episode with at least one step"):
        episodes.history(ACTIONS, 1)
