"""Whatever a `ray.data.read_...` function reads from files, by its name (`offline.input_read_method`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from runner.cluster import ensure_connected
from runner.config.errors import ConfigError, Problem, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import Place, data_error, first_line
from runner.offline.files.file_kinds import FileKind
from runner.offline.files.input_files import existing_paths, find_files
from runner.offline.files.raw_rows import RawTable
from runner.offline.files.row_filters import ray_expression

if TYPE_CHECKING:
    from ray.data import Dataset

_METHOD, _KWARGS = "offline.input_read_method", "offline.input_read_method_kwargs"
# Arguments that every way to read has: what may be read at once, and where.
RAY_OPTIONS = ("concurrency", "override_num_blocks", "ray_remote_args", "num_cpus", "num_gpus", "memory")
# What is ours, and works with every function: which columns and rows are read.
OWN_OPTIONS = ("columns", "filter")
_PICKLES = "allow_pickle"
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
        self.row_filter: ds.Expression | None = None
        batch = next(self._batches(1), None)
        if batch is None:
            raise data_error("there is no row in these data", Place(str(config.input_)))
        self.schema: pa.Schema = batch.schema

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """See `RawReader`."""
        row = 0
        for table in self._batches(_ROWS_PER_TABLE):
            place = Place(str(self._config.input_), row)
            row += table.num_rows
            if self.row_filter is not None:
                table, place = table.filter(self.row_filter), Place(str(self._config.input_))
            if columns is not None:
                table = table.select([name for name in table.column_names if name in columns])
            yield table, place

    def _batches(self, size: int) -> Iterator[pa.Table]:
        from ray.exceptions import RayError

        method = self._config.input_read_method
        batches = self._dataset.iter_batches(batch_size=size, batch_format="pyarrow", prefetch_batches=1)
        try:
            yield from batches
        except (RayError, ImportError, pa.ArrowException, OSError, ValueError) as error:
            cause = getattr(error, "cause", None) or error.__cause__ or error
            if isinstance(cause, ImportError):
                raise _missing_package(method, cause) from None
            what = f"{method} cannot read these data: {type(cause).__name__}: {first_line(cause)}"
            raise data_error(what, Place(str(self._config.input_))) from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": None}


def read_with_ray(config: OfflineConfig) -> Dataset:
    """Call `ray.data.<input_read_method>(input_, ...)` with `input_read_method_kwargs`, less `OWN_OPTIONS`.

    Raises:
        ConfigError: there is no such function, it reads no files, does not take these arguments, or needs a package.
        DataError: there are no such files.
    """
    method = config.input_read_method
    read = _find_method(method)
    filesystem, paths = existing_paths(config)
    ensure_connected()
    given = {name: value for name, value in config.input_read_method_kwargs.items() if name not in OWN_OPTIONS}
    try:
        dataset: Dataset = read(paths, filesystem=filesystem, **given)
    except ImportError as error:
        raise _missing_package(method, error) from None
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError([Problem(f"{method}: {first_line(error)}", _KWARGS, str(given))]) from None
    return dataset


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
    dataset, given = read_with_ray(config), config.input_read_method_kwargs
    if (row_filter := given.get("filter")) is not None:
        dataset = dataset.filter(expr=ray_expression(row_filter))
    if (columns := given.get("columns")) is not None:
        dataset = dataset.select_columns(columns)
    return dataset


def check_ray_options(config: OfflineConfig) -> None:
    """Refuse a function that Ray Data does not have, or arguments that it does not take; raises `ConfigError`."""
    parameters = inspect.signature(_find_method(config.input_read_method)).parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [*OWN_OPTIONS, *(name for name in parameters if name not in ("paths", "filesystem"))]
    check_option_names(config, config.input_read_method, known, is_open)


def check_option_names(config: OfflineConfig, method: str, known: Sequence[str], is_open: bool = False) -> None:
    """Refuse keyword arguments of reading that have no effect, or that unpickle what is in the files.

    Args:
        config: the `offline` block.
        method: what reads, for messages.
        known: names that have an effect.
        is_open: others may have one, too.

    Raises:
        ConfigError: all arguments that are refused.
    """
    given: Mapping[str, Any] = config.input_read_method_kwargs
    problems = [
        Problem(f"{method} has no option {name}", _KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in given.items()
        if name not in (*known, _PICKLES) and not is_open
    ]
    if _PICKLES in given:
        what = "objects in recorded data are not unpickled, as that would run code in the files"
        problems.append(Problem(what, f"{_KWARGS}.{_PICKLES}", str(given[_PICKLES])))
    if problems:
        raise ConfigError(problems)


def _find_method(method: str) -> Callable[..., Dataset]:
    """Return the function; raises `ConfigError` if there is none that reads files."""
    import ray.data

    functions = {name: getattr(ray.data, name) for name in dir(ray.data) if name.startswith("read_")}
    known = [name for name, function in functions.items() if callable(function) and _reads_files(function)]
    if method in known:
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        found: Callable[..., Dataset] = functions[method]
        return found
    what = f"ray.data has no function {method}" if method not in functions else f"{method} of ray.data reads no files"
    raise ConfigError([Problem(what, _METHOD, method, list_names(known, method), nearest_match(method, known))])


def _reads_files(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters
    return next(iter(parameters)) == "paths" and "filesystem" in parameters


def _missing_package(method: str, error: ImportError) -> ConfigError:
    what = f"{method} needs a package that is not installed: {first_line(error)}"
    return ConfigError([Problem(what, _METHOD, method)])
