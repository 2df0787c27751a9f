"""A trial as a trainable of Ray Tune: one iteration per step."""

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


class TrialTrainable(tune.Trainable):
    """Trains trials one after the other in one process.

    A trial begins with its first step: until then Tune may have given it to another process, which holds the run dir.
    """

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """Return the resources that the experiment needs."""
        experiment = compose_trial(config[RUN])[1]
        return tune.PlacementGroupFactory(bundles_of(experiment), strategy_of(experiment))

    def setup(self, config: Mapping[str, Any]) -> None:
        """Prepare the first trial."""
        self._settings: TrialSettings = config[RUN]
        self._training: TrialTraining | None = None

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        """Prepare another trial, which reuses loaded modules."""
        try:
            self.cleanup()
        except Exception:
            _log.exception("the previous trial could not be closed")
        self._settings = new_config[RUN]
        return True

    def step(self) -> dict[str, Any]:
        """Train one iteration; return its metrics, the objective if known, and the time for schedulers.

        The last iteration adds `done` and `stop_reason`.
        """
        if self._training is None:
            from runner.sweep.trial_training import TrialTraining  # imports torch, which the sweep itself does not need

            self._training = TrialTraining(self._settings)
        return self._training.step()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write a checkpoint of the run, because a population pauses it or copies its state to another trial."""
        if self._training is not None:
            self._training.save()

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Do nothing: a trial continues from its run's newest checkpoint."""

    def cleanup(self) -> None:
        """End this trial for the scheduler or at the end of the sweep."""
        training, self._training = self._training, None
        if training is not None:
            training.close()
