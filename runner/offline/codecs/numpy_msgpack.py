"""Decode arrays in msgpack in the encoding of the package msgpack-numpy, and the spaces that RLlib stores with them.

An array is `{nd: True, type: "<f4", kind: "", shape: [...], data: bytes}`, a numpy scalar `{nd: False, type, data}`.
Keys are bytes or text. Object arrays, whose `data` is a pickle, are rejected.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.nested import Array
from runner.episodes.spaces import space_from_dict

if TYPE_CHECKING:
    from gymnasium import Space

_PLAIN_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|c8|c16|[SU][1-9]\d{0,8})")
_MAX_DEPTH = 32
_MAX_SPACE_BYTES = 2**28


class EncodedArrayError(ValueError):
    """Error of a value that is not an encoded array, or of an array that is not supported."""


def decode_tree(value: Any, depth: int = 0) -> Any:
    """Decode all encoded arrays and scalars in `value`. Raises `EncodedArrayError`."""
    if depth > _MAX_DEPTH:
        raise EncodedArrayError(f"nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        if is_encoded(value):
            return _decode_array(value)
        return {_text(key): decode_tree(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_tree(item, depth + 1) for item in value]
    return value


def is_encoded(value: Any) -> bool:
    """Return whether this is an encoded array or scalar."""
    return isinstance(value, dict) and (b"nd" in value or "nd" in value)


def decode_items(items: Sequence[Any]) -> Any:
    """Decode `len(items)` rows to columns. Items are encoded arrays, numbers, bools, text, or dicts and lists of these.

    Lists become tuples. Encoded arrays of the same dtype and shape are decoded together from their joined bytes.

    Raises:
        EncodedArrayError: an item cannot be decoded, or structures, dtypes or shapes differ.
    """
    return _decode_items(items, 0)


def _decode_items(items: Sequence[Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise EncodedArrayError(f"nested deeper than {_MAX_DEPTH} levels")
    first = items[0]
    if is_encoded(first):
        return _decode_equal(items)
    if isinstance(first, dict):
        _check_all(items, dict, lambda item: item.keys() == first.keys())
        return {_text(key): _decode_items([item[key] for item in items], depth + 1) for key in first}
    if isinstance(first, list) and any(isinstance(part, (dict, list)) for part in first) and not _is_numbers(first):
        _check_all(items, list, lambda item: len(item) == len(first))
        return tuple(_decode_items([item[place] for item in items], depth + 1) for place in range(len(first)))
    return _plain_column(items)


def _decode_equal(items: Sequence[Any]) -> Array:
    """Decode arrays with equal headers. Removing the data first makes comparing the headers a single call."""
    first = items[0]
    data_key = b"data" if b"data" in first else "data"
    heads = [item for item in items if isinstance(item, dict)]
    parts = [head.pop(data_key, None) for head in heads]
    if len(heads) != len(items) or heads.count(first) != len(items):
        wrong = next(step for step, item in enumerate(items) if item != first)
        raise EncodedArrayError(f"step {wrong} holds {_outline(items[wrong])}, step 0 {_outline(first)}")
    dtype, sizes = _check_array(first)
    num_bytes = math.prod(sizes) * dtype.itemsize
    if set(map(type, parts)) != {bytes} or set(map(len, parts)) != {num_bytes}:
        wrong = next(step for step, part in enumerate(parts) if type(part) is not bytes or len(part) != num_bytes)
        raise EncodedArrayError(f"step {wrong} does not hold the {num_bytes} bytes of {dtype} of shape {sizes}")
    return _from_bytes(b"".join(parts), dtype, (len(items), *sizes))


def _decode_array(value: Mapping[Any, Any]) -> Any:
    dtype, sizes = _check_array(value)
    data = _field(value, "data")
    if type(data) is not bytes or len(data) != math.prod(sizes) * dtype.itemsize:
        got = f"{len(data)} bytes" if type(data) is bytes else type(data).__name__
        raise EncodedArrayError(f"{got} for {dtype} of shape {sizes}")
    array = _from_bytes(data, dtype, sizes)
    return array if _field(value, "nd") else array[()]


def _check_array(value: Mapping[Any, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the checked dtype and shape of an encoded array."""
    is_array, name, shape = _field(value, "nd"), _text(_field(value, "type")), _field(value, "shape", None)
    if type(is_array) is not bool:
        raise EncodedArrayError(f"the field nd of an array is {is_array!r:.40}, expected true or false")
    if (kind := _field(value, "kind", b"")) not in (b"", ""):
        kinds = {"O": "object arrays are", "V": "structured arrays are"}
        what = kinds.get(str(_text(kind)), f"arrays of kind {kind!r:.20} are")
        raise EncodedArrayError(f"{what} not supported, because decoding them runs code from the file")
    if not isinstance(name, str) or not _PLAIN_DTYPE.fullmatch(name):
        what = "object arrays are not supported, because decoding them runs code from the file"
        raise EncodedArrayError(what if str(name).endswith("O") else f"arrays of dtype {name!r:.40} are not supported")
    sizes = () if not is_array else tuple(shape) if isinstance(shape, list) else None
    are_sizes = sizes is not None and len(sizes) <= 32 and all(type(n) is int and 0 <= n < 2**40 for n in sizes)
    if sizes is None or not are_sizes or (0 in sizes and max(sizes) > 2**24):
        raise EncodedArrayError(f"the shape of an array is invalid: {shape!r:.60}")
    return np.dtype(name), sizes


