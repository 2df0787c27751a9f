"""Replay buffers: the newest experiences of all modules, from which train batches are sampled.

Dimension letters: B sampled rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.algorithms import Schedule
from runner.config.errors import Problem, RunFailure
from runner.config.schedules import scheduled_value
from runner.episodes.columns import ColumnBlock, Rollout
from runner.replay.priority_tree import PriorityTree
from runner.replay.row_ring import RowRing, Rows
from runner.streams import restore_stream, stream_state

# Column of prioritised samples: importance weights, at most 1.
WEIGHTS = "weights"
_SMALLEST_ERROR = 1e-6
_MARKS = 256


@dataclass(frozen=True)
class Replayed:
    """Sampled experiences.

    Attributes:
        rollout: the steps.
        rows: module id -> (B,) the rows of the buffer in which its chunks begin.
    """

    rollout: Rollout
    rows: Mapping[str, Rows]


class ReplayBuffer:
    """Samples uniformly from the newest steps of each module.

    Args:
        capacity: env steps of each module that are kept; last observations of episodes count, too.
        batch_length_T: env steps of a sampled chunk, fewer where its episode ends.
        n_step: env steps that the reward of a sampled transition sums up, or the lowest and the highest such number,
            between which each transition draws its own; chunks of several steps have 1.
        gamma: discount within this sum.

    Raises:
        ValueError: a number out of its bounds.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        batch_length_T: int = 1,  # noqa: N803 - RLlib's name
        n_step: int | Sequence[int] = 1,
        gamma: float = 1.0,
    ) -> None:
        steps = [n_step] if isinstance(n_step, int) else list(n_step)
        for name, value, least in [
            ("capacity", capacity, 2),  # a step has two observations
            ("batch_length_T", batch_length_T, 1),
            *(("n_step", n, 1) for n in steps),
        ]:
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of {least} or more, got {value!r}")
        if not isinstance(gamma, (int, float)) or not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be a number from 0 to 1, got {gamma!r}")
        if not 1 <= len(steps) <= 2 or steps[0] > steps[-1]:
            raise ValueError(f"n_step must be a number, or the lowest and the highest one, got {n_step!r}")
        if batch_length_T > 1 and steps != [1]:
            raise ValueError(f"chunks of batch_length_T {batch_length_T} have n_step 1, got {n_step!r}")
        self.capacity, self.fragment_length = capacity, batch_length_T
        self._n_step, self._gamma = (steps[0], steps[-1]), gamma
        self._rings: dict[str, RowRing] = {}
        self._num_samples = 0
        self._marks: deque[tuple[int, int]] = deque()  # rows written by the end of an addition, and samples before it
        self._stream = np.random.default_rng(0)

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw from `stream` from now on; a run gives each buffer its own."""
        self._stream = stream

    # -- experiences -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the env steps that can be sampled, of the module with the fewest."""
        return min((ring.num_env_steps for ring in self._rings.values()), default=0)

    def add(self, rollout: Rollout) -> None:
        """Write the experiences of all modules."""
        for module_id, block in rollout.blocks.items():
            if module_id not in self._rings:
                self._add_module(module_id)
            self._write(module_id, block)
        written = sum(ring.num_written for ring in self._rings.values())
        if not self._marks or written - self._marks[-1][0] >= self.capacity // _MARKS:
            self._marks.append((written, self._num_samples))

    def _add_module(self, module_id: str) -> None:
        self._rings[module_id] = RowRing(self.capacity, module_id)

    def _write(self, module_id: str, block: ColumnBlock) -> None:
        self._rings[module_id].add(block)

    def sample(self, num_env_steps: int, num_env_steps_sampled: int = 0) -> Replayed:
        """Sample chunks with so many env steps of each module, with replacement.

        Args:
            num_env_steps: exactly; the last chunk is cut so that it fits.
            num_env_steps_sampled: by the run so far, for schedules.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self._rings:
            raise ValueError("an empty buffer cannot be sampled")
        self._num_samples += 1
        blocks, rows = {}, {}
        for module_id, ring in self._rings.items():
            if ring.num_env_steps:
                blocks[module_id], rows[module_id] = self._sample_module(
                    module_id, num_env_steps, num_env_steps_sampled
                )
        return Replayed(Rollout(blocks, num_env_steps), rows)

    def _sample_module(self, module_id: str, num_env_steps: int, num_sampled: int) -> tuple[ColumnBlock, Rows]:
        ring = self._rings[module_id]
        if self.fragment_length == 1:
            rows = ring.draw(num_env_steps, self._stream)
            return self._transitions(ring, rows), rows
        return self._fragments(ring, num_env_steps)

    def _fragments(self, ring: RowRing, num_env_steps: int) -> tuple[ColumnBlock, Rows]:
        parts: list[Rows] = []  # (2, F): first row, steps
        missing = num_env_steps
        while missing > 0:
            rows = ring.draw(-(-missing // self.fragment_length), self._stream)
            lengths = ring.n_steps(rows, self.fragment_length).num_steps
            lengths = np.minimum(lengths, missing - np.cumsum(lengths) + lengths)
            parts.append(np.stack((rows, lengths))[:, lengths > 0])
            missing -= int(parts[-1][1].sum())
        rows, lengths = np.concatenate(parts, 1)
        return ring.fragments(rows, lengths), rows

    def _transitions(self, ring: RowRing, rows: Rows) -> ColumnBlock:
        lowest, highest = self._n_step
        if lowest == highest:
            return ring.transitions(rows, highest, self._gamma)
        return ring.transitions(rows, self._stream.integers(lowest, highest + 1, len(rows)), self._gamma)

    # -- what is kept ------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, float | int | None]:
        """Return what the buffer holds."""
        rings = self._rings.values()
        return {
            "capacity": self.capacity,
            "num_env_steps": sum(ring.num_env_steps for ring in rings),
            "num_bytes": sum(ring.num_bytes for ring in rings),
            "age_of_oldest": self._age_of_oldest(),
        }

    def _age_of_oldest(self) -> int:
        """Return how many samples were drawn since the oldest row was written, to 1 part in 256 of the capacity."""
        oldest = sum(ring.oldest for ring in self._rings.values())
        while len(self._marks) > 1 and self._marks[0][0] <= oldest:
            self._marks.popleft()
        return self._num_samples - self._marks[0][1] if self._marks else 0

    def get_state(self) -> dict[str, Any]:
        """Return the experiences, the stream and counters, as plain values and arrays."""
        return {
            "modules": {module_id: self._module_state(module_id) for module_id in self._rings},
            "stream": stream_state(self._stream),
            "num_samples": self._num_samples,
            "marks": [list(mark) for mark in self._marks],
        }

    def _module_state(self, module_id: str) -> dict[str, Any]:
        return {"ring": self._rings[module_id].get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state` of a buffer with the same arguments."""
        for module_id, of_module in state["modules"].items():
            self._add_module(module_id)
            self._load_module(module_id, of_module)
        restore_stream(self._stream, state["stream"])
        self._num_samples = int(state["num_samples"])
        self._marks = deque((int(written), int(samples)) for written, samples in state["marks"])

    def _load_module(self, module_id: str, state: Mapping[str, Any]) -> None:
        self._rings[module_id].load(state["ring"])


