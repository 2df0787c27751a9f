"""A buffer of whole episodes, sampled as fragments."""

from __future__ import annotations

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
        self._block: ColumnBlock | None = None

    @property
    def num_env_steps(self) -> int:
        """Env steps in the buffer."""
        return 0 if self._block is None else self._block.num_rows

    def add(self, block: ColumnBlock) -> None:
        """Add the episode chunks of a block."""
        merged = block if self._block is None else concat_blocks([self._block, block])
        newest_first = np.cumsum(merged.lengths[::-1])
        num_kept = max(1, int(np.searchsorted(newest_first, self.capacity, side="right")))
        self._block = merged if num_kept == len(merged) else take_chunks(merged, len(merged) - num_kept)

    def sample(self, num_env_steps: int, stream: np.random.Generator) -> ColumnBlock:
        """Fragments with exactly so many env steps in all, with replacement.

        Args:
            num_env_steps: the last fragment is cut so that it fits.
            stream: of random numbers.

        Raises:
            ValueError: the buffer is empty.
        """
        if self._block is None:
            raise ValueError("an empty buffer cannot be sampled")
        offsets = self._block.offsets
        fragments: list[npt.NDArray[np.int64]] = []  # (3, F): chunk, first step, length
        missing = num_env_steps
        while missing > 0:
            rows = stream.integers(self._block.num_rows, size=-(-missing // self.fragment_length))
            chunks = np.searchsorted(offsets, rows, side="right") - 1
            starts = rows - offsets[chunks]
            lengths = np.minimum(self.fragment_length, self._block.lengths[chunks] - starts)
            lengths = np.minimum(lengths, missing - np.cumsum(lengths) + lengths)
            fragments.append(np.stack([chunks, starts, lengths])[:, lengths > 0])
            missing -= int(fragments[-1][2].sum())
        return take_fragments(self._block, *np.concatenate(fragments, axis=1))
