"""Checks of a value against the type and range of its field."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from runner.config.errors import Problem, list_names, nearest_key, nearest_match, show_value
from runner.config.fields import Option, option_of

_NO_LIMITS = Option("")
# Resources that Ray defines.
_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")
_PLAIN_NAMES: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "true or false"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    type(None): ("null", "nulls"),
    dict: ("a block of keys", "blocks of keys"),
    list: ("a list", "lists"),
}


class MismatchError(Exception):
    """A value does not have the type of its field."""


def convert(value: Any, annotation: Any) -> Any:
    """Convert a value to its annotation.

    An int becomes a float if a float is required, and a key of a block becomes text. Nothing else changes.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments)
    if origin is typing.Literal:
        return _require(value, any(value == item and type(value) is type(item) for item in arguments))
    if origin is list or annotation is list:
        _require(value, isinstance(value, list))
        return [convert(item, arguments[0]) for item in value] if arguments else value
    if origin is tuple or annotation is tuple:
        return _convert_tuple(value, arguments)
    if origin is dict or annotation is dict:
        _require(value, isinstance(value, dict))
        return _convert_items(value, *arguments) if arguments else value
    if dataclasses.is_dataclass(annotation):
        return _convert_block(value, annotation)
    return _convert_plain(value, annotation)


def _convert_items(value: dict[Any, Any], key_kind: Any, item_kind: Any) -> dict[Any, Any]:
    is_text = key_kind is str  # YAML reads the key 0 as a number
    return {str(key) if is_text else key: convert(item, item_kind) for key, item in value.items()}


def _convert_block(value: Any, schema: Any) -> Any:
    """Convert a dict into a dataclass; missing fields get their defaults."""
    _require(value, isinstance(value, dict) and value.keys() <= typed_fields(schema).keys())
    return schema(**convert_fields(schema, value))


def _require(value: Any, is_met: bool) -> Any:
    if not is_met:
        raise MismatchError
    return value


def _convert_plain(value: Any, annotation: Any) -> Any:
    if annotation is float:
        _require(value, isinstance(value, (int, float)) and not isinstance(value, bool) and value == value)
        return float(_require(value, abs(value) <= sys.float_info.max or isinstance(value, float)))
    if annotation is int:
        return _require(value, isinstance(value, int) and not isinstance(value, bool))
    if annotation in (bool, str):
        return _require(value, isinstance(value, annotation))
    if annotation in (None, type(None)):
        return _require(value, value is None)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        _require(value, value in annotation.__members__)
        return annotation[value]
    return value


def _convert_union(value: Any, alternatives: Iterable[Any]) -> Any:
    ordered = sorted(alternatives, key=lambda one: one is float)  # an int stays an int for int | float
    for alternative in ordered:
        try:
            return convert(value, alternative)
        except MismatchError:
            continue
    raise MismatchError


def _convert_tuple(value: Any, items: tuple[Any, ...]) -> Any:
    _require(value, isinstance(value, list))
    if not items:
        return tuple(value)
    if len(items) == 2 and items[1] is Ellipsis:
        return tuple(convert(item, items[0]) for item in value)
    _require(value, len(items) == len(value))
    return tuple(convert(item, kind) for item, kind in zip(value, items, strict=True))


def describe_allowed(annotation: Any, option: Option | None) -> str:
    """Describe the values of a field in words: `an integer >= 1 or null`."""
    option = option or _NO_LIMITS
    kinds = [_describe_type(kind) for kind in _alternatives(annotation, option)]
    bounds = _describe_bounds(option)
    names = []
    for kind in dict.fromkeys(kinds):
        is_number = kind in ("an integer", "a number") or kind.startswith("a list of")
        names.append(f"{kind} {bounds}" if is_number and bounds else kind)
    if option.choices:
        names = [_describe_choices(name, option.choices) for name in names]
    if option.is_schedule:
        names.append("a schedule [[0, value], [env_steps, value], ...]")
    return " or ".join(names)


