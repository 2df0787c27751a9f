"""Convert values and names of metrics for trackers: plain numbers, JSON values and escaped names.

Names that a tracker accepts are unchanged. In other names, each character that it rejects is written as its hexadecimal
code point between two marks: `agents//robot_1` becomes `agents/:2f:robot_1` in MLflow. Names that are too long end with
a digest.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIGEST_CHARS = 16
# Characters to escape in empty path components and in components that mean a folder.
_ODD_IN_PATHS = r"^/|(?<=/)/|/$|^\.(?=\.)|(?:(?<=^)|(?<=/))\.(?=$|/|\.(?:$|/))"


@dataclass(frozen=True)
class NameRules:
    """Names that a tracker accepts.

    Attributes:
        rejected: pattern of one character that the tracker rejects.
        mark: accepted character around the code point of an escaped one.
        max_chars: length of the longest name, or None without a limit.
    """

    rejected: str
    mark: str
    max_chars: int | None = None


MLFLOW_NAMES = NameRules(r"[^/\w.\- :]", ":", 250)
TENSORBOARD_NAMES = NameRules(r"[^-/\w.]", "-")


@functools.lru_cache(maxsize=16_384)
def escaped_name(name: str, rules: NameRules) -> str:
    """Return the name in the form that the tracker accepts."""
    mark = re.escape(rules.mark)
    odd = re.compile(f"{rules.rejected}|{_ODD_IN_PATHS}")
    looks_escaped = re.search(f"{mark}[0-9a-f]*{mark}", name)
    if not name:
        return rules.mark * 2
    if odd.search(name) or looks_escaped:
        both = re.compile(f"{odd.pattern}|{mark}")
        key = both.sub(lambda match: f"{rules.mark}{ord(match[0]):x}{rules.mark}", name)
    else:
        key = name
    if rules.max_chars is None or len(key) <= rules.max_chars:
        return key
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{key[: rules.max_chars - _DIGEST_CHARS - 2]}{rules.mark}{digest}{rules.mark}"


JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]


def finite_number(value: object) -> float | None:
    """Return `value` as a float, or None if it is not a finite number or is a bool."""
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
    """Convert `value` to a strict JSON value.

    NaN and infinity become null, numpy and torch scalars become numbers, arrays and tuples become lists, and other
    objects become text.
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
