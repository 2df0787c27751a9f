"""Rows of steps -> trajectories: compared with a loop over rows, and rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.trajectories import ReadCounts, Steps, group_steps


def steps(obs: list[int], done: str, **more: Any) -> Steps:
    """Rows whose action is 10 * obs and whose reward is obs; `done` is a letter a step, T, U (truncated) or ."""
    rows = np.array(obs, np.float64)
    columns = {"obs": rows[:, None], "actions": (rows * 10).astype(np.int64), "rewards": rows}
    flags = np.array(list(done))
    return Steps(columns, flags == "T", flags == "U", **more)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def outline(block: ColumnBlock) -> list[tuple[list[float], list[int], str, int]]:
    """Observations, actions, end and first time step of each trajectory."""
    return [
        (
            episode.get_observations()[:, 0].tolist(),
            episode.get_actions().tolist(),
            "T" * episode.is_terminated + "U" * episode.is_truncated,
            episode.t_started,
        )
        for episode in block
    ]


def test_a_last_observation_that_is_there_is_used() -> None:
    counts = ReadCounts()
    block = group_steps(steps([0, 1, 5, 6], ".T.U", new_obs=column([1, 2, 6, 7])), counts)
    assert outline(block) == [([0, 1, 2], [0, 10], "T", 0), ([5, 6, 7], [50, 60], "U", 0)]
    assert counts == ReadCounts()


def test_without_it_termination_repeats_and_truncation_drops_a_step() -> None:
    counts = ReadCounts()
    block = group_steps(steps([0, 1, 5, 6, 8, 9], ".T.UU."), counts)
    assert outline(block) == [([0, 1, 1], [0, 10], "T", 0), ([5, 6], [50], "U", 0)]
    assert counts == ReadCounts(final_obs_repeated=1, final_steps_dropped=3, trajectories_dropped=2)


def test_an_end_that_is_not_recorded_stays_open_where_nothing_is_missing() -> None:
    block = group_steps(steps([0, 1], "..", new_obs=column([1, 2])), ReadCounts())
    assert outline(block) == [([0, 1, 2], [0, 10], "", 0)]


def test_a_row_that_does_not_continue_breaks_the_trajectory() -> None:
    counts = ReadCounts()
    block = group_steps(steps([0, 1, 5, 6], "...T", new_obs=column([1, 2, 6, 7])), counts)
    assert outline(block) == [([0, 1, 2], [0, 10], "", 0), ([5, 6, 7], [50, 60], "T", 0)]
    assert counts == ReadCounts(breaks=1)
    nan = np.array([[1.0], [np.nan], [2.0]])
    same = Steps({"obs": np.array([[0.0], [1.0], [np.nan]]), "actions": np.zeros(3), "rewards": np.zeros(3)},
                 np.zeros(3, bool), np.zeros(3, bool), nan)  # fmt: skip
    assert len(group_steps(same, ReadCounts())) == 1


def test_rows_of_several_episodes_may_lie_between_each_other() -> None:
    ids, t = np.array(["b", "a", "b", "a", "b"]), np.array([0, 3, 1, 4, 2])
    given_steps = steps([0, 5, 1, 6, 2], "...TT", episode_ids=ids, t=t, new_obs=column([1, 6, 2, 7, 3]))
    block = group_steps(given_steps, ReadCounts())
    assert outline(block) == [([0, 1, 2, 3], [0, 10, 20], "T", 0), ([5, 6, 7], [50, 60], "T", 3)]
    assert block.episode_ids == ["b", "a"]


def test_rows_of_an_episode_may_be_in_any_order() -> None:
    t = np.array([2, 0, 1])
    block = group_steps(steps([2, 0, 1], "T..", episode_ids=np.array([7, 7, 7]), t=t), ReadCounts())
    assert outline(block) == [([0, 1, 2, 2], [0, 10, 20], "T", 0)]


def test_two_episodes_of_one_id_are_told_apart() -> None:
    ids, t = np.array([1, 1, 1, 1]), np.array([0, 1, 0, 1])
    block = group_steps(steps([0, 1, 5, 6], ".T.T", episode_ids=ids, t=t), ReadCounts())
    assert block.episode_ids == ["1", "1~1"]
    gap = group_steps(steps([0, 1, 5, 6], "....", episode_ids=ids, t=np.array([0, 1, 4, 5]),
                            new_obs=column([1, 2, 6, 7])), ReadCounts())  # fmt: skip
    assert (gap.episode_ids, gap.t_started.tolist()) == (["1", "1"], [0, 4])


def test_segments_do_not_continue_each_other() -> None:
    block = group_steps(steps([0, 1, 2, 3], "....", segments=np.array([0, 0, 1, 1]), new_obs=column([1, 2, 3, 4])),
                        ReadCounts())  # fmt: skip
    assert [len(episode) for episode in block] == [2, 2]


def test_ids_that_are_made_are_those_of_the_same_data() -> None:
    first, second = (group_steps(steps([0, 1, 5, 6], ".T.T"), ReadCounts()).episode_ids for _ in range(2))
    assert first == second
    assert len(set(first)) == 2


def test_infos_follow_their_rows() -> None:
    infos = [{"x": i} for i in range(4)]
    block = group_steps(steps([0, 1, 5, 6], "TT.U", infos=infos), ReadCounts())
    assert [episode.get_infos() for episode in block] == [[infos[0], {}], [infos[1], {}], [infos[2], {}]]


def test_no_rows() -> None:
    block = group_steps(Steps({"obs": np.zeros((0, 2)), "actions": np.zeros(0), "rewards": np.zeros(0)},
                              np.zeros(0, bool), np.zeros(0, bool)), ReadCounts())  # fmt: skip
    assert (len(block), block.columns["obs"].shape) == (0, (0, 2))


@st.composite
def recorded(draw: st.DrawFn) -> tuple[list[list[tuple[int, int]]], list[str], list[tuple[int, int]]]:
    """Episodes (their rows as (episode, t)), how each ends, and all rows in an order that keeps each episode's."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    ends = [draw(st.sampled_from("TU.")) for _ in lengths]
    left = [[(e, t) for t in range(length)] for e, length in enumerate(lengths)]
    rows: list[tuple[int, int]] = []
    queue = [list(one) for one in left]
    while any(queue):
        rows.append(draw(st.sampled_from([one for one in queue if one])).pop(0))
    return left, ends, rows


