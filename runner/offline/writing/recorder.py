"""Recording: whole episodes out of the chunks that an env runner samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, REWARDS, Column, ColumnBlock
from runner.offline.writing.writer import EpisodeWriter, WriteReport
from runner.rows.to_record import ToRecord

BoolArray = npt.NDArray[np.bool_]
# Column of a part beside its data: env time steps of its observations, with several agents.
ENV_T = "\0env_t"
_OBS_ROWS = (OBS, ENV_T)


@dataclass(frozen=True)
class Recorded:
    """What has been recorded, and how many episodes are left out.

    Attributes:
        report: what is on disk.
        num_unfinished: episodes that have not ended.
        num_broken_off: episodes whose beginning or end never came.
    """

    report: WriteReport
    num_unfinished: int
    num_broken_off: int = 0

    def __add__(self, other: Recorded) -> Recorded:
        return Recorded(
            self.report + other.report,
            self.num_unfinished + other.num_unfinished,
            self.num_broken_off + other.num_broken_off,
        )

    def __str__(self) -> str:
        report = self.report
        size = f" in {report.size_text}" if report.files or not report.episodes else ""
        left_out = f"; {self.num_unfinished} that had not ended are left out" if self.num_unfinished else ""
        left_out += f"; {self.num_broken_off} without beginning or end are left out" if self.num_broken_off else ""
        return f"{report.episodes:,} episodes, {report.steps:,} steps{size}{left_out}"


@dataclass(frozen=True)
class RecordedChunk:
    """A part of an episode of one agent.

    Attributes:
        columns: `obs` and `ENV_T` (T + 1, ...), the others (T, ...).
        length: T.
        infos: T + 1, of the rows of `obs`; None: all empty.
    """

    columns: Mapping[str, Column]
    length: int
    infos: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, block: ColumnBlock, chunk: int, copies: bool) -> RecordedChunk:
        """Take a chunk of a block, as a copy or as views."""
        length, start = int(block.lengths[chunk]), int(block.offsets[chunk])
        rows, obs_rows = slice(start, start + length), slice(start + chunk, start + chunk + length + 1)
        taken = block.columns if block.agents is None else {**block.columns, ENV_T: block.agents.env_t}
        columns = {name: nested.take(column, obs_rows if name in _OBS_ROWS else rows) for name, column in taken.items()}
        if copies:
            columns = {name: nested.map_leaves(np.copy, column) for name, column in columns.items()}
        return cls(columns, length, block.infos.rows_of(chunk, 0, length + 1) if block.infos else None)

    @classmethod
    def joined(cls, parts: Sequence[RecordedChunk]) -> RecordedChunk:
        """Join the parts of one episode, in their order; infos are left out."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            name: nested.concatenate([part.rows_of(name, part is parts[-1]) for part in parts])
            for name in parts[-1].columns
        }
        return cls(columns, sum(part.length for part in parts))

    def rows_of(self, name: str, is_last: bool) -> Column:
        """Return a column; of observations, the last one only if the part is the episode's last."""
        column = self.columns[name]
        return nested.take(column, slice(self.length)) if name in _OBS_ROWS and not is_last else column

    def infos_of(self, is_last: bool) -> list[dict[str, Any]]:
        """Return infos of the same rows as `obs`."""
        num_rows = self.length + is_last
        return [{} for _ in range(num_rows)] if self.infos is None else self.infos[:num_rows]


