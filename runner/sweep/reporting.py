"""What Tune tells of trials, written down and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.tune import Callback, Stopper

from runner.config.documents import parse_json
from runner.config.schemas import ExperimentConfig
from runner.interrupts import reason_to_end
from runner.sweep.display import SweepDisplay
from runner.sweep.tracking import SweepTracking
from runner.sweep.trial_settings import METRICS, STOP_REASON
from runner.sweep.trials import SweepFolder, Trial


class SweepReporter(Callback):
    """Writes each change into the sweep's folder and shows it.

    Args:
        folder: of the sweep.
        by_trial_id: trials by Tune's id.
        display: shows them.
        tracking: records them in MLflow.
        config: of one of them.
    """

    def __init__(
        self,
        folder: SweepFolder,
        by_trial_id: Mapping[str, Trial],
        display: SweepDisplay,
        tracking: SweepTracking,
        config: ExperimentConfig,
    ) -> None:
        self._folder = folder
        self._by_trial_id = by_trial_id
        self._display = display
        self._tracking = tracking
        self._time_attr = config.sweep.time_attr
        self._max_t = config.sweep.max_t if config.sweep.scheduler == "asha" else None
        self._end_reason: str | None = None
        self._last_to_end: list[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it is given, for a restore that is never asked for."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Remember which trials are in the middle of an iteration once an end is asked for."""
        if self._last_to_end is None and reason_to_end() is not None:
            self._end_reason = reason_to_end()
            self._last_to_end = [trial for trial in trials if trial.status == "RUNNING"]

    @property
    def can_end(self) -> bool:
        """Whether an end was asked for, and the iterations that went on then are done."""
        return self._last_to_end is not None and all(trial.status != "RUNNING" for trial in self._last_to_end)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.status != "running":
            self._change(known, "running", "")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        known.result = dict(result[METRICS])
        if result.get("done"):
            known.reason = str(result.get(STOP_REASON, ""))
        self._tracking.update(known)
        self._display.update(self._folder, known)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.reason:
            self._change(known, "finished", known.reason)
        elif self._max_t is not None and known.result.get(self._time_attr, 0) >= self._max_t:
            self._change(known, "finished", f"sweep.max_t {self._max_t:g} reached")
        elif reason_to_end() is None:
            self._change(known, "stopped", "its scheduler stopped it: others were better")
        # else it is interrupted, see `interrupt_running`

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._by_trial_id[trial.trial_id].num_failures += 1

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        known = self._by_trial_id[trial.trial_id]
        if known.status != "running":  # it could not even begin
            self._change(known, "running", "")
        known.num_failures += 1
        self._change(known, "failed", self._reason(known) or _last_line(trial))

    def _reason(self, trial: Trial) -> str:
        """Return why its run says that it failed; empty if it could not say it."""
        try:
            result = parse_json((self._folder.run_dir(trial) / "result.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(result.get("stop_reason") or "") if result.get("status") == "failed" else ""

    def _change(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status, trial.reason = status, reason
        self._folder.write(trial)
        self._tracking.change(trial)
        self._display.change(self._folder, trial)

    def tell_mutation(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take in that a trial goes on from another one's state; `row` as in `mutations.jsonl`."""
        self._tracking.mutate(trial, row)
        self._display.mutate(trial, row)

    def interrupt_running(self) -> bool:
        """Mark the unfinished trials of a sweep that has ended; return whether there were any."""
        running = [trial for trial in self._folder.trials if trial.status in ("running", "waiting")]
        for trial in running:
            self._change(trial, "interrupted", self._end_reason or "the sweep was interrupted")
        return bool(running)


def _last_line(trial: Any) -> str:
    """Return what Ray says of an actor that is gone."""
    error = trial.get_error()
    text = str(error) if error is not None else "it ended without saying why"
    return next((line for line in reversed(text.splitlines()) if line.strip()), text)


class EndsWhenAsked(Stopper):
    """Ends trials after the iteration that goes on when an end is asked for, however long it takes; then the rest."""

    def __init__(self, reporting: SweepReporter) -> None:
        self._reporting = reporting

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it is given, for a restore that is never asked for."""
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return reason_to_end() is not None

    def stop_all(self) -> bool:
        return self._reporting.can_end
