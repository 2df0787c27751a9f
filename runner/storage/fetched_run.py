"""Copy a run from a store into a local run dir that commands can use like any other."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from runner.checkpoints import CheckpointError, read_manifest
from runner.checkpoints.checkpoint import MANIFEST
from runner.checkpoints.files import ALTERED, broken
from runner.checkpoints.folder import iteration_of, list_checkpoints
from runner.config.documents import parse_json
from runner.config.errors import Problem, UserError
from runner.locks import LOCK_FILE
from runner.storage.stored_files import (
    CHECKPOINTS,
    FILES,
    StoredFiles,
    checkpoint_names,
    manifest_path,
    open_store,
    run_dir_of,
)

_OF_CHECKPOINT = re.compile(rf"(?P<run>.+)/{CHECKPOINTS}(?P<name>iteration_\d+)/*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN = ("RUN_DIR", "the URL of a run uploaded by checkpoint.upload_to, or of one of its checkpoints")


def fetch_run(url: str, run_dir: Path | None, with_all_checkpoints: bool, note: Callable[[str], None]) -> Path:
    """Copy a run from a store into a local run dir, unless an equal copy exists.

    Args:
        url: URL of the run or of one of its checkpoints.
        run_dir: target folder. None uses the original path below `outputs` in the working directory.
        with_all_checkpoints: whether to copy all checkpoints, which resuming needs. Otherwise, copy only the checkpoint
            in the URL, or the newest one.
        note: shows a line.

    Returns:
        The local run dir, or the local checkpoint if the URL names a checkpoint.

    Raises:
        UserError: the run is not in the store, or the run dir holds another state of it.
    """
    match = _OF_CHECKPOINT.fullmatch(url)
    url, asked = (match["run"], match["name"]) if match else (url.rstrip("/"), None)
    files = open_store(url, _SHOWN[0])
    try:
        return _Fetch(files, note).fetch(run_dir, asked, with_all_checkpoints)
    except (UserError, CheckpointError):
        raise
    except Exception as error:  # each store's package raises different errors
        got = f"{type(error).__name__}: {error!s:.200}"
        raise UserError(Problem("the run cannot be read from the store", url, got)) from error


class _Fetch:
    def __init__(self, files: StoredFiles, note: Callable[[str], None]) -> None:
        self._files, self._note = files, note
        self._local: dict[str, Path] = {}  # digest -> local file of a checkpoint

    def fetch(self, run_dir: Path | None, asked: str | None, with_all_checkpoints: bool) -> Path:
        url, paths = self._files.url, self._files.sizes()
        names = checkpoint_names(paths)
        if not names or asked not in (None, *names):
            got = ", ".join(names) or "no checkpoints"
            raise UserError(Problem("this checkpoint is not in the store", url, got, _SHOWN[1]))
        candidates = [asked] if asked else names[::-1]
        name, manifest = self._first_readable(candidates)
        run_dir = run_dir or run_dir_of(url, _store_of(manifest))
        folder = run_dir / "checkpoints"
        if self._is_here(run_dir, name):
            self._note(f"{url} has already been fetched into {run_dir}")
            return folder / name if asked else run_dir
        self._note(f"fetching {name} of {url} into {run_dir}")
        folder.mkdir(parents=True, exist_ok=True)
        if asked is None:
            for checkpoint in list_checkpoints(folder):
                if checkpoint.name not in names:  # deleted in the store
                    shutil.rmtree(checkpoint)
        self._fetch_records(run_dir, paths)
        fetched = self._fetch_first(folder, candidates)
        for other in names if with_all_checkpoints else ():
            if other != fetched:
                with suppress(CheckpointError, FileNotFoundError):  # deleted meanwhile, or incomplete
                    self._fetch_checkpoint(folder, other)
        return folder / fetched if asked else run_dir

    def _first_readable(self, names: Sequence[str]) -> tuple[str, bytes]:
        """Return the name and manifest of the first checkpoint whose manifest is complete."""
        for name in names:
            content = self._files.read(manifest_path(name))
            if content.rstrip().endswith(b"}"):
                return name, content
        raise broken("the checkpoint does not have a readable manifest", Path(self._files.url), "it is truncated")

    def _is_here(self, run_dir: Path, newest: str) -> bool:
        """Return whether the run dir is in the same state as the store, so that it can be used unchanged.

        Raises:
            UserError: a run has trained in it that is in another state.
        """
        checkpoints = list_checkpoints(run_dir / "checkpoints")
        local = [folder.name for folder in checkpoints]
        is_ahead = bool(checkpoints) and iteration_of(checkpoints[-1]) > iteration_of(Path(newest))
        is_empty = not local and not (run_dir / "progress.jsonl").exists()  # after a rejected start
        if is_empty or not ((run_dir / LOCK_FILE).exists() or is_ahead):  # an unused copy
            return False
        manifest = run_dir / "checkpoints" / newest / MANIFEST
        if manifest.is_file() and manifest.read_bytes() == self._files.read(manifest_path(newest)):
            return True
        what = f"this run dir differs from {self._files.url}"
        got = f"{', '.join(local) or 'no checkpoints'} locally, {newest} in the store"
        fix = f"use RUN_DIR={run_dir} for the local copy, or another hydra.run.dir=DIR for the copy in the store"
        raise UserError(Problem(what, str(run_dir), got, fix=fix))

    def _fetch_records(self, run_dir: Path, paths: Iterable[str]) -> None:
        for path in paths:
            parts = PurePosixPath(path).parts
            is_plain = not path.startswith(("/", CHECKPOINTS)) and ".." not in parts and "\\" not in path
            if is_plain and not any(part.startswith(".") for part in parts if part != ".hydra"):
                target = run_dir.joinpath(*parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
                self._files.fetch(path, temporary)
                temporary.replace(target)

    def _fetch_first(self, folder: Path, names: Sequence[str]) -> str:
        """Fetch the first complete checkpoint, and return its name."""
        for name in names:
            try:
                self._fetch_checkpoint(folder, name)
            except (CheckpointError, FileNotFoundError) as error:
                if name == names[-1]:
                    raise
                self._note(f"{name} is incomplete in the store, using the previous one: {str(error).splitlines()[0]}")
            else:
                return name
        raise AssertionError("there is at least one name")

    def _fetch_checkpoint(self, folder: Path, name: str) -> None:
        """Fetch a checkpoint, which appears in the folder when it is complete.

        Raises:
            CheckpointError: it is incomplete or altered.
            FileNotFoundError: one of its files is not in the store.
        """
        place, temporary = folder / name, folder / f".{name}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            self._files.fetch(manifest_path(name), temporary / MANIFEST)
            digests = read_manifest(temporary)["files"]
            is_here = (place / MANIFEST).is_file()
            if not is_here or (place / MANIFEST).read_bytes() != (temporary / MANIFEST).read_bytes():
                for file, digest in digests.items():
                    if Path(file).name == file and _DIGEST.fullmatch(digest):  # ignore anything but plain files
                        self._fetch_file(digest, temporary / file)
                shutil.rmtree(place, ignore_errors=True)
                temporary.rename(place)
            self._local |= {digest: place / file for file, digest in digests.items()}
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _fetch_file(self, digest: str, target: Path) -> None:
        """Fetch a file, or link the file of another checkpoint with the same content."""
        known = self._local.get(digest)
        if known is not None:
            with suppress(OSError):  # a file system without links
                os.link(known, target)
                return
        self._files.fetch(f"{FILES}{digest}", target)
        if _digest_of(target) != digest:
            raise broken(ALTERED, Path(self._files.url, FILES, digest), f"{target.stat().st_size} bytes")


def _store_of(manifest: bytes) -> str | None:
    """Return `checkpoint.upload_to` from a manifest, or None if it is not set."""
    try:
        store = parse_json(manifest)["config"]["checkpoint"]["upload_to"]
    except (ValueError, LookupError, TypeError):
        return None
    return store if isinstance(store, str) else None


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
