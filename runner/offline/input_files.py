"""The files that `offline.input_` names: found, told apart by kind, in one order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.offline.filesystems import Location, expand_pattern, is_pattern, locate, nearest_sibling, unreadable
from runner.offline.foreign import hdf5, minari
from runner.offline.foreign.data_error import DataError, Place, first_line
from runner.offline.foreign.unpacking import BoundedStream

_WHERE = "offline.input_"
_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
}
# What files begin with -> what they are.
_SIGNATURES = {
    b"PAR1": "parquet",
    hdf5.SIGNATURE: "hdf5",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"{": "json",
}
_TITLES = {"parquet": "Parquet", "hdf5": "HDF5", "json": "JSON", "csv": "CSV"}
_HEAD_BYTES = 64
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
KINDS = ("parquet", "json", "csv", "hdf5", "minari")


@dataclass(frozen=True)
class InputFiles:
    """Files of one kind. `paths`: in the file system, in order; of a Minari data set its folder."""

    filesystem: fs.FileSystem
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    kind: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    @contextmanager
    def open_stream(self, path: str) -> Iterator[Any]:
        """Open the bytes of a file, unpacked if its name says that it is packed; `DataError` if they are too many."""
        with self.filesystem.open_input_stream(path) as stream:
            is_packed = path.lower().endswith(_COMPRESSED)
            size = dict(zip(self.paths, self.sizes, strict=True))[path]
            yield BoundedStream(stream, size, Place(path)) if is_packed else stream

    @property
    def is_local(self) -> bool:
        """Whether they are on this machine's own file system."""
        return isinstance(self.filesystem, fs.LocalFileSystem)


def input_paths(config: OfflineConfig) -> list[str]:
    """Return `offline.input_` as a list; raises `ConfigError` if it is empty."""
    paths = [config.input_] if isinstance(config.input_, str) else list(config.input_ or [])
    if not paths:
        raise ConfigError([Problem("there are no data to read", _WHERE, "null", "a file, a folder, a pattern, a URI")])
    return paths


def existing_paths(config: OfflineConfig) -> tuple[fs.FileSystem, list[str]]:
    """Return the file system and, in it, the files and folders that `offline.input_` names; patterns are expanded.

    Raises:
        DataError: a path is missing.
    """
    found: list[str] = []
    for location in (locations := _locations(config)):
        if is_pattern(location.path):
            found += [info.path for info in _files_that_fit(location)]
        elif location.info().type == fs.FileType.NotFound:
            raise _missing(location)
        else:
            found.append(location.path)
    return locations[0].filesystem, found


def _locations(config: OfflineConfig) -> list[Location]:
    return [
        locate(path, config.input_filesystem, config.input_filesystem_kwargs, "offline.input_filesystem")
        for path in input_paths(config)
    ]


def find_files(config: OfflineConfig, kind: str | None = None) -> InputFiles:
    """Return all files that are read.

    Args:
        config: the `offline` block.
        kind: of the files, whatever their names say; None: their names tell.

    Raises:
        DataError: a path is missing, a folder has no data, or kinds are mixed.
    """
    locations = _locations(config)
    problems: list[Problem] = []
    found: list[tuple[fs.FileInfo, str]] = []
    for location in locations:
        try:
            found += _files_of(location, kind)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    kinds = {kind: info.path for info, kind in reversed(found)}
    if len(kinds) > 1:
        got = "; ".join(f"{kind}: {path}" for kind, path in kinds.items())
        what = "files of several kinds are mixed; name files of one kind, for example with a pattern"
        raise DataError([Problem(what, _WHERE, got)])
    infos = {info.path: info for info, _ in found}
    return InputFiles(
        locations[0].filesystem,
        tuple(infos),
        tuple(_size_of(info) for info in infos.values()),
        next(iter(kinds)),
    )


def _files_of(location: Location, kind: str | None) -> list[tuple[fs.FileInfo, str]]:
    if is_pattern(location.path):
        return [(info, kind or _kind_of_file(location, info)) for info in _files_that_fit(location)]
    info = location.info()
    if info.type == fs.FileType.NotFound:
        raise _missing(location)
    if info.type == fs.FileType.File:
        return [(info, kind or _kind_of_file(location, info))]
    return _files_in(location, kind)