def _describe_choices(kind: str, choices: Sequence[Any]) -> str:
    """Return the choices of a kind of values; the kind itself if it does not have choices."""
    texts = [str(choice) for choice in choices if not isinstance(choice, bool)]
    switches = [show_value(choice) for choice in choices if isinstance(choice, bool)]
    described = {
        "text": ", ".join(texts),
        "true or false": ", ".join(switches),
        "a block of keys": f"a block of the keys {', '.join(texts)}",
    }
    return described.get(kind) or kind


def _alternatives(annotation: Any, option: Option) -> list[Any]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = list(typing.get_args(annotation)) if is_union else [annotation]
    if int in kinds and float in kinds:
        kinds.remove(int)
    return [kind for kind in kinds if not (option.is_schedule and typing.get_origin(kind) is list)]


def _describe_type(annotation: Any) -> str:
    if annotation is None or annotation in _PLAIN_NAMES:
        return _PLAIN_NAMES[type(None) if annotation is None else annotation][0]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(show_value(item) for item in arguments)
    if origin in (list, tuple):
        item = _PLAIN_NAMES.get(typing.get_origin(arguments[0]) or arguments[0])
        return f"a list of {item[1]}" if item else "a list"
    if dataclasses.is_dataclass(annotation):
        return f"a block of the keys {', '.join(field.name for field in dataclasses.fields(annotation))}"
    if origin is dict:
        return "a block of keys"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(annotation.__members__)
    return str(getattr(annotation, "__name__", annotation))


def _describe_bounds(option: Option) -> str:
    signs = {">=": option.minimum, ">": option.above, "<=": option.maximum, "<": option.below}
    return " and ".join(f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None)


def wrong_type(name: str) -> str:
    """Return the message about a value of another type than its key takes."""
    return f"{name} has the wrong type"


def check_value(name: str, value: Any, annotation: Any, option: Option | None) -> Problem | None:
    """Return the problem of the value of a key, or None."""
    option = option or _NO_LIMITS
    got, expected = show_value(value), describe_allowed(annotation, option)
    if value == "???":
        return Problem(f"{name} does not have a value", name, expected=expected)
    if option.is_schedule and isinstance(value, list):
        fault = _find_schedule_fault(value, option)
        return Problem(f"{name} is not a valid schedule: {fault}", name, got, expected) if fault else None
    try:
        convert(value, annotation)
    except MismatchError:
        return Problem(wrong_type(name), name, got, expected)
    if option.is_path and value == "":
        return Problem(f"{name} is empty", name, got, "a path, or null")
    if option.choices is not None and not _is_chosen(value, option):
        nearest = nearest_match(str(value), [str(choice) for choice in option.choices])
        return Problem(f"{name} is not one of its choices", name, got, expected, nearest)
    if not all(_is_within(number, option) for number in _numbers_of(value)):
        return Problem(f"{name} is out of range", name, got, expected)
    return None


def typed_fields(schema: type) -> Mapping[str, tuple[Any, Option | None]]:
    """Return field of a dataclass -> its type, and its `Option` or None."""
    return _typed_fields(schema)


@cache
def _typed_fields(schema: type) -> Mapping[str, tuple[Any, Option | None]]:
    annotations = typing.get_type_hints(schema)
    fields = [field for field in dataclasses.fields(schema) if field.init]
    return {field.name: (annotations[field.name], option_of(field)) for field in fields}


def check_field(schema: type, name: str, value: Any, key: str) -> Problem | None:
    """Return the problem of a value for a field of a dataclass at a dotted key, or None."""
    annotation, option = typed_fields(schema)[name]
    return check_value(key, value, annotation, option)


