"""Errors of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.config.errors import Problem, RunFailure, UserError


class CheckpointError(RunFailure):
    """A checkpoint is cut off, altered or of another version."""


class OddCheckpointError(CheckpointError):
    """A checkpoint is undamaged, but holds values that runner never writes: somebody forged it."""

    exit_code = UserError.exit_code


@contextmanager
def naming_checkpoint(folder: Path) -> Iterator[None]:
    """Turn errors of a state or configuration that does not fit into CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"the checkpoint does not fit this version of runner: {type(error).__name__}: {error}"
        raise CheckpointError(Problem(what, where=str(folder))) from error
