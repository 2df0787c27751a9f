"""A replay buffer that samples transitions in proportion to their errors.

Dimension letters: B sampled rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.algorithms import Schedule
from runner.config.errors import Problem, RunFailure
from runner.config.schedules import check_schedule, scheduled_value
from runner.episodes.columns import BURN_IN, ColumnBlock
from runner.fast.priority_tree import PriorityTree
from runner.replay.priority_log import PriorityLog
from runner.replay.replay_buffer import MEASURED_ROWS, ReplayBuffer, with_weights
from runner.replay.row_ring import Rows

_SMALLEST_ERROR = 1e-6
_SHARE_OF_LARGEST = 0.9

Floats = npt.NDArray[np.float64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """Samples transitions in proportion to their priorities (Schaul et al., 2016, https://arxiv.org/abs/1511.05952).

    The priority is p^alpha with the absolute TD error p (3.3, proportional). New transitions get the highest priority
    so far. Samples have a column `weights` (B,) float32: (N P(i))^-beta divided by the sample's maximum (3.4).

    A chunk of several steps is drawn by the priority of its first trained step, which an update sets by
    p = 0.9 max + 0.1 mean of the chunk's errors (Kapturowski et al., 2019, section 2.3 of
    https://openreview.net/forum?id=r1lyTjAqYX).

    Args:
        capacity, batch_length_T, n_step, gamma, burn_in_len: see `ReplayBuffer`.
        alpha: exponent of priorities; 0 samples uniformly.
        beta: degree of bias correction; a number, or a schedule over env steps.

    Raises:
        ValueError: a number is out of its bounds.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        batch_length_T: int = 1,  # noqa: N803 - RLlib's name
        n_step: int | Sequence[int] = 1,
        gamma: float = 1.0,
        burn_in_len: int = 0,
        alpha: float = 0.6,
        beta: Schedule = 0.4,
    ) -> None:
        super().__init__(capacity, batch_length_T, n_step, gamma, burn_in_len)
        if not isinstance(alpha, (int, float)) or alpha < 0:
            raise ValueError(f"alpha must be a non-negative number, got {alpha!r}")
        check_schedule("beta", beta, 0)
        self._alpha, self._beta = alpha, beta
        self._trees: dict[str, PriorityTree] = {}
        self._logs: dict[str, PriorityLog] = {}
        self._highest: dict[str, float] = {}

    def _add_module(self, module_id: str) -> None:
        super()._add_module(module_id)
        self._trees[module_id], self._highest[module_id] = PriorityTree(self.capacity), 1.0
        self._logs[module_id] = PriorityLog(self._trees[module_id])

    def _write(self, module_id: str, block: ColumnBlock) -> Rows:
        ring = self._rings[module_id]
        before = ring.num_written
        rows = super()._write(module_id, block)
        tree, oldest = self._trees[module_id], ring.oldest
        tree.set(ring.place(np.arange(max(before, oldest), ring.num_written)), 0.0)  # some do not have a step
        tree.set(ring.place(rows[rows >= oldest]), self._highest[module_id])
        return rows

    def _sample_module(self, module_id: str, num_env_steps: int, num_sampled: int) -> tuple[ColumnBlock, Rows]:
        ring, tree = self._rings[module_id], self._trees[module_id]

        def draw(missing: int) -> Rows:
            return ring.drawn(missing, lambda num_rows: ring.row_at(tree.draw(num_rows, self._stream)))

        block, rows = self._sampled(ring, num_env_steps, draw)
        shares = tree.priorities[ring.place(rows)] * (ring.num_env_steps / tree.total)
        weights = shares ** -scheduled_value(self._beta, num_sampled)
        weights = (weights / weights.max()).astype(np.float32)
        if not self.burn_in_len:
            return with_weights(block, weights), rows
        of_steps = np.zeros(block.num_rows, np.float32)
        of_steps[~block.columns[BURN_IN]] = weights
        return with_weights(block, of_steps), rows

    def update_priorities(self, module_id: str, rows: Rows, td_errors: npt.NDArray[Any]) -> None:
        """Set the priorities of drawn rows (B,); rows that were overwritten since are skipped.

        Args:
            module_id: module whose experiences they are.
            rows: rows of the sample; consecutive equal rows belong to one chunk.
            td_errors: TD errors (B,) of the update on the sample.

        Raises:
            RunFailure: the numbers of errors and rows differ, or an error is not finite.
        """
        errors = self.checked_errors(module_id, rows, td_errors)
        if self.fragment_length > 1:
            rows, errors = _of_chunks(rows, errors)
        ring = self._rings[module_id]
        has_step = ring.has_step(rows)
        if np.count_nonzero(has_step) < len(rows):
            rows, errors = rows[has_step], errors[has_step]
        if len(rows):
            priorities = (errors + _SMALLEST_ERROR) ** self._alpha
            self._highest[module_id] = max(self._highest[module_id], float(priorities.max()))
            self._trees[module_id].set(ring.place(rows), priorities)

    def checked_errors(self, module_id: str, rows: Rows, td_errors: npt.NDArray[Any]) -> Floats:
        """Return the absolute errors (B,) of rows (B,); see `update_priorities`."""
        if rows.shape != td_errors.shape:
            what = f"the update of module {module_id} returned {len(td_errors)} errors for {len(rows)} replayed rows"
            raise RunFailure(Problem(what, "algorithm.plan", expected="one error for each replayed row"))
        errors = np.abs(td_errors.astype(np.float64))
        is_finite = np.isfinite(errors)
        if np.count_nonzero(is_finite) < len(errors):
            what = f"the error of a replayed row of module {module_id} is not finite, so it cannot be a priority"
            got, expected = str(errors[~is_finite][0]), "finite numbers in the column of UpdatePriorities"
            raise RunFailure(Problem(what, "algorithm.plan", got, expected))
        return errors

    def row_bytes(self, module_id: str, block: ColumnBlock) -> float:
        """Return the bytes that an env step of a module takes, with its sums of priorities; see `ReplayBuffer`."""
        return super().row_bytes(module_id, block) + PriorityTree(MEASURED_ROWS).num_bytes / MEASURED_ROWS

    def _num_bytes(self) -> int:
        return super()._num_bytes() + sum(tree.num_bytes for tree in self._trees.values())

    def metrics(self) -> dict[str, float | int | None]:
        """Return the size of the buffer and the mean priority."""
        total = sum(tree.total for tree in self._trees.values())
        num_rows = sum(ring.num_env_steps for ring in self._rings.values())
        return super().metrics() | {"mean_priority": total / num_rows if num_rows else None}

    def _module_state(self, module_id: str) -> dict[str, Any]:
        priorities = self._logs[module_id].segments(len(self._rings[module_id]))
        return super()._module_state(module_id) | {"priorities": priorities, "highest": self._highest[module_id]}

    def _forget_modules(self) -> None:
        super()._forget_modules()
        self._trees, self._logs, self._highest = {}, {}, {}

    def _load_module(self, module_id: str, state: Mapping[str, Any]) -> None:
        super()._load_module(module_id, state)
        self._logs[module_id].load(state["priorities"])
        self._highest[module_id] = float(state["highest"])


def _of_chunks(rows: Rows, errors: Floats) -> tuple[Rows, Floats]:
    """Return the row of each chunk, and its error: mostly the maximum of its steps, and a little of their mean."""
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    means = np.add.reduceat(errors, starts) / np.diff(starts, append=len(rows))
    return rows[starts], _SHARE_OF_LARGEST * np.maximum.reduceat(errors, starts) + (1 - _SHARE_OF_LARGEST) * means
