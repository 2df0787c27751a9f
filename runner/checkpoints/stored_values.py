"""Values of a state as files have them: JSON, and arrays beside it.

In the JSON `{"$array": name}` stands for an array, `{"$tuple": [...]}` for a tuple, and `{"$segment": [name, bytes]}`
for a segment, which has a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from runner.checkpoints.files import broken
from runner.config.documents import parse_json
from runner.segments import Segment

Arrays = dict[str, np.ndarray[Any, Any]]
Reference = list[Any]  # name and bytes of a segment's file

_ARRAY, _TUPLE, _SEGMENT = "$array", "$tuple", "$segment"
_VALUES = "values"  # key of a segment's plain values in the header of its file


# -- to files ----------------------------------------------------------------------------------------------------------


def to_plain(value: Any, name: str, arrays: Arrays, put_segment: Callable[[Segment], Reference]) -> Any:
    """Convert a value for JSON, move its arrays to `arrays`, and put its segments.

    Raises:
        TypeError: a type that has no place in a checkpoint; names it by `name`.
    """
    if isinstance(value, Mapping):
        _check_keys(value, name)
        return {key: to_plain(item, f"{name}/{key}", arrays, put_segment) for key, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: to_plain(list(value), name, arrays, put_segment)}
    if isinstance(value, list):
        return [to_plain(item, f"{name}/{index}", arrays, put_segment) for index, item in enumerate(value)]
    if isinstance(value, Segment):
        return {_SEGMENT: put_segment(value)}
    if hasattr(value, "detach"):  # a torch tensor; importing torch would delay every message of `resume`
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return {_ARRAY: _move_array(value, name, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: {type(value).__name__} cannot be part of a checkpoint")


def segment_to_bytes(values: Mapping[str, Any], name: str) -> bytes:
    """Return the file of a segment: arrays as safetensors, with the JSON of everything else in the header."""
    arrays: Arrays = {}
    plain = to_plain(values, name, arrays, _refuse_segment)
    return safetensors.numpy.save(arrays, {_VALUES: json.dumps(plain)})


def _refuse_segment(segment: Segment) -> Reference:
    raise TypeError("a segment cannot hold another one")


def _check_keys(mapping: Mapping[Any, Any], name: str) -> None:
    bad = [key for key in mapping if not isinstance(key, str) or key.startswith("$")]
    if bad:
        raise TypeError(f"{name}: keys of a checkpoint are strings without $ at their start, got {bad[0]!r}")


def _move_array(array: np.ndarray[Any, Any], name: str, arrays: Arrays) -> str:
    """Put a copy of an array into `arrays`; return its name there."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: arrays of {array.dtype} cannot be part of a checkpoint")
    while name in arrays:  # {"a/b": ...} beside {"a": {"b": ...}}
        name += "'"
    arrays[name] = np.array(array, order="C")  # a copy: tensors may share memory, and safetensors wants C order
    return name


# -- from files --------------------------------------------------------------------------------------------------------


def from_plain(value: Any, arrays: Arrays, get_segment: Callable[[Reference], Segment]) -> Any:
    """Invert `to_plain`."""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if set(value) == {_TUPLE}:
            return tuple(from_plain(value[_TUPLE], arrays, get_segment))
        if set(value) == {_SEGMENT}:
            return get_segment(value[_SEGMENT])
        return {key: from_plain(item, arrays, get_segment) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item, arrays, get_segment) for item in value]
    return value


def segment_from_bytes(content: bytes, path: Path) -> dict[str, Any]:
    """Invert `segment_to_bytes`.

    Raises:
        CheckpointError: the file at `path` has other content.
    """
    arrays = arrays_from_bytes(content, path)
    try:
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
        values = from_plain(parse_json(header["__metadata__"][_VALUES]), arrays, _refuse_reference)
        return dict(values)
    except (LookupError, TypeError, ValueError) as error:
        raise broken("a file of the checkpoint cannot be read", path, f"{type(error).__name__}: {error}") from error


def _refuse_reference(reference: Reference) -> Segment:
    raise ValueError("a segment in a segment")


def arrays_from_bytes(content: bytes, path: Path) -> Arrays:
    """Return the arrays of a safetensors file at `path`; raises `CheckpointError`."""
    try:
        return safetensors.numpy.load(content)
    except SafetensorError as error:
        raise broken("a file of the checkpoint cannot be read", path, str(error)) from error
