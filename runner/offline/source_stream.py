"""A source of recorded data: raw rows, blocks of trajectories, or a Ray data set. `open_source` makes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.config.offline import OfflineConfig
from runner.episodes.columns import OBS, REWARDS, ColumnBlock
from runner.episodes.nested import StateError
from runner.offline.episode_format import (
    KEYS,
    episodes_to_table,
    file_columns,
    present_columns,
    read_layout,
    table_to_block,
)
from runner.offline.foreign import hdf5, minari, rllib_episodes, rllib_tables, sample_batches, unpacking
from runner.offline.foreign.data_error import Place, data_error, first_line
from runner.offline.foreign.trajectories import ReadCounts
from runner.offline.input_files import InputFiles, input_paths
from runner.offline.layout import Layout, Spaces, layout_of
from runner.offline.raw_readers import RawReader, RawTable
from runner.offline.ray_reader import RAY_OPTIONS
from runner.offline.row_filters import ray_expression
from runner.offline.source_checks import ALWAYS_READ, check_same_form, check_unpacked, not_finite
from runner.offline.space_checks import check_spaces, fit_to_spaces
from runner.offline.table_format import StepRows, read_steps
from runner.offline.table_schema import TableSchema, canonical_name
from runner.offline.trajectories import TrajectoryAssembler

if TYPE_CHECKING:
    from ray.data import Dataset

FORMATS = ("episodes", "rllib_episodes", "table", "sample_batches", "hdf5", "minari")
_DIGEST_BYTES = 2**16


@dataclass(frozen=True)
class Description:
    """A data set in short, for the record of a run."""

    name: str
    digest: str
    format: str
    schema: dict[str, str]
    files: tuple[str, ...]
    num_bytes: int


@dataclass
class Source:
    """Recorded data: a stream of raw rows, or of blocks of trajectories. Made by `open_source`; can be pickled.

    Attributes:
        config: the `offline` block.
        format: one of `FORMATS`.
        files: what is read; None with a `ray.data` function of the user's choice.
        has_trajectories: rows belong to trajectories; false: to nothing, each is an episode of one step.
        has_final_obs: the observation after a trajectory's last step is recorded.
        spaces: recorded with the data, or the environment's.
        env_name: of the environment, where it is recorded.
        layout: of the decoded columns.
        counts: what reading had to decide so far, in this process.
        num_rows_read: raw rows that the last stream has given.
    """

    config: OfflineConfig
    format: str
    files: InputFiles | None
    wanted: tuple[str, ...] | None = None
    with_infos: bool = True
    has_trajectories: bool = True
    has_final_obs: bool = True
    spaces: Spaces = field(default_factory=Spaces)
    env_name: str | None = None
    layout: Layout | None = None
    table_schema: TableSchema | None = None
    steps_layout: Layout | None = None
    is_packed: bool = False
    counts: ReadCounts = field(default_factory=ReadCounts)
    reader: RawReader | None = None
    num_rows_read: int = 0

    # -- streams ---------------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows as they are in the files (of HDF5 and Minari: as our episodes), table by table."""
        for table, _ in self._raw_tables():
            yield table

    def blocks(self) -> Generator[ColumnBlock, None, None]:
        """Return the episodes, in blocks of bounded size; whole trajectories wherever the data allow it.

        Raises:
            DataError: data that are damaged, or do not fit the data before; with file, row and column.
        """
        if self.format in ("hdf5", "minari"):
            yield from self._foreign_blocks()
        elif self.format == "table":
            yield from self._assembled_blocks()
        else:
            for table, place in self._raw_tables():
                block = self._decode_raw(table, place)
                if len(block):
                    yield block

    def decode(self, table: pa.Table) -> ColumnBlock:
        """Return the episodes in one table: of raw rows, or of what `dataset` gives.

        Trajectories of raw rows of steps are cut at the table's ends; `dataset` gives whole ones.

        Raises:
            DataError: damaged data.
        """
        if self.format == "episodes" or looks_like_episodes(table):
            return self._decode_episodes(table, Place())
        if self.format == "table":
            assembler = self._assembler()
            place = Place(row=0)
            blocks = [*assembler.add(self._read_steps(table, place), place), *assembler.finish()]
            if len(blocks) != 1:
                raise data_error(f"expected the rows of one module, got rows of {len(blocks)}", place)
            return blocks[0]
        return self._decode_raw(table, Place(row=0))

    # -- Ray Data --------------------------------------------------------------------------------------------------

    def dataset(self, **options: Any) -> Dataset:
        """Return the data as a Ray data set, whose blocks `decode` takes: rows are episodes wherever there are any.

        Files of episodes are read in parallel by Ray, columns and filter pushed down. Rows of steps are put together
        to whole trajectories first, in one task that streams; so are HDF5, Minari and SampleBatches.

        Args:
            options: of `ray.data.read_parquet`, or `override_num_blocks`, `ray_remote_args`, ... of `read_datasource`.
        """
        given = self.config.input_read_method_kwargs
        options = {name: given[name] for name in RAY_OPTIONS if name in given} | options
        is_parquet = self.files is not None and self.files.kind == "parquet"
        is_raw = self.format in ("episodes", "rllib_episodes") or (self.format == "table" and not self.has_trajectories)
        if not (is_parquet and is_raw):
            return stream_with_ray(self, options)
        assert self.files is not None
        import ray.data

        columns, row_filter = self._file_columns(), given.get("filter")
        options |= {"filesystem": self.files.filesystem, "file_extensions": None}
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        dataset: Dataset = ray.data.read_parquet(list(self.files.paths), **options)
        if row_filter is not None:
            dataset = dataset.filter(expr=ray_expression(row_filter))
        if columns is not None:
            dataset = dataset.select_columns(columns)
        return dataset

    # -- what is it ------------------------------------------------------------------------------------------------

    def description(self) -> Description:
        """Name, digest, schema, files and size. The digest covers the names, sizes and ends of all files."""
        paths = input_paths(self.config)
        name = Path(paths[0].rstrip("/")).name or paths[0]
        if self.files is None:
            digest = hashlib.sha256(repr(paths).encode()).hexdigest()[:16]
            return Description(name, digest, self.format, self.schema(), tuple(paths), 0)
        digest = _digest(self.files)
        return Description(name, digest, self.format, self.schema(), self.files.paths, self.files.num_bytes)

    def schema(self) -> dict[str, str]:
        """Return column of the files -> its type."""
        if self.reader is not None:
            return {column.name: str(column.type) for column in self.reader.schema}
        layout = self.layout
        return {} if layout is None else {leaf.column: f"{leaf.dtype}{list(leaf.shape)}" for leaf in layout.leaves()}

    @property
    def num_bytes(self) -> int:
        """Bytes of all files; of a Minari folder and of what Ray Data reads unknown, that is 0."""
        return self.files.num_bytes if self.files is not None else 0

    def check_spaces(self, observation_space: Any, action_space: Any) -> None:
        """Refuse data that do not fit these spaces, by the first episodes; raises `DataError`."""
        check_spaces(self.first_block(), observation_space, action_space, self.where())

    # -- inside ----------------------------------------------------------------------------------------------------

    def where(self) -> str:
        return self.files.paths[0] if self.files is not None else str(self.config.input_)

    def first_block(self) -> ColumnBlock:
        counts, self.counts = self.counts, ReadCounts()
        stream = self.blocks()
        try:
            block = next(stream, None)
        finally:
            stream.close()
            self.counts, self.num_rows_read = counts, 0
        if block is None:
            raise data_error("there is no complete step in these data", Place(self.where()))
        return block

    def _file_columns(self) -> list[str] | None:
        """Return the columns of the files that are read; None: all."""
        assert self.reader is not None
        if self.format == "episodes" and self.layout is not None:
            return file_columns(self.layout, self.reader.schema, self.with_infos)
        if self.format == "table" and self.table_schema is not None:
            names = self.reader.schema.names
            if self.steps_layout is None:
                return self.table_schema.file_columns(names)
            kept = self.steps_layout.selected({*ALWAYS_READ, *self.table_schema.extra})
            leaves = {leaf.column for leaf in kept.leaves()} | set(self.table_schema.names.values())
            return [name for name in names if name in leaves or name.partition("/")[0] == "new_obs"]
        return None

    def _raw_tables(self) -> Iterator[RawTable]:
        if self.reader is None:
            for block in self._foreign_blocks():
                yield episodes_to_table(block, self.spaces, self.env_name), Place(self.where())
        else:
            self.num_rows_read = 0
            for table, place in self.reader.tables(self._file_columns()):
                self.num_rows_read += table.num_rows
                yield table, place

    def _decode_raw(self, table: pa.Table, place: Place) -> ColumnBlock:
        if self.format == "episodes":
            return self._decode_episodes(table, place)
        decode = rllib_episodes.decode if self.format == "rllib_episodes" else sample_batches.decode
        return self._selected(decode(table, place, self.counts))

    def _decode_episodes(self, table: pa.Table, place: Place) -> ColumnBlock:
        layout = self.layout
        try:
            if layout is None:
                layout = read_layout(table.schema)
            is_empty = pc.equal(table["length"], 0)
            if pc.any(is_empty).as_py():  # an episode that was recorded before its first step
                self.counts.trajectories_dropped += pc.sum(is_empty).as_py()
                table = table.filter(pc.invert(is_empty))
            block = table_to_block(table, present_columns(layout, table.column_names))
        except (StateError, ValueError, pa.ArrowException) as error:
            raise data_error(f"the episodes are damaged: {first_line(error)}", place) from None
        rewards = block.columns.get(REWARDS)
        if isinstance(rewards, np.ndarray) and rewards.dtype.kind == "f" and not np.isfinite(rewards).all():
            raise not_finite(block, rewards, place)
        return block

    def _selected(self, block: ColumnBlock) -> ColumnBlock:
        if self.wanted is None:
            return block
        kept = {*ALWAYS_READ, *self.wanted}
        columns = {name: column for name, column in block.columns.items() if name in kept}
        return replace(block, columns=columns, infos=block.infos if self.with_infos else None)

    def _foreign_blocks(self) -> Iterator[ColumnBlock]:
        assert self.files is not None
        for path in self.files.paths:
            if self.format == "minari":
                stream = minari.blocks(path, counts=self.counts, with_infos=self.with_infos)
                yield from (self._selected(block) for block in stream)
            elif self.files.is_local:
                stream = hdf5.blocks(path, counts=self.counts, with_infos=self.with_infos, extra=self.wanted)
                yield from (self._selected(block) for block in stream)
            else:
                with self.files.filesystem.open_input_file(path) as file:
                    stream = hdf5.blocks(
                        file, name=path, counts=self.counts, with_infos=self.with_infos, extra=self.wanted
                    )
                    yield from (self._selected(block) for block in stream)

    def _episode_tables(self) -> Iterator[pa.Table]:
        """Yield the blocks as tables of our episode format."""
        for block in self.blocks():
            yield episodes_to_table(block, layout=layout_of(block, self.spaces, self.env_name))

    def _assembler(self) -> TrajectoryAssembler:
        assert self.table_schema is not None
        return TrajectoryAssembler(self.table_schema)

    def _assembled_blocks(self) -> Iterator[ColumnBlock]:
        assembler = self._assembler()
        for table, place in self._raw_tables():
            yield from assembler.add(self._read_steps(table, place), place)
        yield from assembler.finish()
        self.counts.add(assembler.counts)

    def _read_steps(self, table: pa.Table, place: Place) -> StepRows:
        assert self.table_schema is not None
        if self.is_packed:
            packed = [self.table_schema.names.get(canonical_name(name), name) for name in self._compressed_columns()]
            check_unpacked(table, packed, place)
            table = rllib_tables.unpack_table(table, packed, place)
        rows = read_steps(table, self.table_schema, self.steps_layout, place)
        check_same_form(rows.columns[OBS], rows.new_obs, place)
        if self.steps_layout is not None:
            return rows
        fitted = fit_to_spaces(
            {**rows.columns, **({} if rows.new_obs is None else {"new_obs": rows.new_obs})}, self.spaces
        )
        new_obs = fitted.pop("new_obs", None)
        return replace(rows, columns=fitted, new_obs=new_obs)

    def _compressed_columns(self) -> list[str]:
        """Apply RLlib's rule: naming `obs` names `new_obs` too."""
        names = list(self.config.input_compress_columns)
        return [*names, "new_obs"] if OBS in names and "new_obs" not in names else names

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "counts": ReadCounts()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        unpacking.allow(self.config.input_max_unpacked_ratio)