class PrioritizedReplayBuffer(ReplayBuffer):
    """Samples transitions in proportion to their priorities (Schaul et al., 2016, https://arxiv.org/abs/1511.05952).

    Priorities are p^alpha with p = |TD error| (3.3, proportional); new transitions have the highest priority so far.
    Samples have a column `weights` (B,) float32: (N P(i))^-beta over the largest one of the sample (3.4).

    Args:
        capacity, n_step, gamma: see `ReplayBuffer`.
        alpha: how much priorities count; 0 samples uniformly.
        beta: how much of the bias is corrected; a number, or a schedule over env steps.

    Raises:
        ValueError: a number out of its bounds.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        n_step: int | Sequence[int] = 1,
        gamma: float = 1.0,
        alpha: float = 0.6,
        beta: Schedule = 0.4,
    ) -> None:
        super().__init__(capacity, 1, n_step, gamma)
        if not isinstance(alpha, (int, float)) or alpha < 0:
            raise ValueError(f"alpha must be a number of 0 or more, got {alpha!r}")
        try:
            values = [scheduled_value(beta, int(step)) for step in (0, *(step for step, _ in _points_of(beta)))]
        except (TypeError, ValueError):
            values = [-1.0]
        if min(values) < 0:
            raise ValueError(f"beta must be 0 or more, or [[env steps, value], ...], got {beta!r}")
        self._alpha, self._beta = alpha, beta
        self._trees: dict[str, PriorityTree] = {}
        self._highest: dict[str, float] = {}

    def _add_module(self, module_id: str) -> None:
        super()._add_module(module_id)
        self._trees[module_id], self._highest[module_id] = PriorityTree(self.capacity), 1.0

    def _write(self, module_id: str, block: ColumnBlock) -> None:
        ring = self._rings[module_id]
        before = ring.num_written
        rows = ring.add(block)
        written = np.arange(max(before, ring.oldest), ring.num_written)  # not all have a step
        priorities = np.zeros(len(written) + len(rows))
        priorities[len(written) :] = self._highest[module_id]
        self._trees[module_id].set(ring.place(np.concatenate((written, rows))), priorities)

    def _sample_module(self, module_id: str, num_env_steps: int, num_sampled: int) -> tuple[ColumnBlock, Rows]:
        ring, tree = self._rings[module_id], self._trees[module_id]
        places = tree.draw(num_env_steps, self._stream)
        rows = ring.row_at(places)
        block = self._transitions(ring, rows)
        shares = tree.priorities[places] * (ring.num_env_steps / tree.total)
        weights = shares ** -scheduled_value(self._beta, num_sampled)
        columns = {**block.columns, WEIGHTS: (weights / weights.max()).astype(np.float32)}
        return replace(block, columns=columns), rows

    def update_priorities(self, module_id: str, rows: Rows, td_errors: npt.NDArray[Any]) -> None:
        """Set the priorities of rows (B,) that were sampled; rows that others have taken the place of are left out.

        Raises:
            RunFailure: there are not as many errors as rows.
        """
        if rows.shape != td_errors.shape:
            what = f"module {module_id} has {len(td_errors)} errors for {len(rows)} replayed rows"
            raise RunFailure(
                Problem(what, "algorithm.plan", allowed="an error for each replayed row, and no other rows")
            )
        ring = self._rings[module_id]
        has_step = ring.has_step(rows)
        rows, errors = rows[has_step], np.abs(td_errors[has_step].astype(np.float64))
        if len(rows):
            priorities = (errors + _SMALLEST_ERROR) ** self._alpha
            self._highest[module_id] = max(self._highest[module_id], float(priorities.max()))
            self._trees[module_id].set(ring.place(rows), priorities)

    def metrics(self) -> dict[str, float | int | None]:
        """Return what the buffer holds, and the mean priority."""
        total = sum(tree.total for tree in self._trees.values())
        num_rows = sum(ring.num_env_steps for ring in self._rings.values())
        return super().metrics() | {"mean_priority": total / num_rows if num_rows else None}

    def _module_state(self, module_id: str) -> dict[str, Any]:
        priorities = self._trees[module_id].priorities[: len(self._rings[module_id])].copy()
        return super()._module_state(module_id) | {"priorities": priorities, "highest": self._highest[module_id]}

    def _load_module(self, module_id: str, state: Mapping[str, Any]) -> None:
        super()._load_module(module_id, state)
        priorities = np.asarray(state["priorities"])
        self._trees[module_id].set(np.arange(len(priorities)), priorities)
        self._highest[module_id] = float(state["highest"])


def _points_of(schedule: Schedule) -> Sequence[Sequence[float]]:
    return schedule if isinstance(schedule, list) else []
