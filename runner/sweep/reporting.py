"""What Tune tells of trials, written down and shown."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from typing import Any

from ray.tune import Callback

from runner.interrupts import reason_to_end
from runner.sweep.display import SweepDisplay
from runner.sweep.tracking import SweepTracking
from runner.sweep.trial_settings import METRICS, STOP_REASON
from runner.sweep.trials import SweepFolder, Trial


class Reporting(Callback):
    """Writes each change into the sweep's folder and shows it.

    Args:
        folder: of the sweep.
        by_trial_id: trials by Tune's id.
        display: shows them.
        tracking: records them in MLflow.
    """

    def __init__(
        self,
        folder: SweepFolder,
        by_trial_id: Mapping[str, Trial],
        display: SweepDisplay,
        tracking: SweepTracking,
    ) -> None:
        self._folder = folder
        self._by_trial_id = by_trial_id
        self._display = display
        self._tracking = tracking
        self._end_reason: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles what it is given, for a restore that is never asked for."""
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """SIGTERM and a budget that is used up end the sweep as Ctrl-C does, which Tune handles while it is here."""
        if self._end_reason is None:
            self._end_reason = reason_to_end()
            if self._end_reason is not None:
                signal.raise_signal(signal.SIGINT)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        own = self._by_trial_id[trial.trial_id]
        if own.status != "running":
            self._change(own, "running", "")

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        own = self._by_trial_id[trial.trial_id]
        own.result = dict(result[METRICS])
        if result.get("done"):
            own.reason = str(result.get(STOP_REASON, ""))
        self._tracking.update(own)
        self._display.update(self._folder, own)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        own = self._by_trial_id[trial.trial_id]
        if own.reason:
            self._change(own, "finished", own.reason)
        else:
            self._change(own, "stopped", "its scheduler stopped it: others were better")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        own = self._by_trial_id[trial.trial_id]
        if own.status != "running":  # it could not even begin
            self._change(own, "running", "")
        own.num_failures += 1
        self._change(own, "failed", self._reason(own) or _last_line(trial))

    def _reason(self, trial: Trial) -> str:
        """Why its run says that it failed; empty if it could not say it."""
        try:
            result = json.loads((self._folder.run_dir(trial) / "result.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(result.get("stop_reason") or "") if result.get("status") == "failed" else ""

    def _change(self, trial: Trial, status: Any, reason: str) -> None:
        trial.status, trial.reason = status, reason
        self._folder.write(trial)
        self._tracking.change(trial)
        self._display.change(self._folder, trial)

    def tell_mutation(self, trial: Trial) -> None:
        """A trial of a population goes on from another one's state."""
        row = self._folder.mutations()[-1]
        self._tracking.mutate(trial, row)
        self._display.mutate(trial, row)

    def interrupt_running(self) -> bool:
        """The sweep has ended, and so have its trials; whether there were any that are not over."""
        running = [trial for trial in self._folder.trials if trial.status in ("running", "waiting")]
        for trial in running:
            self._change(trial, "interrupted", self._end_reason or "the sweep was interrupted")
        return bool(running)


def _last_line(trial: Any) -> str:
    """What Ray says of an actor that is gone."""
    error = trial.get_error()
    text = str(error) if error is not None else "it ended without saying why"
    return next((line for line in reversed(text.splitlines()) if line.strip()), text)
