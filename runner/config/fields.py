"""`option`: a dataclass field with description, unit and range, which checks and help texts use."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Option:
    """The description and the valid values of a configuration field.

    `minimum`/`maximum` are inclusive bounds, `above`/`below` exclusive ones; they apply to the number itself, to
    every item of a list and to every value of a schedule. `is_schedule` marks a field that takes either a number or
    `[[env_steps, value], ...]`, interpolated linearly. `is_adapted`: training changes the value, so
    a checkpoint contains its own. `choices` of a block are its keys. `is_path` marks paths of files; local paths become
    absolute when the configuration is read. `renamed_from` is an old name of the field, which remains an alias.
    """

    meaning: str
    unit: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    is_schedule: bool = False
    is_adapted: bool = False
    is_path: bool = False
    renamed_from: str | None = None


def option(default: T, meaning: str | Option, **bounds: Any) -> T:
    """Return a dataclass field with `default` and a description: an `Option`, or `Option(meaning, **bounds)`.

    A list or dict default is copied for each instance.
    """
    metadata = {"option": meaning if isinstance(meaning, Option) else Option(meaning, **bounds)}
    if isinstance(default, (list, dict)):
        copied = default
        return dataclasses.field(default_factory=lambda: type(copied)(copied), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def option_of(field: dataclasses.Field[Any]) -> Option | None:
    """Return the description of a field made by `option`; None for a nested block."""
    return field.metadata.get("option")


def names_of(schema: type) -> Sequence[str]:
    """Return the field names of a dataclass, in order."""
    return [field.name for field in dataclasses.fields(schema)]


def adapted_names(schema: type) -> set[str]:
    """Return the fields of a dataclass that hold initial values, which training adapts and checkpoints store."""
    options = {field.name: option_of(field) for field in dataclasses.fields(schema)}
    return {name for name, option in options.items() if option is not None and option.is_adapted}
