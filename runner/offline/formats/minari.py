"""Minari data sets: a folder each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs import minari
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.file_kinds import FileKind
from runner.offline.files.input_files import InputFiles
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import FileFormat
from runner.offline.formats.selection import Selection

MINARI = FileKind("minari", "Minari", recognises_folder=minari.recognises)


@dataclass(frozen=True)
class MinariFormat(FileFormat):
    """A folder with a description, and HDF5 or Arrow files."""

    name = "minari"
    kinds = (MINARI,)
    has_env_actions = True

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        """See `RecordedFormat`."""
        info = minari.read_info(data.where)
        has_spaces = spaces.observation is not None or spaces.action is not None
        return cls(selection, spaces if has_spaces else info.spaces, info.env_name)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        """See `RecordedFormat`."""
        assert files is not None
        for path in files.paths:
            for block in minari.blocks(path, counts=counts, with_infos=self.selection.with_infos):
                yield self.selection.block(block)
