"""HDF5 files in D4RL's layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs import hdf5
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.file_kinds import FileKind
from runner.offline.files.input_files import InputFiles, check_kind
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import FileFormat
from runner.offline.formats.selection import Selection

HDF5 = FileKind("hdf5", "HDF5", (".h5", ".hdf5"), hdf5.SIGNATURE, is_binary=True)


@dataclass(frozen=True)
class D4RLFormat(FileFormat):
    """One array a field, with the steps of all episodes one after the other."""

    name = "hdf5"
    kinds = (HDF5,)
    has_env_actions = True

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        """See `RecordedFormat`."""
        assert data.files is not None
        for path in data.files.paths:
            check_kind(data.files, path)
        return cls(selection, spaces)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        """See `RecordedFormat`."""
        assert files is not None
        extra, with_infos = self.selection.columns, self.selection.with_infos
        for path in files.paths:
            with files.open_seekable(path) as file:
                for block in hdf5.blocks(file, name=path, counts=counts, with_infos=with_infos, extra=extra):
                    yield self.selection.block(block)
