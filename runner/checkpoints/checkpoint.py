"""One checkpoint: a folder with `manifest.json` and, for each part of the state, tensors and plain values.

`<part>.safetensors` holds the arrays, `<part>.json` everything else, with `{"$array": name}` for arrays and
`{"$tuple": [...]}` for tuples.
The manifest has the digest of every file, a signature, and a digest of itself. A folder is either complete or
does not exist.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from runner.checkpoints import release_0_1
from runner.checkpoints.errors import CheckpointError
from runner.checkpoints.manifest_checks import MAX_MANIFEST_BYTES, check_manifest
from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem
from runner.config.origin import foreign_reason, signed

SCHEMA_VERSION = 2
KIND = "checkpoint"
MANIFEST = "manifest.json"
_ARRAY = "$array"
_TUPLE = "$tuple"


def save_checkpoint(folder: Path, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Write a checkpoint; `folder` appears when it is complete.

    Args:
        folder: of the checkpoint; an existing one is replaced.
        state: part name -> nested dicts and lists of arrays, tensors, numbers, strings, booleans and None.
        manifest: plain values that are stored with the state.

    Raises:
        TypeError: the state holds another type.
        OSError: the folder cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _write_files(temporary, state, manifest)
        _sync(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _put_in_place(temporary, folder)


def _write_files(folder: Path, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    digests: dict[str, str] = {}
    for part, values in state.items():
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        plain = _without_arrays(values, part, arrays)
        digests |= _write(folder / f"{part}.json", json.dumps(plain).encode())
        digests |= _write(folder / f"{part}.safetensors", safetensors.numpy.save(arrays))
    content = signed({**manifest, "schema_version": SCHEMA_VERSION, "files": digests}, KIND)
    content["digest"] = _manifest_digest(content)
    _write(folder / MANIFEST, json.dumps(content, indent=1).encode())


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename the new folder, and delete an old one at `folder` afterwards."""
    old = temporary.with_suffix(".old.tmp")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load state and manifest of a checkpoint; arrays come back as numpy arrays.

    The state of a run of an older release comes back as this release has it; the manifest as it was written.

    Raises:
        CheckpointError: a file is missing, cut off or altered, or the version is unknown.
    """
    manifest = read_manifest(folder)
    state = {}
    try:
        files = {name: digest for name, digest in manifest["files"].items() if Path(name).name == name}
        contents = {name: _read_checked(folder / name, digest) for name, digest in files.items()}
        for name, content in contents.items():
            if name.endswith(".json"):
                part = name.removesuffix(".json")
                state[part] = _with_arrays(parse_json(content), _arrays(folder, contents, part))
        if manifest["schema_version"] == release_0_1.SCHEMA_VERSION:
            state = release_0_1.converted_state(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken("the checkpoint cannot be read", folder, f"{type(error).__name__}: {error}") from error
    return state, manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and check its digest and shape."""
    path = folder / MANIFEST
    try:
        manifest = parse_json(read_regular(path, MAX_MANIFEST_BYTES))
        digest = manifest["digest"]
        version = manifest["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _broken("the checkpoint has no readable manifest", path, f"{type(error).__name__}: {error}") from error
    if version not in (release_0_1.SCHEMA_VERSION, SCHEMA_VERSION):
        allowed = f"{release_0_1.SCHEMA_VERSION} (release 0.1.0) or {SCHEMA_VERSION}"
        raise _broken("the checkpoint has another schema version", path, str(version), allowed)
    if digest != _manifest_digest(manifest):
        raise _broken("the checkpoint was altered", path, f"digest {_manifest_digest(manifest)[:12]}", digest[:12])
    check_manifest(path, manifest)
    return dict(manifest)


def origin_of(manifest: Mapping[str, Any]) -> str | None:
    """Say why the checkpoint of a manifest counts as somebody else's; None if this installation wrote it."""
    return foreign_reason({name: value for name, value in manifest.items() if name != "digest"}, KIND)


def _broken(what: str, path: Path, got: str, allowed: str | None = None) -> CheckpointError:
    return CheckpointError(Problem(what, where=str(path), got=got, allowed=allowed))


def _read_checked(path: Path, digest: str) -> bytes:
    try:
        content = read_regular(path)
    except OSError as error:
        raise _broken("a file of the checkpoint is missing", path, f"{type(error).__name__}: {error}") from error
    got = hashlib.sha256(content).hexdigest()
    if got != digest:
        what = "a file of the checkpoint was cut off or altered"
        raise _broken(what, path, f"{len(content)} bytes with digest {got[:12]}", f"digest {digest[:12]}")
    return content


def _arrays(folder: Path, contents: Mapping[str, bytes], part: str) -> dict[str, np.ndarray[Any, Any]]:
    name = f"{part}.safetensors"
    try:
        return safetensors.numpy.load(contents[name])
    except (KeyError, SafetensorError) as error:
        raise _broken("a file of the checkpoint cannot be read", folder / name, str(error)) from error


def _write(path: Path, content: bytes) -> dict[str, str]:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return {path.name: hashlib.sha256(content).hexdigest()}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _without_arrays(value: Any, name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Convert a value for JSON, and move its arrays to `arrays`."""
    if isinstance(value, Mapping):
        _check_keys(value, name)
        return {key: _without_arrays(item, f"{name}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: _without_arrays(list(value), name, arrays)}
    if isinstance(value, list):
        return [_without_arrays(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor; importing torch would delay every message of `resume`
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return {_ARRAY: _move_array(value, name, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: {type(value).__name__} cannot be part of a checkpoint")


def _check_keys(mapping: Mapping[Any, Any], name: str) -> None:
    bad = [key for key in mapping if not isinstance(key, str) or key.startswith("$")]
    if bad:
        raise TypeError(f"{name}: keys of a checkpoint are strings without $ at their start, got {bad[0]!r}")


def _move_array(array: np.ndarray[Any, Any], name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Put a copy of an array into `arrays`; return its name there."""
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: arrays of {array.dtype} cannot be part of a checkpoint")
    while name in arrays:  # {"a/b": ...} beside {"a": {"b": ...}}
        name += "'"
    arrays[name] = np.array(array, order="C")  # a copy: tensors may share memory, and safetensors wants C order
    return name


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if set(value) == {_TUPLE}:
            return tuple(_with_arrays(value[_TUPLE], arrays))
        return {key: _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value
