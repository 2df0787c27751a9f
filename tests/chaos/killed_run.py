"""A run that is killed again and again, and resumed each time."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.checkpoints.folder import list_checkpoints
from tests.chaos.conftest import Scenario
from tests.chaos.processes import RUNNER, Command
from tests.chaos.runs import EVERY_ITERATIONS, NUM_ITERATIONS, assert_each_iteration_once
from tests.conftest import num_lines, result_of

# File operations of a process on unfinished and removed checkpoints: the first write has 12, later ones 20 and more.
FIRST_WRITE, LATER_WRITES = range(1, 13), range(13, 31)
# With replay, of up to three checkpoints: segments and links come on top.
WRITES_OF_SEGMENTS = range(1, 61)


class KilledRun:
    """One run, in one process after the other.

    Args:
        start: starts a command.
        run_dir: of the run.
        begin: its command line, without the program's name.
        chance: of the moments.
        scenario: told of each kill.
        resume_with: overrides of each `resume`.
        num_iterations: at its end.
    """

    def __init__(
        self,
        start: Callable[..., Command],
        run_dir: Path,
        begin: Sequence[str],
        chance: random.Random,
        scenario: Scenario,
        resume_with: Sequence[str] = (),
        num_iterations: int = NUM_ITERATIONS,
    ) -> None:
        self.run_dir, self._num_iterations = run_dir, num_iterations
        self._start, self._begin, self._resume_with = start, begin, resume_with
        self._chance, self._scenario = chance, scenario

    def kill_at_any_moment(self) -> None:
        """SIGKILL after a random number of further iterations and a random part of a second."""
        num_further, seconds = self._chance.randrange(2 * EVERY_ITERATIONS + 2), self._chance.uniform(0, 0.1)
        last = self._saved_iteration() + num_further
        command = self._go_on(RUNNER)
        if command.reaches(lambda: "  run dir " in command.output and num_lines(self.run_dir) >= last):
            time.sleep(seconds)
        self._end(command, "SIGKILL at a random moment")

    def kill_in_write(self, operations: Sequence[int] = (*FIRST_WRITE, *LATER_WRITES)) -> None:
        """SIGKILL right before one of these file operations on checkpoints that are being written or removed."""
        number = self._chance.choice(operations)
        command = self._go_on(("-m", "tests.chaos.killed_in_write", str(number)))
        command.reaches(lambda: command.has_ended)
        self._end(command, "SIGKILL within a checkpoint's write")

    def finish(self) -> None:
        """Let it reach its end."""
        command = self._go_on(RUNNER)
        assert command.wait() == 0, command.output
        assert_each_iteration_once(self.run_dir, self._num_iterations)
        assert result_of(self.run_dir)["status"] == "finished"

    def _go_on(self, program: Sequence[str]) -> Command:
        if self._saved_iteration():
            return self._start(*program, "resume", str(self.run_dir), *self._resume_with)
        shutil.rmtree(self.run_dir, ignore_errors=True)  # killed before its first checkpoint: nothing to go on from
        return self._start(*program, *self._begin, f"hydra.run.dir={self.run_dir}")

    def _saved_iteration(self) -> int:
        """Return the iteration of the newest checkpoint; 0 without one."""
        newest = list_checkpoints(self.run_dir / "checkpoints")[-1:]
        return int(newest[0].name.removeprefix("iteration_")) if newest else 0

    def _end(self, command: Command, what: str) -> None:
        has_finished = command.has_ended and command.wait() == 0
        command.kill()
        assert has_finished or command.wait() == -signal.SIGKILL, f"it ended by itself:\n{command.output}"
        command.close()  # what outlives a killed run is not looked at here
        if not has_finished:
            self._scenario.inject(what)
