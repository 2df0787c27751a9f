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


class UnstorableError(RunFailure, TypeError):
    """A state holds a value or a key of a type that a checkpoint cannot hold.

    Args:
        name: of the value, `part/key/key`.
        kind: its type in words.
    """

    def __init__(self, name: str, kind: str) -> None:
        allowed = "dicts, lists, tuples, numbers, texts, true and false, None, arrays and tensors of numbers"
        super().__init__(Problem(f"{name}: {kind} cannot be part of a checkpoint", "checkpoint", allowed=allowed))


@contextmanager
def naming_checkpoint(folder: Path) -> Iterator[None]:
    """Turn errors of a state or configuration that does not fit into CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = f"the checkpoint does not fit this version of runner: {type(error).__name__}: {error}"
        raise CheckpointError(Problem(what, where=str(folder))) from error
