"""Tickets of the runners of a group, which outlive the loss of a runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from runner.config.errors import RunFailure, RunnerError
from runner.env_runners.handles import RunnerLost
from runner.env_runners.tickets import LocalTicket, Ticket


class RunnerOwner(Protocol):
    """A group of runners, as its tickets see it: `EnvRunnerGroup`.

    Attributes:
        role: what messages call a runner.
        generations: by index of a runner, the number of runners that had the index before.
        indexes: the indexes of the runners.
    """

    role: str
    generations: list[int]

    @property
    def indexes(self) -> Sequence[int]: ...

    def submit(self, index: int, method: str, *arguments: Any) -> Ticket:
        """Call a method of one runner."""

    def replace_lost(self, index: int, generation: int, lost: RunnerLost, losses_in_a_row: int) -> None:
        """Restore or replace a lost runner, unless another of its calls has done so."""

    def withdraw(self, ticket: RunnerTicket) -> None:
        """Forget a pending call."""


class RunnerTicket:
    """A ticket of one runner of a group: where the runner is lost, another takes its place and repeats the call.

    Args:
        group: of the runner.
        index: of the runner.
        call: name of a method, and its arguments.
        weights_seq_no: number of the weights among these.
        answer: known already, of a call before a checkpoint.

    Attributes:
        has_left: whether the runner was lost and the group goes on without it: there will be no answer.
    """

    def __init__(
        self, group: RunnerOwner, index: int, call: tuple[Any, ...], weights_seq_no: int = 0, answer: Any = None
    ) -> None:
        self.index = index
        self.weights_seq_no = weights_seq_no
        self._group, self._call = group, call
        self._losses_in_a_row = 0
        self.has_left = False
        self._ticket: Ticket = LocalTicket(lambda: answer) if answer is not None else self._submitted()

    def _submitted(self) -> Ticket:
        self._generation = self._group.generations[self.index]
        return self._group.submit(self.index, *self._call)

    @property
    def reference(self) -> Any:
        """Ray's reference to the answer; None where the runner is in this process."""
        return self._ticket.reference

    def is_ready(self) -> bool:
        """Whether `result` would not wait; in the place of a lost runner another one starts while others go on."""
        if self.has_left or self.reference is None or not self._ticket.is_ready():
            return self.has_left or self._ticket.is_ready()
        try:
            self._ticket.result()
        except RunnerLost as lost:
            self._repeat(lost)
            return self.has_left
        except RunnerError:
            pass  # `result` raises it
        return True

    def is_silent(self) -> bool:
        """Whether the runner has been silent for too long."""
        return self._ticket.is_silent()

    def result(self) -> Any:
        """Wait for the answer and return it.

        Raises:
            RunFailure: the call failed, or restarts are used up.
            RunnerLost: the group goes on without the runner.
        """
        while not self.has_left:
            try:
                return self._ticket.result()
            except RunnerLost as lost:
                self._repeat(lost)
            except RunFailure as failure:
                where = ", ".join(filter(None, (f"{self._group.role} {self.index}", failure.problem.where)))
                raise RunFailure(replace(failure.problem, where=where)) from failure
        raise RunnerLost(f"{self.index} has left the group")

    def has_answer(self) -> bool:
        """Wait for the answer, and return whether there is one: none if the group goes on without the runner.

        Raises:
            RunFailure: see `result`.
        """
        try:
            self.result()
        except RunnerLost:
            return False
        return True

    def _repeat(self, lost: RunnerLost) -> None:
        self._losses_in_a_row += 1
        self._group.replace_lost(self.index, self._generation, lost, self._losses_in_a_row)
        self.has_left = self.index not in self._group.indexes
        if self.has_left:
            self._group.withdraw(self)
        elif self._generation != self._group.generations[self.index]:  # else the runner is restored, with its calls
            self._ticket = self._submitted()
