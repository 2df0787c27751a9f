"""What every format of recorded data offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
    """What one row of a format is."""

    EPISODE = "episode"
    STEP = "step"
    BATCH = "batch"


@dataclass(frozen=True)
class RecordedFormat(ABC):
    """The format of some data that are opened: knows their layout, and decodes them. Can be pickled.

    A format of one's own is a subclass of `RowFormat` or `FileFormat`, and a line in `registry.FORMATS`.

    Attributes:
        name: in reports, records and messages.
        kinds: of files that data of this format are in.
        row: what a row is; None: there are no rows.
        has_env_actions: actions are recorded in the environment's units.
        reads_one_module: blocks have the steps of `selection.of_module` alone; false: of all agents that are recorded.
        selection: which columns are read.
        spaces: given, or recorded with the data.
        env_name: of the environment, where it is recorded.
        layout: of the decoded columns, where the files say it; None: the first block shows it.
        has_trajectories: rows belong to trajectories; false: to nothing, each is an episode of one step.
        has_final_obs: the observation after a trajectory's last step is recorded.
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
    @abstractmethod
    def recognises(cls, data: RawData) -> bool:
        """Return whether data in one of `kinds` are of this format; raises `DataError` where they are damaged."""

    @classmethod
    @abstractmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        """Read what the data say about themselves.

        Args:
            data: of this format.
            selection: the columns that are read.
            spaces: of the environment, as far as they are known.

        Raises:
            DataError: columns are missing, or files do not fit together.
        """

    @classmethod
    def reader_of(cls, data: RawData) -> RawReader | None:
        """Return the reader of the rows; None: there are no rows."""
        return data.reader

    def narrowed(self, selection: Selection) -> Self:
        """Return the format with fewer columns."""
        layout = None if self.layout is None else selection.layout(self.layout)
        return replace(self, selection=selection, layout=layout)

    # -- reading ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        """Yield the episodes, in blocks of bounded size; whole trajectories wherever the data allow it.

        Args:
            files: what is read, of data without rows.
            tables: the rows, with the columns that `file_columns` names; none of data without rows.
            counts: is added to.

        Raises:
            DataError: data that are damaged, or do not fit the data before; with file, row and column.
        """

    def decode(self, table: pa.Table, place: DataLocation, counts: ReadCounts) -> ColumnBlock:
        """Return the episodes in raw rows; trajectories of steps are cut at the table's ends; raises `DataError`."""
        raise NotImplementedError(f"data of the format {self.name} have no rows")

    def one_block(self, blocks: Sequence[ColumnBlock], place: DataLocation) -> ColumnBlock:
        """Return the episodes of `selection.of_module` in blocks of several modules; without it there is one block.

        Raises:
            DataError: there are several blocks and nobody says which episodes are read, or see `ModuleAgents.joined`.
        """
        if self.selection.of_module is not None:
            return self.selection.of_module.joined(blocks, place)
        if len(blocks) != 1:
            raise data_error(f"expected the rows of one module, got rows of {len(blocks)}", place)
        return blocks[0]

    def file_columns(self, schema: pa.Schema) -> list[str] | None:
        """Return the columns of the files that are read; None: all."""
        return None

    @property
    def has_whole_rows(self) -> bool:
        """Whether rows can be decoded in any order, and away from each other."""
        return self.row is Row.EPISODE

    # -- checks and records ----------------------------------------------------------------------------------------

    def check_rewards(self, reader: ParquetReader) -> None:  # noqa: B027 - not every format can tell
        """Refuse rewards that are not finite where one column tells; raises `DataError`."""

    def check_steps(self, reader: RawReader) -> None:  # noqa: B027 - only steps can be wrong
        """Refuse rows that cannot be put together to trajectories, by as few columns as it takes.

        Raises:
            DataError: see `TrajectoryAssembler`.
        """

    def sizes(self, reader: ParquetReader) -> Mapping[str, int]:
        """Return what is in Parquet files, by little reading: `num_rows`, or `num_episodes` and `num_steps`."""
        return {"num_rows": reader.num_rows}

    def no_steps(self, place: DataLocation) -> DataError:
        """Return the error for data without a complete step, or without one of the module's agents."""
        if self.selection.of_module is not None:
            return self.selection.of_module.no_rows((), place)
        return data_error("there is no complete step in these data", place)

    def num_rows_of(self, num_episodes: int, num_steps: int, counts: ReadCounts) -> int | None:
        """Return how many rows hold the episodes that were decoded; None: rows say nothing of it."""
        return num_episodes + counts.trajectories_dropped if self.row is Row.EPISODE else None


class RowFormat(RecordedFormat):
    """A format whose tables are decoded one by one."""

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        for table, place in tables:
            block = self.decode(table, place, counts)
            if len(block):
                yield block


class FileFormat(RecordedFormat):
    """A format of files that have no rows."""

    @classmethod
    def recognises(cls, data: RawData) -> bool:
        """See `RecordedFormat`: the kind of the files is enough."""
        return True

    @classmethod
    def reader_of(cls, data: RawData) -> None:
        """See `RecordedFormat`."""


def completed(given: Spaces, recorded: Spaces) -> Spaces:
    """Return the given spaces; a space that is not given is the recorded one."""
    return Spaces(given.observation or recorded.observation, given.action or recorded.action)
