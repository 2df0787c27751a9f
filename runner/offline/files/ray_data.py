"""Ray Data and user-defined functions that read and write rows, and the settings of Ray Data in a run."""

from __future__ import annotations

import copy
import inspect
import logging
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from runner.cluster import ensure_connected
from runner.config.callables import PARTIAL, with_callables
from runner.config.errors import ConfigError, Problem, list_names, nearest_match, show_value
from runner.config.imports import import_target
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataLocation, data_error, first_line
from runner.offline.files.input_files import FileKind, existing_paths, find_files
from runner.offline.files.raw_rows import RawTable, narrowed, ray_expression

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.data import Dataset


METHOD, KWARGS = "offline.input_read_method", "offline.input_read_method_kwargs"
# Options of `runner` that work with every function: the columns and rows to read.
OWN_OPTIONS = ("columns", "filter")
_PICKLES = "allow_pickle"
# Functions that are not supported: they take an object instead of `input_`, or may run code named in a file.
_REFUSED = ("read_datasource", "read_zarr")


@dataclass(frozen=True)
class RayFunction:
    """Function that makes a Ray data set from `offline.input_`, or writes one to `offline.output`.

    Attributes:
        name: name in messages.
        function: takes the location as first argument, or as second one, after the data set, to write.
        is_of_files: whether the location is files and folders, and not another argument, such as SQL.
        options: names of its other arguments.
        required: options without a default.
        callables: options that are functions.
        is_open: whether it also takes arguments of other names.
    """

    name: str
    function: Callable[..., Any]
    is_of_files: bool
    options: Sequence[str]
    required: Sequence[str]
    callables: Sequence[str]
    is_open: bool


def find_read_function(method: str) -> RayFunction:
    """Return the function. Raises `ConfigError` if it does not exist or does not take `input_`."""
    import ray.data

    if "." in method:
        return described(method, import_target(method, METHOD), METHOD)
    functions = {name: getattr(ray.data, name) for name in dir(ray.data) if name.startswith("read_")}
    known = [name for name, one in functions.items() if inspect.isfunction(one) and name not in _REFUSED]
    if method not in known:
        what = f"ray.data.{method} is not supported" if method in _REFUSED else f"ray.data.{method} does not exist"
        expected = f"{list_names(known, method)}; or package.module.function that returns a Ray data set"
        raise ConfigError([Problem(what, METHOD, method, expected, nearest_match(method, known))])
    parameters = inspect.signature(functions[method]).parameters
    is_of_files = next(iter(parameters)) == "paths" and "filesystem" in parameters
    return described(method, functions[method], METHOD, ("filesystem",) if is_of_files else (), is_of_files)


