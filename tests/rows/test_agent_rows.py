"""The rows of two agents that take turns, written down by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.episodes.columns import ACTIONS, OBS, REWARDS, ColumnBlock
from runner.rows.agent_rows import AgentRows

A, B = 0, 1


def make_rows(num_lookback: int = 0) -> AgentRows:
    """Rows of agents a and b in one sub-environment; observations are single numbers."""
    return AgentRows("m", ["a", "b"], 1, np.zeros(1, np.float32), np.zeros((), np.int64), "run", num_lookback)


def slots(*numbers: int) -> Any:
    return np.array(numbers)


def begin(rows: AgentRows, slot: int, obs: float, t: int, number: int = 0) -> None:
    rows.begin(slots(slot), np.array([[obs]], np.float32), slots(t), slots(number))


def act(rows: AgentRows, slot: int, action: int) -> None:
    rows.act(slots(slot), {ACTIONS: np.array([action])})


def reward(rows: AgentRows, slot: int, value: float, number: int = 0) -> None:
    rows.add_rewards(slots(slot), np.array([value]), slots(number))


def observe(rows: AgentRows, slot: int, obs: float, t: int) -> None:
    rows.observe(slots(slot), np.array([[obs]], np.float32), slots(t))


def end(rows: AgentRows, slot: int, terminated: bool, truncated: bool) -> None:
    rows.end(slots(slot), np.array([terminated]), np.array([truncated]))


def contents(block: ColumnBlock) -> list[dict[str, Any]]:
    """The chunks in plain values."""
    return [
        {
            "id": chunk.id_,
            "t": chunk.t_started,
            OBS: chunk.get_observations().reshape(-1).tolist(),
            ACTIONS: chunk.get_actions().tolist(),
            REWARDS: chunk.get_rewards().tolist(),
            "ends": (chunk.is_terminated, chunk.is_truncated),
        }
        for chunk in block
    ]


def test_a_restored_step_does_not_end_like_an_earlier_one_in_its_row() -> None:
    rows, waiting = make_rows(), make_rows()
    for store in (rows, waiting):
        begin(store, A, 10, t=0)
        act(store, A, 1)
    observe(rows, A, 11, t=1)
    end(rows, A, terminated=True, truncated=False)
    waiting.cut()
    rows.set_state(waiting.get_state())
    observe(rows, A, 12, t=1)
    expected = {"id": "run-0-0-a", "t": 0, OBS: [10, 12], ACTIONS: [1], REWARDS: [0], "ends": (False, False)}
    assert contents(rows.cut().block) == [expected]


def test_two_agents_take_turns_over_a_cut() -> None:
    rows = make_rows()
    begin(rows, A, 10, t=0)
    act(rows, A, 1)
    reward(rows, A, 1.0)
    reward(rows, B, 5.0)  # before its first observation: for its first action
    begin(rows, B, 20, t=1)
    act(rows, B, 2)
    reward(rows, A, 2.0)  # while it waits: for the action that it waits for
    observe(rows, A, 11, t=2)
    act(rows, A, 3)

    first = rows.cut().block  # b waits, so it has no row yet; neither has the second action of a
    assert contents(first) == [{"id": "run-0-0-a", "t": 0, OBS: [10, 11], ACTIONS: [1], REWARDS: [3], "ends": (0, 0)}]
    assert first.agents is not None
    assert first.agents.env_t.tolist() == [0, 2]

    reward(rows, B, 7.0)
    observe(rows, B, 21, t=3)
    observe(rows, A, 12, t=3)
    end(rows, A, terminated=False, truncated=True)
    end(rows, B, terminated=True, truncated=False)
    second = rows.cut().block
    assert contents(second) == [
        {"id": "run-0-0-a", "t": 1, OBS: [11, 12], ACTIONS: [3], REWARDS: [0], "ends": (False, True)},
        {"id": "run-0-0-b", "t": 0, OBS: [20, 21], ACTIONS: [2], REWARDS: [12], "ends": (True, False)},
    ]
    assert second.agents is not None
    assert second.agents.env_t.tolist() == [2, 3, 1, 3]


def test_two_episodes_of_an_agent_in_one_fragment_stay_apart() -> None:
    rows = make_rows()
    for number in (0, 1):
        begin(rows, A, 10 * number, t=0, number=number)
        act(rows, A, number)
        reward(rows, A, 1.0 + number, number)
        observe(rows, A, 10 * number + 1, t=1)
        end(rows, A, terminated=True, truncated=False)
        rows.end_env(0)
    block = rows.cut().block
    assert contents(block) == [
        {"id": "run-0-0-a", "t": 0, OBS: [0, 1], ACTIONS: [0], REWARDS: [1], "ends": (True, False)},
        {"id": "run-0-1-a", "t": 0, OBS: [10, 11], ACTIONS: [1], REWARDS: [2], "ends": (True, False)},
    ]


def test_an_agent_that_ends_unseen_repeats_its_last_observation() -> None:
    rows = make_rows()
    begin(rows, A, 10, t=0)
    act(rows, A, 1)
    reward(rows, A, -1.0)
    rows.repeat_last(slots(A), slots(4))
    end(rows, A, terminated=True, truncated=False)
    block = rows.cut().block
    assert contents(block) == [
        {"id": "run-0-0-a", "t": 0, OBS: [10, 10], ACTIONS: [1], REWARDS: [-1], "ends": (True, False)}
    ]


def test_rewards_of_an_agent_that_never_came_end_with_the_env_episode() -> None:
    rows = make_rows()
    reward(rows, B, 5.0)
    rows.end_env(0)
    begin(rows, B, 20, t=0, number=1)
    act(rows, B, 1)
    observe(rows, B, 21, t=1)
    block = rows.cut().block
    assert contents(block)[0][REWARDS] == [0]


def test_a_fragment_in_which_nobody_finished_a_step_is_empty() -> None:
    rows = make_rows(num_lookback=2)
    begin(rows, A, 10, t=0)
    for _ in range(3):
        block = rows.cut().block
        assert len(block) == 0
    act(rows, A, 1)
    assert len(rows.cut().block) == 0
    observe(rows, A, 11, t=5)
    assert contents(rows.cut().block) == [
        {"id": "run-0-0-a", "t": 0, OBS: [10, 11], ACTIONS: [1], REWARDS: [0], "ends": (False, False)}
    ]
