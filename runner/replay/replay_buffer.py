"""Replay buffers: keep the newest experiences of all modules, and sample train batches from them.

Dimension letters: B sampled rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from runner.config.errors import ChoiceError
from runner.episodes import nested
from runner.episodes.columns import BURN_IN, REWARDS, Column, ColumnBlock, Rollout
from runner.replay.env_steps import EnvSteps
from runner.replay.row_ring import N_STEP, RowRing, Rows
from runner.segments import Segment, find_segments
from runner.streams import restore_stream, stream_state

# Column of samples: importance weights, at most 1; all 1 if sampling is uniform.
WEIGHTS = "weights"
# Columns of samples in addition to the recorded ones.
REPLAYED: Mapping[str, npt.DTypeLike] = {N_STEP: np.int64, WEIGHTS: np.float32}
_REPLAY_MODES = ("independent", "lockstep")
_MARKS = 256
MEASURED_ROWS = 4096


class BufferEmpty(ValueError):
    """The buffer is empty, so it cannot be sampled."""


@dataclass(frozen=True)
class Replayed:
    """Sampled experiences.

    Attributes:
        rollout: the sampled steps.
        rows: module id -> drawn row (B,) of each env step, at which the trained part of its chunk begins.
    """

    rollout: Rollout
    rows: Mapping[str, Rows]


class ReplayBuffer:
    """Samples uniformly from the newest steps of each module.

    Args:
        capacity: maximum number of env steps of each module; the last observation of an episode also counts.
        batch_length_T: env steps of a sampled chunk, fewer at the end of its episode.
        burn_in_len: maximum number of env steps before the first trained one, to warm up recurrent states; fewer at the
            start of its episode.
        n_step: env steps in the reward of a sampled transition, or a lowest and a highest number between which each
            transition draws. Chunks of several steps need 1.
        gamma: discount within this sum.
        replay_mode: `independent` samples each module separately; `lockstep` samples env steps, with the transitions of
            all acting agents in them.

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
        replay_mode: str = "independent",
    ) -> None:
        steps = [n_step] if isinstance(n_step, int) else list(n_step)
        for name, value, least in [
            ("capacity", capacity, 2),  # one step needs two observations
            ("batch_length_T", batch_length_T, 1),
            ("burn_in_len", burn_in_len, 0),
            *(("n_step", n, 1) for n in steps),
        ]:
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of {least} or more, got {value!r}")
        if not isinstance(gamma, (int, float)) or not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be a number from 0 to 1, got {gamma!r}")
        if not 1 <= len(steps) <= 2 or steps[0] > steps[-1]:
            raise ValueError(f"n_step must be a number, or the lowest and the highest one, got {n_step!r}")
        gives_chunks = batch_length_T > 1 or burn_in_len > 0
        lengths = f"batch_length_T {batch_length_T}, burn_in_len {burn_in_len}"
        if gives_chunks and steps != [1]:
            raise ValueError(f"chunks of several steps ({lengths}) need n_step 1, got {n_step!r}")
        if replay_mode not in _REPLAY_MODES:
            raise ChoiceError("replay_mode", replay_mode, _REPLAY_MODES)
        if replay_mode == "lockstep" and gives_chunks:
            raise ValueError(f"replay_mode lockstep needs batch_length_T 1 and no burn-in, got {lengths}")
        self.capacity, self.fragment_length, self.burn_in_len = capacity, batch_length_T, burn_in_len
        self.gives_chunks = gives_chunks
        self._num_lookback: Mapping[str, int] = {}
        self.n_step, self._gamma = (steps[0], steps[-1]), gamma
        self._rings: dict[str, RowRing] = {}
        self.env_steps = EnvSteps(self._rings, capacity) if replay_mode == "lockstep" else None
        self._num_samples = 0
        self._marks: deque[tuple[int, int]] = deque()  # rows written up to an addition, and samples before it
        self._stream = np.random.default_rng(0)
        self._exported: list[ref[Segment]] = []  # segments returned by `get_state` since the last change

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw from this random stream from now on; a run passes a separate one to each buffer."""
        self._stream = stream

    def use_lookback(self, num_lookback: Mapping[str, int]) -> None:
        """Set the number of steps to include before each sampled chunk by module id; call it before the first `add`."""
        self._num_lookback = num_lookback

    # -- experiences -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of env steps that can be sampled from the smallest module, or in lockstep."""
        if self.env_steps is not None:
            return len(self.env_steps)
        return min((ring.num_env_steps for ring in self._rings.values()), default=0)

    @property
    def module_ids(self) -> list[str]:
        """The modules with env steps in the buffer."""
        return [module_id for module_id, ring in self._rings.items() if ring.num_env_steps]

    @property
    def is_full(self) -> bool:
        """Whether the rows of a module, including last observations of episodes, reach the capacity."""
        return any(len(ring) == ring.capacity for ring in self._rings.values()) and len(self) > 0

    def add(self, rollout: Rollout) -> None:
        """Write the experiences of all modules."""
        if self._exported:
            self._keep_exported()
        rows = {}
        for module_id, block in rollout.blocks.items():
            if module_id not in self._rings:
                self._add_module(module_id)
            rows[module_id] = self._write(module_id, block)
        if self.env_steps is not None:
            self.env_steps.add(rollout.blocks, rows)
        written = sum(ring.num_written for ring in self._rings.values())
        if not self._marks or written - self._marks[-1][0] >= self.capacity // _MARKS:
            self._marks.append((written, self._num_samples))
            self._drop_old_marks()

    def _add_module(self, module_id: str) -> None:
        self._rings[module_id] = self._new_ring(module_id, self.capacity)

    def _new_ring(self, module_id: str, capacity: int) -> RowRing:
        # Burn-in starts from the recurrent state of the step before it.
        num_lookback = max(self._num_lookback.get(module_id, 0), min(self.burn_in_len, 1))
        return RowRing(capacity, module_id, num_lookback)

    def _write(self, module_id: str, block: ColumnBlock) -> Rows:
        """Write a block; return the rows (R,) of its env steps, including rows that are not stored."""
        return self._rings[module_id].add(block)

    def sample(self, num_env_steps: int, num_env_steps_sampled: int = 0) -> Replayed:
        """Sample chunks of each module, with replacement.

        Args:
            num_env_steps: exact number of env steps per module; the last chunk is shortened to fit.
            num_env_steps_sampled: env steps that the run has sampled so far, for schedules.

        Raises:
            BufferEmpty: the buffer is empty.
        """
        if not self._rings:
            raise BufferEmpty("an empty buffer cannot be sampled")
        self._num_samples += 1
        if self.env_steps is not None:
            return self._sample_in_step(self.env_steps, num_env_steps)
        blocks, rows = {}, {}
        for module_id, ring in self._rings.items():
            if ring.num_env_steps:
                blocks[module_id], rows[module_id] = self._sample_module(
                    module_id, num_env_steps, num_env_steps_sampled
                )
        return Replayed(Rollout(blocks, num_env_steps), rows)

    def _sample_module(self, module_id: str, num_env_steps: int, num_sampled: int) -> tuple[ColumnBlock, Rows]:
        ring = self._rings[module_id]
        block, rows = self._sampled(ring, num_env_steps, lambda missing: ring.draw(missing, self._stream))
        return with_weights(block, np.ones(block.num_rows, np.float32)), rows

    def _sample_in_step(self, env_steps: EnvSteps, num_env_steps: int) -> Replayed:
        lowest, highest = self.n_step
        steps = env_steps.draw(num_env_steps, self._stream)
        n_steps = self._stream.integers(lowest, highest + 1, num_env_steps)
        blocks, rows = {}, {}
        for module_id, ring in self._rings.items():
            found = env_steps.rows_of(module_id, steps)
            if len(found.rows):
                n_step = n_steps[found.draw]
                block = ring.transitions(found.rows, n_step, self._gamma)
                agents = env_steps.agents_of(module_id, found, ring.successors(ring.n_steps(found.rows, n_step).last))
                block = with_weights(replace(block, agents=agents), np.ones(len(block), np.float32))
                blocks[module_id], rows[module_id] = block, found.rows
        return Replayed(Rollout(blocks, num_env_steps), rows)

    def _sampled(self, ring: RowRing, num_env_steps: int, draw: Callable[[int], Rows]) -> tuple[ColumnBlock, Rows]:
        """Return a block of drawn chunks, and the drawn row (B,) of each of its B env steps to train on."""
        if not self.gives_chunks:
            rows = draw(num_env_steps)
            return self._transitions(ring, rows), rows
        rows, lengths = self._drawn_chunks(ring, num_env_steps, draw)
        drawn = np.repeat(rows, lengths)
        if self.burn_in_len == 0:
            return ring.fragments(rows, lengths), drawn
        first, num_burn_in = ring.step_back(rows, self.burn_in_len)
        block = ring.fragments(first, num_burn_in + lengths)
        is_burn_in = np.arange(block.num_rows) < np.repeat(block.offsets[:-1] + num_burn_in, block.lengths)
        return block.with_columns({BURN_IN: is_burn_in}), drawn

    def _drawn_chunks(self, ring: RowRing, num_env_steps: int, draw: Callable[[int], Rows]) -> tuple[Rows, Rows]:
        """Draw chunks up to a number of steps in all; return their first rows, and the number of steps of each."""
        parts: list[Rows] = []  # (2, F): first row, steps
        missing = num_env_steps
        while missing > 0:
            rows = draw(-(-missing // self.fragment_length))
            lengths = ring.n_steps(rows, self.fragment_length).num_steps
            lengths = np.minimum(lengths, missing - np.cumsum(lengths) + lengths)
            parts.append(np.stack((rows, lengths))[:, lengths > 0])
            missing -= int(parts[-1][1].sum())
        rows, lengths = np.concatenate(parts, 1)
        return rows, lengths

    def _transitions(self, ring: RowRing, rows: Rows) -> ColumnBlock:
        lowest, highest = self.n_step
        if lowest == highest:
            return ring.transitions(rows, highest, self._gamma)
        return ring.transitions(rows, self._stream.integers(lowest, highest + 1, len(rows)), self._gamma)

    def write_columns(
        self, module_id: str, rows: Rows, columns: Mapping[str, Column], lengths: Rows | None = None
    ) -> None:
        """Replace columns of sampled steps, such as latent states or rewards that a model has computed again.

        Overwritten steps are skipped, and so is a chunk whose first step has been overwritten. Of a step that was
        sampled twice, the later values count.

        Args:
            module_id: module whose experiences they are.
            rows: rows (B,) of the sample, from `Replayed.rows` or `Experiences.replay_rows`.
            columns: name of a recorded column, except `obs` -> new values (B, ...). `rewards` need n_step 1, because
                sampled rewards are otherwise sums over several steps.
            lengths: trained steps of each sampled chunk, which sum to B; None for chunks of one step.

        Raises:
            ValueError: a column is unknown or cannot be replaced, or shapes do not match.
        """
        self.check_written(rows, columns, lengths)
        if self._exported:
            self._keep_exported()
        ring = self._rings[module_id]
        if lengths is None:
            ring.replace(rows, columns)
            return
        number = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # of the step in its chunk
        ring.replace(ring.steps_after(rows, number), columns)

    def check_written(self, rows: Rows, columns: Mapping[str, Column], lengths: Rows | None) -> None:
        """Raise `ValueError` if the arguments of `write_columns` do not match."""
        if REWARDS in columns and self.n_step != (1, 1):
            raise ValueError(f"rewards cannot be replaced, because sampled rewards are sums over n_step {self.n_step}")
        if lengths is None and self.gives_chunks:
            raise ValueError("the buffer samples chunks of several steps, so `lengths` is needed")
        if lengths is not None and int(lengths.sum()) != len(rows):
            raise ValueError(f"lengths: {int(lengths.sum())} steps in all, but {len(rows)} rows")
        for name, column in columns.items():
            wrong = [len(leaf) for leaf in nested.leaves(column) if len(leaf) != len(rows)]
            if wrong:
                raise ValueError(f"column {name}: {wrong[0]} values, but {len(rows)} rows")

    # -- contents ----------------------------------------------------------------------------------------------------

    def row_bytes(self, module_id: str, block: ColumnBlock) -> float:
        """Return the bytes that an env step of a module takes, without storing any.

        Args:
            module_id: id of the module.
            block: experiences whose columns count.
        """
        ring = self._new_ring(module_id, MEASURED_ROWS)
        ring.allocate(block.columns)
        of_index = 0 if self.env_steps is None else self.env_steps.step_bytes(block)
        return ring.num_bytes / MEASURED_ROWS + of_index

    def metrics(self) -> dict[str, float | int | None]:
        """Return the contents of the buffer, of all modules together."""
        rings = self._rings.values()
        return {
            "capacity": self.capacity * max(1, len(rings)),
            "num_env_steps": sum(ring.num_env_steps for ring in rings),
            "num_bytes": self._num_bytes(),
            "age_of_oldest": self._age_of_oldest(),
        }

    def _num_bytes(self) -> int:
        of_index = 0 if self.env_steps is None else self.env_steps.num_bytes
        return sum(ring.num_bytes for ring in self._rings.values()) + of_index

    def _age_of_oldest(self) -> int:
        """Return the number of samples since the oldest row was written, to a precision of capacity / 256 rows."""
        self._drop_old_marks()
        return self._num_samples - self._marks[0][1] if self._marks else 0

    def _drop_old_marks(self) -> None:
        oldest = sum(ring.oldest for ring in self._rings.values())
        while len(self._marks) > 1 and self._marks[0][0] <= oldest:
            self._marks.popleft()

    def get_state(self, has_experiences: bool = True) -> dict[str, Any]:
        """Return the experiences, the stream and counters, as plain values, arrays and segments.

        Args:
            has_experiences: whether to include the experiences; a buffer restored without them is empty.
        """
        modules = {module_id: self._module_state(module_id) for module_id in self._rings} if has_experiences else {}
        self._exported += [ref(segment) for segment in find_segments(modules)]
        return {
            "has_experiences": has_experiences,
            "modules": modules,
            "stream": stream_state(self._stream),
            "num_samples": self._num_samples,
            "marks": [list(mark) for mark in self._marks] if has_experiences else [],
            "env_steps": self.env_steps.get_state() if self.env_steps is not None and has_experiences else None,
        }

    def _module_state(self, module_id: str) -> dict[str, Any]:
        return {"ring": self._rings[module_id].get_state()}

    def _keep_exported(self) -> None:
        """Copy the values of segments that are still in use, before they change."""
        for reference in self._exported:
            segment = reference()
            if segment is not None:
                segment.keep()
        self._exported = []

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state` of a buffer with the same arguments."""
        self._forget_modules()
        for module_id, of_module in state["modules"].items():
            self._add_module(module_id)
            self._load_module(module_id, of_module)
        if self.env_steps is not None and state["env_steps"] is not None:
            self.env_steps.set_state(state["env_steps"])
        restore_stream(self._stream, state["stream"])
        self._num_samples = int(state["num_samples"])
        self._marks = deque((int(written), int(samples)) for written, samples in state["marks"])

    def _forget_modules(self) -> None:
        self._rings.clear()
        if self.env_steps is not None:
            self.env_steps = EnvSteps(self._rings, self.capacity)

    def _load_module(self, module_id: str, state: Mapping[str, Any]) -> None:
        self._rings[module_id].set_state(state["ring"])

    def close(self) -> None:
        """Free resources other than memory."""


def with_weights(block: ColumnBlock, weights: npt.NDArray[np.float32]) -> ColumnBlock:
    """Return the block with column `weights` (R,)."""
    return block.with_columns({WEIGHTS: weights})
