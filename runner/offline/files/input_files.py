"""Find the files that `offline.input_` names, detect their kind, and limit their unpacked size.

`FREE_BYTES` are always allowed. More need at most `offline.input_max_unpacked_ratio` bytes per packed byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pyarrow import fs

from runner.config.callables import TARGET
from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line
from runner.offline.files.filesystems import Location, expand_pattern, is_pattern, locate, nearest_sibling, unreadable

HEAD_BYTES = 64  # enough to detect the kind
COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
# First bytes of files without recorded data -> format.
_OTHERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}


@dataclass(frozen=True)
class FileKind:
    """One kind of file.

    Attributes:
        name: name in `offline.input_read_method` (`read_<name>`) and in messages.
        title: title in messages.
        suffixes: suffixes of file names.
        signature: first bytes of files; empty matches any file.
        is_binary: whether every file starts with the signature. Otherwise a file may start with any bytes that are not
            the signature of another kind.
        recognises_folder: returns whether the folder at a local path is one data set of this kind. None means that
            folders hold files.
    """

    name: str
    title: str
    suffixes: tuple[str, ...] = ()
    signature: bytes = b""
    is_binary: bool = False
    recognises_folder: Callable[[str], bool] | None = None


PARQUET = FileKind("parquet", "Parquet", (".parquet", ".pq"), b"PAR1", is_binary=True)
JSON = FileKind("json", "JSON", (".json", ".jsonl", ".ndjson"), b"{")
CSV = FileKind("csv", "CSV", (".csv",))


def kind_of_name(path: str, kinds: Iterable[FileKind]) -> FileKind | None:
    """Return the kind of a file by its name. Compressed files are named after their content (`part.json.gz`)."""
    name = path.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for kind in kinds if kind.suffixes and name.endswith(kind.suffixes)), None)


def kind_of_head(head: bytes, kinds: Iterable[FileKind]) -> FileKind | str | None:
    """Return the kind by a file's first bytes, or the name of another format, or None if it is unknown."""
    head = head.lstrip()
    found = next((kind for kind in kinds if kind.signature and head.startswith(kind.signature)), None)
    return found or next((title for signature, title in _OTHERS.items() if head.startswith(signature)), None)


FREE_BYTES = 2**26
_unpacked_ratio = OfflineConfig().input_max_unpacked_ratio


def set_unpacked_ratio(ratio: float) -> None:
    """Set the ratio for all later reads of this process; the most recently opened data determine it."""
    global _unpacked_ratio
    _unpacked_ratio = ratio


def most_bytes(packed: int) -> int:
    """Return the maximum unpacked size of `packed` bytes."""
    return FREE_BYTES + int(_unpacked_ratio * packed)


def check_size(unpacked: int, packed: int, place: DataLocation) -> None:
    """Raise `DataError` if `packed` bytes unpack, or claim to unpack, to too many bytes."""
    if unpacked > most_bytes(packed):
        raise too_large(packed, place)


def too_large(packed: int, place: DataLocation) -> DataError:
    """Return the error for packed bytes that unpack to too many bytes."""
    what = f"{packed:,} packed bytes hold more than {most_bytes(packed):,} bytes and are not unpacked"
    fix = f"raise offline.input_max_unpacked_ratio (now {_unpacked_ratio:g}) if you trust these data"
    return data_error(what, place, fix=fix)


def check_rows(rows: Iterable[Any], packed: int, place: DataLocation) -> Iterator[Any]:
    """Yield rows of strings or arrays until their total size exceeds the limit. Raises `DataError`."""
    total = 0
    for row in rows:
        total += len(row) * getattr(row, "itemsize", 1)
        check_size(total, packed, place)
        yield row


