"""A run of a store as a local run dir, from which commands go on as from one that was always here."""

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
from runner.checkpoints.folder import list_checkpoints
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
_CHUNK_BYTES = 2**20
_SHOWN = ("RUN_DIR", "the URL of a run that checkpoint.upload_to has made, or of one of its checkpoints")


def fetch_run(url: str, run_dir: Path | None, is_whole: bool, note: Callable[[str], None]) -> Path:
    """Copy a run of a store into a local run dir, unless it is there already.

    Args:
        url: of the run, or of one of its checkpoints.
        run_dir: where; None: below `outputs` of the working folder, as it was where it was made.
        is_whole: all checkpoints, so that the run can go on; false: the newest one, or the one of the URL.
        note: shows a line.

    Returns:
        The local run dir, or the local checkpoint where the URL is that of a checkpoint.

    Raises:
        UserError: the store has no such run, or the run dir holds another state of it.
    """
    match = _OF_CHECKPOINT.fullmatch(url)
    url, asked = (match["run"], match["name"]) if match else (url.rstrip("/"), None)
    files = open_store(url, _SHOWN[0])
    try:
        return _Fetch(files, note).fetch(run_dir, asked, is_whole)
    except (UserError, CheckpointError):
        raise
    except Exception as error:  # of whatever package speaks to the store
        got = f"{type(error).__name__}: {error!s:.200}"
        raise UserError(Problem("the run cannot be read from the store", url, got).render_alone()) from error


class _Fetch:
    def __init__(self, files: StoredFiles, note: Callable[[str], None]) -> None:
        self._files, self._note = files, note
        self._local: dict[str, Path] = {}  # digest -> a file of a checkpoint that is here

    def fetch(self, run_dir: Path | None, asked: str | None, is_whole: bool) -> Path:
        url, paths = self._files.url, self._files.sizes()
        names = checkpoint_names(paths)
        if not names or asked not in (None, *names):
            got = ", ".join(names) or "no checkpoint there"
            raise UserError(Problem("the store has no such checkpoint", url, got, _SHOWN[1]).render_alone())
        wanted = [asked] if asked else names[::-1]
        name, manifest = self._first_readable(wanted)
        run_dir = run_dir or run_dir_of(url, _store_of(manifest))
        folder = run_dir / "checkpoints"
        if self._is_here(run_dir, name):
            self._note(f"{url} is here already, in {run_dir}")
            return folder / name if asked else run_dir
        self._note(f"fetching {name} of {url} into {run_dir}")
        folder.mkdir(parents=True, exist_ok=True)
        if asked is None:
            _drop(folder, names)
        self._fetch_records(run_dir, paths)
        fetched = self._fetch_first(folder, wanted)
        for other in names if is_whole else ():
            if other != fetched:
                with suppress(CheckpointError, FileNotFoundError):  # dropped meanwhile, or cut off
                    self._fetch_checkpoint(folder, other)
        return folder / fetched if asked else run_dir

    def _first_readable(self, names: Sequence[str]) -> tuple[str, bytes]:
        """Return the name and manifest of the first checkpoint whose manifest is whole."""
        for name in names:
            content = self._files.read(manifest_path(name))
            if content.rstrip().endswith(b"}"):
                return name, content
        raise broken("the checkpoint has no readable manifest", Path(self._files.url), "it is cut off")

    def _is_here(self, run_dir: Path, newest: str) -> bool:
        """Return whether the run dir is in the state of the store, so that it can be used as it is.

        Raises:
            UserError: a run has trained in it that is in another state.
        """
        local = [folder.name for folder in list_checkpoints(run_dir / "checkpoints")]
        is_ahead = any(name > newest for name in local)
        is_empty = not local and not (run_dir / "progress.jsonl").exists()  # of a run that was refused
        if is_empty or not ((run_dir / LOCK_FILE).exists() or is_ahead):  # nobody has trained here
            return False
        manifest = run_dir / "checkpoints" / newest / MANIFEST
        if manifest.is_file() and manifest.read_bytes() == self._files.read(manifest_path(newest)):
            return True
        what = f"the run dir of this run is here already, in another state than {self._files.url}"
        got = f"{', '.join(local) or 'no checkpoint'} here, {newest} in the store"
        expected = f"RUN_DIR={run_dir} for what is here; or hydra.run.dir=DIR, another folder for what is in the store"
        raise UserError(Problem(what, str(run_dir), got, expected).render_alone())

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
        """Fetch the first checkpoint that is whole, and return its name."""
        for name in names:
            try:
                self._fetch_checkpoint(folder, name)
            except (CheckpointError, FileNotFoundError) as error:
                if name == names[-1]:
                    raise
                self._note(f"{name} is not whole in the store, the one before is taken: {str(error).splitlines()[0]}")
            else:
                return name
        raise AssertionError("there is at least one name")

    def _fetch_checkpoint(self, folder: Path, name: str) -> None:
        """Fetch a checkpoint, which appears in the folder when it is complete.

        Raises:
            CheckpointError: it is cut off or altered.
            FileNotFoundError: a file of it is not in the store.
        """
        place, temporary = folder / name, folder / f".{name}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            self._files.fetch(manifest_path(name), temporary / MANIFEST)
            digests = read_manifest(temporary)["files"]
            if not _same(place / MANIFEST, temporary / MANIFEST):
                for file, digest in digests.items():
                    if Path(file).name == file and _DIGEST.fullmatch(digest):  # others are no files of a checkpoint
                        self._fetch_file(digest, temporary / file)
                shutil.rmtree(place, ignore_errors=True)
                temporary.rename(place)
            self._local |= {digest: place / file for file, digest in digests.items()}
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _fetch_file(self, digest: str, target: Path) -> None:
        """Fetch a file, or link the one that another checkpoint shares with this one."""
        known = self._local.get(digest)
        if known is not None:
            with suppress(OSError):  # a file system without links
                os.link(known, target)
                return
        self._files.fetch(f"{FILES}{digest}", target)
        if _digest_of(target) != digest:
            raise broken(ALTERED, Path(self._files.url, FILES, digest), f"{target.stat().st_size} bytes")


def _store_of(manifest: bytes) -> str | None:
    """Return `checkpoint.upload_to` of a manifest; None where it has none."""
    from runner.config.documents import parse_json

    try:
        store = parse_json(manifest)["config"]["checkpoint"]["upload_to"]
    except (ValueError, LookupError, TypeError):
        return None
    return store if isinstance(store, str) else None


def _drop(folder: Path, names: Sequence[str]) -> None:
    """Delete the checkpoints of an earlier copy that the store has dropped."""
    for checkpoint in list_checkpoints(folder):
        if checkpoint.name not in names:
            shutil.rmtree(checkpoint)


def _same(first: Path, second: Path) -> bool:
    return first.is_file() and first.read_bytes() == second.read_bytes()


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
