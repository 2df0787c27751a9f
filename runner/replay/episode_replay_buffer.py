"""A buffer of whole episodes, sampled as fragments."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import ColumnBlock, concat_blocks, take_chunks, take_fragments


class EpisodeReplayBuffer:
    """The newest episodes up to so many env steps; sampled are fragments of them, uniformly over their first steps.

    Subclass it to sample otherwise (`offline.prelearner_buffer_class`).

    Args:
        capacity: env steps that are kept; whole episodes leave, the oldest first, but never the newest.
        batch_length_T: env steps of a fragment; one that reaches its episode's end is shorter.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, capacity: int = 10_000, batch_length_T: int = 1) -> None:  # noqa: N803 - RLlib's name
        for name, value in (("capacity", capacity), ("batch_length_T", batch_length_T)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer of 1 or more, got {value!r}")
        self.capacity = capacity
        self.fragment_length = batch_length_T
        self._blocks: deque[ColumnBlock] = deque()
        self._num_left_out = 0  # of the oldest block's episodes

    @property
    def num_env_steps(self) -> int:
        """Env steps in the buffer."""
        if not self._blocks:
            return 0
        return sum(block.num_rows for block in self._blocks) - int(self._blocks[0].lengths[: self._num_left_out].sum())

    def add(self, block: ColumnBlock) -> None:
        """Add the episode chunks of a block."""
        self._blocks.append(block)
        excess = self.num_env_steps - self.capacity
        while excess > 0 and (len(self._blocks) > 1 or self._num_left_out < len(self._blocks[0]) - 1):
            excess -= int(self._blocks[0].lengths[self._num_left_out])
            self._num_left_out += 1
            if self._num_left_out == len(self._blocks[0]):
                self._blocks.popleft()
                self._num_left_out = 0

    def sample(self, num_env_steps: int, stream: np.random.Generator) -> ColumnBlock:
        """Fragments with exactly so many env steps in all, with replacement.

        Args:
            num_env_steps: the last fragment is cut so that it fits.
            stream: of random numbers.

        Raises:
            ValueError: the buffer is empty.
        """
        if not self._blocks:
            raise ValueError("an empty buffer cannot be sampled")
        oldest, *others = self._blocks
        block = concat_blocks([take_chunks(oldest, self._num_left_out), *others])
        offsets = block.offsets
        fragments: list[npt.NDArray[np.int64]] = []  # (3, F): chunk, first step, length
        missing = num_env_steps
        while missing > 0:
            rows = stream.integers(block.num_rows, size=-(-missing // self.fragment_length))
            chunks = np.searchsorted(offsets, rows, side="right") - 1
            starts = rows - offsets[chunks]
            lengths = np.minimum(self.fragment_length, block.lengths[chunks] - starts)
            lengths = np.minimum(lengths, missing - np.cumsum(lengths) + lengths)
            fragments.append(np.stack([chunks, starts, lengths])[:, lengths > 0])
            missing -= int(fragments[-1][2].sum())
        return take_fragments(block, *np.concatenate(fragments, axis=1))
