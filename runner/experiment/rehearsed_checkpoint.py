"""Checkpoints that are written, read back and thrown away, so that values that none can hold are found early."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.checkpoints.stored_values import find_unstorable
from runner.config.errors import ConfigError


class Stateful(Protocol):
    """A part of a run that a checkpoint holds."""

    def get_state(self) -> Any:
        """Return the state."""

    def set_state(self, state: Any, /) -> Any:
        """Continue from a state."""


def check_storable(state: Mapping[str, Any]) -> None:
    """Check that a checkpoint can hold a state; raises `ConfigError` with a problem for each value that it cannot."""
    problems = [problem for part, values in state.items() for problem in find_unstorable(values, part)]
    if problems:
        raise ConfigError(problems)


def store_and_restore(name: str, part: Stateful) -> None:
    """Write the state of a part to a checkpoint in a temporary folder, read it, and let the part continue from it.

    Raises:
        ConfigError: a checkpoint cannot hold the state.
    """
    state = {name: part.get_state()}
    check_storable(state)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint")
        save_checkpoint(checkpoint, state, {})
        part.set_state(load_checkpoint(checkpoint)[0][name])
