"""Record episodes by joining the chunks that an env runner samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, REWARDS, Column, ColumnBlock, ListedInfos
from runner.offline.writing.writer import EpisodeWriter, WriteReport
from runner.rows.to_record import ToRecord

BoolArray = npt.NDArray[np.bool_]
# Additional column of multi-agent chunks: env time steps of the observations.
ENV_T = "\0env_t"
_OBS_ROWS = (OBS, ENV_T)


@dataclass(frozen=True)
class Recorded:
    """Report of recorded data and of episodes that are left out.

    Attributes:
        report: files that are complete.
        num_unfinished: episodes that have not ended.
        num_incomplete: incomplete episodes, whose start or end is missing.
    """

    report: WriteReport
    num_unfinished: int
    num_incomplete: int = 0

    def __add__(self, other: Recorded) -> Recorded:
        return Recorded(
            self.report + other.report,
            self.num_unfinished + other.num_unfinished,
            self.num_incomplete + other.num_incomplete,
        )

    def __str__(self) -> str:
        report = self.report
        size = f" in {report.size_text}" if report.files or not report.episodes else ""
        counts = ((self.num_unfinished, "unfinished"), (self.num_incomplete, "incomplete"))
        left_out = ", ".join(f"{count:,} {kind}" for count, kind in counts if count)
        episodes = f"{report.episodes:,} episode{'' if report.episodes == 1 else 's'}"
        text = f"{episodes}, {report.steps:,} step{'' if report.steps == 1 else 's'}{size}"
        return f"{text} (left out: {left_out})" if left_out else text


@dataclass(frozen=True)
class RecordedChunk:
    """A chunk of one agent's episode.

    Attributes:
        columns: `obs` and `ENV_T` have shape (T + 1, ...), others (T, ...).
        length: T.
        infos: T + 1 infos for the rows of `obs`, or None if all are empty.
    """

    columns: Mapping[str, Column]
    length: int
    infos: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, block: ColumnBlock, chunk: int, copies: bool) -> RecordedChunk:
        """Extract a chunk of a block, as a copy or as views."""
        length, start = int(block.lengths[chunk]), int(block.offsets[chunk])
        rows, obs_rows = slice(start, start + length), slice(start + chunk, start + chunk + length + 1)
        taken = block.columns if block.agents is None else {**block.columns, ENV_T: block.agents.env_t}
        columns = {name: nested.take(column, obs_rows if name in _OBS_ROWS else rows) for name, column in taken.items()}
        if copies:
            columns = {name: nested.map_leaves(np.copy, column) for name, column in columns.items()}
        return cls(columns, length, block.infos.rows_of(chunk, length + 1) if block.infos else None)

    @classmethod
    def joined(cls, parts: Sequence[RecordedChunk]) -> RecordedChunk:
        """Join the consecutive chunks of one episode."""
        if len(parts) == 1:
            return parts[0]
        columns = joined_columns([parts], parts[-1].columns)
        return cls(columns, sum(part.length for part in parts), _infos_of(parts))

    def rows_of(self, name: str, is_last: bool) -> Column:
        """Return a column. The last observation is only included if this is the episode's last chunk."""
        column = self.columns[name]
        return nested.take(column, slice(self.length)) if name in _OBS_ROWS and not is_last else column

    def infos_of(self, is_last: bool) -> list[dict[str, Any]]:
        """Return the infos for the rows of `obs`."""
        num_rows = self.length + is_last
        return [{} for _ in range(num_rows)] if self.infos is None else self.infos[:num_rows]


