"""File systems: local paths, URIs, and file systems by name or class."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.offline.files.data_error import first_line

NAMES = {"gcs": "GcsFileSystem", "s3": "S3FileSystem", "abs": "AzureFileSystem", "local": "LocalFileSystem"}
_WILDCARDS = "*?["


@dataclass(frozen=True)
class Location:
    """Path within a file system. `shown` is the path as given, for messages."""

    filesystem: fs.FileSystem
    path: str
    shown: str

    @property
    def is_local(self) -> bool:
        """Whether this is the local file system."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def info(self) -> fs.FileInfo:
        """Return the type and size of the file or folder. Raises `ConfigError` if it cannot be read."""
        try:
            return self.filesystem.get_file_info(self.path)
        except OSError as error:
            raise unreadable(self.shown, error) from None


def locate(path: str, filesystem: str | None, kwargs: Mapping[str, Any], where: str) -> Location:
    """Return the file system of a path and the path in it.

    Args:
        path: local path, URI, or path within `filesystem`.
        filesystem: gcs, s3, abs, local, or the dotted path of a pyarrow or fsspec class. None infers it from the path.
        kwargs: arguments of its constructor. `{_target_: CLASS, ...}` is a file system that it wraps.
        where: configuration key of the file system, for messages.

    Raises:
        ConfigError: the file system does not exist or cannot be reached.
    """
    if filesystem is None and kwargs:
        what = f"{where}_kwargs has arguments, but {where} does not name a file system"
        fix = f"set {where}=NAME, or remove the arguments"
        raise ConfigError([Problem(what, f"{where}_kwargs", str(dict(kwargs)), fix=fix)])
    if filesystem is not None:
        system = make_filesystem(filesystem, kwargs, where)
        _, separator, rest = path.partition("://")
        inner = rest if separator else path
        if isinstance(system, fs.LocalFileSystem):
            inner = os.path.abspath(os.path.expanduser(inner))
        return Location(system, inner.rstrip("/"), path)
    if "://" not in path:
        return Location(fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path)), path)
    try:
        system, inner = fs.FileSystem.from_uri(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        return _locate_with_fsspec(path, error)
    return Location(system, inner.rstrip("/"), path)


def _locate_with_fsspec(path: str, error: Exception) -> Location:
    import fsspec

    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError, OSError):
        if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):  # known but unreachable
            raise unreadable(path, error) from None
        problem = Problem("no file system supports this address", path, str(error).splitlines()[0], ", ".join(NAMES))
        raise ConfigError([problem]) from None
    return Location(fs.PyFileSystem(fs.FSSpecHandler(system)), inner.rstrip("/"), path)


def make_filesystem(name: str, kwargs: Mapping[str, Any], where: str) -> fs.FileSystem:
    """Make the file system of a name or class path. Raises `ConfigError`."""
    if name in NAMES:
        maker = getattr(fs, NAMES[name], None)
        if maker is None:
            raise ConfigError([Problem(f"this build of pyarrow does not include {NAMES[name]}", where, name)])
    else:
        import fsspec

        if "." not in name:
            raise ConfigError([Problem("unknown file system", where, name, f"{', '.join(NAMES)}, or a class path")])
        maker = import_target(name, where, fs.FileSystem, fsspec.AbstractFileSystem)
    try:
        system = maker(**{key: _argument(value, f"{where}_kwargs.{key}") for key, value in kwargs.items()})
    except ConfigError:
        raise
    except Exception as error:
        what = f"the file system {name} cannot be created: {type(error).__name__}: {error}"
        raise ConfigError([Problem(what, f"{where}_kwargs", str(dict(kwargs)))]) from None
    return system if isinstance(system, fs.FileSystem) else fs.PyFileSystem(fs.FSSpecHandler(system))


def _argument(value: Any, where: str) -> Any:
    """Return an argument of a file system. A block with `_target_` is a file system that it wraps."""
    if not isinstance(value, Mapping) or "_target_" not in value:
        return value
    return make_filesystem(str(value["_target_"]), {k: v for k, v in value.items() if k != "_target_"}, where)


def is_pattern(path: str) -> bool:
    """Return whether a path has wildcards."""
    return any(letter in path for letter in _WILDCARDS)


def expand_pattern(location: Location) -> list[str]:
    """Return the sorted paths that match a pattern; `**` matches any number of folders."""
    if location.is_local:
        return sorted(glob.glob(location.path, recursive=True))
    from fsspec.utils import glob_translate

    parts = location.path.split("/")
    fixed = next(index for index, part in enumerate(parts) if is_pattern(part))
    root = "/".join(parts[:fixed])
    selector = fs.FileSelector(root, recursive=len(parts) > fixed + 1, allow_not_found=True)
    try:
        pattern = glob_translate(location.path)
        found = [info.path for info in location.filesystem.get_file_info(selector)]
    except (OSError, ValueError) as error:
        raise unreadable(location.shown, error) from None
    return sorted(path for path in found if re.fullmatch(pattern, path))


def nearest_sibling(location: Location) -> str | None:
    """Return the most similar path in the folder of a missing path."""
    import difflib

    parent, _, name = location.path.rpartition("/")
    try:
        found = location.filesystem.get_file_info(fs.FileSelector(parent or "/"))
    except OSError:
        return None
    close = difflib.get_close_matches(name, [info.base_name for info in found], n=1, cutoff=0.6)
    return str(Path(location.shown).parent / close[0]) if close else None


def unreadable(shown: str, error: Exception) -> ConfigError:
    """Return the error for a path that cannot be read."""
    return ConfigError([Problem(f"this path cannot be read: {first_line(error)}", shown)])
