"""A buffer of recorded episodes, sampled as fragments that know their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runner.episodes.columns import ColumnBlock, InfoRows, Rollout
from runner.replay.replay_buffer import REPLAYED, ReplayBuffer

# Columns of the ring: number of a step's chunk, and index of the step in the chunk.
_CHUNK, _STEP = "$chunk", "$step"


@dataclass(frozen=True)
class _Origin:
    """The origin of a chunk's steps; `end` is the row after its last observation."""

    block: ColumnBlock
    index: int
    end: int


class EpisodeReplayBuffer:
    """Keeps the newest env steps of episodes, and samples fragments uniformly by their first steps.

    Unlike samples of `ReplayBuffer`, fragments have the ids, time steps and infos of their episodes, which learner
    connectors may read. Chunks of the same episode are not joined. To sample differently, write a subclass
    (`offline.prelearner_buffer_class`).

    Args:
        capacity: maximum number of env steps; the last observation of a chunk also counts.
        batch_length_T: env steps of a fragment; fewer at the end of a chunk.

    Raises:
        ValueError: a capacity below 2, or a length below 1.
    """

    def __init__(self, capacity: int = 10_000, batch_length_T: int = 1) -> None:  # noqa: N803 - RLlib's name
        self._replay = ReplayBuffer(capacity, batch_length_T)
        self.capacity, self.fragment_length = capacity, batch_length_T
        self._origins: dict[int, _Origin] = {}  # origins of the chunks with rows in the ring, by number, oldest first
        self._num_chunks = self._num_rows = 0

    @property
    def num_env_steps(self) -> int:
        """Env steps in the buffer."""
        return len(self._replay)

    def add(self, block: ColumnBlock) -> None:
        """Add the episode chunks of a block."""
        numbers = np.arange(self._num_chunks, self._num_chunks + len(block))
        columns = {
            **block.columns,
            _CHUNK: np.repeat(numbers, block.lengths),
            _STEP: np.arange(block.num_rows) - np.repeat(block.offsets[:-1], block.lengths),
        }
        names, start = [str(number) for number in numbers.tolist()], np.zeros(len(block), np.int64)
        own = replace(block, columns=columns, episode_ids=names, t_started=start, lookback=None, infos=None)
        self._replay.add(Rollout({block.module_id: own}, block.num_rows))
        ends = self._num_rows + np.cumsum(block.lengths + 1)
        origin = replace(block, columns={}, lookback=None)
        for index, (number, end) in enumerate(zip(numbers.tolist(), ends.tolist(), strict=True)):
            self._origins[number] = _Origin(origin, index, end)
        self._num_chunks, self._num_rows = self._num_chunks + len(block), int(ends[-1])
        self._forget_chunks()

    def _forget_chunks(self) -> None:
        """Forget the chunks whose rows have all left the ring."""
        oldest = self._num_rows - self.capacity
        gone = [number for number, origin in self._origins.items() if origin.end <= oldest]
        for number in gone:
            del self._origins[number]

    def sample(self, num_env_steps: int, stream: np.random.Generator) -> ColumnBlock:
        """Sample fragments with replacement.

        Args:
            num_env_steps: exact number of env steps in all; the last fragment is shortened to fit.
            stream: source of random numbers.

        Raises:
            ValueError: the buffer is empty.
        """
        self._replay.use_stream(stream)
        (block,) = self._replay.sample(num_env_steps).rollout.blocks.values()
        columns = {name: column for name, column in block.columns.items() if name not in (_CHUNK, _STEP, *REPLAYED)}
        first_rows = block.offsets[:-1]
        origins = [self._origins[number] for number in block.columns[_CHUNK][first_rows].tolist()]
        starts = block.columns[_STEP][first_rows]
        return replace(
            block,
            columns=columns,
            episode_ids=[origin.block.episode_ids[origin.index] for origin in origins],
            t_started=starts + np.array([origin.block.t_started[origin.index] for origin in origins]),
            infos=_InfosOfFragments(origins, starts.tolist()),
        )


class _InfosOfFragments(InfoRows):
    """Infos of fragments, read from the blocks of their origin."""

    def __init__(self, origins: Sequence[_Origin], starts: Sequence[int]) -> None:
        self._origins, self._starts = origins, starts

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        origin, start = self._origins[chunk], self._starts[chunk]
        infos = origin.block.infos
        rows = None if infos is None else infos.rows_of(origin.index, start + num_rows)
        return None if rows is None else rows[start:]