def _from_bytes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    array = np.frombuffer(data, dtype) if data else np.empty(0, dtype)
    if dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise EncodedArrayError("a bool is neither 0 nor 1")
    if dtype.kind == "U" and (array.view(np.dtype("u4").newbyteorder(dtype.byteorder)) > 0x10FFFF).any():
        raise EncodedArrayError("text is not valid Unicode")
    return array.astype(dtype.newbyteorder("=")).reshape(shape)


def _plain_column(items: Sequence[Any]) -> Array:
    """Return a column of numbers, bools, text, or lists of numbers of equal shape."""
    try:
        column = np.array(items)
    except ValueError as error:
        raise EncodedArrayError(f"the steps hold values of unequal shape: {error}") from None
    if column.dtype.kind not in "biufSU" or (column.dtype.kind in "SU" and not _all_text(items)):
        kinds = sorted({type(item).__name__ for item in items})
        raise EncodedArrayError(f"the steps hold values of type {', '.join(kinds)}; expected numbers, bools or text")
    return column


def _all_text(items: Sequence[Any]) -> bool:
    return all(isinstance(item, str) for item in items) or all(isinstance(item, bytes) for item in items)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_numbers(item) for item in value)
    return isinstance(value, (bool, int, float))


def _check_all(items: Sequence[Any], kind: type, fits: Any) -> None:
    for step, item in enumerate(items):
        if type(item) is not kind or not fits(item):
            raise EncodedArrayError(f"step {step} holds {_outline(item)}, step 0 {_outline(items[0])}")


def _field(value: Mapping[Any, Any], name: str, default: Any = ...) -> Any:
    found = value.get(name.encode(), value.get(name, default))
    if found is ...:
        raise EncodedArrayError(f"the field {name} of an encoded array is missing")
    return found


def _text(key: Any) -> Any:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _outline(item: Any) -> str:
    if is_encoded(item):
        return f"{_text(_field(item, 'type', None))!s:.20} of shape {_field(item, 'shape', [])!s:.60}"
    if isinstance(item, dict):
        return f"a dict with keys {[_text(key) for key in item]!s:.80}"
    return f"a list of {len(item)}" if isinstance(item, list) else f"a {type(item).__name__}"


# --- spaces ---------------------------------------------------------------------------------------


def read_space(state: Any) -> Space[Any] | None:
    """Return the gymnasium space for RLlib's description; None for None and for kinds that gymnasium lacks.

    Raises:
        EncodedArrayError: the description is damaged.
    """
    try:
        plain = None if state is None else _described(state)
        return None if plain is None else space_from_dict(plain)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EncodedArrayError(f"the description of a space is damaged: {error}") from None


def _described(state: Any) -> dict[str, Any] | None:
    """Return RLlib's description of a space as one of `space_to_dict`; None for kinds that gymnasium lacks."""
    if not isinstance(state, dict) or not isinstance(kind := state.get("space"), str):
        raise ValueError(f"expected a dict with a space, got {state!r:.60}")
    if kind == "tuple":
        parts = [_described(part) for part in state["spaces"]]
        return None if None in parts else {"space": kind, "spaces": parts}
    if kind == "dict":
        pairs = [[_text(key), _described(part)] for key, part in state["spaces"].items()]
        return None if any(part is None for _, part in pairs) else {"space": kind, "spaces": pairs}
    if kind == "box":
        low, high = _read_bounds(state["low"]), _read_bounds(state["high"])
        bounds = {"low": low.tolist(), "high": high.tolist()}
        return {"space": kind, **bounds, "shape": list(low.shape), "dtype": low.dtype.str}
    if kind == "multi-discrete":
        nvec = _read_bounds(state["nvec"])
        return {"space": kind, "nvec": nvec.tolist(), "dtype": nvec.dtype.str}
    return state if kind in ("discrete", "multi-binary") else None


def _read_bounds(text: Any) -> Array:
    """Decode an array from numpy's file format, compressed, in base64; object arrays are rejected."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text, validate=True), _MAX_SPACE_BYTES)
        array = np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    except (binascii.Error, zlib.error, EOFError, TypeError, SyntaxError, MemoryError) as error:
        raise ValueError(f"not an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"unsupported dtype {array.dtype} of an array")
    return np.array(array, order="C")