class EpisodeRecorder:
    """Joins the chunks of episodes, which end and go on over fragments, and writes an episode when it has ended.

    Args:
        writer: of this runner.
    """

    def __init__(self, writer: EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[str, list[RecordedChunk]] = {}
        self._num_broken_off = 0

    def add(self, block: ColumnBlock, is_recorded: BoolArray | None = None) -> None:
        """Take the chunks of a fragment; an episode whose beginning was not taken is left out.

        Args:
            block: its arrays may be reused afterwards.
            is_recorded: (E,) which chunks count; None: all.

        Raises:
            RunFailure: what has ended cannot be written.
        """
        ended: list[tuple[int, list[RecordedChunk]]] = []
        has_ended = (block.is_terminated | block.is_truncated).tolist()
        has_begun = (block.t_started > 0).tolist()
        for chunk, id_ in enumerate(block.episode_ids):
            if is_recorded is not None and not is_recorded[chunk]:
                continue
            if has_begun[chunk] and id_ not in self._open:
                self._num_broken_off += has_ended[chunk]
                continue
            parts = self._open.setdefault(id_, [])
            parts.append(RecordedChunk.of(block, chunk, copies=not has_ended[chunk]))
            if has_ended[chunk]:
                ended.append((chunk, self._open.pop(id_)))
        if ended:
            self._writer.add(_joined(block, ended))

    def add_sample(self, blocks: Sequence[ColumnBlock], to_record: ToRecord) -> None:
        """Take the block of a sample of simulators; raises as `add` does."""
        for block in blocks:
            tasks = to_record.tasks.get(block.module_id)
            self.add(replace(block, tasks=tasks), to_record.is_whole[block.module_id])
        self.break_off(to_record.broken_off)

    def break_off(self, ids: Iterable[str]) -> None:
        """Leave out episodes that are open, or were never taken: nothing more comes of them."""
        for id_ in ids:
            self._open.pop(id_, None)
            self._num_broken_off += 1

    def break_off_all(self) -> None:
        """Leave out all episodes that are open."""
        self.break_off(list(self._open))

    def drop_open(self) -> None:
        """Forget the episodes that are open: they do not count."""
        self._open.clear()

    def put_on_disk(self) -> Recorded:
        """Finish the files; what was recorded until now.

        Raises:
            RunFailure: it cannot be written.
        """
        return Recorded(self._writer.put_on_disk(), len(self._open), self._num_broken_off)

    def get_open(self) -> dict[str, dict[str, Column]]:
        """Return what was taken of the episodes that have not ended: id -> columns, without infos."""
        self._open = {id_: [RecordedChunk.joined(parts)] for id_, parts in self._open.items()}
        return {id_: dict(part.columns) for id_, (part,) in self._open.items()}

    def set_open(self, episodes: Mapping[str, Mapping[str, Column]]) -> None:
        """Go on with the episodes that `get_open` returned."""
        self._open = {id_: [RecordedChunk(columns, len(columns[REWARDS]))] for id_, columns in episodes.items()}

    def close(self) -> Recorded:
        """Finish the files."""
        num_open = len(self._open)
        self._open.clear()
        return Recorded(self._writer.close(), num_open, self._num_broken_off)

    def abort(self) -> None:
        """Drop what is in no whole file yet."""
        self._writer.abort()


def _joined(block: ColumnBlock, episodes: Sequence[tuple[int, Sequence[RecordedChunk]]]) -> ColumnBlock:
    """Make a block with one chunk an episode, of the parts of all episodes that end with these chunks of a block."""
    last = [chunk for chunk, _ in episodes]
    every = [parts for _, parts in episodes]
    columns = {
        name: nested.concatenate([part.rows_of(name, part is parts[-1]) for parts in every for part in parts])
        for name in block.columns
    }
    return replace(
        block,
        columns=columns,
        lengths=np.array([sum(part.length for part in parts) for parts in every], np.int64),
        is_terminated=block.is_terminated[last],
        is_truncated=block.is_truncated[last],
        t_started=np.zeros(len(every), np.int64),
        episode_ids=[block.episode_ids[chunk] for chunk in last],
        tasks=None if block.tasks is None else [block.tasks[chunk] for chunk in last],
        lookback=None,
        infos=JoinedInfos(every) if any(part.infos for parts in every for part in parts) else None,
    )


class JoinedInfos:
    """Infos of joined episodes."""

    def __init__(self, episodes: Sequence[Sequence[RecordedChunk]]) -> None:
        self._episodes = episodes

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return `num_rows` infos of an episode's observations after `num_before` empty ones; None: all empty."""
        parts = self._episodes[chunk]
        rows: list[dict[str, Any]] = [{} for _ in range(num_before)]
        for part in parts:
            rows += part.infos_of(part is parts[-1])
        return rows if any(rows) else None
