"""Outcomes of tasks: what finished episodes say of the tasks of a curriculum."""

from __future__ import annotations

from typing import NamedTuple

CURRICULUM = "curriculum"  # name of the part that outcomes are reported to


class TaskOutcome(NamedTuple):
    """What one episode says of its task.

    Attributes:
        task: its name.
        value: of the episode, as `curriculum.measure` has it.
    """

    task: str
    value: float