def described(
    name: str,
    function: Callable[..., Any],
    key: str,
    given: Sequence[str] = (),
    is_of_files: bool = False,
    num_before: int = 0,
) -> RayFunction:
    """Describe a function by its signature.

    Args:
        name: name in messages.
        function: function whose first argument after `num_before` is the location.
        key: configuration key that names it.
        given: options that `runner` sets.
        is_of_files: see `RayFunction`.
        num_before: number of arguments before the location.

    Raises:
        ConfigError: the function does not take a location.
    """
    parameters = list(inspect.signature(function).parameters.values())[num_before:]
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    ):
        place, which = ("offline.output", "second") if num_before else ("offline.input_", "first")
        raise ConfigError([Problem(f"{name} needs a {which} argument for {place}", key, name)])
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
    others = [one for one in parameters[1:] if one.kind is not one.VAR_KEYWORD and one.name not in given]
    callables = [one.name for one in others if typing.get_origin(one.annotation) is Callable]
    required = [one.name for one in others if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    return RayFunction(name, function, is_of_files, [one.name for one in others], required, callables, is_open)


def check_ray_options(config: OfflineConfig) -> None:
    """Reject a missing function, or arguments that it does not take. Raises `ConfigError`."""
    found = find_read_function(config.input_read_method)
    check_option_names(config, found.name, [*OWN_OPTIONS, *found.options], found.is_open)
    problems = find_argument_faults(found, config.input_read_method_kwargs, KWARGS)
    if problems:
        raise ConfigError(problems)


def find_argument_faults(found: RayFunction, given: Mapping[str, Any], key: str) -> list[Problem]:
    """Return the problems of a function's arguments: missing ones, and values that are not functions."""
    expected = "{_target_: package.module.function, _partial_: true, argument: value, ...}"
    problems = [
        Problem(f"the argument {name} of {found.name} must be a function", f"{key}.{name}", show_value(value), expected)
        for name, value in given.items()
        if name in found.callables and not (isinstance(value, Mapping) and value.get(PARTIAL) is True)
    ]
    missing = [name for name in found.required if name not in given]
    problems += [Problem(f"{found.name} needs the argument {name}", key, fix=f"add {name}: ...") for name in missing]
    return problems


def check_option_names(config: OfflineConfig, method: str, known: Sequence[str], is_open: bool = False) -> None:
    """Reject keyword arguments that have no effect or that unpickle objects in the files.

    Args:
        config: the `offline` block.
        method: name of the reader, for messages.
        known: names that have an effect.
        is_open: whether other names are also allowed.

    Raises:
        ConfigError: arguments are rejected; lists all of them.
    """
    given = config.input_read_method_kwargs
    checked = {} if is_open else {name: value for name, value in given.items() if name != _PICKLES}
    problems = unknown_options(method, checked, known, KWARGS)
    if _PICKLES in given:
        what = "objects in recorded data are not unpickled, because that runs code from the files"
        problems.append(Problem(what, f"{KWARGS}.{_PICKLES}", str(given[_PICKLES])))
    if problems:
        raise ConfigError(problems)


def unknown_options(method: str, given: Mapping[str, Any], known: Collection[str], key: str) -> list[Problem]:
    """Return the problems of options that are not among the known ones; `key` is the block of the options."""
    return [
        Problem(f"{method} takes no option {name}", key, str(value), list_names(known), nearest_match(name, known))
        for name, value in given.items()
        if name not in known
    ]


def missing_package(method: str, error: ImportError, key: str = METHOD) -> ConfigError:
    """Return the error of a function that needs a package that is not installed."""
    what = f"{method} needs a package that is not installed: {next(iter(str(error).splitlines()), '')}"
    return ConfigError([Problem(what, key, method)])


_log = logging.getLogger(__name__)


def set_up_ray_data() -> None:
    """Configure Ray Data to keep the order of blocks and to use the resources reserved for a trial of a sweep.

    It logs to its own file and to the run's log, not to the terminal, which shows the run's display.
    """
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.execution_options.preserve_order = True  # batches do not depend on the speed of workers
    _stay_in_group(context)
    logger = logging.getLogger("ray.data")
    for handler in logger.handlers[:]:
        if not isinstance(handler, (logging.FileHandler, _ToRunLog)):
            logger.removeHandler(handler)
    if not any(isinstance(handler, _ToRunLog) for handler in logger.handlers):
        logger.addHandler(_ToRunLog(logging.WARNING))


def _stay_in_group(context: Any) -> None:
    """Run tasks and actors in the placement group of this process, if any, as other resources may be in use."""
    from ray.util.placement_group import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = get_current_placement_group()
    if group is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Ray 2.60 offers no other global setting
            context.scheduling_strategy = PlacementGroupSchedulingStrategy(group)
            context.scheduling_strategy_large_args = PlacementGroupSchedulingStrategy(group)


class _ToRunLog(logging.Handler):
    """Forwards records to the run's log, except for Ray Data's message about disabled progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith("Progress bars disabled"):
            _log.handle(record)


# Arguments of every Ray Data reader: parallelism and resources.
RAY_OPTIONS = ("concurrency", "override_num_blocks", "ray_remote_args", "num_cpus", "num_gpus", "memory")
_ROWS_PER_TABLE = 4096


class RayReader:
    """Rows of a Ray data set, in order.

    Args:
        config: the `offline` block.

    Attributes:
        row_filter: only rows for which it is true are returned.

    Raises:
        DataError: there are no rows, or they cannot be read.
    """

    def __init__(self, config: OfflineConfig) -> None:
        self._config = config
        self._dataset = read_with_ray(config)
        self._held: Sequence[ObjectRef[pa.Table]] | None = None
        self.row_filter: ds.Expression | None = None
        batch = next(self._batches(1), None)
        if batch is None:
            raise data_error("these data do not contain any rows", DataLocation(str(config.input_)))
        self.schema: pa.Schema = batch.schema

    def held(self) -> RayReader:
        """Return a reader of the same rows in Ray's object store, so that no process reads the source again.

        Raises:
            DataError: they cannot be read.
        """
        reader = copy.copy(self)
        with self._errors_of_data():
            reader._held = self._dataset.materialize().to_arrow_refs()
        return reader

    def dataset(self, columns: Sequence[str] | None = None) -> Dataset:
        """Return the rows as a Ray data set. Works only in the process that opened them."""
        return narrowed_dataset(self._dataset, self._config, columns)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        row = 0
        for table in self._batches(_ROWS_PER_TABLE) if self._held is None else self._held_tables(self._held):
            yield narrowed(table, DataLocation(str(self._config.input_), row), self.row_filter, columns)
            row += table.num_rows

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
    """Call the function of `input_read_method` with `input_` and its keyword arguments, without `OWN_OPTIONS`.

    Raises:
        ConfigError: the function does not exist, does not take these arguments, needs a package, or does not return a
            data set.
        DataError: files are missing.
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
    except Exception as error:  # databases and user functions raise arbitrary errors
        if isinstance(error, ConfigError):
            raise
        what = f"{read.name}: {type(error).__name__}: {first_line(error)}"
        raise ConfigError([Problem(what, KWARGS, str(named))]) from error
    if not isinstance(dataset, ray.data.Dataset):
        what = f"{read.name} did not return a ray.data.Dataset"
        raise ConfigError([Problem(what, METHOD, type(dataset).__name__)])
    return dataset


def check_readable(config: OfflineConfig) -> None:
    """Reject missing files and functions that do not exist, before Ray starts.

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
    """Read rows with any columns, for a pre-learner that maps them itself. `auto` uses the files' names.

    Args:
        config: the `offline` block.
        known: kinds of files that are distinguished.

    Raises:
        ConfigError, DataError: see `read_with_ray`.
    """
    if config.input_read_method == "auto":
        config = replace(config, input_read_method=f"read_{find_files(config, known).kind.name}")
    check_ray_options(config)
    return narrowed_dataset(read_with_ray(config), config, config.input_read_method_kwargs.get("columns"))


def narrowed_dataset(dataset: Dataset, config: OfflineConfig, columns: Sequence[str] | None) -> Dataset:
    """Return the rows that pass the configured filter, with these columns, or all columns for None."""
    row_filter = config.input_read_method_kwargs.get("filter")
    if row_filter is not None:
        dataset = dataset.filter(expr=ray_expression(row_filter))
    return dataset if columns is None else dataset.select_columns(list(columns))
