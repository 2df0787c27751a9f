"""Sources of recorded data, read as raw rows, blocks of trajectories, or a Ray data set. See `open_source`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, block_from_episodes
from runner.offline.codecs.episode_format import KEYS, episodes_to_table
from runner.offline.codecs.layout import Layout, Spaces, check_spaces, layout_of
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files import input_files
from runner.offline.files.data_error import DataError, DataLocation, data_error
from runner.offline.files.input_files import InputFiles, named_inputs
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawReader, RawTable
from runner.offline.files.ray_data import RAY_OPTIONS, RayReader, narrowed_dataset
from runner.offline.formats.native import decode_episodes
from runner.offline.formats.recorded_format import RecordedFormat, Row
from runner.offline.formats.stream import StreamFormat

if TYPE_CHECKING:
    from ray.data import Dataset


def nothing_passes(row_filter: Any) -> DataError:
    """Return the error for a filter that keeps nothing."""
    place = DataLocation("offline.input_read_method_kwargs.filter")
    return data_error("no complete step passes the filter", place, got=str(row_filter))


def parquet_dataset(
    config: OfflineConfig, reader: ParquetReader, columns: list[str] | None, options: Mapping[str, Any]
) -> Dataset:
    """Return the rows of Parquet files, read by Ray in parallel but in order.

    Args:
        config: the `offline` block with the filter and read arguments.
        reader: reader of the files.
        columns: columns to read, or None for all.
        options: arguments of `ray.data.read_parquet`; they override the configured ones.
    """
    import ray.data

    files = reader.files
    given = _configured(config) | dict(options) | {"filesystem": files.filesystem, "file_extensions": None}
    if any(footer.schema.names != reader.schema.names for footer in reader.footers):
        given["schema"] = reader.schema  # Ray cannot select infos if a file lacks them
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    return narrowed_dataset(ray.data.read_parquet(list(files.paths), **given), config, columns)


ReadTables = Callable[[], Iterator[pa.Table]]


def dataset_of_tasks(
    name: str, reads: Callable[[], Iterable[ReadTables]], num_bytes: int | None = None, **options: Any
) -> Dataset:
    """Return a data set whose read tasks yield tables.

    Args:
        name: name of its read operator.
        reads: returns the functions that the tasks call. They can be pickled.
        num_bytes: approximate size of each task's tables, or None if it is unknown.
        options: arguments of `ray.data.read_datasource`.
    """
    import ray.data
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class TableTasks(Datasource):
        def get_name(self) -> str:
            return name

        def estimate_inmemory_data_size(self) -> int | None:
            return num_bytes

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            metadata = BlockMetadata(num_rows=None, size_bytes=num_bytes, input_files=None, exec_stats=None)
            return [ReadTask(read, metadata) for read in reads()]

    dataset: Dataset = ray.data.read_datasource(TableTasks(), **options)  # type: ignore[no-untyped-call]
    return dataset


def _configured(config: OfflineConfig) -> dict[str, Any]:
    given = config.input_read_method_kwargs
    return {name: given[name] for name in RAY_OPTIONS if name in given}


_DIGEST_BYTES = 2**16


@dataclass(frozen=True)
class Description:
    """Short description of a data set for the record of a run."""

    name: str
    digest: str
    format: str
    schema: dict[str, str]
    files: tuple[str, ...]
    num_bytes: int


@dataclass
class RecordedSource:
    """Recorded data as a stream of raw rows or of blocks of trajectories. Can be pickled.

    Use `open_source` to create one source for all readers of the same data. `narrowed` and `parts` return smaller
    sources without opening the files again.

    Attributes:
        config: the `offline` block.
        format: detected format, which decodes the rows.
        files: input files, or None if a `ray.data` function reads the data.
        reader: reader of the rows, or None if the format does not have rows.
        counts: corrections that reading has made so far, in this process.
        num_rows_read: number of raw rows returned by the last stream.
    """

    config: OfflineConfig
    format: RecordedFormat
    files: InputFiles | None
    reader: RawReader | None
    counts: ReadCounts = field(default_factory=ReadCounts)
    num_rows_read: int = 0
    _layout: Layout | None = field(default=None, repr=False)
    _first_block: ColumnBlock | None = field(default=None, repr=False)

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def spaces(self) -> Spaces:
        """Spaces of the environment, or recorded with the data."""
        return self.format.spaces

    @property
    def env_name(self) -> str | None:
        """Recorded name of the environment, or None if it is unknown."""
        return self.format.env_name

    @property
    def layout(self) -> Layout:
        """Layout of the decoded columns, inferred from the first block if it is not recorded."""
        if self.format.layout is not None:
            return self.format.layout
        if self._layout is None:
            self._layout = layout_of(self.first_block(), self.spaces, self.env_name)
        return self._layout

    @property
    def has_parts(self) -> bool:
        """Whether files can be read independently and in any order."""
        return self.format.row is Row.EPISODE and isinstance(self.reader, ParquetReader)

    @property
    def may_be_endless(self) -> bool:
        """Whether a user's function yields the episodes, possibly forever."""
        return isinstance(self.format, StreamFormat)

    @property
    def num_bytes(self) -> int:
        """Size of all files in bytes, or 0 if Ray Data reads them."""
        return self.files.num_bytes if self.files is not None else 0

    @property
    def where(self) -> str:
        """Path of the first file, for messages."""
        return self.files.paths[0] if self.files is not None else named_inputs(self.config)[0]

    def schema(self) -> dict[str, str]:
        """Return column name -> type, as in the files."""
        if self.reader is not None:
            return {column.name: str(column.type) for column in self.reader.schema}
        return {leaf.column: f"{leaf.dtype}{list(leaf.shape)}" for leaf in self.layout.leaves()}

    def description(self) -> Description:
        """Return name, digest, schema, files and size. The digest covers the names, sizes and ends of all files."""
        paths = named_inputs(self.config)
        if self.files is None:
            digest = hashlib.sha256(repr(paths).encode()).hexdigest()[:16]
            return Description(paths[0], digest, self.format.name, self.schema(), tuple(paths), 0)
        name, digest = Path(paths[0].rstrip("/")).name or paths[0], _digest(self.files)
        return Description(name, digest, self.format.name, self.schema(), self.files.paths, self.files.num_bytes)

    def beginning(self) -> str | None:
        """Return a digest of the first episodes and their ids, or None for files, which do not change."""
        if self.files is not None:
            return None
        block = self.first_block()
        digest = hashlib.sha256(repr([list(block.episode_ids), block.lengths.tolist()]).encode())
        for name in sorted(block.columns):
            for leaf in nested.leaves(block.columns[name]):
                digest.update(np.ascontiguousarray(leaf).tobytes())
        return digest.hexdigest()[:16]

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Reject data whose first episodes do not fit these spaces. Raises `DataError`."""
        check_spaces(self.first_block(), observation_space, action_space, self._where_of_module(self.where))

    def check_all(self, spaces: Spaces) -> None:
        """Read all data, and reject an episode that does not fit these spaces. Raises `DataError`."""
        is_one_file = self.files is not None and len(self.files.paths) == 1
        where = self._where_of_module(self.where if is_one_file else ", ".join(named_inputs(self.config)))
        for block in self.blocks():
            try:
                check_spaces(block, spaces.observation, spaces.action, where)
            except DataError:
                for episode in block:  # the message names the first one that does not fit
                    one, place = block_from_episodes([episode]), f"{where}, episode {episode.id_}"
                    check_spaces(one, spaces.observation, spaces.action, place)
                raise

    def _where_of_module(self, files: str) -> str:
        module = self.format.selection.of_module
        return files if module is None else f"{files}, {', '.join(module.agents)}"

    # -- narrower sources ------------------------------------------------------------------------------------------

    def narrowed(self, columns: Sequence[str] | None = None, with_infos: bool = True) -> RecordedSource:
        """Return the source with fewer columns, without opening the files again.

        Args:
            columns: extra model outputs to read in addition to `obs`, `actions` and `rewards`, or None for all.
            with_infos: whether to read infos.
        """
        format_ = self.format.narrowed(self.format.selection.narrowed(columns, with_infos))
        selection = format_.selection
        return replace(
            self,
            format=format_,
            counts=ReadCounts(),
            _layout=None if self._layout is None else selection.layout(self._layout),
            _first_block=None if self._first_block is None else selection.block(self._first_block),
        )

    def parts(self) -> list[RecordedSource]:
        """Return one source per file. Requires `has_parts`."""
        assert self.has_parts
        assert isinstance(self.reader, ParquetReader)
        readers = [self.reader.only(number) for number in range(len(self.reader.files.paths))]
        return [replace(self, files=one.files, reader=one, counts=ReadCounts()) for one in readers]

    def for_other_processes(self) -> RecordedSource:
        """Return a source for other processes. Rows read by Ray Data are kept in its object store."""
        return replace(self, reader=self.reader.held()) if isinstance(self.reader, RayReader) else self

    # -- streams ---------------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[pa.Table]:
        """Yield the tables of raw rows; a format without rows yields tables in the episode format."""
        if self.reader is None:
            yield from self.episode_tables()
        else:
            for table, _ in self._rows():
                yield table

    def blocks(self) -> Generator[ColumnBlock, None, None]:
        """Yield the episodes in blocks of bounded size, with complete trajectories if possible.

        Raises:
            DataError: the data are damaged or do not match earlier data. Names the file, row and column.
        """
        for block in self.format.blocks(self.files, self._rows(), self.counts):
            chosen = self._of_module(block)
            if len(chosen):
                yield chosen

    def episode_tables(self) -> Iterator[pa.Table]:
        """Yield the blocks as tables in the episode format."""
        for block in self.blocks():
            yield episodes_to_table(block, layout=layout_of(block, self.spaces, self.env_name))

    def first_block(self) -> ColumnBlock:
        """Return the first episodes, which are read only once. Raises `DataError` if there are none."""
        if self._first_block is None:
            stream = replace(self, counts=ReadCounts()).blocks()  # reading these rows again must not count twice
            self._first_block = next(stream, None)
            stream.close()
        if self._first_block is None:
            row_filter = self.config.input_read_method_kwargs.get("filter")
            if row_filter is None or self.format.selection.of_module is not None:
                raise self.format.no_steps(DataLocation(self.where))
            raise nothing_passes(row_filter)
        return self._first_block

    def decode(self, table: pa.Table) -> ColumnBlock:
        """Decode the episodes of a table of raw rows or of `dataset`.

        Trajectories of raw steps are cut at the table's ends. `dataset` returns complete ones.

        Raises:
            DataError: the data are damaged, or the rows have several modules and no module was chosen.
        """
        if set(KEYS) <= set(table.column_names):
            return self._of_module(decode_episodes(table, self.layout, DataLocation(), self.counts))
        place, module = DataLocation(row=0), self.format.selection.of_module
        blocks = self.format.decode(table, place, self.counts)
        if module is not None and not self.format.reads_one_module:
            return module.joined(blocks, place)
        if len(blocks) != 1:
            raise data_error(f"expected the rows of one module, got rows of {len(blocks)}", place)
        return blocks[0]

    def dataset(self, **options: Any) -> Dataset:
        """Return the data as a Ray data set for `decode`, with one episode per row if possible.

        Ray reads independent rows in parallel, with columns and filter pushed down. A user function's data set keeps
        its blocks. Rows that are steps, and formats without rows, are first assembled to complete trajectories in a
        single streaming task.

        Args:
            options: arguments of `ray.data.read_parquet`, or of `read_datasource` (`override_num_blocks`,
                `ray_remote_args`, ...). A user function's data set ignores them.
        """
        if self.format.has_complete_rows and isinstance(self.reader, ParquetReader):
            return parquet_dataset(self.config, self.reader, self._file_columns(), options)
        if self.format.has_complete_rows and isinstance(self.reader, RayReader):
            return self.reader.dataset(self._file_columns())
        size = None if self.files is None else self.files.num_bytes
        read, options = self.for_other_processes().episode_tables, _configured(self.config) | dict(options)
        return dataset_of_tasks("Episodes", lambda: [read], size, **options)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _of_module(self, block: ColumnBlock) -> ColumnBlock:
        """Return the episodes of the module's agents, or all in single-agent experiments."""
        module = self.format.selection.of_module
        if module is None or self.format.reads_one_module or not len(block):
            return block
        return module.chosen(block, DataLocation(self.where))

    def _file_columns(self) -> list[str] | None:
        return None if self.reader is None else self.format.file_columns(self.reader.schema)

    def _rows(self) -> Iterator[RawTable]:
        self.num_rows_read = 0
        if self.reader is None:
            return
        for table, place in self.reader.tables(self._file_columns()):
            self.num_rows_read += table.num_rows
            yield table, place

    def __getstate__(self) -> dict[str, Any]:
        layout = None if self.format.layout is not None else self.layout
        return {**self.__dict__, "counts": ReadCounts(), "_layout": layout, "_first_block": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        input_files.set_unpacked_ratio(self.config.input_max_unpacked_ratio)


def _digest(files: InputFiles) -> str:
    digest = hashlib.sha256()
    for path, size in zip(files.paths, files.sizes, strict=True):
        digest.update(f"{Path(path).name}:{size};".encode())
        if files.kind.recognises_folder is not None:
            continue
        with files.filesystem.open_input_file(path) as file:
            file.seek(max(0, size - _DIGEST_BYTES))
            digest.update(file.read(_DIGEST_BYTES))
    return digest.hexdigest()[:16]
