"""A run dir that is this process's: locked, with its log, and with errors that name what the file system refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runner.config.compose import Composed
from runner.config.errors import RunFailure, UserError
from runner.file_faults import describe_file_fault
from runner.locks import FolderLock, held
from runner.tracking.log_file import logged_to_file


class RunFolder:
    """The run dir of a run that trains; `opened_run_folder` makes it.

    Attributes:
        path: absolute.
    """

    def __init__(self, path: Path, lock: FolderLock) -> None:
        self.path = path
        self._lock = lock

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within, files of the run are written.

        Raises:
            FolderLost: the folder is not this process's any more; nothing was written.
            RunFailure: the file system refuses; the problem says why.
        """
        self._lock.check()
        try:
            yield
        except OSError as error:
            self._lock.check()
            raise RunFailure(describe_file_fault(error, self.path, "the run")) from error

    def write_configuration(self, composed: Composed) -> None:
        """Write the composed configuration and the overrides into `.hydra`, where Hydra has them."""
        composed.write_to(self.path / ".hydra")


@contextmanager
def opened_run_folder(path: Path, member_of: str | None = None, patience_s: float = 0.0) -> Iterator[RunFolder]:
    """Make the run dir, take it, and send log records to its `runner.log`; nothing in it is touched before.

    Args:
        path: where.
        member_of, patience_s: see `held`.

    Raises:
        FolderHeld: another process has it.
        UserError: it cannot be made or written.
    """
    path = path.absolute()
    with ExitStack() as stack:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(held(path, "run dir", member_of, patience_s))
            stack.enter_context(logged_to_file(path))
        except OSError as error:
            raise UserError(f"the run dir cannot be made: {error}") from error
        yield RunFolder(path, lock)