def looks_like_episodes(table: pa.Table) -> bool:
    return set(KEYS) <= set(table.column_names)


def _digest(files: InputFiles) -> str:
    digest = hashlib.sha256()
    for path, size in zip(files.paths, files.sizes, strict=True):
        digest.update(f"{Path(path).name}:{size};".encode())
        if files.kind == "minari":
            continue
        with files.filesystem.open_input_file(path) as file:
            file.seek(max(0, size - _DIGEST_BYTES))
            digest.update(file.read(_DIGEST_BYTES))
    return digest.hexdigest()[:16]


def stream_with_ray(source: Source, options: dict[str, Any]) -> Dataset:
    """Make one read task that yields tables of episodes."""
    import ray.data
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    read: Callable[[], Iterator[pa.Table]] = source._episode_tables
    size = source.files.num_bytes if source.files is not None else None

    class EpisodeStream(Datasource):
        def get_name(self) -> str:
            return "Episodes"

        def estimate_inmemory_data_size(self) -> int | None:
            return size

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            metadata = BlockMetadata(num_rows=None, size_bytes=size, input_files=None, exec_stats=None)
            return [ReadTask(read, metadata)]

    dataset: Dataset = ray.data.read_datasource(EpisodeStream(), **options)  # type: ignore[no-untyped-call]
    return dataset
