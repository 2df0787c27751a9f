"""Objects and functions in YAML arguments of user-defined classes: `{_target_: PATH, argument: value, ...}`.

As in Hydra, the target is called with the arguments, `_args_` by position. `_partial_: true` returns a
`functools.partial` instead, and `_recursive_: false` leaves blocks in the arguments unchanged. Targets may be nested in
lists, blocks and arguments of other targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from runner.config.composed import Composed
from runner.config.errors import ConfigError, Problem, show_value
from runner.config.features import FEATURE_BLOCKS
from runner.config.imports import import_target
from runner.config.targets import (
    INSTANTIATE_KEYS,
    NOTHING_GIVEN,
    POSITIONAL,
    describe_fault,
    find_target_fault,
    is_part,
    with_positional,
)

TARGET, PARTIAL, RECURSIVE = "_target_", "_partial_", "_recursive_"
# Blocks, and fields of `offline`, with arguments of user-defined classes; other fields have their own checks.
_BLOCKS = ("env", "module", "multi_agent", "algorithm", "connectors", "callbacks", *FEATURE_BLOCKS)
_OF_PRELEARNER = ("prelearner_kwargs", "prelearner_buffer_kwargs")


def find_nested_faults(composed: Composed) -> Iterator[Problem]:
    """Yield problems of targets in arguments of user-defined classes, according to their sources."""
    for name in _BLOCKS:
        if name not in composed.unread:
            yield from find_callable_faults(composed.values.get(name), name)
    offline = composed.values.get("offline")
    if not isinstance(offline, Mapping) or "offline" in composed.unread:
        return
    for name in _OF_PRELEARNER:
        yield from find_callable_faults(offline.get(name), f"offline.{name}")


def find_callable_faults(value: Any, key: str, is_inside: bool = False) -> Iterator[Problem]:
    """Yield problems of the targets in a value, except for components of the run, which have their own checks.

    Args:
        value: nested dicts, lists and scalars.
        key: dotted key of the value.
        is_inside: whether the value is an argument of another target.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_callable_faults(item, f"{key}.{index}", is_inside)
    elif isinstance(value, Mapping):
        if TARGET in value and not is_part(f"{key}.{TARGET}", is_inside):
            yield from _find_block_faults(value, key)
        for name, item in value.items() if value.get(RECURSIVE, True) is not False else ():
            yield from find_callable_faults(item, f"{key}.{name}", is_inside or TARGET in value)


def _find_block_faults(value: Mapping[str, Any], key: str) -> Iterator[Problem]:
    """Yield problems of the target and of the names of its arguments."""
    path, is_partial = value[TARGET], value.get(PARTIAL, False)
    if not isinstance(path, str):
        yield Problem(f"{key}.{TARGET} is not a dotted path", key, show_value(path), "package.module.function")
    elif not isinstance(is_partial, bool):
        yield Problem(f"{key}.{PARTIAL} must be true or false", key, show_value(is_partial))
    elif not isinstance(value.get(POSITIONAL, []), list):
        yield Problem(f"{key}.{POSITIONAL} must be a list of arguments", key, show_value(value[POSITIONAL]))
    else:
        names = [str(name) for name in arguments_of(value)]
        fault = find_target_fault(path, names, given=with_positional(NOTHING_GIVEN, value), is_partial=is_partial)
        if fault is not None:
            yield describe_fault(key, fault, path)


def arguments_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a target."""
    return {name: item for name, item in value.items() if name not in INSTANTIATE_KEYS}


def made_arguments(block: Mapping[str, Any], where: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a block, with all targets in them replaced by their objects.

    Args:
        block: `{_target_: PATH, argument: value, ...}`; without a `_target_`, all items are arguments.
        where: dotted key of the block.

    Raises:
        ConfigError: a target in the arguments cannot be imported, or called.
    """
    given = {**arguments_of(block), POSITIONAL: block.get(POSITIONAL, [])}
    made = given if block.get(RECURSIVE, True) is False else _made_each(given, where)
    return made.pop(POSITIONAL), made


def with_callables(value: Any, where: str) -> Any:
    """Return a value with all targets in it replaced by their objects.

    Args:
        value: nested dicts, lists and scalars.
        where: dotted key of the value.

    Raises:
        ConfigError: a target cannot be imported, or called with its arguments.
    """
    if isinstance(value, list):
        return [with_callables(item, f"{where}.{index}") for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if TARGET not in value:
        return _made_each(value, where)
    target = import_target(str(value[TARGET]), where)
    positional, arguments = made_arguments(value, where)
    if value.get(PARTIAL, False):
        return partial(target, *positional, **arguments)
    return called(target, arguments, where, positional)


def _made_each(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: with_callables(item, f"{where}.{name}") for name, item in values.items()}


def called(target: Any, arguments: Mapping[str, Any], where: str, positional: Sequence[Any] = ()) -> Any:
    """Call a target; raises `ConfigError` if it fails."""
    try:
        return target(*positional, **arguments)
    except ConfigError:
        raise
    except Exception as error:
        name = getattr(target, "__name__", str(target))
        what = f"{name} failed: {type(error).__name__}: {error}"
        raise ConfigError([Problem(what, where, show_value(dict(arguments)))]) from error
