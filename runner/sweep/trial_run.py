"""A trial as Ray Tune runs it: an iteration a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray import tune

from runner.experiment.ray_resources import bundles_of, strategy_of
from runner.sweep.trial_settings import RUN, TrialSettings, compose_trial

if TYPE_CHECKING:
    from runner.sweep.trial_training import TrialTraining

_log = logging.getLogger(__name__)


class TrialRun(tune.Trainable):
    """A process for trials, one after the other.

    A trial begins with its first step: before that Tune may have given it to another process, which has the run dir.
    """

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """Return what its experiment asks for."""
        experiment = compose_trial(config[RUN])[1]
        return tune.PlacementGroupFactory(bundles_of(experiment), strategy_of(experiment))

    def setup(self, config: Mapping[str, Any]) -> None:
        """Begin the first trial."""
        self._settings: TrialSettings = config[RUN]
        self._training: TrialTraining | None = None

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        """Begin another trial, which finds everything loaded already."""
        try:
            self.cleanup()
        except Exception:
            _log.exception("the trial before could not be closed")
        self._settings = new_config[RUN]
        return True

    def step(self) -> dict[str, Any]:
        """Return an iteration: its metrics, the objective where it is known, and the time that schedulers go by.

        The last one brings `done` and `stop_reason`.
        """
        if self._training is None:
            from runner.sweep.trial_training import TrialTraining  # imports torch, without which the sweep itself does

            self._training = TrialTraining(self._settings)
        return self._training.step()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Let the run write its checkpoint: its population pauses it, or gives its state to another trial."""
        if self._training is not None:
            self._training.save()

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: a trial goes on from its run's newest checkpoint."""

    def cleanup(self) -> None:
        """End this trial for the scheduler or the end of the sweep."""
        training, self._training = self._training, None
        if training is not None:
            training.close()
