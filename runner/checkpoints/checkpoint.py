"""One checkpoint: a folder with `manifest.json` and, for each part of the state, tensors and plain values.

`<part>.safetensors` holds the arrays, `<part>.json` everything else (see `stored_values`); each segment of a part has
a file of its own, which the next checkpoint of the run links to. The manifest has the digest of every file, a
signature, and a digest of itself. A folder is either complete or does not exist.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import safetensors.numpy

from runner.checkpoints.errors import OddCheckpointError
from runner.checkpoints.files import broken, read_file, sync_folder, write_file
from runner.checkpoints.segment_files import SUFFIX, SegmentWriter, stored_segment
from runner.checkpoints.stored_values import (
    Arrays,
    arrays_from_bytes,
    from_plain,
    to_plain,
    values_from_json,
    values_to_json,
)
from runner.config.documents import parse_json, read_regular
from runner.config.errors import Problem, show_value
from runner.config.signatures import foreign_reason, signed

SCHEMA_VERSION = 3
KIND = "checkpoint"
MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 2**26
_MOST_LETTERS = 80
# Key of a manifest -> its types, the types of its items, and a description.
_SHAPE: Mapping[str, tuple[tuple[type, ...], tuple[type, ...], str]] = {
    "config": ((dict,), (object,), "a block of keys"),
    "overrides": ((list,), (str,), "a list of texts"),
    "experiment": ((str, NoneType), (object,), "a name"),
    "result": ((dict,), (int, float, NoneType), "metric: number"),
    "files": ((dict,), (str,), "file: digest"),
}


def save_checkpoint(folder: Path, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Write a checkpoint; `folder` appears when it is complete.

    Args:
        folder: of the checkpoint; an existing one is replaced.
        state: part name -> nested dicts and lists of arrays, tensors, segments, numbers, strings, booleans and None.
        manifest: plain values that are stored with the state; its `config` may have keys of any plain type.

    Raises:
        UnstorableError: the state or the configuration holds another type.
        OSError: the folder cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    segments = SegmentWriter(temporary, folder)
    try:
        _write_files(temporary, state, manifest, segments)
        sync_folder(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _put_in_place(temporary, folder)
    segments.settle()


def _write_files(folder: Path, state: Mapping[str, Any], manifest: Mapping[str, Any], segments: SegmentWriter) -> None:
    digests: dict[str, str] = {}
    for part, values in state.items():
        arrays: Arrays = {}
        plain = to_plain(values, part, arrays, partial(segments.put, part))
        for name, content in (
            (f"{part}.json", json.dumps(plain).encode()),
            (f"{part}.safetensors", safetensors.numpy.save(arrays)),
        ):
            digests[name] = write_file(folder / name, content)
    files = digests | segments.digests
    if "config" in manifest:
        manifest = {**manifest, "config": values_to_json(manifest["config"], "config")}
    signed_manifest = signed({**manifest, "schema_version": SCHEMA_VERSION, "files": files}, KIND)
    signed_manifest["digest"] = _manifest_digest(signed_manifest)
    write_file(folder / MANIFEST, json.dumps(signed_manifest, indent=1).encode())


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename the new folder, and delete an old one at `folder` afterwards."""
    old = temporary.with_suffix(".old.tmp")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load state and manifest of a checkpoint; arrays come back as numpy arrays.

    Segments are read, and compared with their digests, when their values are asked for.

    Raises:
        CheckpointError: a file is missing, cut off or altered, or the version is unknown.
    """
    manifest = read_manifest(folder)
    state = {}
    try:
        digests = {name: digest for name, digest in manifest["files"].items() if Path(name).name == name}
        get_segment = partial(stored_segment, folder, digests)
        contents = {
            name: read_file(folder / name, digest) for name, digest in digests.items() if not name.endswith(SUFFIX)
        }
        for name, content in contents.items():
            if name.endswith(".json"):
                part = name.removesuffix(".json")
                tensors = f"{part}.safetensors"
                arrays = arrays_from_bytes(contents[tensors], folder / tensors)
                state[part] = from_plain(parse_json(content), arrays, get_segment)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise broken("the checkpoint cannot be read", folder, f"{type(error).__name__}: {error}") from error
    return state, manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint, and check its digest and shape."""
    path = folder / MANIFEST
    try:
        manifest = parse_json(read_regular(path, _MAX_MANIFEST_BYTES))
        digest = manifest["digest"]
        version = manifest["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise broken("the checkpoint has no readable manifest", path, f"{type(error).__name__}: {error}") from error
    if version != SCHEMA_VERSION:
        allowed = f"{SCHEMA_VERSION}; read this checkpoint with the version of runner that wrote it, or start a new run"
        raise broken("the checkpoint has another schema version", path, str(version), allowed)
    if digest != _manifest_digest(manifest):
        raise broken("the checkpoint was altered", path, f"digest {_manifest_digest(manifest)[:12]}", digest[:12])
    _check_manifest(path, manifest)
    return dict(manifest)


def config_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unresolved configuration of a manifest."""
    return values_from_json(manifest["config"])


def origin_of(manifest: Mapping[str, Any]) -> str | None:
    """Say why the checkpoint of a manifest counts as somebody else's; None if this installation wrote it."""
    return foreign_reason({name: value for name, value in manifest.items() if name != "digest"}, KIND)


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _check_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Check the types of the keys that a manifest has; raises `OddCheckpointError`."""
    problem = next(_find_problems(path, manifest), None)
    if problem is not None:
        raise OddCheckpointError(problem)


def _find_problems(path: Path, manifest: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (kinds, item_kinds, allowed) in _SHAPE.items():
        value = manifest.get(name) if name in manifest else kinds[0]()
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        odd = [value] if not isinstance(value, kinds) else [one for one in items if not isinstance(one, item_kinds)]
        for one in odd[:1]:
            what = f"the manifest's {name} is none that runner writes"
            yield Problem(what, str(path), show_value(one)[:_MOST_LETTERS], allowed)
