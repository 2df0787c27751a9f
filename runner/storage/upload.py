"""One upload: what a run dir holds and a store lacks is sent, what the run dir has dropped is deleted there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runner.checkpoints.checkpoint import MANIFEST, read_manifest
from runner.checkpoints.folder import list_checkpoints
from runner.config.documents import read_regular
from runner.locks.claim import LOCK_FILE
from runner.storage.layout import CHECKPOINTS, FILES, checkpoint_names, manifest_path
from runner.storage.stored_files import StoredFiles

# Folders of a run dir that stay local: checkpoints have a layout of their own, and the journal of simulators goes with
# the machine that they are connected to.
_LEFT_OUT = (CHECKPOINTS.rstrip("/"), "rllink")
_HIDDEN_BUT_SENT = ".hydra"


class Upload:
    """Makes a run in a store equal to its run dir, as often as `send` is called; each time only what is new is sent.

    Args:
        files: of the run in the store.
        run_dir: local.
        hold: called with the checkpoints that are about to be sent, which must stay until the next call.
    """

    def __init__(self, files: StoredFiles, run_dir: Path, hold: Callable[[list[Path]], None]) -> None:
        self._files, self._run_dir, self._hold = files, run_dir, hold
        self._stored: dict[str, int] | None = None  # size by path; None: to be asked for
        self._records: dict[str, tuple[int, int]] = {}  # size and time of the records that were sent

    def send(self) -> None:
        """Send what is new; a kill at any moment leaves the store with whole checkpoints.

        Files of checkpoints go first, then records, manifests last: whoever finds a checkpoint has the lines of its
        iterations, too.
        """
        try:
            stored = self._files.sizes() if self._stored is None else self._stored
            self._stored = None  # unknown after an error
            self._stored = self._sent(stored)
        finally:
            self._hold([])

    def _sent(self, stored: dict[str, int]) -> dict[str, int]:
        checkpoints = list_checkpoints(self._run_dir / CHECKPOINTS)
        self._hold(checkpoints)
        manifests: dict[str, bytes] = {}
        kept: set[str] = set()
        for checkpoint in reversed(checkpoints):  # the newest one first
            for name, digest in read_manifest(checkpoint)["files"].items():
                self._send_file(checkpoint / name, f"{FILES}{digest}", stored)
                kept.add(f"{FILES}{digest}")
            manifests[manifest_path(checkpoint.name)] = read_regular(checkpoint / MANIFEST)
        self.send_records(stored)
        for path, content in reversed(manifests.items()):
            self._write(path, content, stored)
        dropped = [manifest_path(name) for name in checkpoint_names(stored) if manifest_path(name) not in manifests]
        unused = [path for path in stored if _is_left_over(path) or (path.startswith(FILES) and path not in kept)]
        for path in (*dropped, *unused):  # manifests first: none may name a file that is gone
            self._files.remove(path)
            del stored[path]
        return stored

    def send_records(self, stored: dict[str, int]) -> None:
        """Send the files beside checkpoints that have changed, and add them to the stored sizes."""
        for path in _record_paths(self._run_dir):
            source = self._run_dir / path
            try:
                version = source.stat().st_size, source.stat().st_mtime_ns
                content = read_regular(source) if self._records.get(path) != version else None
            except FileNotFoundError:  # replaced or removed meanwhile
                continue
            if content is not None:  # all at once: some grow meanwhile
                self._write(path, content, stored)
                self._records[path] = version

    def _send_file(self, source: Path, path: str, stored: dict[str, int]) -> None:
        size = source.stat().st_size
        if stored.get(path) != size:  # a part of it may be there, of an upload that was killed
            self._files.send(source, path)
            stored[path] = size

    def _write(self, path: str, content: bytes, stored: dict[str, int]) -> None:
        if path.endswith(MANIFEST) and self._is_stored(path, content, stored):
            return
        self._files.write(path, content)
        stored[path] = len(content)

    def _is_stored(self, path: str, content: bytes, stored: Mapping[str, int]) -> bool:
        return stored.get(path) == len(content) and self._files.read(path) == content


def _is_left_over(path: str) -> bool:
    """Return whether a path is of a write that was killed: no hidden file is sent."""
    return path.rpartition("/")[2].startswith(".") and path.endswith(".tmp")


def _record_paths(run_dir: Path) -> Iterator[str]:
    """Yield the files of a run dir beside its checkpoints, no links and no hidden ones."""
    for folder, folders, names in os.walk(run_dir):
        is_top = Path(folder) == run_dir
        folders[:] = [
            name
            for name in folders
            if (not name.startswith(".") or name == _HIDDEN_BUT_SENT) and not (is_top and name in _LEFT_OUT)
        ]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and name != LOCK_FILE and path.is_file() and not path.is_symlink():
                yield path.relative_to(run_dir).as_posix()
