"""Metrics as they come (Python, numpy or torch scalars) turned into plain numbers and JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]


def finite_number(value: object) -> float | None:
    """Return `value` as a float; None when it is no number, a bool, NaN or infinite."""
    number = value if type(value) is float else _as_float(value)
    return number if number is not None and math.isfinite(number) else None


def _as_float(value: object) -> float | None:
    item = getattr(value, "item", None)  # numpy and torch scalars
    try:
        number = item() if callable(item) else value
        return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None  # more than one element, or an integer too large for a float


def json_value(value: object) -> JsonValue:
    """Return `value` as something that strict JSON can hold.

    NaN and infinity become null, numpy and torch scalars numbers, arrays and tuples lists, everything else
    text.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [json_value(item) for item in value]
    tolist = getattr(value, "tolist", None)  # numpy scalars and arrays, torch tensors
    return json_value(tolist()) if callable(tolist) else str(value)
