"""Files of recorded data: names for new files, hidden names of incomplete files, and the list of a run's files.

Readers never see an incomplete file, and existing files are never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from runner.config.errors import Problem, RunFailure
from runner.config.offline import OfflineConfig
from runner.offline.files.data_error import first_line
from runner.offline.files.filesystems import Location
from runner.offline.writing.output_formats import OUTPUT_FORMATS, OutputFormat, file_extension

# Errors of `os.link` on file systems without hard links, such as mounted object stores.
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class WriteFailed(RunFailure):
    """Error of recorded data that cannot be written."""


@dataclass(frozen=True)
class Written:
    """A complete file. `path` is empty if rows are written to a database."""

    path: str
    rows: int
    num_bytes: int


class OutputFile:
    """An open file with a hidden name.

    Args:
        config: options of the format.
        location: the folder.
        name: final name.
        schema: schema of all tables.

    Raises:
        FileExistsError: in the local file system, another process is writing this file or has written it.
        OSError: the file cannot be opened.
    """

    def __init__(self, config: OfflineConfig, location: Location, name: str, schema: pa.Schema) -> None:
        self.rows = 0
        self.columns = schema.names
        self._location = location
        self._final, self._temporary = f"{location.path}/{name}", f"{location.path}/.{name}.tmp"
        location.filesystem.create_dir(location.path, recursive=True)
        if location.is_local:
            _reserve(Path(self._temporary), Path(self._final))
        self._stream = location.filesystem.open_output_stream(self._temporary)
        self._sink: OutputFormat | None = None
        try:
            self._sink = OUTPUT_FORMATS[config.output_write_method](config, schema, self._stream)
        except BaseException:
            self.remove()
            raise

    def write(self, table: pa.Table) -> int:
        """Write rows, and return the size of the file so far in bytes."""
        assert self._sink is not None
        self._sink.write(table)
        self.rows += table.num_rows
        return int(self._stream.tell())

    def publish(self) -> Written:
        """Finish the file and give it its final name.

        Raises:
            OSError: the disk is full, the name is taken, ... The incomplete file is removed.
        """
        assert self._sink is not None
        try:
            self._sink.close()
            self._stream.close()
            give_name(self._location, self._temporary, self._final)
            size = self._location.filesystem.get_file_info(self._final).size
        except BaseException:
            self.remove()
            raise
        return Written(self._final, self.rows, int(size or 0))

    def remove(self) -> None:
        """Delete the incomplete file."""
        with contextlib.suppress(OSError, pa.ArrowException):
            if self._sink is not None:
                self._sink.close()  # otherwise Parquet's destructor would write to the closed stream
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._location.filesystem.delete_file(self._temporary)


def _reserve(temporary: Path, final: Path) -> None:
    """Create an incomplete file. Raises `FileExistsError` if another process has created it, or the complete file."""
    temporary.touch(exist_ok=False)
    if final.exists():
        temporary.unlink()
        raise FileExistsError(f"{final} exists already")


def give_name(location: Location, temporary: str, final: str) -> None:
    """Give a complete file its final name.

    Raises:
        OSError: the name is taken, ...
    """
    if not location.is_local:
        _move(location, temporary, final)
        return
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    try:
        os.link(temporary, final)  # fails if the name is taken, unlike a rename
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _move(location, temporary, final)
    else:
        os.unlink(temporary)


def _move(location: Location, temporary: str, final: str) -> None:
    if location.filesystem.get_file_info(final).type != fs.FileType.NotFound:
        raise FileExistsError(f"{final} exists already")
    location.filesystem.move(temporary, final)


def names_in(location: Location, kind: fs.FileType = fs.FileType.File, is_deep: bool = False) -> list[str]:
    """Return the sorted names of the files (or folders) in a folder; empty if it does not exist.

    Args:
        location: the folder.
        kind: kind of entries to list.
        is_deep: whether to include subfolders, as relative paths.
    """
    selector = fs.FileSelector(location.path, allow_not_found=True, recursive=is_deep)
    try:
        found = location.filesystem.get_file_info(selector)
    except FileNotFoundError:  # the folder was created between Arrow's listing and its check that it exists
        found = location.filesystem.get_file_info(selector)
    start = len(location.path)
    return sorted(info.path[start:].lstrip("/") if is_deep else info.base_name for info in found if info.type == kind)


def remove_empty_folder(filesystem: fs.FileSystem, path: str) -> None:
    """Remove a folder if it is empty."""
    with contextlib.suppress(OSError):
        if not filesystem.get_file_info(fs.FileSelector(path)):
            filesystem.delete_dir(path)


def reason_of(error: Exception) -> str:
    """Return a short reason why a file could not be written."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else first_line(error)


