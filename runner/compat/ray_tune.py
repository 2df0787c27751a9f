"""Private state of Tune's schedulers: the rungs of ASHA, and how a population handles its trials.

Public ways to restore a scheduler's trials under other ids, and to choose the values of a trial that copies the state
of another trial, would replace it. PB2 of older versions of Ray needs GPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining

from runner.compat.libraries import Library

RAY = Library("ray", ">=2.53,<2.61")
RAY.require(PopulationBasedTraining, "_get_new_config", "_save_trial_state")


def rename_in_rungs(scheduler: AsyncHyperBandScheduler, before: str, after: str) -> None:
    """Replace a trial id by another one in all rungs of ASHA.

    Raises:
        LibraryChangedError: this version of Ray stores rungs differently.
    """
    with RAY.expected():
        for bracket in scheduler._brackets:
            for _, recorded in bracket._rungs:
                if before in recorded:
                    recorded[after] = recorded.pop(before)


class ChosenTakeovers:
    """Mixin before Tune's `PopulationBasedTraining` or `PB2`: trials come from a searcher, and `take_over` chooses the
    values of a trial that copies the state of another trial.
    """

    _trial_state: dict[Any, Any]
    _perturbation_interval: float
    _next_perturbation_sync: float

    def take_over(self, trial: Any, donor: Any, proposed: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Return the new configuration of a trial; must be overridden.

        Args:
            trial: trial that copies the state.
            donor: trial whose state is copied.
            proposed: configuration that Tune has chosen.
            until: time of the donor's newest report.
        """
        raise NotImplementedError

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Add a trial; hides the searcher, which Tune rejects because its searchers do not support populations."""
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)  # type: ignore[misc]

    def restore_reports(self, trial: Any, reports: Iterable[dict[str, Any]], time_attr: str) -> None:
        """Restore the reports of a trial from before an interruption of the sweep.

        Raises:
            LibraryChangedError: this version of Ray stores reports differently.
        """
        with RAY.expected():
            state = self._trial_state[trial]
            for report in reports:
                if report[time_attr] - state.last_perturbation_time >= self._perturbation_interval:
                    self._save_trial_state(state, report[time_attr], report, trial)  # type: ignore[attr-defined]
                    state.last_perturbation_time = report[time_attr]
            next_sync = state.last_perturbation_time + self._perturbation_interval
            self._next_perturbation_sync = max(self._next_perturbation_sync, next_sync)

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        proposed, operations = super()._get_new_config(trial, trial_to_clone)  # type: ignore[misc]
        until = self._trial_state[trial_to_clone].last_train_time
        return self.take_over(trial, trial_to_clone, proposed, until), operations