class EpisodeRecorder:
    """Joins the chunks of episodes over fragments, and writes each episode when it ends.

    Args:
        writer: writer of this env runner.
    """

    def __init__(self, writer: EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[str, list[RecordedChunk]] = {}
        self._num_incomplete = 0

    def add(self, block: ColumnBlock, is_recorded: BoolArray | None = None) -> None:
        """Record the chunks of a fragment. Episodes whose start was not recorded are left out.

        Args:
            block: chunks of one module. Its arrays may be reused afterwards.
            is_recorded: (E,) chunks to record, or None for all.

        Raises:
            RunFailure: an ended episode cannot be written.
        """
        ended: list[tuple[int, list[RecordedChunk]]] = []
        has_ended = (block.is_terminated | block.is_truncated).tolist()
        has_begun = (block.t_started > 0).tolist()
        for chunk, id_ in enumerate(block.episode_ids):
            if is_recorded is not None and not is_recorded[chunk]:
                continue
            if has_begun[chunk] and id_ not in self._open:
                self._num_incomplete += has_ended[chunk]
                continue
            parts = self._open.setdefault(id_, [])
            parts.append(RecordedChunk.of(block, chunk, copies=not has_ended[chunk]))
            if has_ended[chunk]:
                ended.append((chunk, self._open.pop(id_)))
        if ended:
            self._writer.add(_joined(block, ended))

    def add_sample(self, blocks: Sequence[ColumnBlock], to_record: ToRecord) -> None:
        """Record the blocks of a sample of simulators. Raises the errors of `add`."""
        for block in blocks:
            tasks = to_record.tasks.get(block.module_id)
            self.add(replace(block, tasks=tasks), to_record.is_complete[block.module_id])
        self.leave_out(to_record.aborted)

    def leave_out(self, ids: Iterable[str]) -> None:
        """Leave out episodes without further chunks, which may be open or not recorded at all."""
        for id_ in ids:
            self._open.pop(id_, None)
            self._num_incomplete += 1

    def leave_out_all(self) -> None:
        """Leave out all open episodes."""
        self.leave_out(list(self._open))

    def forget_open(self) -> None:
        """Forget the open episodes without counting them."""
        self._open.clear()

    def put_on_disk(self) -> Recorded:
        """Finish the files, and return a report of the recorded data.

        Raises:
            RunFailure: the data cannot be written.
        """
        return Recorded(self._writer.put_on_disk(), len(self._open), self._num_incomplete)

    def get_open(self) -> dict[str, dict[str, Column]]:
        """Return the recorded columns of unfinished episodes by id, without infos."""
        self._open = {id_: [RecordedChunk.joined(parts)] for id_, parts in self._open.items()}
        return {id_: dict(part.columns) for id_, (part,) in self._open.items()}

    def set_open(self, episodes: Mapping[str, Mapping[str, Column]]) -> None:
        """Continue the episodes returned by `get_open`."""
        self._open = {id_: [RecordedChunk(columns, len(columns[REWARDS]))] for id_, columns in episodes.items()}

    def close(self) -> Recorded:
        """Finish the files."""
        num_open = len(self._open)
        self._open.clear()
        return Recorded(self._writer.close(), num_open, self._num_incomplete)

    def abort(self) -> None:
        """Discard data that are not in a complete file."""
        self._writer.abort()


def _joined(block: ColumnBlock, episodes: Sequence[tuple[int, Sequence[RecordedChunk]]]) -> ColumnBlock:
    """Make a block with one chunk per episode; `episodes` are its last chunk in `block` and all recorded chunks."""
    last = [chunk for chunk, _ in episodes]
    every = [parts for _, parts in episodes]
    return replace(
        block,
        columns=joined_columns(every, block.columns),
        lengths=np.array([sum(part.length for part in parts) for parts in every], np.int64),
        is_terminated=block.is_terminated[last],
        is_truncated=block.is_truncated[last],
        t_started=np.zeros(len(every), np.int64),
        episode_ids=[block.episode_ids[chunk] for chunk in last],
        tasks=None if block.tasks is None else [block.tasks[chunk] for chunk in last],
        lookback=None,
        infos=joined_infos(every),
    )


def joined_columns(episodes: Sequence[Sequence[RecordedChunk]], names: Iterable[str]) -> dict[str, Column]:
    """Return the columns of episodes of which all consecutive chunks are given."""
    return {
        name: nested.concatenate([part.rows_of(name, part is parts[-1]) for parts in episodes for part in parts])
        for name in names
    }


def joined_infos(episodes: Sequence[Sequence[RecordedChunk]]) -> ListedInfos | None:
    """Return the infos of these episodes, or None without infos."""
    if not any(part.infos for parts in episodes for part in parts):
        return None
    return ListedInfos([_infos_of(parts) for parts in episodes])


def _infos_of(parts: Sequence[RecordedChunk]) -> list[dict[str, Any]] | None:
    rows = [info for part in parts for info in part.infos_of(part is parts[-1])]
    return rows if any(rows) else None
