"""The locked run dir of a run, with its log and readable errors of the file system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from runner.checkpoints.folder import list_checkpoints
from runner.config.compose import write_composed
from runner.config.composed import Composed
from runner.config.errors import Problem, RunFailure, UserError
from runner.config.paths import LATEST
from runner.experiment.file_faults import describe_file_fault
from runner.locks import FolderLock, held
from runner.tracking.display import logged_to_file


class RunFolder:
    """The run dir of a training run; created by `opened_run_folder`.

    Attributes:
        path: absolute path.
    """

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self._lock = lock

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Guard the writing of files of the run.

        Raises:
            FolderLost: this process does not hold the folder any more; nothing was written.
            RunFailure: the file system rejects the write; the problem gives the reason.
        """
        self._lock.check()
        try:
            yield
        except OSError as error:
            self._lock.check()
            raise RunFailure(describe_file_fault(error, self.path)) from error

    def write_configuration(self, composed: Composed) -> None:
        """Write the composed configuration and the overrides into `.hydra`, as Hydra does."""
        write_composed(composed, self.path / ".hydra")


def claim_run_dir(composed: Composed) -> Path:
    """Return the run dir of a new run.

    If the name contains the time, a run that started in the same second may have taken it. Then the next free folder is
    created: `NAME_2`, `NAME_3` and so on.

    Raises:
        UserError: the folder is not known, or cannot be created.
    """
    if composed.run_dir is None:
        raise UserError(Problem("hydra.run.dir cannot be resolved", "hydra.run.dir", expected="a folder"))
    if composed.is_run_dir_named:
        return Path(composed.run_dir)
    run_dir = make_free_folder(Path(composed.run_dir))
    point_latest_at(run_dir)
    return run_dir


def check_unused(run_dir: Path, resume_from: Path | None = None) -> None:
    """Reject a new run in a run dir that holds another run, whose lines and checkpoints would be lost."""
    if resume_from is not None and run_dir in resume_from.parents:
        return
    used = [name for name in ("progress.jsonl", "result.json") if (run_dir / name).is_file()]
    if used and not (resume_from and used == ["progress.jsonl"]):  # `resume` into another folder copies the lines there
        fix = "set another hydra.run.dir, or remove the folder, which does not contain a checkpoint"
        if list_checkpoints(run_dir / "checkpoints"):
            fix = f"set another hydra.run.dir, or resume the run with `runner resume {run_dir}`"
        raise UserError(Problem(f"the run dir already contains a run ({', '.join(used)})", str(run_dir), fix=fix))


def point_latest_at(run_dir: Path) -> None:
    """Point the link `latest` in the experiment's folder (EXPERIMENT/DATE/TIME) at this run.

    Do nothing if the file system does not support links, or if `latest` is not a link.
    """
    link = run_dir.parent.parent / LATEST
    temporary = link.with_name(f".{LATEST}.{os.getpid()}.tmp")
    if os.path.lexists(link) and not link.is_symlink():
        return
    with suppress(OSError):
        temporary.symlink_to(Path(run_dir.parent.name, run_dir.name), target_is_directory=True)
        temporary.replace(link)


def make_free_folder(path: Path) -> Path:
    """Create the folder, or `NAME_2`, `NAME_3` and so on if it exists, and return it. Two processes never get the same.

    Raises:
        UserError: the folder cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            candidate = path if number == 1 else path.with_name(f"{path.name}_{number}")
            try:
                candidate.mkdir()
            except FileExistsError:
                continue
            return candidate
    except OSError as error:
        raise UserError(f"the run dir cannot be created: {error}") from error
    raise AssertionError("unreachable")


@contextmanager
def opened_run_folder(path: Path, member_of: str | None = None, patience_s: float = 0.0) -> Iterator[RunFolder]:
    """Create and lock the run dir, and write log records to its `runner.log`.

    Args:
        path: path of the run dir.
        member_of, patience_s: see `held`.

    Raises:
        FolderHeld: another process holds the folder.
        UserError: the folder cannot be created or written.
    """
    path = path.absolute()
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(held(path, "run dir", member_of, patience_s))
            stack.enter_context(logged_to_file(path))
        except OSError as error:
            raise UserError(f"the run dir cannot be created: {error}") from error
        yield RunFolder(path, lock)
