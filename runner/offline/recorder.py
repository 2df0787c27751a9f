"""Recording: whole episodes out of the chunks that an env runner samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, Column, ColumnBlock
from runner.offline.writer import EpisodeWriter, WriteReport

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Recorded:
    """What has been recorded, and how many episodes had not ended and are left out."""

    report: WriteReport
    num_unfinished: int

    def __add__(self, other: Recorded) -> Recorded:
        return Recorded(self.report + other.report, self.num_unfinished + other.num_unfinished)

    def __str__(self) -> str:
        report = self.report
        size = f"{len(report.files)} file{'s' if len(report.files) > 1 else ''}, {report.num_bytes / 1e6:,.1f} MB"
        left_out = f"; {self.num_unfinished} that had not ended are left out" if self.num_unfinished else ""
        return f"{report.episodes:,} episodes, {report.steps:,} steps in {size}{left_out}"


@dataclass(frozen=True)
class _Part:
    """One chunk of a block."""

    block: ColumnBlock
    chunk: int

    @property
    def length(self) -> int:
        return int(self.block.lengths[self.chunk])

    def column(self, name: str, is_last: bool) -> Column:
        """Its rows; of observations, the last one only if the part is the episode's last."""
        start = int(self.block.offsets[self.chunk])
        if name != OBS:
            return nested.take(self.block.columns[name], slice(start, start + self.length))
        start += self.chunk
        return nested.take(self.block.columns[name], slice(start, start + self.length + is_last))

    def infos(self, is_last: bool) -> list[dict[str, Any]] | None:
        """Of the same rows as `obs`."""
        rows = self.block.infos.rows_of(self.chunk, 0, self.length + 1) if self.block.infos else None
        return rows if rows is None or is_last else rows[:-1]


class EpisodeRecorder:
    """Joins the chunks of episodes, which end and go on over fragments, and writes an episode when it has ended.

    Args:
        writer: of this runner.
    """

    def __init__(self, writer: EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[str, list[_Part]] = {}

    def add(self, block: ColumnBlock, is_recorded: BoolArray | None = None) -> None:
        """Take the chunks of a fragment.

        Args:
            block: its arrays are kept until the episodes have ended.
            is_recorded: (E,) which chunks count; None: all.

        Raises:
            RunFailure: what has ended cannot be written.
        """
        ended: list[list[_Part]] = []
        has_ended = (block.is_terminated | block.is_truncated).tolist()
        for chunk, id_ in enumerate(block.episode_ids):
            if is_recorded is not None and not is_recorded[chunk]:
                continue
            parts = self._open.setdefault(id_, [])
            parts.append(_Part(block, chunk))
            if has_ended[chunk]:
                ended.append(self._open.pop(id_))
        if ended:
            self._writer.add(_joined(ended))

    def close(self) -> Recorded:
        """Finish the files."""
        num_open = len(self._open)
        self._open.clear()
        return Recorded(self._writer.close(), num_open)

    def abort(self) -> None:
        """Drop what is in no whole file yet."""
        self._writer.abort()


def _joined(episodes: Sequence[Sequence[_Part]]) -> ColumnBlock:
    """A block with one chunk an episode."""
    blocks = [parts[-1].block for parts in episodes]
    last = [parts[-1].chunk for parts in episodes]
    columns = {
        name: nested.concatenate([part.column(name, part is parts[-1]) for parts in episodes for part in parts])
        for name in blocks[0].columns
    }
    return replace(
        blocks[0],
        columns=columns,
        lengths=np.array([sum(part.length for part in parts) for parts in episodes], np.int64),
        is_terminated=np.array([block.is_terminated[chunk] for block, chunk in zip(blocks, last, strict=True)]),
        is_truncated=np.array([block.is_truncated[chunk] for block, chunk in zip(blocks, last, strict=True)]),
        t_started=np.array([parts[0].block.t_started[parts[0].chunk] for parts in episodes], np.int64),
        episode_ids=[block.episode_ids[chunk] for block, chunk in zip(blocks, last, strict=True)],
        lookback=None,
        infos=_JoinedInfos(episodes) if any(part.block.infos for parts in episodes for part in parts) else None,
    )


class _JoinedInfos:
    """Infos of joined episodes."""

    def __init__(self, episodes: Sequence[Sequence[_Part]]) -> None:
        self._episodes = episodes

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """`num_rows` infos of an episode's observations, preceded by `num_before` empty ones; None: all empty."""
        parts = self._episodes[chunk]
        rows: list[dict[str, Any]] = [{} for _ in range(num_before)]
        for part in parts:
            is_last = part is parts[-1]
            rows += part.infos(is_last) or [{} for _ in range(part.length + is_last)]
        return rows if any(rows) else None
