"""Files of checkpoints, written durably and read only if unaltered, and their encoding of a state.

In the JSON, `{"$array": name}` represents an array, `{"$tuple": [...]}` a tuple, and `{"$segment": [name, bytes]}` a
segment, which has a separate file. `{"$items": [[key, value], ...]}` represents a dict with keys that are not strings,
or that begin with `$`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem, RunFailure, UserError
from runner.segments import Segment


class CheckpointError(RunFailure):
    """A checkpoint is truncated, altered, forged or of another version."""

    exit_code = UserError.exit_code  # a file of the user is wrong, and no run was started


class UnstorableError(RunFailure, TypeError):
    """A state holds a value or a key of a type that a checkpoint cannot hold.

    Args:
        name: name of the value, `part/key/key`.
        kind: its type in words.
    """

    def __init__(self, name: str, kind: str) -> None:
        expected = "dicts, lists, tuples, numbers, strings, true and false, None, arrays and tensors of numbers"
        super().__init__(Problem(f"{name}: {kind} cannot be part of a checkpoint", "checkpoint", expected=expected))


@contextmanager
def naming_checkpoint(folder: Path) -> Iterator[None]:
    """Turn errors of a state or configuration that does not fit into CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"the checkpoint does not fit this version of runner: {type(error).__name__}: {error}"
        raise CheckpointError(Problem(what, where=str(folder))) from error


MISSING, ALTERED = "a file of the checkpoint is missing", "a file of the checkpoint is truncated or altered"


def read_file(path: Path, digest: str) -> bytes:
    """Read a file with this SHA-256.

    Raises:
        CheckpointError: the file is missing, truncated or altered.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise broken(MISSING, path, f"{type(error).__name__}: {error}") from error
    got = hashlib.sha256(content).hexdigest()
    if got != digest:
        raise broken(ALTERED, path, f"{len(content)} bytes with digest {got[:12]}", f"digest {digest[:12]}")
    return content


def broken(what: str, path: Path, got: str, expected: str | None = None, fix: str | None = None) -> CheckpointError:
    """Make the error about a file or folder of a checkpoint."""
    return CheckpointError(Problem(what, where=str(path), got=got, expected=expected, fix=fix))


Arrays = dict[str, np.ndarray[Any, Any]]
Reference = list[Any]  # name and size in bytes of a segment's file

_ARRAY, _TUPLE, _SEGMENT, _ITEMS = "$array", "$tuple", "$segment", "$items"
_VALUES = "values"  # key of a segment's plain values in the header of its file


# -- to files ----------------------------------------------------------------------------------------------------------


def to_plain(value: Any, name: str, arrays: Arrays, put_segment: Callable[[Segment], Reference]) -> Any:
    """Convert a value for JSON, move its arrays to `arrays`, and put its segments.

    Raises:
        UnstorableError: a checkpoint cannot hold the type of a value; names the value by `name`.
    """
    if isinstance(value, Mapping):
        return _mapping_to_plain(value, name, arrays, put_segment)
    if isinstance(value, tuple):
        return {_TUPLE: to_plain(list(value), name, arrays, put_segment)}
    if isinstance(value, list):
        return [to_plain(item, f"{name}/{index}", arrays, put_segment) for index, item in enumerate(value)]
    if isinstance(value, Segment):
        return {_SEGMENT: put_segment(value)}
    if hasattr(value, "detach"):  # a torch tensor; importing torch would delay every message of `resume`
        value = _array_of(value, name)
    if isinstance(value, np.ndarray):
        return {_ARRAY: _move_array(value, name, arrays)}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnstorableError(name, type(value).__name__)


def find_unstorable(value: Any, name: str) -> Iterator[Problem]:
    """Yield a problem for each value and key that a checkpoint cannot hold; the contents of segments are not read."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from () if isinstance(key, str) else find_unstorable(key, _name_of_key(name, key))
            yield from find_unstorable(item, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from find_unstorable(item, f"{name}/{index}")
    else:
        try:
            to_plain(value, name, {}, lambda segment: [])
        except UnstorableError as error:
            yield error.problem


def _mapping_to_plain(
    mapping: Mapping[Any, Any], name: str, arrays: Arrays, put_segment: Callable[[Segment], Reference]
) -> dict[str, Any]:
    items = {key: to_plain(item, f"{name}/{key}", arrays, put_segment) for key, item in mapping.items()}
    if all(isinstance(key, str) and not key.startswith("$") for key in items):
        return items
    keys = [to_plain(key, _name_of_key(name, key), arrays, _reject_segment) for key in items]
    return {_ITEMS: [[key, item] for key, item in zip(keys, items.values(), strict=True)]}


def _name_of_key(name: str, key: object) -> str:
    return f"key {key!r} of {name}"


def _array_of(tensor: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # numpy does not have its dtype or layout
        raise UnstorableError(name, f"a tensor of {tensor.dtype}") from error
    return array


def segment_to_bytes(values: Mapping[str, Any], name: str) -> bytes:
    """Return the file of a segment: arrays as safetensors, with the JSON of everything else in the header."""
    arrays: Arrays = {}
    plain = to_plain(values, name, arrays, _reject_segment)
    return safetensors.numpy.save(arrays, {_VALUES: json.dumps(plain)})


def _reject_segment(segment: Segment) -> Reference:
    raise TypeError("a segment cannot hold another one")


def _move_array(array: np.ndarray[Any, Any], name: str, arrays: Arrays) -> str:
    if array.dtype.kind not in "biuf":
        raise UnstorableError(name, f"an array of {array.dtype}")
    while name in arrays:  # for example {"a/b": ...} next to {"a": {"b": ...}}
        name += "'"
    arrays[name] = np.array(array, order="C")  # a copy: tensors may share memory, and safetensors needs C order
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
        if set(value) == {_ITEMS}:
            return dict(from_plain(pair, arrays, get_segment) for pair in value[_ITEMS])
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
        values = from_plain(parse_json(header["__metadata__"][_VALUES]), arrays, _reject_reference)
        return dict(values)
    except (LookupError, TypeError, ValueError) as error:
        raise broken("a file of the checkpoint cannot be read", path, f"{type(error).__name__}: {error}") from error


def _reject_reference(reference: Reference) -> Segment:
    raise ValueError("a segment cannot contain another segment")


def arrays_from_bytes(content: bytes, path: Path) -> Arrays:
    """Return the arrays of a safetensors file at `path`; raises `CheckpointError`."""
    try:
        return safetensors.numpy.load(content)
    except SafetensorError as error:
        raise broken("a file of the checkpoint cannot be read", path, str(error)) from error


# -- without arrays ----------------------------------------------------------------------------------------------------


def values_to_json(values: Mapping[str, Any], name: str) -> Any:
    """Convert a configuration for JSON, with all of its keys; raises `UnstorableError`."""
    arrays: Arrays = {}
    plain = to_plain(values, name, arrays, _reject_segment)
    if arrays:
        raise UnstorableError(next(iter(arrays)), "an array")
    return plain


def values_from_json(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `values_to_json`."""
    return dict(from_plain(plain, {}, _reject_reference))
