"""JSON Schema of dataclasses and their fields: types, bounds, choices, descriptions and defaults."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.checks import describe_allowed, typed_fields
from runner.config.defaults import default_values
from runner.config.errors import show_value
from runner.config.fields import Option

Schema = dict[str, Any]

_TYPES: Mapping[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    None: "null",
    dict: "object",
    list: "array",
    tuple: "array",
}
_NUMBERS = ("integer", "number")
# Text that is valid for every field: an interpolation, or a value that must be set elsewhere.
_INTERPOLATION = r"\$\{|^\?\?\?$"
_NO_OPTION = Option("")


def schema_of_class(schema: type) -> Schema:
    """Return the JSON Schema of a dataclass as a block of a YAML file: every key is optional, others are errors."""
    defaults = default_values(schema)
    properties: Schema = {}
    for field in dataclasses.fields(schema):
        if field.init:
            annotation, option = typed_fields(schema)[field.name]
            properties[field.name] = schema_of_field(annotation, option, defaults.get(field.name, dataclasses.MISSING))
            properties |= _old_name(field.name, option)
    about = (schema.__doc__ or "").partition("\n")[0]
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def schema_of_field(annotation: Any, option: Option | None, default: Any = dataclasses.MISSING) -> Schema:
    """Return the JSON Schema of a field.

    Args:
        annotation: type of its values.
        option: description, bounds and choices, or None for a block.
        default: default value as plain values, or `dataclasses.MISSING`.
    """
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        block = schema_of_class(annotation)
        # Editors insert all defaults of a block whose properties are listed here, when its name is completed.
        return {"type": "object", "description": block["description"], "allOf": [block]}
    option = option or _NO_OPTION
    schema = _with_interpolation(_merged(list(_alternatives(annotation, option))))
    if "pattern" in schema:
        schema["patternErrorMessage"] = f"expected {describe_allowed(annotation, option)}"
    if option.meaning:
        unit = f" [{option.unit}]" if option.unit else ""
        shown = "" if default is dataclasses.MISSING else f"; default: {show_value(default)}"
        schema["description"] = f"{option.meaning}{unit}\n\n{describe_allowed(annotation, option)}{shown}"
    if default is not dataclasses.MISSING and default is not None:  # editors cannot insert null
        schema["default"] = default
    return schema


def _alternatives(annotation: Any, option: Option) -> Iterator[Schema]:
    """Yield the JSON Schema of each member of a union."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    for kind in typing.get_args(annotation) if is_union else (annotation,):
        yield _schema_of_type(kind, option)


def _schema_of_type(kind: Any, option: Option) -> Schema:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return schema_of_class(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": list(kind.__members__)}
    name = _TYPES.get(origin)
    if name in _NUMBERS:
        return {"type": name, **_bounds(option)}
    if name == "array":
        return {"type": name, **_items(arguments, option)}
    if name == "object":
        return {"type": name, **_values(arguments, option)}
    if name is not None and (choices := [one for one in option.choices or () if _TYPES.get(type(one)) == name]):
        return {"enum": choices}
    return {} if name is None else {"type": name}


def _bounds(option: Option) -> Schema:
    bounds = {
        "minimum": option.minimum,
        "maximum": option.maximum,
        "exclusiveMinimum": option.above,
        "exclusiveMaximum": option.below,
    }
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _items(arguments: tuple[Any, ...], option: Option) -> Schema:
    if option.is_schedule:
        pair = [{"type": "number"}, {"type": "number", **_bounds(option)}]
        return {"items": {"type": "array", "items": pair, "minItems": 2, "maxItems": 2}, "minItems": 1}
    return {"items": _with_interpolation(_merged(list(_alternatives(arguments[0], option))))} if arguments else {}


def _values(arguments: tuple[Any, ...], option: Option) -> Schema:
    value = _with_interpolation(_merged(list(_alternatives(arguments[1], _NO_OPTION)))) if arguments else {}
    if option.choices:
        return {"properties": {name: value for name in option.choices}, "additionalProperties": False}
    return {"additionalProperties": value} if value else {}


def _merged(alternatives: list[Schema]) -> Schema:
    """Return one schema for a union: a list of types where possible, which editors explain best."""
    if len(alternatives) == 1:
        return alternatives[0]
    names = [one.get("type") for one in alternatives]
    if None not in names and len(set(names)) == len(names):
        types_ = ["number"] if set(names) <= set(_NUMBERS) else names
        rest = [(key, value) for one in alternatives for key, value in one.items() if key != "type"]
        return {"type": types_ if len(types_) > 1 else types_[0], **dict(rest)}
    return {"anyOf": alternatives}


def _with_interpolation(schema: Schema) -> Schema:
    """Return a schema that also accepts `${...}` instead of a value."""
    names = schema.get("type")
    if "enum" in schema or "anyOf" in schema:
        return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "string", "pattern": _INTERPOLATION}]}
    if names is None or names == "string" or (isinstance(names, list) and "string" in names):
        return schema
    names = [names] if isinstance(names, str) else names
    message = f"expected {' or '.join(names)}"
    return {**schema, "type": [*names, "string"], "pattern": _INTERPOLATION, "patternErrorMessage": message}


def _old_name(name: str, option: Option | None) -> Schema:
    if option is None or option.renamed_from is None:
        return {}
    return {option.renamed_from: {"deprecationMessage": f"renamed to {name}", "doNotSuggest": True}}
