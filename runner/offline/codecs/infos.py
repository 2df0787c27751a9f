"""What environments return as info, as one line of JSON each: text in any tool, the same values back.

Arrays and numpy scalars are `{"dtype": "<f4", "shape": [2], "array": [0.5, 1.0]}` (a scalar's shape is null), tuples
`{"tuple": [...]}`, bytes `{"bytes": base64}`, dicts with other keys than text (or with the keys of these forms)
`{"map": [[key, value], ...]}`. Any other object is kept as its text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

_FORMS = ({"dtype", "shape", "array"}, {"tuple"}, {"bytes"}, {"map"})
_EMPTY = "{}"
_MAX_TEXT = 1000


def info_to_json(info: dict[str, Any]) -> str:
    """Return one info as text."""
    return json.dumps(_to_plain(info), separators=(",", ":")) if info else _EMPTY


def info_from_json(text: str | None) -> dict[str, Any]:
    """Invert `info_to_json`; raises `ValueError` for what is no JSON object."""
    if not text or text == _EMPTY:
        return {}
    info = _from_plain(json.loads(text))
    if not isinstance(info, dict):
        raise ValueError(f"an info is a JSON object, got {text[:80]}")
    return info


def _to_plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufSU":
        return _array_to_plain(value)
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and set(value) not in _FORMS:
            return {key: _to_plain(item) for key, item in value.items()}
        return {"map": [[_to_plain(key), _to_plain(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [_to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_plain(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return str(value)[:_MAX_TEXT]


def _array_to_plain(array: Any) -> dict[str, Any]:
    shape = list(array.shape) if isinstance(array, np.ndarray) else None
    items = base64.b64encode(array.tobytes()).decode() if array.dtype.kind == "S" else array.tolist()
    return {"dtype": array.dtype.str, "shape": shape, "array": items}


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = set(value)
    if keys == _FORMS[0]:
        return _array_from_plain(value)
    if keys == {"tuple"}:
        return tuple(_from_plain(item) for item in value["tuple"])
    if keys == {"bytes"}:
        return base64.b64decode(value["bytes"])
    if keys == {"map"}:
        return {_from_plain(key): _from_plain(item) for key, item in value["map"]}
    return {key: _from_plain(item) for key, item in value.items()}


def _array_from_plain(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biufSU":
        raise ValueError(f"arrays of dtype {dtype} are not allowed in an info")
    shape = value["shape"]
    if dtype.kind == "S":
        array = np.frombuffer(base64.b64decode(value["array"]), dtype)
    else:
        array = np.asarray(value["array"], dtype)
    return array.reshape(() if shape is None else shape)[()] if shape is None else array.reshape(shape).copy()


@dataclass(frozen=True)
class RecordedInfos:
    """The infos of a block that was read: JSON until somebody asks. Row e of `texts` holds the infos of chunk e."""

    texts: pa.ChunkedArray | pa.Array  # (E,) list<string>, null: all empty

    def rows_of(self, chunk: int, num_before: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return `num_rows` infos of the chunk's observations, preceded by `num_before` empty ones; None: all empty."""
        texts: list[str] | None = self.texts[chunk].as_py()
        if texts is None:
            return None
        return [{} for _ in range(num_before)] + [info_from_json(text) for text in texts[:num_rows]]


def infos_to_arrow(rows: Sequence[list[dict[str, Any]] | None]) -> pa.Array | None:
    """Return (E,) list<string> of the infos of E chunks; None where there are none in any."""
    texts = [None if infos is None or not any(infos) else [info_to_json(info) for info in infos] for infos in rows]
    if all(text is None for text in texts):
        return None
    return pa.array(texts, pa.list_(pa.field("item", pa.string(), nullable=False)))
