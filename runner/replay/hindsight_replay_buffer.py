"""A replay buffer that replays steps with goals that their episodes reached.

Dimension letters: B sampled rows, L longest episode among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import OBS, REWARDS, Column, ColumnBlock
from runner.replay.goals import ACHIEVED, DESIRED, GoalJudge
from runner.replay.replay_buffer import ReplayBuffer
from runner.replay.row_ring import RowRing, Rows

STRATEGIES = ("future", "final", "episode")


class HindsightReplayBuffer(ReplayBuffer):
    """Replaces the goals of most sampled steps by goals achieved in their episode (Andrychowicz et al., 2017).

    Of k + 1 sampled steps k get another `desired_goal` in the observations before and after the step, with the reward
    and the end for this goal (https://arxiv.org/abs/1707.01495, section 3.2). The goal is drawn uniformly from the
    goals that the episode achieved after the step (`future`) or at any time (`episode`), or is the last one (`final`).
    If an episode is still running, or its beginning has left the buffer, only the stored observations count.

    Args:
        capacity: see `ReplayBuffer`.
        n_step: 1.
        gamma: without effect on single steps.
        goal_strategy: `future`, `final` or `episode`.
        num_sampled_goals: k, number of steps with another goal for each step with the original one.

    Raises:
        ValueError: a number is out of its bounds, or the strategy is unknown.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        n_step: int = 1,
        gamma: float = 1.0,
        goal_strategy: str = "future",
        num_sampled_goals: int = 4,
    ) -> None:
        if n_step != 1:
            raise ValueError(f"steps with other goals need n_step 1, got {n_step!r}")
        super().__init__(capacity, gamma=gamma)
        if goal_strategy not in STRATEGIES:
            raise ValueError(f"goal_strategy must be one of {', '.join(STRATEGIES)}, got {goal_strategy!r}")
        if not isinstance(num_sampled_goals, int) or num_sampled_goals < 0:
            raise ValueError(f"num_sampled_goals must be a non-negative integer, got {num_sampled_goals!r}")
        self._strategy = goal_strategy
        self._share = num_sampled_goals / (num_sampled_goals + 1)
        self._judge: GoalJudge | None = None

    def use_judge(self, judge: GoalJudge) -> None:
        """Set the object that computes rewards for other goals; call it before the first sample."""
        self._judge = judge

    def check_written(self, rows: Rows, columns: Mapping[str, Column], lengths: Rows | None) -> None:
        """Raise `ValueError` if the arguments of `write_columns` do not match, or contain rewards of other goals."""
        if REWARDS in columns:
            raise ValueError("rewards cannot be replaced, because sampled rewards may belong to other goals")
        super().check_written(rows, columns, lengths)

    def _new_ring(self, module_id: str, capacity: int) -> RowRing:
        ring = super()._new_ring(module_id, capacity)
        if self._strategy == "episode" and ring.num_lookback == 0:
            return RowRing(capacity, module_id, 1)  # with a lookback, so that it can find earlier rows
        return ring

    def _transitions(self, ring: RowRing, rows: Rows) -> ColumnBlock:
        block = ring.transitions(rows)
        changed = np.flatnonzero(self._stream.random(len(rows)) < self._share)
        return self._with_goals(ring, block, rows, changed) if len(changed) else block

    def _with_goals(self, ring: RowRing, block: ColumnBlock, rows: Rows, changed: npt.NDArray[np.int64]) -> ColumnBlock:
        """Return the transitions of `rows` (B,), with other goals at the indices `changed`."""
        assert self._judge is not None, "call use_judge before the first sample"
        observations: dict[str, Any] = dict(block.columns[OBS])
        goals = ring.columns[OBS][ACHIEVED][ring.place(self._goal_rows(ring, rows[changed]))]
        achieved = observations[ACHIEVED][2 * changed + 1]  # observations before and after a step alternate
        desired = observations[DESIRED] = observations[DESIRED].copy()
        desired[2 * changed] = desired[2 * changed + 1] = goals
        rewards = block.columns[REWARDS].copy()
        rewards[changed] = self._judge.rewards(achieved, goals)
        ends = self._judge.are_terminated(achieved, goals)
        changed_block = replace(block, columns={**block.columns, OBS: observations, REWARDS: rewards})
        if ends is None:
            return changed_block
        is_terminated, is_truncated = block.is_terminated.copy(), block.is_truncated.copy()
        is_truncated[changed] |= is_terminated[changed] & ~ends  # the episode ended, but the other goal is not reached
        is_terminated[changed] = ends
        is_truncated &= ~is_terminated
        return replace(changed_block, is_terminated=is_terminated, is_truncated=is_truncated)

    def _goal_rows(self, ring: RowRing, rows: Rows) -> Rows:
        """Draw, for each of the rows (B,), the row of the observation whose achieved goal replaces its goal."""
        after, num_after = ring.observations_after(rows)
        if self._strategy == "final":
            last: Rows = after[-1]
            return last
        if self._strategy == "episode":
            before, num_before = ring.observations_before(rows)
            drawn = self._draw_below(num_before + num_after)
            numbers = np.arange(len(rows))
            is_after = drawn < num_after
            of_before = before[np.where(is_after, 0, drawn - num_after), numbers]
            return np.where(is_after, after[np.where(is_after, drawn, 0), numbers], of_before)
        return after[self._draw_below(num_after), np.arange(len(rows))]

    def _draw_below(self, bounds: Rows) -> Rows:
        """Draw an integer from 0 up to, but excluding, each of the bounds (B,)."""
        return np.asarray(self._stream.random(len(bounds)) * bounds, np.int64)
