"""Recorded data of other libraries: D4RL, Minari and RLlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs import hdf5, minari, rllib_episodes, sample_batches
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.input_files import JSON, PARQUET, FileKind, InputFiles, check_kind
from runner.offline.files.raw_rows import RawReader, RawTable
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat, Row, completed
from runner.offline.formats.selection import Selection

HDF5 = FileKind("hdf5", "HDF5", (".h5", ".hdf5"), hdf5.SIGNATURE, is_binary=True)


@dataclass(frozen=True)
class D4RLFormat(RecordedFormat):
    """D4RL files: one array per field, with the steps of all episodes concatenated."""

    name = "hdf5"
    kinds = (HDF5,)
    has_env_actions = True

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        assert data.files is not None
        for path in data.files.paths:
            check_kind(data.files, path)
        return cls(selection, spaces)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        assert files is not None
        extra, with_infos = self.selection.columns, self.selection.with_infos
        for path in files.paths:
            with files.open_seekable(path) as file:
                for block in hdf5.blocks(file, name=path, counts=counts, with_infos=with_infos, extra=extra):
                    yield self.selection.block(block)


MINARI = FileKind("minari", "Minari", recognises_folder=minari.recognises)


@dataclass(frozen=True)
class MinariFormat(RecordedFormat):
    """Minari data set: a folder with a description and HDF5 or Arrow files."""

    name = "minari"
    kinds = (MINARI,)
    has_env_actions = True

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        info = minari.read_info(data.where)
        has_spaces = spaces.observation is not None or spaces.action is not None
        return cls(selection, spaces if has_spaces else info.spaces, info.env_name)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        assert files is not None
        for path in files.paths:
            for block in minari.blocks(path, counts=counts, with_infos=self.selection.with_infos):
                yield self.selection.block(block)


@dataclass(frozen=True)
class RLlibEpisodeFormat(RecordedFormat):
    """RLlib episodes, one msgpack value per row."""

    name = "rllib_episodes"
    kinds = (PARQUET,)
    row = Row.EPISODE

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        return rllib_episodes.recognises(data.schema)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        if data.first_rows.num_rows:
            spaces = completed(spaces, rllib_episodes.read_spaces(data.first_rows, DataLocation(data.where, 0)))
        return cls(selection, spaces)

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        return [self.selection.block(block) for block in rllib_episodes.decode_by_module(table, place, counts)]


@dataclass(frozen=True)
class SampleBatchFormat(RecordedFormat):
    """RLlib SampleBatches, as JSON lines with a type or as tables of lists."""

    name = "sample_batches"
    kinds = (PARQUET, JSON)
    row = Row.BATCH
    reads_one_module = True

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        return cls._are_lines(data) or (
            sample_batches.recognises_schema(data.schema) or data.config.input_read_sample_batches
        )

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        return cls(selection, spaces)

    @classmethod
    def reader_of(cls, data: RawData) -> RawReader:
        """See `RecordedFormat`. Arrow cannot parse lines with packed arrays."""
        if cls._are_lines(data):
            assert data.files is not None
            return SampleBatchReader(data.files)
        return data.reader

    @staticmethod
    def _are_lines(data: RawData) -> bool:
        """Return whether each line of a text file is a batch."""
        is_configured = data.config.input_read_sample_batches
        return len(data.head) > 0 and (is_configured or sample_batches.recognises(data.head))

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        module = self.selection.of_module
        block = sample_batches.decode(table, place, counts, None if module is None else module.module_id)
        block = self.selection.block(block)
        return [block if module is None else replace(block, module_id=module.module_id)]

    def no_steps(self, place: DataLocation) -> DataError:
        module = self.selection.of_module
        if module is None:
            return super().no_steps(place)
        what = f"no rows for module {module.module_id}: these MultiAgentBatches do not have a policy of this name"
        return data_error(what, place, fix="name the modules like the policies in multi_agent.agent_to_module")


class SampleBatchReader:
    """JSON lines of SampleBatches."""

    row_filter = None

    def __init__(self, files: InputFiles) -> None:
        self.files = files
        first = next(self.tables(), None)
        if first is None:
            raise data_error("this file does not contain any lines", DataLocation(files.paths[0]))
        self.schema = first[0].schema

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        for path in self.files.paths:
            try:
                with self.files.open_stream(path) as stream:
                    yield from sample_batches.read_tables(stream, DataLocation(path, 0, unit="line"))
            except OSError as error:
                raise data_error(f"a JSON file cannot be read: {first_line(error)}", DataLocation(path)) from None
