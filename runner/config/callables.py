"""Functions and objects that one's own YAML gives as arguments: `{_target_: PATH, argument: value, ...}`.

As in Hydra, the target is called with the arguments; with `_partial_: true` it is a function that knows them, for
others to call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from runner.config.composed import Composed
from runner.config.edits import describe_fault
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.imports import import_target
from runner.config.targets import NOTHING_GIVEN, Given, find_target_fault

TARGET, PARTIAL = "_target_", "_partial_"


def find_callable_faults(value: Any, key: str, composed: Composed) -> Iterator[Problem]:
    """Yield what is wrong with the targets in a value, as far as their source files tell."""
    where = composed.where(key)
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_callable_faults(item, f"{key}.{index}", composed)
    elif isinstance(value, Mapping):
        if TARGET in value:
            yield from find_target_problem(value, key, where)
        for name, item in value.items():
            yield from find_callable_faults(item, f"{key}.{name}", composed)


def find_target_problem(
    value: Mapping[str, Any], key: str, where: str | None, given: Given = NOTHING_GIVEN
) -> Iterator[Problem]:
    """Yield what is wrong with one target and the names of its arguments."""
    path, is_partial = value[TARGET], value.get(PARTIAL, False)
    if not isinstance(path, str):
        yield Problem(f"{key}.{TARGET} is no dotted path", where, show_value(path), "package.module.function")
    elif not isinstance(is_partial, bool):
        yield Problem(f"{key}.{PARTIAL} is true or false", where, show_value(is_partial))
    elif fault := find_target_fault(path, None if is_partial else list(arguments_of(value)), given=given):
        yield describe_fault(key, fault, where, path)


def arguments_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is given to the target."""
    return {name: item for name, item in value.items() if name not in (TARGET, PARTIAL)}


def with_callables(value: Any, where: str) -> Any:
    """Return a value with each block that has a `_target_` replaced by what it stands for.

    Args:
        value: of plain dicts, lists and scalars.
        where: its dotted key.

    Raises:
        ConfigError: a target cannot be imported, or called with its arguments.
    """
    if isinstance(value, list):
        return [with_callables(item, f"{where}.{index}") for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    made = {name: with_callables(item, f"{where}.{name}") for name, item in value.items()}
    if TARGET not in value:
        return made
    target, arguments = import_target(str(value[TARGET]), where), arguments_of(made)
    if value.get(PARTIAL, False):
        return partial(target, **arguments)
    return called(target, arguments, where)


def called(target: Any, arguments: Mapping[str, Any], where: str) -> Any:
    """Call a target; raises `ConfigError` where it fails."""
    try:
        return target(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        name = getattr(target, "__name__", str(target))
        what = f"{name} failed: {type(error).__name__}: {error}"
        raise ConfigError([Problem(what, where, show_value(dict(arguments)))]) from error
