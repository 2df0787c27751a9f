"""Functions of Ray Data, and of one's own: what they take, and which one `offline.input_read_method` names."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.callables import PARTIAL
from runner.config.errors import ConfigError, Problem, list_names, nearest_match, show_value
from runner.config.imports import import_target
from runner.config.offline import OfflineConfig

METHOD, KWARGS = "offline.input_read_method", "offline.input_read_method_kwargs"
# What is ours, and works with every function: which columns and rows are read.
OWN_OPTIONS = ("columns", "filter")
_PICKLES = "allow_pickle"
# Takes an object in place of `input_`; may run code that a file names.
_REFUSED = ("read_datasource", "read_zarr")


@dataclass(frozen=True)
class RayFunction:
    """A function that makes a Ray data set of `offline.input_`, or writes one to `offline.output`.

    Attributes:
        name: for messages.
        function: takes the place that `offline` names, to write after the data set; to read it returns a data set.
        is_of_files: the place is files and folders; false: whatever the function takes there, such as SQL.
        options: names of its other arguments.
        required: the ones of them that must be given.
        callables: the ones of them that are functions.
        is_open: it takes arguments of other names, too.
    """

    name: str
    function: Callable[..., Any]
    is_of_files: bool
    options: Sequence[str]
    required: Sequence[str]
    callables: Sequence[str]
    is_open: bool


def find_read_function(method: str) -> RayFunction:
    """Return the function; raises `ConfigError` if there is none, or it takes no `input_`."""
    import ray.data

    if "." in method:
        return described(method, import_target(method, METHOD), METHOD)
    functions = {name: getattr(ray.data, name) for name in dir(ray.data) if name.startswith("read_")}
    known = [name for name, one in functions.items() if inspect.isfunction(one) and name not in _REFUSED]
    if method not in known:
        what = f"ray.data has no function {method}" if method not in _REFUSED else f"{method} of ray.data is not called"
        allowed = f"{list_names(known, method)}; or package.module.function of your own, which returns a Ray data set"
        raise ConfigError([Problem(what, METHOD, method, allowed, nearest_match(method, known))])
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
    """Return what the signature of a function says.

    Args:
        name: for messages.
        function: its arguments are the place that `offline` names, then options.
        key: of the configuration that names it.
        given: options that are given by runner.
        is_of_files: see `RayFunction`.
        num_before: arguments before the place.

    Raises:
        ConfigError: it takes no place.
    """
    parameters = list(inspect.signature(function).parameters.values())[num_before:]
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    ):
        place, which = ("offline.output", "second") if num_before else ("offline.input_", "first")
        raise ConfigError([Problem(f"{name} takes no argument for {place}, its {which} one", key, name)])
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
    others = [one for one in parameters[1:] if one.kind is not one.VAR_KEYWORD and one.name not in given]
    callables = [one.name for one in others if typing.get_origin(one.annotation) is Callable]
    required = [one.name for one in others if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    return RayFunction(name, function, is_of_files, [one.name for one in others], required, callables, is_open)


def check_ray_options(config: OfflineConfig) -> None:
    """Refuse a function that there is not, or arguments that it does not take; raises `ConfigError`."""
    found = find_read_function(config.input_read_method)
    check_option_names(config, found.name, [*OWN_OPTIONS, *found.options], found.is_open)
    problems = find_argument_faults(found, config.input_read_method_kwargs, KWARGS)
    if problems:
        raise ConfigError(problems)


def find_argument_faults(found: RayFunction, given: Mapping[str, Any], key: str) -> list[Problem]:
    """Return the arguments of a function that are missing, or are no functions where it calls them."""
    allowed = "{_target_: package.module.function, _partial_: true, argument: value, ...}"
    problems = [
        Problem(f"{found.name} calls its argument {name}", f"{key}.{name}", show_value(value), allowed)
        for name, value in given.items()
        if name in found.callables and not (isinstance(value, Mapping) and value.get(PARTIAL) is True)
    ]
    missing = [name for name in found.required if name not in given]
    problems += [Problem(f"{found.name} needs the argument {name}", key, allowed=f"{name}: ...") for name in missing]
    return problems


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
        Problem(f"{method} has no option {name}", KWARGS, str(value), list_names(known), nearest_match(name, known))
        for name, value in given.items()
        if name not in (*known, _PICKLES) and not is_open
    ]
    if _PICKLES in given:
        what = "objects in recorded data are not unpickled, as that would run code in the files"
        problems.append(Problem(what, f"{KWARGS}.{_PICKLES}", str(given[_PICKLES])))
    if problems:
        raise ConfigError(problems)


def missing_package(method: str, error: ImportError, key: str = METHOD) -> ConfigError:
    """Return the error of a function that needs a package."""
    what = f"{method} needs a package that is not installed: {next(iter(str(error).splitlines()), '')}"
    return ConfigError([Problem(what, key, method)])
