"""Values and names of metrics as trackers accept them: plain numbers and JSON values, escaped names.

A name that a tracker accepts stays as it is. In any other name each character that it does not accept is written as
its hexadecimal code point between two marks: `agents//robot_1` is `agents/:2f:robot_1` in MLflow. A name that is too
long ends with a digest of it.
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
# Where a path would have an empty component, or one that means a folder: the character to be escaped.
_ODD_IN_PATHS = r"^/|(?<=/)/|/$|^\.(?=\.)|(?:(?<=^)|(?<=/))\.(?=$|/|\.(?:$|/))"


@dataclass(frozen=True)
class NameRules:
    """What names a tracker accepts.

    Attributes:
        refused: pattern of one character that it does not accept.
        mark: accepted character around the code point of an escaped one.
        max_chars: length of the longest name; None: no limit.
    """

    refused: str
    mark: str
    max_chars: int | None = None


MLFLOW_NAMES = NameRules(r"[^/\w.\- :]", ":", 250)
TENSORBOARD_NAMES = NameRules(r"[^-/\w.]", "-")


@functools.lru_cache(maxsize=16_384)
def escaped_name(name: str, rules: NameRules) -> str:
    """Return the name as the tracker gets it."""
    mark = re.escape(rules.mark)
    odd = re.compile(f"{rules.refused}|{_ODD_IN_PATHS}")
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
