"""The layout of a run in a store, and access to the files of a folder there.

```
checkpoints/iteration_000010/manifest.json    names the files of the checkpoint, with a digest each
checkpoints/files/<digest>                    a file of one or several checkpoints
progress.jsonl, .hydra/config.yaml, ...       as in the run dir
```
A checkpoint exists once its manifest does. Files shared by several checkpoints, such as segments of replay buffers, are
stored once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from runner.checkpoints.checkpoint import MANIFEST
from runner.checkpoints.folder import iteration_of
from runner.config.errors import UserError
from runner.config.paths import find_store_problem, local_copy_of
from runner.durable_files import write_atomically

CHECKPOINTS = "checkpoints/"
FILES = f"{CHECKPOINTS}files/"
_MANIFEST = re.compile(rf"{CHECKPOINTS}(iteration_\d+)/{MANIFEST}")
_OUTPUTS = "outputs"


def manifest_path(name: str) -> str:
    """Return the path of a checkpoint's manifest."""
    return f"{CHECKPOINTS}{name}/{MANIFEST}"


def checkpoint_names(paths: Iterable[str]) -> list[str]:
    """Return the names of the checkpoints that have a manifest, oldest first."""
    names = [match[1] for path in paths if (match := _MANIFEST.fullmatch(path))]
    return sorted(names, key=lambda name: iteration_of(Path(name)))


def url_of_run(store: str, run_dir: Path) -> str:
    """Return the URL of a run: its path below `outputs`, or else the name of its folder, below the store.

    A run dir that is the local copy of a URL in the store has this URL.
    """
    parts, by_name = run_dir.parts, f"{store.rstrip('/')}/{run_dir.name}"
    copy = local_copy_of(by_name).parts
    if _OUTPUTS not in parts or parts[-len(copy) :] == copy:
        return by_name
    after = len(parts) - parts[::-1].index(_OUTPUTS)
    return "/".join([store.rstrip("/"), *parts[after:]])


def run_dir_of(url: str, store: str | None) -> Path:
    """Invert `url_of_run`: return the run dir below `outputs` in the working directory.

    The run dir of a URL directly below the store is its local copy, even if other folders have the same name.

    Args:
        url: URL of the run.
        store: store that the run was uploaded to, or None if it is unknown.
    """
    base = f"{store.rstrip('/')}/" if store else ""
    is_below = bool(base) and url.startswith(base)
    below = url.removeprefix(base) if is_below else url.rpartition("/")[2]
    if is_below and "/" not in below:
        return Path.cwd() / local_copy_of(url)
    parts = [part for part in below.split("/") if part not in ("", ".", "..")]
    return Path.cwd().joinpath(_OUTPUTS, *parts)


class StoredFiles:
    """Files of a folder in a store. Errors of the store are raised unchanged.

    Args:
        url: URL of the folder, see `open_store`.
        file_system: fsspec file system.
        root: path of the folder in it.
    """

    def __init__(self, url: str, file_system: Any, root: str) -> None:
        self.url = url
        self._file_system = file_system
        self._root = root.rstrip("/")

    def sizes(self) -> dict[str, int]:
        """Return path -> size in bytes of each file; empty if the folder does not exist."""
        self._file_system.invalidate_cache()
        found = self._file_system.find(self._root, detail=True)
        prefix = f"{self._root}/"
        return {path.removeprefix(prefix): int(info["size"]) for path, info in found.items() if path.startswith(prefix)}

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises `FileNotFoundError` if it does not exist."""
        content: bytes = self._file_system.cat_file(self._place(path))
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file. On local and object storage, a killed process leaves the old or the new file."""
        place = self._place(path)
        if _is_local(self._file_system):
            write_atomically(Path(place), content)
            return
        self._put(partial(self._file_system.pipe_file, place, content), place)

    def send(self, source: Path, path: str) -> None:
        """Copy a local file into the store."""
        place = self._place(path)
        self._put(partial(self._file_system.put_file, str(source), place), place)

    def _put(self, put: Callable[[], object], place: str) -> None:
        try:
            put()
        except FileNotFoundError:  # in stores with folders
            self._file_system.makedirs(place.rpartition("/")[0], exist_ok=True)
            put()

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file from the store into an existing local folder."""
        self._file_system.get_file(self._place(path), str(target))

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""
        with suppress(FileNotFoundError):
            self._file_system.rm_file(self._place(path))

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}"


def _is_local(file_system: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(file_system, LocalFileSystem)


def open_store(url: str, key: str) -> StoredFiles:
    """Return the files of a folder, without contacting the store.

    Args:
        url: fsspec URL: `s3://bucket/runs/one`, `file:///mnt/runs/one`, or the path of a local folder.
        key: configuration key or argument that names it, for messages.

    Raises:
        UserError: the protocol is unknown, or its package is not installed.
    """
    import fsspec

    problem = find_store_problem(key, url)
    if problem is not None:
        raise UserError(problem)
    try:
        file_system, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise UserError(f"{key}: {url} cannot be opened: {error}") from error
    return StoredFiles(url, file_system, root)