def convert_fields(schema: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert valid values of some fields of a dataclass."""
    return {name: convert(value, typed_fields(schema)[name][0]) for name, value in values.items()}


def find_value_problems(name: str, value: Any, annotation: Any, option: Option | None) -> list[Problem]:
    """Return the problem of a value, or the problems of its items if it is a block with any keys.

    Args:
        name: key of the value.
        value: value given.
        annotation: type of the value.
        option: bounds and choices, or None.
    """
    problem = check_value(name, value, annotation, option)
    if problem is None:
        return []
    is_block = typing.get_origin(annotation) is dict and isinstance(value, dict)
    kind = typing.get_args(annotation)[1] if is_block else None
    items = {f"{name}.{key}": item for key, item in value.items()} if is_block else {}
    found = [check_value(key, item, kind, None) for key, item in items.items()]
    return [one for one in found if one is not None] or [problem]


def _is_chosen(value: Any, option: Option) -> bool:
    assert option.choices is not None
    if value is None or value in option.choices:
        return True
    return not isinstance(value, str) and all(isinstance(choice, str) for choice in option.choices)


def _numbers_of(value: Any) -> list[float]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, (int, float)) and not isinstance(item, bool)]


def _is_within(number: float, option: Option) -> bool:
    return (
        number == number  # not NaN
        and (option.minimum is None or number >= option.minimum)
        and (option.maximum is None or number <= option.maximum)
        and (option.above is None or number > option.above)
        and (option.below is None or number < option.below)
    )


def _find_schedule_fault(schedule: list[Any], option: Option) -> str | None:
    pairs = [item for item in schedule if isinstance(item, list) and len(item) == 2 and len(_numbers_of(item)) == 2]
    if not schedule or len(pairs) != len(schedule):
        return "every item must be [env_steps, value]"
    steps = [pair[0] for pair in pairs]
    if steps[0] != 0:
        return f"it must start at env step 0, not {steps[0]}"
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        return "its env steps must ascend"
    outside = [pair[1] for pair in pairs if not _is_within(pair[1], option)]
    return f"value {outside[0]} is out of range" if outside else None


def find_unknown_keys(
    schema: type, values: Mapping[Any, Any], key: str, names: Sequence[str] | None = None
) -> Iterator[Problem]:
    """Yield a problem for each key of a block that is not a field of its dataclass.

    Args:
        schema: dataclass of the block.
        values: the block.
        key: dotted key of the block; empty for the top level.
        names: fields that the block may set; None for all fields.
    """
    known = list(typed_fields(schema)) if names is None else names
    prefix = f"{key}." if key else ""
    for name, value in values.items():
        if name not in known:
            full, expected = f"{prefix}{name}", list_names(known, str(name), limit=60) or "no keys"
            nearest = nearest_key(str(name), known, prefix)
            yield Problem(f"unknown key {full}", full, show_value(value), expected, nearest)


def find_block_problems(schema: type, values: Any, key: str, names: Sequence[str] | None = None) -> Iterator[Problem]:
    """Yield the problems of a block that sets some fields of a dataclass; see `find_unknown_keys`."""
    known = list(typed_fields(schema)) if names is None else names
    if not isinstance(values, Mapping):
        yield Problem(f"{key} must be a block", key, show_value(values), list_names(known, limit=60))
        return
    yield from find_unknown_keys(schema, values, key, known)
    for name in (name for name in known if name in values):
        problem = check_field(schema, name, values[name], f"{key}.{name}")
        if problem is not None:
            yield problem


def valid_fields(schema: type, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the valid values of a block that sets some fields of a dataclass, converted."""
    given = {name: values[name] for name in typed_fields(schema) if name in values}
    valid = {name: value for name, value in given.items() if check_field(schema, name, value, name) is None}
    return convert_fields(schema, valid)


def find_resource_problems(key: str, custom: Mapping[str, float], own_keys: Mapping[str, str]) -> Iterator[Problem]:
    """Yield invalid custom resources.

    Args:
        key: dotted key of the block.
        custom: name -> amount.
        own_keys: Ray's name of a resource -> its separate key.
    """
    for name, amount in custom.items():
        place, got = f"{key}.{name}", show_value(amount)
        if name in own_keys:
            what = f"{key} contains {name}, which has its own key"
            yield Problem(what, place, got, fix=f"{own_keys[name]}={amount:g}")
        elif not name or name in _OF_RAY:
            what = f"{key} contains a reserved name of Ray"
            yield Problem(what, place, name, "a custom resource that nodes were started with")
        elif amount <= 0 or (amount > 1 and amount % 1 != 0):
            yield Problem(f"{place} is not a valid amount", place, got, "a fraction of 1, or an integer")
