"""One checkpoint: a folder with `manifest.json`, and tensors, plain values and linked segments of each part.

`<part>.safetensors` holds the arrays, `<part>.json` everything else (see `files`). Each segment of a part has a
separate file, to which the next checkpoint of the run links. The manifest contains the digest of every file, a
signature, and a digest of itself. A folder is either complete or does not exist.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import safetensors.numpy

from runner.checkpoints.files import (
    ALTERED,
    MISSING,
    Arrays,
    Reference,
    arrays_from_bytes,
    broken,
    from_plain,
    read_file,
    segment_from_bytes,
    segment_to_bytes,
    to_plain,
    values_from_json,
    values_to_json,
)
from runner.config.documents import parse_json, read_regular
from runner.config.errors import show_value
from runner.config.signatures import foreign_reason, signed
from runner.durable_files import sync_folder, write_file
from runner.segments import Segment, SegmentFile

SUFFIX = ".segment"


class SegmentWriter:
    """Writes the segments of a state into a checkpoint.

    The file of a segment that a previous checkpoint of the run contains is hard-linked, not read. The new checkpoint is
    complete and stays complete if the other one is deleted. Files of other runs are never shared. If the file system
    does not support links, values are written again.

    Args:
        folder: hidden folder, until the checkpoint is complete.
        place: path of the complete checkpoint.
    """

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder, self._place = folder, place
        self._placed: list[tuple[Segment, SegmentFile]] = []

    def put(self, part: str, segment: Segment) -> Reference:
        """Link or write a segment's file; return its name and its size in bytes."""
        name = f"{part}.{len(self._placed):06d}{SUFFIX}"
        file = segment.file
        if self._is_linked(file, name):
            num_bytes, digest = file.num_bytes, file.digest
        else:
            content = segment_to_bytes(segment.values(), part)
            num_bytes, digest = len(content), write_file(self._folder / name, content)
        self._placed.append((segment, stored_file(self._place / name, num_bytes, digest)))
        return [name, num_bytes]

    def _is_linked(self, file: SegmentFile, name: str) -> bool:
        if file.path is None or file.path.parent.parent != self._place.parent or not file.is_there():
            return False
        try:
            os.link(file.path, self._folder / name)
        except OSError:  # the file system does not support links, or the file has too many
            return False
        return True

    @property
    def digests(self) -> dict[str, str]:
        """File name -> digest."""
        return {file.path.name: file.digest for _, file in self._placed if file.path is not None}

    def settle(self) -> None:
        """Set the final paths of the segments' files, now that the checkpoint is complete."""
        for segment, file in self._placed:
            segment.file.take_over(file)


def stored_file(path: Path, num_bytes: int, digest: str) -> SegmentFile:
    """Return the file of a segment in a complete checkpoint."""
    return SegmentFile(path, num_bytes, digest, partial(_read, path, digest))


def stored_segment(folder: Path, digests: Mapping[str, str], reference: Reference) -> Segment:
    """Return a segment in a complete checkpoint; it is read when its values are used.

    Raises:
        CheckpointError: its file is missing or truncated.
    """
    name, num_bytes = str(reference[0]), int(reference[1])
    file = stored_file(folder / name, num_bytes, digests[name])
    if not file.is_there():
        path = folder / name
        if not path.exists():
            raise broken(MISSING, path, "no such file")
        raise broken(ALTERED, path, f"{path.stat().st_size} bytes", f"{num_bytes} bytes")
    return Segment(file)


def _read(path: Path, digest: str) -> dict[str, Any]:
    return segment_from_bytes(read_file(path, digest), path)


SCHEMA_VERSION = 4
KIND = "checkpoint"
MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 2**26
_MOST_LETTERS = 80
# Key of a manifest -> its types, the types of its items, and a description.
_SHAPE: Mapping[str, tuple[tuple[type, ...], tuple[type, ...], str]] = {
    "config": ((dict,), (object,), "a block of keys"),
    "overrides": ((list,), (str,), "a list of strings"),
    "experiment": ((str, NoneType), (object,), "a name"),
    "result": ((dict,), (int, float, NoneType), "metric: number"),
    "files": ((dict,), (str,), "file: digest"),
}


def save_checkpoint(folder: Path, state: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Write a checkpoint; `folder` appears when it is complete.

    Args:
        folder: folder of the checkpoint; an existing one is replaced.
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
    """Load state and manifest of a checkpoint; arrays become numpy arrays.

    Segments are read, and compared with their digests, when their values are used.

    Raises:
        CheckpointError: a file is missing, truncated or altered, or the version is unknown.
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
        raise broken("the checkpoint's manifest cannot be read", path, f"{type(error).__name__}: {error}") from error
    if version != SCHEMA_VERSION:
        what = "the checkpoint was written with another schema version"
        fix = "read this checkpoint with the version of runner that wrote it, or start a new run"
        raise broken(what, path, str(version), str(SCHEMA_VERSION), fix)
    if digest != _manifest_digest(manifest):
        got = f"digest {_manifest_digest(manifest)[:12]}"
        raise broken("the checkpoint was altered", path, got, str(digest)[:12])
    _check_shape(path, manifest)
    return dict(manifest)


def config_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unresolved configuration of a manifest."""
    return values_from_json(manifest["config"])


def origin_of(manifest: Mapping[str, Any]) -> str | None:
    """Return the reason why the checkpoint of a manifest is not trusted, or None if this installation signed it."""
    return foreign_reason({name: value for name, value in manifest.items() if name != "digest"}, KIND)


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _check_shape(path: Path, manifest: Mapping[str, Any]) -> None:
    for name, (kinds, item_kinds, expected) in _SHAPE.items():
        value = manifest.get(name, kinds[0]())
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        odd = [value] if not isinstance(value, kinds) else [one for one in items if not isinstance(one, item_kinds)]
        if odd:
            what = f"the manifest's {name} is not a value that runner writes"
            raise broken(what, path, show_value(odd[0])[:_MOST_LETTERS], expected)
