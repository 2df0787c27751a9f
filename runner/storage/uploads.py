"""Background uploads of a run; at most one is queued, and failures never stop the training."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.checkpoints.checkpoint import MANIFEST, read_manifest
from runner.checkpoints.folder import iteration_of, list_checkpoints
from runner.config.documents import read_regular
from runner.config.errors import Problem, UserError
from runner.locks import LOCK_FILE
from runner.storage.stored_files import (
    CHECKPOINTS,
    FILES,
    StoredFiles,
    checkpoint_names,
    manifest_path,
    open_store,
    url_of_run,
)

# Folders of a run dir that are not uploaded like other files: checkpoints have a separate layout, and the journal of
# simulators is only useful on this machine.
_LEFT_OUT = (CHECKPOINTS.rstrip("/"), "rllink")
_HIDDEN_BUT_SENT = ".hydra"


class StoredCopy:
    """Copy of a run dir in a store. Each call of `send` only uploads changes.

    Args:
        files: files of the run in the store.
        run_dir: local run dir.

    Attributes:
        held: checkpoints that are being sent and must not be deleted.
    """

    def __init__(self, files: StoredFiles, run_dir: Path) -> None:
        self._files, self._run_dir = files, run_dir
        self.held: frozenset[Path] = frozenset()
        self._stored: dict[str, int] | None = None  # path -> size; None if it must be queried
        self._records: dict[str, tuple[int, int]] = {}  # size and time of sent records

    def send(self) -> None:
        """Send all changes. A kill at any time leaves complete checkpoints in the store.

        Files of checkpoints are sent first, then records, and manifests last. Every checkpoint in the store therefore
        comes with the lines of its iterations.
        """
        try:
            stored = self._files.sizes() if self._stored is None else self._stored
            self._stored = None  # unknown after an error
            self._stored = self._sent(stored)
        finally:
            self.held = frozenset()

    def _sent(self, stored: dict[str, int]) -> dict[str, int]:
        checkpoints = list_checkpoints(self._run_dir / CHECKPOINTS)
        self.held = frozenset(checkpoints)
        manifests: dict[str, bytes] = {}
        kept: set[str] = set()
        for checkpoint in reversed(checkpoints):  # newest first
            manifests[manifest_path(checkpoint.name)], paths = self._send_files(checkpoint, stored)
            kept |= paths
        self.send_records(stored)
        for path, content in reversed(manifests.items()):
            if stored.get(path) != len(content) or self._files.read(path) != content:
                self._write(path, content, stored)
        dropped = [manifest_path(name) for name in checkpoint_names(stored) if manifest_path(name) not in manifests]
        unused = [path for path in stored if _is_left_over(path) or (path.startswith(FILES) and path not in kept)]
        for path in (*dropped, *unused):  # manifests first: none may name a deleted file
            self._files.remove(path)
            del stored[path]
        return stored

    def send_records(self, stored: dict[str, int]) -> None:
        """Send changed files outside of checkpoints, and add them to the stored sizes."""
        for path in _record_paths(self._run_dir):
            source = self._run_dir / path
            try:
                version = source.stat().st_size, source.stat().st_mtime_ns
                content = read_regular(source) if self._records.get(path) != version else None
            except FileNotFoundError:  # replaced or removed meanwhile
                continue
            if content is not None:  # read completely before sending, because some files grow meanwhile
                self._write(path, content, stored)
                self._records[path] = version

    def _send_files(self, checkpoint: Path, stored: dict[str, int]) -> tuple[bytes, set[str]]:
        """Send the files of a checkpoint, again if it is replaced meanwhile; return its manifest, and their paths."""
        sent, files = b"", dict[str, str]()
        while (manifest := read_regular(checkpoint / MANIFEST)) != sent:
            sent, files = manifest, read_manifest(checkpoint)["files"]
            for name, digest in files.items():
                source, path = checkpoint / name, f"{FILES}{digest}"
                size = source.stat().st_size
                if stored.get(path) != size:  # also if a killed upload left a part of it
                    self._files.send(source, path)
                    stored[path] = size
        return manifest, {f"{FILES}{digest}" for digest in files.values()}

    def _write(self, path: str, content: bytes, stored: dict[str, int]) -> None:
        self._files.write(path, content)
        stored[path] = len(content)


def _is_left_over(path: str) -> bool:
    """Return whether a path is a leftover of an interrupted write; other hidden files are never uploaded."""
    return path.rpartition("/")[2].startswith(".") and path.endswith(".tmp")


def _record_paths(run_dir: Path) -> Iterator[str]:
    """Yield the files of a run dir outside of its checkpoints, except for links and hidden files."""
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


KEY = "checkpoint.upload_to"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
# Tries of the last upload, with pauses of 1, 2, 4, 8 and 16 s, so that a run ends even if its store is gone.
LAST_TRIES = 6

_log = logging.getLogger(__name__)


class Uploads:
    """Keeps the copy of a run dir in a store up to date, in a background thread.

    Args:
        store: URL of the folder with all runs.
        run_dir: absolute path of the run dir.
        resume_from: checkpoint that the run resumes from, or None for a new run.
        note: shows a line.

    Attributes:
        url: URL of the run.

    Raises:
        UserError: the store cannot be opened or written, or holds another state of this run.
    """

    def __init__(self, store: str, run_dir: Path, resume_from: Path | None, note: Callable[[str], None]) -> None:
        self.url = url_of_run(store, run_dir)
        self._note = note
        files = open_store(self.url, KEY)
        self._copy = StoredCopy(files, run_dir)
        try:
            stored = files.sizes()
            _check_unused(files, stored, run_dir, resume_from)
            self._copy.send_records(stored)
        except UserError:
            raise
        except Exception as error:  # each store's package raises different errors
            fix = "use a store that can be written"
            problem = Problem(f"{KEY}: the store cannot be used", self.url, _text(error), fix=fix)
            raise UserError(problem) from error
        self._is_wanted, self._is_last, self._is_given_up = threading.Event(), threading.Event(), threading.Event()
        self._prune: Callable[[], None] = lambda: None
        self._num_failures = 0  # consecutive failures
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def holds(self, checkpoint: Path) -> bool:
        """Return whether a checkpoint is being sent and must not be deleted."""
        return checkpoint in self._copy.held

    def request(self) -> None:
        """Send changes after the current upload, if any."""
        self._is_wanted.set()

    def finish(self, prune: Callable[[], None]) -> None:
        """Send the final state and wait for it, unless `give_up` was called.

        Args:
            prune: deletes checkpoints that were only kept to send them.
        """
        self._prune = prune
        self._is_last.set()
        self._is_wanted.set()
        if not self._is_given_up.is_set():
            self._thread.join()

    def give_up(self) -> None:
        """Stop sending, without waiting for a current upload."""
        self._is_given_up.set()
        self._is_last.set()
        self._is_wanted.set()

    def _work(self) -> None:
        is_last = False
        while not is_last and not self._is_given_up.is_set():
            self._is_wanted.wait()
            self._is_wanted.clear()
            is_last = self._is_last.is_set()
            if is_last:
                try:
                    self._prune()
                except OSError as error:  # files left over cost space but do not affect the upload
                    self._report_failure(error)
            self._send_until_it_works(is_last)

    def _send_until_it_works(self, is_last: bool) -> None:
        """Retry until sending works or the last upload begins; the last one has `LAST_TRIES`."""
        pause_s, num_tries = FIRST_PAUSE_S, 0
        while not self._is_given_up.is_set() and is_last == self._is_last.is_set():
            num_tries += 1
            try:
                self._copy.send()
            except Exception as error:  # each store's package raises different errors; training continues
                self._report_failure(error)
                if is_last and num_tries == LAST_TRIES:
                    self._note(f"the newest files are not in {self.url}, only in the run dir")
                    return
            else:
                self._report_success()
                return
            (self._is_given_up if is_last else self._is_last).wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _report_failure(self, error: Exception) -> None:
        self._num_failures += 1
        if self._num_failures == 1:
            self._note(f"the upload to {self.url} failed and will be retried: {_text(error)}")
        else:
            _log.warning("upload to %s, failure %d: %s", self.url, self._num_failures, _text(error))

    def _report_success(self) -> None:
        if self._num_failures:
            count = f"{self._num_failures} failure{'' if self._num_failures == 1 else 's'}"
            self._note(f"the upload to {self.url} works again after {count}")
        self._num_failures = 0


def _check_unused(files: StoredFiles, stored: dict[str, int], run_dir: Path, resume_from: Path | None) -> None:
    """Reject a store with another run of this name, or with newer checkpoints than the run dir."""
    names = checkpoint_names(stored)
    if resume_from is None:
        if names or "progress.jsonl" in stored:
            what, got = f"{KEY}: the store already has a run of this name", names[-1] if names else "progress.jsonl"
            fix = f"use another hydra.run.dir or {KEY}, or runner resume {files.url}"
            raise UserError(Problem(what, files.url, got, fix=fix))
        return
    if not names or iteration_of(Path(names[-1])) <= iteration_of(resume_from):
        return
    newest = run_dir / "checkpoints" / names[-1]
    is_here = newest in list_checkpoints(run_dir / "checkpoints")
    if not is_here or (newest / MANIFEST).read_bytes() != files.read(manifest_path(names[-1])):
        what = f"{KEY}: the store has a newer checkpoint of this run than the run dir"
        fix = f"use runner resume {files.url} in another folder, or set {KEY}=null"
        raise UserError(Problem(what, files.url, names[-1], fix=fix))


def _text(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"