@given(recorded(), st.booleans(), st.booleans())
def test_grouping_is_what_a_loop_finds(made: Any, has_next: bool, shuffles: bool) -> None:
    episodes, ends, rows = made
    if shuffles:
        rows = sorted(rows, key=lambda row: (row[1] * 7 + row[0] * 3) % 5)
    value = {row: row[0] * 100 + row[1] for one in episodes for row in one}
    done = "".join(ends[e] if t == len(episodes[e]) - 1 else "." for e, t in rows)
    new_obs = column([value[row] + 1 for row in rows]) if has_next else None
    ids, t = np.array([f"e{e}" for e, _ in rows]), np.array([t for _, t in rows])
    counts = ReadCounts()
    block = group_steps(steps([value[row] for row in rows], done, episode_ids=ids, t=t, new_obs=new_obs), counts)
    expected = {}
    for e, one in enumerate(episodes):
        obs = [float(value[row]) for row in one]
        end = ends[e] if ends[e] != "." else ""
        if has_next:
            obs.append(obs[-1] + 1)
        elif end == "T":
            obs.append(obs[-1])
        else:
            end = "U"
        if len(obs) > 1:
            expected[f"e{e}"] = (obs, [int(10 * x) for x in [value[row] for row in one][: len(obs) - 1]], end, 0)
    assert dict(zip(block.episode_ids, outline(block), strict=True)) == expected
    assert counts.breaks == 0
    assert counts.trajectories_dropped == len(episodes) - len(expected)
