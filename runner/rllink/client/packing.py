"""The part of MessagePack that RLlink uses, without dependencies (https://github.com/msgpack/msgpack).

Arrays become the array blocks of the specification, section 8. Unpacking makes plain values and arrays only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")


_MOST_NESTED = 64


def pack(value: Any) -> bytes:
    """Pack None, booleans, integers, floats, strings, bytes, lists, tuples, mappings and arrays of numbers.

    Raises:
        TypeError: the type of a value or the dtype of an array is not supported.
    """
    parts: list[bytes] = []
    _pack(value, parts.append)
    return b"".join(parts)


def _pack(value: Any, add: Any) -> None:
    if value is None:
        add(b"\xc0")
    elif isinstance(value, (bool, np.bool_)):
        add(b"\xc3" if value else b"\xc2")
    elif isinstance(value, (int, np.integer)):
        add(_integer(int(value)))
    elif isinstance(value, (float, np.floating)):
        add(struct.pack(">Bd", 0xCB, float(value)))
    elif isinstance(value, str):
        data = value.encode()
        add(_head(len(data), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + data)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        add(_head(len(value), None, -1, (0xC4, 0xC5, 0xC6)))
        add(bytes(value))
    else:
        _pack_container(value, add)


def _pack_container(value: Any, add: Any) -> None:
    if isinstance(value, (list, tuple)):
        add(_head(len(value), 0x90, 15, (None, 0xDC, 0xDD)))
        for item in value:
            _pack(item, add)
    elif isinstance(value, Mapping):
        add(_head(len(value), 0x80, 15, (None, 0xDE, 0xDF)))
        for key, item in value.items():
            _pack(str(key), add)
            _pack(item, add)
    elif isinstance(value, np.ndarray):
        _pack(block(value) if value.ndim else value.item(), add)
    else:
        raise TypeError(f"a {type(value).__name__} cannot be sent")


def block(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Make the block of an array; raise `TypeError` unless its dtype is a number of fixed size."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<")) if array.ndim else array
    if little.dtype.str not in DTYPES:
        raise TypeError(f"an array of dtype {array.dtype} cannot be sent; expected: {', '.join(DTYPES)}")
    return {"dtype": little.dtype.str, "shape": list(array.shape), "data": little.tobytes()}


def _integer(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b" if value < 0 else "B", value)
    code, form = (0xCF, ">BQ") if value >= 0 else (0xD3, ">Bq")
    return struct.pack(form, code, value)


def _head(size: int, short: int | None, most_short: int, codes: tuple[int | None, int, int]) -> bytes:
    if short is not None and size <= most_short:
        return bytes((short | size,))
    one, two, four = codes
    if one is not None and size < 1 << 8:
        return struct.pack(">BB", one, size)
    if size < 1 << 16:
        return struct.pack(">BH", two, size)
    return struct.pack(">BI", four, size)


def unpack(data: bytes) -> Any:
    """Unpack the value in `data`; maps that are array blocks become arrays.

    Raises:
        ValueError: the data is not valid MessagePack, or contains a type that RLlink does not use.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} extra bytes after the value")
    return value


_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_SIZES = {1: ">B", 2: ">H", 4: ">I"}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.at = 0

    def _take(self, size: int) -> memoryview:
        taken = self._data[self.at : self.at + size]
        if len(taken) < size:
            raise ValueError("the MessagePack data is truncated")
        self.at += size
        return taken

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > _MOST_NESTED:
            raise ValueError("the MessagePack data is nested too deeply")
        code = self._take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _NUMBERS:
            return self._number(_NUMBERS[code])
        return self._sized_value(code, depth)

    def _sized_value(self, code: int, depth: int) -> Any:
        """Return a value whose size is in its code or follows it."""
        if code & 0xE0 == 0xA0:
            return str(self._take(code & 31), "utf-8")
        if code in _STRINGS:
            return str(self._take(self._number(_SIZES[_STRINGS[code]])), "utf-8")
        if code in _BYTES:
            return bytes(self._take(self._number(_SIZES[_BYTES[code]])))
        if code & 0xF0 == 0x90 or code in _LISTS:
            size = code & 15 if code < 0xC0 else self._number(_SIZES[_LISTS[code]])
            return [self.value(depth + 1) for _ in range(self._bounded(size))]
        if code & 0xF0 == 0x80 or code in _MAPS:
            size = code & 15 if code < 0xC0 else self._number(_SIZES[_MAPS[code]])
            return _array_or_map({self._key(depth): self.value(depth + 1) for _ in range(self._bounded(size))})
        raise ValueError(f"MessagePack code {code:#x} is not used in RLlink")

    def _bounded(self, size: int) -> int:
        if size > len(self._data) - self.at:
            raise ValueError("the MessagePack data is truncated")
        return size

    def _key(self, depth: int) -> str:
        key = self.value(depth + 1)
        if not isinstance(key, str):
            raise ValueError(f"a key must be a string, got {key!r:.40}")
        return key


def _array_or_map(value: dict[str, Any]) -> Any:
    if value.keys() != {"dtype", "shape", "data"}:
        return value
    if value["dtype"] not in DTYPES:
        raise ValueError(f"an array block of dtype {value['dtype']!r:.40}")
    return np.frombuffer(value["data"], value["dtype"]).reshape(value["shape"])