class ByteStream(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, or none at the end."""


class BoundedStream:
    """Stream that unpacks another stream and fails if the unpacked size exceeds the limit.

    Args:
        stream: open file.
        packed: size of the file in bytes.
        place: location of the file, for messages.

    Raises:
        DataError: in `read`.
    """

    def __init__(self, stream: ByteStream, packed: int, place: DataLocation) -> None:
        self._stream, self._packed, self._place = stream, packed, place
        self._num_read = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = self._stream.read(size)
        self._num_read += len(data)
        check_size(self._num_read, self._packed, self._place)
        return data


_WHERE = "offline.input_"


@dataclass(frozen=True)
class InputFiles:
    """Files of one kind.

    Attributes:
        filesystem: their file system.
        paths: paths in the file system, in order. A data set that is a folder is one path.
        sizes: bytes of each file.
        kind: kind of all files.
        known: kinds that are distinguished.
    """

    filesystem: fs.FileSystem
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    kind: FileKind
    known: tuple[FileKind, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    @contextmanager
    def open_stream(self, path: str) -> Iterator[Any]:
        """Open the bytes of a file, unpacked if its suffix is compressed. Raises `DataError` if they are too many."""
        with self.filesystem.open_input_stream(path) as stream:
            is_packed = path.lower().endswith(COMPRESSED)
            size = dict(zip(self.paths, self.sizes, strict=True))[path]
            yield BoundedStream(stream, size, DataLocation(path)) if is_packed else stream

    @contextmanager
    def open_seekable(self, path: str) -> Iterator[Any]:
        """Open a file for random access. For a local file, yield its path."""
        if self.is_local:
            yield path
        else:
            with self.filesystem.open_input_file(path) as file:
                yield file

    def only(self, *numbers: int) -> InputFiles:
        """Return only the files with these numbers."""
        paths = tuple(self.paths[number] for number in numbers)
        return replace(self, paths=paths, sizes=tuple(self.sizes[number] for number in numbers))

    @property
    def is_local(self) -> bool:
        """Whether the files are in the local file system."""
        return isinstance(self.filesystem, fs.LocalFileSystem)


def named_inputs(config: OfflineConfig) -> list[str]:
    """Return the paths in `offline.input_`, or the dotted path of a function that yields episodes."""
    if isinstance(config.input_, Mapping):
        return [str(config.input_[TARGET])]
    return [config.input_] if isinstance(config.input_, str) else list(config.input_ or [])


def existing_paths(config: OfflineConfig) -> tuple[fs.FileSystem, list[str]]:
    """Return the file system and the files and folders that `offline.input_` names, with patterns expanded.

    Raises:
        DataError: a path is missing, or file systems are mixed.
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
    given = named_inputs(config)
    if not given:
        what, expected = "no input data is specified", "a file, a folder, a pattern or a URI"
        raise ConfigError([Problem(what, _WHERE, "null", expected)])
    locations = [
        locate(path, config.input_filesystem, config.input_filesystem_kwargs, "offline.input_filesystem")
        for path in given
    ]
    paths = {location.filesystem.type_name: location.shown for location in reversed(locations)}
    if len(paths) > 1:
        got, fix = ", ".join(reversed(paths.values())), "name paths of one file system"
        raise DataError([Problem("paths of several file systems are mixed", _WHERE, got, fix=fix)])
    return locations


def find_files(config: OfflineConfig, known: Sequence[FileKind], kind: FileKind | None = None) -> InputFiles:
    """Find all input files. Folders are listed only once.

    Args:
        config: the `offline` block.
        known: kinds of files that are distinguished.
        kind: kind of the files regardless of their names. None detects it from the names.

    Raises:
        DataError: a path is missing, a folder does not contain data, or kinds or file systems are mixed.
    """
    locations = _locations(config)
    problems: list[Problem] = []
    found: list[tuple[fs.FileInfo, FileKind]] = []
    for location in locations:
        try:
            found += _files_of(location, known, kind)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    kinds = {kind: info.path for info, kind in reversed(found)}
    if len(kinds) > 1:
        got = "; ".join(f"{kind.name}: {path}" for kind, path in kinds.items())
        fix = "name files of one kind, for example with a pattern"
        raise DataError([Problem("files of several kinds are mixed", _WHERE, got, fix=fix)])
    infos = {info.path: info for info, _ in found}
    return InputFiles(
        locations[0].filesystem,
        tuple(infos),
        tuple(_size_of(info) for info in infos.values()),
        next(iter(kinds)),
        tuple(known),
    )


def _files_of(
    location: Location, known: Sequence[FileKind], kind: FileKind | None
) -> list[tuple[fs.FileInfo, FileKind]]:
    if is_pattern(location.path):
        return [(info, kind or _kind_of_file(location, info, known)) for info in _files_that_fit(location)]
    info = location.info()
    if info.type == fs.FileType.NotFound:
        raise _missing(location)
    if info.type == fs.FileType.File:
        return [(info, kind or _kind_of_file(location, info, known))]
    return _files_in(location, known, kind)


def _size_of(info: fs.FileInfo) -> int:
    """Return the bytes of a file, or of all files of a data set that is a folder."""
    if info.type != fs.FileType.Directory:
        return int(info.size or 0)
    return sum(path.stat().st_size for path in Path(info.path).rglob("*") if path.is_file())


def _files_that_fit(location: Location) -> list[fs.FileInfo]:
    """Return the files that match a pattern, in natural order."""
    paths = expand_pattern(location)
    infos = location.filesystem.get_file_info(paths) if paths else []
    files = [info for info in infos if info.type == fs.FileType.File]
    if not files:
        raise DataError([Problem("no file matches this pattern", _WHERE, location.shown)])
    return sorted(files, key=lambda info: _natural_order(info.path))


def _missing(location: Location) -> DataError:
    nearest = nearest_sibling(location)
    return DataError([Problem("the file or folder does not exist", _WHERE, location.shown, nearest=nearest)])


def _files_in(
    location: Location, known: Sequence[FileKind], kind: FileKind | None
) -> list[tuple[fs.FileInfo, FileKind]]:
    """Return the data files in a folder and its subfolders, except for hidden ones.

    If a kind is given, return the files whose names match it, or all if no name does.
    """
    if kind is None and location.is_local:
        whole = next((one for one in known if one.recognises_folder and one.recognises_folder(location.path)), None)
        if whole is not None:
            return [(location.info(), whole)]
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
    found = [(info, named) for info in files if (named := kind_of_name(info.path, known)) is not None]
    if kind is not None:
        found = [pair for pair in found if pair[1] == kind] or [(info, kind) for info in files]
    if not found:
        names = ", ".join(info.base_name for info in files[:5]) or "nothing"
        what = f"folder {location.shown} does not contain data files"
        suffixes = ", ".join(suffix for one in known for suffix in one.suffixes)
        raise DataError([Problem(what, _WHERE, names, suffixes)])
    return sorted(found, key=lambda pair: _natural_order(pair[0].path))


def _natural_order(path: str) -> list[tuple[int, int, str]]:
    """Order part-2 before part-10."""
    parts: Sequence[str] = re.split(r"(\d+)", path)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _kind_of_file(location: Location, info: fs.FileInfo, known: Sequence[FileKind]) -> FileKind:
    """Return the kind by the file's name, else by its first bytes."""
    kind = kind_of_name(info.path, known)
    if kind is not None:
        return kind
    try:
        begins_like = kind_of_head(_head(location.filesystem, info.path, HEAD_BYTES), known)
    except OSError as error:
        raise unreadable(info.path, error) from None
    if isinstance(begins_like, FileKind):
        return begins_like
    expected = ", ".join(kind.name for kind in known)
    raise DataError([Problem("this file does not contain recorded data", _WHERE, info.path, expected)])


def check_kind(files: InputFiles, path: str) -> None:
    """Reject a file whose first bytes do not match its kind. Raises `DataError`."""
    read_head(files, path, HEAD_BYTES)


def read_head(files: InputFiles, path: str, num_bytes: int) -> bytes:
    """Return the first unpacked bytes of a file. Raises `DataError` if they do not match the kind of the files."""
    try:
        head = _head(files.filesystem, path, num_bytes)
    except OSError as error:
        raise DataError([Problem(f"a file cannot be read: {first_line(error)}", path)]) from None
    begins_like, kind = kind_of_head(head[:HEAD_BYTES], files.known), files.kind
    if begins_like is None and kind.is_binary:
        raise DataError([Problem(f"this is not a {kind.title} file, or it is damaged", path)])
    if begins_like not in (None, kind):
        title = begins_like.title if isinstance(begins_like, FileKind) else begins_like
        raise DataError([Problem(f"this is not a {kind.title} file: it starts like {title}", path)])
    return head


def _head(filesystem: fs.FileSystem, path: str, num_bytes: int) -> bytes:
    """Return the first bytes of a file; pyarrow unpacks names that end in `.gz`, ..."""
    with filesystem.open_input_stream(path) as stream:
        head: bytes = stream.read(num_bytes)
    return head
