"""The files that `offline.input_` names: found, told apart by kind, in one order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyarrow import fs

from runner.config.errors import ConfigError, Problem
from runner.config.offline import OfflineConfig
from runner.offline.filesystems import Location, expand_pattern, is_pattern, locate, nearest_sibling, unreadable
from runner.offline.foreign import hdf5, minari
from runner.offline.foreign.data_error import DataError

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
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
KINDS = ("parquet", "json", "csv", "hdf5", "minari")


@dataclass(frozen=True)
class InputFiles:
    """Files of one kind. `paths` are those in the file system, in order; of a Minari data set its folder."""

    filesystem: fs.FileSystem
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    kind: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)

    @property
    def is_local(self) -> bool:
        """Whether they are on this machine's own file system."""
        return isinstance(self.filesystem, fs.LocalFileSystem)


def input_paths(config: OfflineConfig) -> list[str]:
    """`offline.input_` as a list; raises `ConfigError` if it is empty."""
    paths = [config.input_] if isinstance(config.input_, str) else list(config.input_ or [])
    if not paths:
        raise ConfigError([Problem("there are no data to read", _WHERE, "null", "a file, a folder, a pattern, a URI")])
    return paths


def find_files(config: OfflineConfig) -> InputFiles:
    """All files that are read.

    Raises:
        DataError: a path is missing, a folder has no data, or kinds are mixed.
    """
    locations = [
        locate(path, config.input_filesystem, config.input_filesystem_kwargs, "offline.input_filesystem")
        for path in input_paths(config)
    ]
    problems: list[Problem] = []
    found: list[tuple[fs.FileInfo, str]] = []
    for location in locations:
        try:
            found += _files_of(location)
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    kinds = {kind: info.path for info, kind in reversed(found)}
    if len(kinds) > 1:
        got = "; ".join(f"{kind}: {path}" for kind, path in kinds.items())
        what = "files of several kinds are mixed; name those of one kind, for example with a pattern"
        raise DataError([Problem(what, _WHERE, got)])
    infos = {info.path: info for info, _ in found}
    return InputFiles(
        locations[0].filesystem,
        tuple(infos),
        tuple(int(info.size or 0) for info in infos.values()),
        next(iter(kinds)),
    )


def _files_of(location: Location) -> list[tuple[fs.FileInfo, str]]:
    if is_pattern(location.path):
        paths = expand_pattern(location)
        infos = location.filesystem.get_file_info(paths) if paths else []
        files = [info for info in infos if info.type == fs.FileType.File]
        if not files:
            raise DataError([Problem("no file fits this pattern", _WHERE, location.shown)])
        return [(info, _kind_of_file(location, info)) for info in files]
    info = location.info()
    if info.type == fs.FileType.NotFound:
        nearest = nearest_sibling(location)
        raise DataError([Problem("there is no such file or folder", _WHERE, location.shown, nearest=nearest)])
    if info.type == fs.FileType.File:
        return [(info, _kind_of_file(location, info))]
    return _files_in(location)


def _files_in(location: Location) -> list[tuple[fs.FileInfo, str]]:
    """The data files in a folder and the folders in it; hidden ones are left out."""
    if location.is_local and minari.recognises(location.path):
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
    found = [(info, kind) for info in files if (kind := _kind_of_name(info.path)) is not None]
    if not found:
        names = ", ".join(info.base_name for info in files[:5]) or "nothing"
        allowed = ", ".join(_KINDS)
        raise DataError([Problem(f"this folder has no data files: {location.shown}", _WHERE, names, allowed)])
    return sorted(found, key=lambda pair: _natural_order(pair[0].path))


def _natural_order(path: str) -> list[tuple[int, int, str]]:
    """part-2 before part-10."""
    parts: Sequence[str] = re.split(r"(\d+)", path)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _kind_of_name(path: str) -> str | None:
    name = path.lower()
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return next((kind for suffix, kind in _KINDS.items() if name.endswith(suffix)), None)


def _kind_of_file(location: Location, info: fs.FileInfo) -> str:
    """The kind by the file's name, else by its first bytes."""
    kind = _kind_of_name(info.path)
    if kind is not None:
        return kind
    try:
        with location.filesystem.open_input_stream(info.path) as stream:
            head = stream.read(64)
    except OSError as error:
        raise unreadable(info.path, error) from None
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(hdf5.SIGNATURE):
        return "hdf5"
    if head.lstrip()[:1] == b"{":
        return "json"
    raise DataError([Problem("this is no file of recorded data", _WHERE, info.path, ", ".join(_KINDS))])
