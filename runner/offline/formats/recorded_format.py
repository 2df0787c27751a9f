"""Base classes of the formats of recorded data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, Self

import pyarrow as pa

from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.layout import Layout, Spaces
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError, DataLocation, data_error
from runner.offline.files.input_files import FileKind, InputFiles
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawReader, RawTable
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.selection import Selection


class Row(Enum):
    """Content of one row of a format."""

    EPISODE = "episode"
    STEP = "step"
    BATCH = "batch"


@dataclass(frozen=True)
class RecordedFormat(ABC):
    """Format of opened data: knows their layout and decodes them. Can be pickled.

    To add a format, override `open` and either `decode` (for data with rows) or `blocks`, and add the class to
    `registry.FORMATS`.

    Attributes:
        name: name in reports, records and messages.
        kinds: kinds of files that can hold this format.
        row: content of a row, or None if the data do not have rows.
        has_env_actions: whether actions are recorded in the environment's units.
        reads_one_module: whether blocks only have the steps of `selection.of_module` instead of all recorded agents.
        selection: columns to read.
        spaces: spaces given by the caller or recorded with the data.
        env_name: recorded name of the environment.
        layout: layout of the decoded columns if it is recorded, or None if it is inferred from the first block.
        has_trajectories: whether rows form trajectories. If not, each row is an episode of one step.
        has_final_obs: whether the observation after a trajectory's last step is recorded.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[FileKind, ...]]
    row: ClassVar[Row | None] = None
    has_env_actions: ClassVar[bool] = False
    reads_one_module: ClassVar[bool] = False

    selection: Selection
    spaces: Spaces = field(default_factory=Spaces)
    env_name: str | None = None
    layout: Layout | None = None
    has_trajectories: bool = True
    has_final_obs: bool = True

    # -- opening ---------------------------------------------------------------------------------------------------

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        """Return whether data in one of `kinds` have this format; by default, True. Raises `DataError` if damaged."""
        return True

    @classmethod
    @abstractmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        """Read the recorded metadata.

        Args:
            data: data of this format.
            selection: columns to read.
            spaces: known spaces of the environment.

        Raises:
            DataError: columns are missing, or the files are inconsistent.
        """

    @classmethod
    def reader_of(cls, data: RawData) -> RawReader | None:
        """Return the reader of the rows, or None if the data do not have rows."""
        return None if cls.row is None else data.reader

    def narrowed(self, selection: Selection) -> Self:
        """Return the format with fewer columns."""
        layout = None if self.layout is None else selection.layout(self.layout)
        return replace(self, selection=selection, layout=layout)

    # -- reading ---------------------------------------------------------------------------------------------------

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        """Yield the episodes in blocks of bounded size, with complete trajectories if possible.

        Args:
            files: files to read if the data do not have rows.
            tables: rows with the columns of `file_columns`; empty if the data do not have rows.
            counts: updated with the trajectories and steps left out.

        Raises:
            DataError: the data are damaged or do not match earlier data. Names the file, row and column.
        """
        for table, place in tables:
            yield from (block for block in self.decode(table, place, counts) if len(block))

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> list[ColumnBlock]:
        """Decode the episodes in raw rows to one block per module. Raises `DataError`.

        Trajectories of steps are cut at the table's ends.
        """
        raise NotImplementedError(f"data of the format {self.name} do not have rows")

    def file_columns(self, schema: pa.Schema) -> list[str] | None:
        """Return the columns to read from files, or None for all."""
        return None

    @property
    def has_complete_rows(self) -> bool:
        """Whether rows can be decoded independently of each other."""
        return self.row is Row.EPISODE

    # -- records ----------------------------------------------------------------------------------------

    def sizes(self, reader: ParquetReader) -> Mapping[str, int]:
        """Return the content of Parquet files from little data: `num_rows`, or `num_episodes` and `num_steps`."""
        return {"num_rows": reader.num_rows}

    def no_steps(self, place: DataLocation) -> DataError:
        """Return the error for data without a complete step, or without steps of the module's agents."""
        if self.selection.of_module is not None:
            return self.selection.of_module.no_rows((), place)
        return data_error("these data do not contain a complete step", place)


def completed(given: Spaces, recorded: Spaces) -> Spaces:
    """Return the given spaces, with missing ones replaced by the recorded ones."""
    return Spaces(given.observation or recorded.observation, given.action or recorded.action)
