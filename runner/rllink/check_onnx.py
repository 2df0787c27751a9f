"""Names in an ONNX model, read without the package onnx: a model is a protobuf message (onnx.proto3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_GRAPH, _METADATA = 7, 14  # of ModelProto
_INPUT, _OUTPUT = 11, 12  # of GraphProto
_BYTES = 2  # wire type of strings and messages


@dataclass(frozen=True)
class OnnxNames:
    """Names of inputs and outputs, the metadata, and the last size of outputs that have a fixed one."""

    inputs: list[str]
    outputs: list[str]
    metadata: dict[str, str]
    last_sizes: dict[str, int]


def names_of(model: bytes) -> OnnxNames:
    """Read the names in a model; `ValueError` if it is no ONNX model."""
    graph = _first(model, _GRAPH)
    if graph is None:
        raise ValueError("there is no graph, so this is no ONNX model")
    outputs = [value for number, value in _fields(graph) if number == _OUTPUT]
    pairs = [value for number, value in _fields(model) if number == _METADATA]
    sizes = {_text(value, 1): _last_size(value) for value in outputs}
    return OnnxNames(
        [_text(value, 1) for number, value in _fields(graph) if number == _INPUT],
        list(sizes),
        {_text(pair, 1): _text(pair, 2) for pair in pairs},
        {name: size for name, size in sizes.items() if size},
    )


def _last_size(value: bytes) -> int:
    """Read `dim_value` of the last dimension of ValueInfoProto.type.tensor_type.shape; 0 if it is not fixed."""
    for number in (2, 1, 2):
        value = _first(value, number) or b""
    dimensions = [one for number, one in _fields(value) if number == 1]
    if not dimensions or not dimensions[-1] or dimensions[-1][0] != 1 << 3:
        return 0
    return _varint(dimensions[-1], 1)[0]


def _text(message: bytes, number: int) -> str:
    return (_first(message, number) or b"").decode()


def _first(message: bytes, number: int) -> bytes | None:
    return next((value for field, value in _fields(message) if field == number), None)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields that are strings or messages."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            _, at = _varint(message, at)
        elif key & 7 in (1, 5):
            at += 8 if key & 7 == 1 else 4
        elif key & 7 == _BYTES:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a model that is cut off")
            yield key >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError("no protobuf message")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("no protobuf message")
        byte = message[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
