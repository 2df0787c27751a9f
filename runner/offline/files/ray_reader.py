"""Rows that a function of Ray Data, or of one's own, reads (`offline.input_read_method`)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from runner.cluster import ensure_connected
from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataLocation, data_error, first_line
from runner.offline.files.file_kinds import FileKind
from runner.offline.files.input_files import existing_paths, find_files
from runner.offline.files.raw_rows import RawTable
from runner.offline.files.ray_functions import (
    KWARGS,
    METHOD,
    OWN_OPTIONS,
    check_ray_options,
    find_read_function,
    missing_package,
)
from runner.offline.files.row_filters import ray_expression

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.data import Dataset

# Arguments that every way to read has: what may be read at once, and where.
RAY_OPTIONS = ("concurrency", "override_num_blocks", "ray_remote_args", "num_cpus", "num_gpus", "memory")
_ROWS_PER_TABLE = 4096


class RayReader:
    """The rows of a Ray data set, in order.

    Args:
        config: the `offline` block.
        row_filter: a row that is not true there is left out.

    Raises:
        DataError: there is no row, or they cannot be read.
    """

    def __init__(self, config: OfflineConfig) -> None:
        self._config = config
        self._dataset = read_with_ray(config)
        self._held: Sequence[ObjectRef[pa.Table]] | None = None
        self.row_filter: ds.Expression | None = None
        batch = next(self._batches(1), None)
        if batch is None:
            raise data_error("there is no row in these data", DataLocation(str(config.input_)))
        self.schema: pa.Schema = batch.schema

    def held(self) -> RayReader:
        """Return the reader of the same rows in Ray's object store, so that every process reads them, and none anew.

        Raises:
            DataError: they cannot be read.
        """
        reader = copy.copy(self)
        with self._errors_of_data():
            reader._held = self._dataset.materialize().to_arrow_refs()
        return reader

    def dataset(self, columns: Sequence[str] | None = None) -> Dataset:
        """Return the rows as a Ray data set, in the process that has opened them."""
        return _narrowed(self._dataset, self._config.input_read_method_kwargs.get("filter"), columns)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        row = 0
        for table in self._batches(_ROWS_PER_TABLE) if self._held is None else self._held_tables(self._held):
            place = DataLocation(str(self._config.input_), row)
            row += table.num_rows
            if self.row_filter is not None:
                table, place = table.filter(self.row_filter), DataLocation(str(self._config.input_))
            if columns is not None:
                table = table.select([name for name in table.column_names if name in columns])
            yield table, place

    def _batches(self, size: int) -> Iterator[pa.Table]:
        with self._errors_of_data():
            yield from self._dataset.iter_batches(batch_size=size, batch_format="pyarrow", prefetch_batches=1)

    @staticmethod
    def _held_tables(references: Sequence[ObjectRef[pa.Table]]) -> Iterator[pa.Table]:
        import ray

        for reference in references:
            table = ray.get(reference)
            for start in range(0, table.num_rows, _ROWS_PER_TABLE):
                yield table.slice(start, _ROWS_PER_TABLE)

    @contextmanager
    def _errors_of_data(self) -> Iterator[None]:
        from ray.exceptions import RayError

        method = self._config.input_read_method
        try:
            yield
        except (RayError, ImportError, pa.ArrowException, OSError, ValueError) as error:
            cause = getattr(error, "cause", None) or error.__cause__ or error
            if isinstance(cause, ImportError):
                raise missing_package(method, cause) from None
            what = f"{method} cannot read these data: {type(cause).__name__}: {first_line(cause)}"
            raise data_error(what, DataLocation(str(self._config.input_))) from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}


def read_with_ray(config: OfflineConfig) -> Dataset:
    """Call the function that `input_read_method` names with `input_` and the keyword arguments, less `OWN_OPTIONS`.

    Raises:
        ConfigError: there is no such function, it does not take these arguments, needs a package, or returns no data
            set.
        DataError: there are no such files.
    """
    import ray.data

    read = find_read_function(config.input_read_method)
    filesystem, paths = existing_paths(config) if read.is_of_files else (None, config.input_)
    ensure_connected()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    named = {name: value for name, value in config.input_read_method_kwargs.items() if name not in OWN_OPTIONS}
    given = with_callables(named, KWARGS) | ({"filesystem": filesystem} if read.is_of_files else {})
    try:
        dataset = read.function(paths, **given)
    except ImportError as error:
        raise missing_package(read.name, error) from None
    except Exception as error:  # databases and functions of one's own raise what they like
        if isinstance(error, ConfigError):
            raise
        what = f"{read.name}: {type(error).__name__}: {first_line(error)}"
        raise ConfigError([Problem(what, KWARGS, str(named))]) from error
    if not isinstance(dataset, ray.data.Dataset):
        raise ConfigError([Problem(f"{read.name} returns no ray.data.Dataset", METHOD, type(dataset).__name__)])
    return dataset


def check_readable(config: OfflineConfig) -> None:
    """Refuse, before Ray starts, files that are not there and a function that does not exist.

    Raises:
        ConfigError, DataError: see `read_with_ray`.
    """
    if config.input_read_method == "auto":
        existing_paths(config)
        return
    check_ray_options(config)
    if find_read_function(config.input_read_method).is_of_files:
        existing_paths(config)


def read_rows(config: OfflineConfig, known: Sequence[FileKind]) -> Dataset:
    """Return rows of any columns, for a pre-learner that maps them itself; `auto` is by the files' names.

    Args:
        config: the `offline` block.
        known: kinds of files that names tell.

    Raises:
        ConfigError, DataError: see `read_with_ray`.
    """
    if config.input_read_method == "auto":
        config = replace(config, input_read_method=f"read_{find_files(config, known).kind.name}")
    check_ray_options(config)
    given = config.input_read_method_kwargs
    return _narrowed(read_with_ray(config), given.get("filter"), given.get("columns"))


def _narrowed(dataset: Dataset, row_filter: Any, columns: Sequence[str] | None) -> Dataset:
    if row_filter is not None:
        dataset = dataset.filter(expr=ray_expression(row_filter))
    return dataset if columns is None else dataset.select_columns(list(columns))