def _size_of(info: fs.FileInfo) -> int:
    """Return bytes of a file, or of all files in the folder of a Minari data set."""
    if info.type != fs.FileType.Directory:
        return int(info.size or 0)
    return sum(path.stat().st_size for path in Path(info.path).rglob("*") if path.is_file())


def _files_that_fit(location: Location) -> list[fs.FileInfo]:
    """Return the files that a pattern stands for."""
    paths = expand_pattern(location)
    infos = location.filesystem.get_file_info(paths) if paths else []
    files = [info for info in infos if info.type == fs.FileType.File]
    if not files:
        raise DataError([Problem("no file fits this pattern", _WHERE, location.shown)])
    return files


def _missing(location: Location) -> DataError:
    nearest = nearest_sibling(location)
    return DataError([Problem("there is no such file or folder", _WHERE, location.shown, nearest=nearest)])


def _files_in(location: Location, kind: str | None) -> list[tuple[fs.FileInfo, str]]:
    """Return the data files in a folder and the folders in it; hidden ones are left out.

    Of a given kind: the files whose names say so, or all if no name does.
    """
    if kind is None and location.is_local and minari.recognises(location.path):
        return [(location.info(), "minari")]
    try:
        infos = location.filesystem.get_file_info(fs.FileSelector(location.path, recursive=True))
    except OSError as error:
        raise unreadable(location.shown, error) from None
    start = len(location.path)
    files = [
        info
        for info in infos
        if info.type == fs.FileType.File and not re.search(r"(^|/)[._]", info.path[start:].lstrip("/"))
    ]
    found = [(info, named) for info in files if (named := _kind_of_name(info.path)) is not None]
    if kind is not None:
        found = [pair for pair in found if pair[1] == kind] or [(info, kind) for info in files]
    if not found:
        names = ", ".join(info.base_name for info in files[:5]) or "nothing"
        allowed = ", ".join(_KINDS)
        raise DataError([Problem(f"this folder has no data files: {location.shown}", _WHERE, names, allowed)])
    return sorted(found, key=lambda pair: _natural_order(pair[0].path))


def _natural_order(path: str) -> list[tuple[int, int, str]]:
    """Order part-2 before part-10."""
    parts: Sequence[str] = re.split(r"(\d+)", path)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _kind_of_name(path: str) -> str | None:
    name = path.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in _KINDS.items() if name.endswith(suffix)), None)


def _kind_of_file(location: Location, info: fs.FileInfo) -> str:
    """Return the kind by the file's name, else by its first bytes."""
    kind = _kind_of_name(info.path)
    if kind is not None:
        return kind
    try:
        kind = _begins_like(location.filesystem, info.path)
    except OSError as error:
        raise unreadable(info.path, error) from None
    if kind in KINDS:
        return kind
    raise DataError([Problem("this is no file of recorded data", _WHERE, info.path, ", ".join(_KINDS))])


def check_kind(files: InputFiles, path: str) -> None:
    """Refuse a file that begins like one of another kind than its name says; raises `DataError`."""
    try:
        begins_like = _begins_like(files.filesystem, path)
    except OSError as error:
        raise DataError([Problem(f"a file cannot be read: {first_line(error)}", path)]) from None
    title = _TITLES.get(files.kind, files.kind)
    if begins_like not in (None, files.kind):
        begins_like = _TITLES.get(begins_like, begins_like)
        raise DataError([Problem(f"this is no {title} file, it begins like {begins_like}", path)])
    if begins_like is None and files.kind in ("parquet", "hdf5"):
        raise DataError([Problem(f"this is no {title} file, or it is damaged", path)])


def _begins_like(filesystem: fs.FileSystem, path: str) -> str | None:
    """Return the kind of a file by its first bytes (unpacked ones if its name ends in `.gz`, ...); None: it could be
    any."""
    with filesystem.open_input_stream(path) as stream:
        head = stream.read(_HEAD_BYTES).lstrip()
    return next((kind for signature, kind in _SIGNATURES.items() if head.startswith(signature)), None)


def read_head(files: InputFiles, num_bytes: int) -> bytes:
    """Return the first bytes of the first file, unpacked; raises `DataError`."""
    check_kind(files, files.paths[0])
    try:
        with files.filesystem.open_input_stream(files.paths[0]) as stream:
            head: bytes = stream.read(num_bytes)
    except OSError as error:
        raise DataError([Problem(f"a file cannot be read: {first_line(error)}", files.paths[0])]) from None
    return head
