"""One run: the training loop, and the end of training."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.exit_codes import ExitCode
from runner.config.user_code import USER_ERRORS, problem_of
from runner.experiment.checkpointing import check_storable
from runner.experiment.run_records import RunRecords
from runner.experiment.stop_criteria import met_criteria
from runner.interrupts import Interrupted, reason_to_end
from runner.locks import FolderLost
from runner.plans import Result
from runner.plans.item_state import UnstorableItem
from runner.rllink.announcement import external_text
from runner.tracking.headline import Status

if TYPE_CHECKING:
    from runner.experiment.trainer import Trainer

_log = logging.getLogger(__name__)


class Run:
    """Runs the training loop of a trainer, and records its results.

    Attributes:
        trainer: trains one iteration at a time.
        records: writes results, checkpoints and the summary.
    """

    def __init__(self, trainer: Trainer, records: RunRecords) -> None:
        self._config, self.trainer, self.records = trainer.config, trainer, records

    def train_until_stopped(self) -> int:
        """Train and return the exit code. Ctrl-C, SIGTERM or the end of a budget ends the loop after the iteration."""
        status: Status = "interrupted"
        try:
            with self.failure_recorded():
                self.begin()
                while self.stop_reason is None and reason_to_end() is None:
                    try:
                        self.record(self.trainer.train())
                    except Interrupted:
                        break
                reason = self.stop_reason
                status = "finished" if reason else "interrupted"
                self.end(status, reason or f"{reason_to_end()} {self._place}")
        except KeyboardInterrupt:
            status = "interrupted"
            self.records.stop_waiting()
            self.records.finish("interrupted", "second interrupt; the last checkpoint is kept")
        return ExitCode.FINISHED if status == "finished" else ExitCode.INTERRUPTED

    def begin(self) -> None:
        """Show what will run, before the first iteration."""
        records, trainer = self.records, self.trainer
        records.start(trainer)
        records.write_files(trainer.parts)
        if trainer.addresses:
            acting = [spec for spec in trainer.module_specs if spec.trains_on is None]
            records.announce(trainer.addresses, external_text(self._config, trainer.addresses, acting))

    def record(self, result: Result) -> None:
        """Record an iteration. If it meets a stop criterion, run the final evaluations first."""
        config, records, trainer = self._config, self.records, self.trainer
        is_last = bool(met_criteria(config, result))
        if is_last:
            trainer.evaluate_at_end(result)
        records.add(result)
        records.write_files(trainer.parts)
        iteration, every = trainer.training_iteration, config.checkpoint.every_iterations
        if every is not None and iteration % every == 0:
            self.save_checkpoint()
        elif iteration == 1 and not config.env.is_external:
            check_storable(trainer.get_state())  # includes the states of environments
        if config.evaluation.has_video(iteration) or (is_last and config.evaluation.video):
            records.record_video(trainer)

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the last iteration if there is none yet."""
        self.records.save_checkpoint(self.trainer)

    @property
    def _place(self) -> str:
        iteration = self.trainer.training_iteration
        if self.trainer.is_evaluation_due:
            return f"in the evaluation of iteration {iteration}"
        if self.trainer.parts.metrics.is_partial_iteration:
            return f"within iteration {iteration + 1}"
        return f"after iteration {iteration}"

    @property
    def stop_reason(self) -> str | None:
        """The first stop criterion that the last iteration met, or None while the run continues."""
        met = met_criteria(self._config, self.records.last_result)
        return str(met[0]) if met else None

    def end(self, status: Status, reason: str) -> None:
        """Write a checkpoint, finish the files, and show the summary."""
        records, trainer = self.records, self.trainer
        self._save_last(status)
        recorded = trainer.finish_recording()
        if recorded is not None:
            continues = status == "interrupted" and recorded.num_unfinished and self._config.env.is_external
            hint = "; `resume` continues them" if continues else ""
            records.note(f"recorded {recorded}{hint} in {self._config.offline.output}")
        records.write_files(trainer.parts, is_final=True)
        for line in trainer.parts.summary(records.run_dir):
            records.note(line)
        trainer.callbacks.call("on_stop", status=status, reason=reason)
        records.finish(status, reason)

    def _save_last(self, status: Status) -> None:
        """Write a checkpoint, or keep the last one if the run was interrupted in a state that cannot be saved."""
        try:
            self.save_checkpoint()
        except Interrupted:  # env runners still wait for simulators; keep the last checkpoint and the journal
            return
        except UnstorableItem as error:
            if status == "finished":
                raise
            self.records.note(f"no checkpoint was written at this stop: {error}")

    @contextmanager
    def failure_recorded(self) -> Iterator[None]:
        """Record an error in this context as the failure of the run, and raise it as a `RunnerError`."""
        try:
            yield
        except FolderLost:  # another process may own the folder: write nothing
            raise
        except RunnerError as error:
            with suppress(RunFailure, Interrupted):  # a full disk, for example: report the first failure
                self._keep_trained_iteration()
            self.records.finish("failed", str(error))
            raise
        except USER_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            _log.exception("the run failed")
            self.records.finish("failed", reason)
            raise RunFailure(_failure_of(error, self.records.run_dir)) from error

    def _keep_trained_iteration(self) -> None:
        """Record a trained iteration whose evaluation failed: its metrics and a checkpoint."""
        iteration = self.trainer.training_iteration
        if iteration > int(self.records.last_result.get("training_iteration") or 0):
            self.records.add(self.trainer.last_result)
            self.save_checkpoint()


@contextmanager
def internal_errors_reported(run_dir: Path) -> Iterator[None]:
    """Convert errors of user code in this context to failures that show the user's line."""
    try:
        yield
    except (RunnerError, Interrupted):
        raise
    except USER_ERRORS as error:
        _log.exception("the run cannot start")
        raise RunFailure(_failure_of(error, run_dir)) from error


def _failure_of(error: BaseException, run_dir: Path) -> Problem:
    """Describe an error: the user's line that raised it, and the file with the stack trace."""
    problem, trace = problem_of(error), f"the stack trace is in {run_dir / 'runner.log'}"
    return replace(problem, where=f"{problem.where or 'runner itself'}; {trace}")