def write_failure(error: Exception, where: str) -> WriteFailed:
    """Return the error for a failed write."""
    return WriteFailed(Problem(f"recorded episodes cannot be written: {reason_of(error)}", where))


class FileList:
    """List of recorded files in a file of the run dir, one path per line.

    Args:
        path: path of the list, which is created with the first entry.
        location: folder of the recorded files.
    """

    def __init__(self, path: Path, location: Location) -> None:
        self._path, self._location = path, location

    @property
    def paths(self) -> list[str]:
        """All entries, including unfinished files."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []

    def add(self, path: str) -> None:
        """Add a file that is being written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(f"{path}\n")

    def keep_only(self, kept: Collection[str]) -> None:
        """Delete all listed files that are not in `kept`, including incomplete ones."""
        for path in self.paths:
            folder, _, name = path.rpartition("/")
            if path in kept or not self._is_inside(folder):
                continue
            begun = f"{folder}/.{name}.tmp"
            for left in (path, begun):
                with contextlib.suppress(OSError):
                    self._location.filesystem.delete_file(left)
            with contextlib.suppress(OSError):  # Ray Data writes to a folder
                self._location.filesystem.delete_dir(begun)
            if folder != self._location.path:
                remove_empty_folder(self._location.filesystem, folder)

    def _is_inside(self, folder: str) -> bool:
        """Return whether a folder is the folder of the recorded files or in it."""
        return ".." not in folder.split("/") and f"{folder}/".startswith(f"{self._location.path}/")


_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_NAMELESS = "environment"


def safe_name(text: str) -> str:
    """Return the text with characters replaced that are not safe in a file name."""
    return _UNSAFE.sub("-", text)


@dataclass(frozen=True)
class Destination:
    """Output folder and names of the files of one writer.

    Attributes:
        config: the `output...` options.
        location: the output folder, or None if the writing function uses another destination.
        writer_id: part of the file names.
        writer_number: number of the writer, from 1, in the names of run folders.
        env_name: name of the environment, or None if it is unknown.
        file_list: records each file when it is opened.
    """

    config: OfflineConfig
    location: Location | None
    writer_id: str
    writer_number: int
    env_name: str | None
    file_list: FileList | None


def next_place(to: Destination, location: Location, stem: str) -> tuple[Location, str]:
    """Return a free folder and file name for the next file.

    Args:
        to: destination of the writer.
        location: its output folder.
        stem: start of the file names, unique for each writer, so that names never clash.
    """
    extension = file_extension(to.config)
    if not to.config.output_run_folders:
        number = _highest(re.escape(stem) + r"(\d+)\..*", names_in(location), -1) + 1
        return location, f"{stem}{number:06d}.{extension}"
    env_folder = safe_name(to.env_name or _NAMELESS).lower().strip("-.") or _NAMELESS
    of_env = replace(location, path=f"{location.path}/{env_folder}")
    head = f"run-{to.writer_number:06d}-"
    number = _highest(head + r"(\d+)", names_in(of_env, fs.FileType.Directory), 0) + 1
    return replace(of_env, path=f"{of_env.path}/{head}{number:05d}"), f"{stem}{number:06d}.{extension}"


def _highest(pattern: str, names: list[str], default: int) -> int:
    """Return the highest number in names, including hidden names of open files."""
    found = [re.fullmatch(pattern, name.lstrip(".")) for name in names]
    return max((int(match.group(1)) for match in found if match), default=default)
