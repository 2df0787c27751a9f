"""Write rows with a function of Ray Data or of the user (`offline.output_write_method`).

Functions that write files get a hidden folder; when the file is complete, it is moved to its final name. Other
functions get `offline.output` unchanged, for example the table of a database or an SQL statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from runner.cluster import ensure_connected
from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem, RunFailure
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import first_line
from runner.offline.files.filesystems import Location
from runner.offline.files.ray_data import RayFunction, missing_package, set_up_ray_data
from runner.offline.writing.output_files import Written, give_name
from runner.offline.writing.output_formats import COLUMNS, KWARGS, METHOD, check_names
from runner.offline.writing.text_tables import lists_as_text

if TYPE_CHECKING:
    from ray.data import Dataset

_TAKES_NO_LISTS = ("write_sql",)


class RayOutput:
    """Rows that are kept in memory until `publish` writes all of them.

    Args:
        config: the `offline` block.
        found: function that writes.
        location: folder for functions that write files.
        name: name of the file.
        schema: schema of all tables.

    Raises:
        ConfigError: columns do not exist, or the function cannot store them.
    """

    def __init__(
        self, config: OfflineConfig, found: RayFunction, location: Location | None, name: str, schema: pa.Schema
    ) -> None:
        self.rows = 0
        self.columns = schema.names
        self._config, self._found, self._location, self._name = config, found, location, name
        self._tables: list[pa.Table] = []
        chosen = config.output_write_method_kwargs.get(COLUMNS, ())
        check_names({name: f"{KWARGS}.{COLUMNS}" for name in chosen}, schema.names)

    def write(self, table: pa.Table) -> int:
        """Add rows, and return the size of all rows so far in bytes."""
        self._tables.append(table)
        self.rows += table.num_rows
        return sum(int(held.nbytes) for held in self._tables)

    def publish(self) -> Written:
        """Write the rows.

        Raises:
            ConfigError: the function rejects its arguments, or cannot store the columns.
            OSError: a file with this name exists.
        """
        table, rows = as_plain_columns(pa.concat_tables(self._tables), self._found, self._config), self.rows
        self._tables = []
        if not self._found.is_of_files:
            _call(self._config, self._found, table, self._config.output, {})
            return Written("", rows, 0)
        assert self._location is not None
        filesystem, folder = self._location.filesystem, f"{self._location.path}/.{self._name}.tmp"
        _remove_folder(filesystem, folder)
        try:
            filesystem.create_dir(folder, recursive=True)
            _call(self._config, self._found, table, folder, {"filesystem": filesystem})
            found = filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
            paths = [info.path for info in found if info.type == fs.FileType.File]
            if len(paths) != 1:
                what = f"{self._found.name} wrote {len(paths)} files instead of one"
                raise RunFailure(Problem(what, METHOD, ", ".join(paths)[:200] or None))
            final = f"{self._location.path}/{self._name}"
            give_name(self._location, paths[0], final)
            return Written(final, rows, int(filesystem.get_file_info(final).size or 0))
        finally:
            _remove_folder(filesystem, folder)

    def remove(self) -> None:
        """Discard the rows."""
        self._tables = []


def _remove_folder(filesystem: fs.FileSystem, folder: str) -> None:
    with suppress(OSError):
        filesystem.delete_dir(folder)


def as_plain_columns(table: pa.Table, found: RayFunction, config: OfflineConfig) -> pa.Table:
    """Return the columns to write, converted to common types: numbers, text and lists of numbers.

    Raises:
        ConfigError: a column has two or more dimensions; its bytes could not be decoded.
    """
    table = table.select(config.output_write_method_kwargs.get(COLUMNS, table.column_names)).combine_chunks()
    if found.name in _TAKES_NO_LISTS:
        return lists_as_text(table)
    arrays, fields = [], []
    for field in table.schema:
        type_, column = field.type, table[field.name]
        if pa.types.is_fixed_size_binary(type_) or pa.types.is_binary(type_):
            what = f"{field.name} has two or more dimensions, which {found.name} would write as bytes without a shape"
            raise ConfigError([Problem(what, METHOD, found.name, "write_parquet, write_json, write_csv")])
        if pa.types.is_fixed_size_list(type_):
            type_ = pa.list_(type_.value_type)
            column = column.cast(type_)
        arrays.append(column)
        fields.append(pa.field(field.name, type_))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _call(config: OfflineConfig, found: RayFunction, table: pa.Table, place: Any, given: Mapping[str, Any]) -> None:
    import ray.data

    ensure_connected()
    named = {name: value for name, value in config.output_write_method_kwargs.items() if name != COLUMNS}
    arguments = with_callables(named, KWARGS) | dict(given)
    set_up_ray_data()
    try:
        write: Callable[..., Any] = found.function
        dataset: Dataset = ray.data.from_arrow(table)
        write(dataset, place, **arguments)
    except ImportError as error:
        raise missing_package(found.name, error, METHOD) from None
    except Exception as error:  # databases and user functions raise arbitrary errors
        if isinstance(error, ConfigError):
            raise
        cause = getattr(error, "cause", None) or error.__cause__ or error
        if isinstance(cause, ImportError):
            raise missing_package(found.name, cause, METHOD) from None
        what = f"{found.name} cannot write these steps: {type(cause).__name__}: {first_line(cause)}"
        raise RunFailure(Problem(what, METHOD, ", ".join(table.column_names))) from error
