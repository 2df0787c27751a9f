"""Assembly of complete episodes from rollouts whose fragments split them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.block_state import block_from_state, block_to_state
from runner.episodes.columns import OBS, ColumnBlock, ListedInfos, Rollout, concat_blocks, row_ranges

IntArray = npt.NDArray[np.int64]


class EpisodeAssembler:
    """Keeps chunks until their episode has ended, and joins the chunks of each episode.

    An episode belongs to one agent. With several agents in an environment, each agent's episode is returned when it
    ends. If the first chunks of an episode were never added, it starts at its first added row. Lookback is omitted.
    """

    def __init__(self) -> None:
        self._running: dict[str, ColumnBlock] = {}
        self._num_env_steps = 0
        self._skip_journal_records: tuple[str, ...] = ()

    def add(self, rollout: Rollout) -> Rollout:
        """Add a rollout, and return the episodes that end with it.

        Returns:
            One chunk for each episode, in the order of first chunks; without blocks if no episode has ended. Its number
            of env steps excludes steps that were returned earlier or belong to running episodes.
        """
        ended: dict[str, ColumnBlock] = {}
        for module_id, block in rollout.blocks.items():
            self._add_block(module_id, block, ended)
        num_added = self._num_env_steps + rollout.num_env_steps
        num_ended = max(0, num_added - _num_env_steps(self._running.values()))
        self._num_env_steps = num_added - num_ended
        skip_journal_records = tuple(dict.fromkeys((*self._skip_journal_records, *rollout.skip_journal_records)))
        self._skip_journal_records = skip_journal_records if self._running else ()
        return Rollout(ended, num_ended, skip_journal_records)

    def _add_block(self, module_id: str, block: ColumnBlock, ended: dict[str, ColumnBlock]) -> None:
        """Put the module's ended episodes into `ended`, and hold the running ones."""
        running = self._running.pop(module_id, None)
        blocks = [part for part in (running, block) if part is not None and len(part)]
        if not blocks:
            return
        episodes = _Episodes.of(concat_blocks(blocks))
        for numbers, place in ((episodes.ended, ended), (~episodes.ended, self._running)):
            if numbers.any():
                place[module_id] = episodes.joined(np.flatnonzero(numbers))

    def drop(self, is_lost: Callable[[str], bool]) -> None:
        """Drop the running episodes that cannot continue.

        Args:
            is_lost: returns whether no more steps of the episode with an id will be added.
        """
        num_before = _num_env_steps(self._running.values())
        for module_id, block in list(self._running.items()):
            is_kept = np.array([not is_lost(id_) for id_ in block.episode_ids])  # one chunk per episode
            if not is_kept.any():
                del self._running[module_id]
            elif not is_kept.all():
                self._running[module_id] = _Episodes.of(block).joined(np.flatnonzero(is_kept))
        num_dropped = num_before - _num_env_steps(self._running.values())
        self._num_env_steps = max(0, self._num_env_steps - num_dropped)

    def get_state(self) -> dict[str, Any]:
        """Return the running episodes as arrays and plain values."""
        return {
            "running": {module_id: block_to_state(block) for module_id, block in self._running.items()},
            "num_env_steps": self._num_env_steps,
            "leave_out": list(self._skip_journal_records),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._running = {module_id: block_from_state(held) for module_id, held in state["running"].items()}
        self._num_env_steps = int(state["num_env_steps"])
        self._skip_journal_records = tuple(state["leave_out"])


@dataclass(frozen=True)
class _Episodes:
    """The chunks of a block grouped by episode, in the order of first chunks.

    Attributes:
        block: E chunks of U episodes.
        order: (E,) indices of chunks, sorted by episode, then by their order in the block.
        starts: (U + 1,) index in `order` at which each episode starts.
        ended: (U,) bool, whether the episode's last chunk is terminated or truncated.
    """

    block: ColumnBlock
    order: IntArray
    starts: IntArray
    ended: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, block: ColumnBlock) -> _Episodes:
        numbers: dict[str, int] = {}
        episode_of = np.array([numbers.setdefault(id_, len(numbers)) for id_ in block.episode_ids], np.int64)
        order = np.argsort(episode_of, kind="stable")
        starts = np.searchsorted(episode_of[order], np.arange(len(numbers) + 1))
        last = order[starts[1:] - 1]
        return cls(block, order, starts, block.is_terminated[last] | block.is_truncated[last])

    def joined(self, episodes: IntArray) -> ColumnBlock:
        """Return a block with one chunk for each of these episodes; columns are copied."""
        block, num_chunks = self.block, np.diff(self.starts)[episodes]
        chunks = self.order[row_ranges(self.starts[episodes], num_chunks)]
        ends = np.cumsum(num_chunks)
        first, last = chunks[ends - num_chunks], chunks[ends - 1]
        is_last = np.zeros(len(chunks), np.int64)
        is_last[ends - 1] = 1
        rows = row_ranges(block.offsets[chunks], block.lengths[chunks])
        # The last observation of a chunk is the first one of the next chunk.
        obs_rows = row_ranges(block.first_obs_rows[chunks], block.lengths[chunks] + is_last)
        return ColumnBlock(
            columns={
                name: nested.take(column, obs_rows if name == OBS else rows) for name, column in block.columns.items()
            },
            lengths=np.add.reduceat(block.lengths[chunks], ends - num_chunks),
            is_terminated=block.is_terminated[last],
            is_truncated=block.is_truncated[last],
            t_started=block.t_started[first],
            episode_ids=[block.episode_ids[chunk] for chunk in first.tolist()],
            infos=_joined_infos(block, np.split(chunks, ends[:-1])),
            module_id=block.module_id,
            agents=block.agents and block.agents.of_chunks(first.tolist(), obs_rows),
        )


def _joined_infos(block: ColumnBlock, episodes: Sequence[IntArray]) -> ListedInfos | None:
    if block.infos is None:
        return None
    by_chunk = [_infos_of_episode(block, chunks.tolist()) for chunks in episodes]
    return ListedInfos(by_chunk) if any(infos is not None for infos in by_chunk) else None


def _infos_of_episode(block: ColumnBlock, chunks: Sequence[int]) -> list[dict[str, Any]] | None:
    assert block.infos is not None
    infos: list[dict[str, Any]] = []
    for chunk in chunks:
        num_rows = int(block.lengths[chunk]) + (chunk == chunks[-1])
        infos += block.infos.rows_of(chunk, num_rows) or [{} for _ in range(num_rows)]
    return infos if any(infos) else None


def _num_env_steps(blocks: Iterable[ColumnBlock]) -> int:
    """Return the env steps that running episodes span; with several agents, from the first to the last step of any."""
    num_steps = 0
    spans: dict[str, tuple[int, int]] = {}
    for block in blocks:
        if block.agents is None:
            num_steps += block.num_rows
            continue
        first_rows = block.first_obs_rows
        first, last = block.agents.env_t[first_rows].tolist(), block.agents.env_t[first_rows + block.lengths].tolist()
        for id_, begin, end in zip(block.agents.multi_agent_episode_ids, first, last, strict=True):
            known_begin, known_end = spans.get(id_, (begin, end))
            spans[id_] = min(begin, known_begin), max(end, known_end)
    return num_steps + sum(end - begin for begin, end in spans.values())
