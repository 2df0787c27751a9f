"""Outcomes of tasks: the values of finished episodes, which belong to tasks."""

from __future__ import annotations

from typing import NamedTuple

TASK_OUTCOMES = "curriculum"  # name of the part to which outcomes are reported


class TaskOutcome(NamedTuple):
    """The value of one episode.

    Attributes:
        task: name of the task.
        value: measured value of the episode.
    """

    task: str
    value: float
