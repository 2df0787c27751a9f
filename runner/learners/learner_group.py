"""The learners as one: episodes in, metrics out. One learner in this process; the interface allows for several."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.episodes.columns import ColumnBlock
from runner.learners.learner import Learner
from runner.pipelines.pipeline import LearnerConnectorPipeline


@dataclass(frozen=True)
class UpdateResult:
    """Metrics by module id, and the seconds that the learner pipeline took."""

    metrics: dict[str, dict[str, float]]
    connector_s: float


class LearnerGroup:
    """Turns episode chunks into a train batch and updates the modules on it.

    Args:
        learners: module id -> its learner.
        pipeline: from chunks to `{module id: {column: tensor}}`.
    """

    def __init__(self, learners: Mapping[str, Learner], pipeline: LearnerConnectorPipeline) -> None:
        self._learners = dict(learners)
        self._modules = {module_id: learner.module for module_id, learner in learners.items()}
        self.pipeline = pipeline

    def update(self, episodes: ColumnBlock, num_env_steps: int) -> UpdateResult:
        """One update on all rows of `episodes`, after `num_env_steps` env steps in all."""
        started = time.perf_counter()
        batch = self.pipeline(rl_module=self._modules, batch={}, episodes=episodes, shared_data={})
        connector_s = time.perf_counter() - started
        metrics = {
            module_id: self._learners[module_id].update(columns, num_env_steps) for module_id, columns in batch.items()
        }
        return UpdateResult(metrics, connector_s)

    def get_weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Module id -> (P,) parameters, for env runners."""
        return {module_id: learner.get_weights() for module_id, learner in self._learners.items()}

    def get_state(self) -> dict[str, Any]:
        """Learners and pipeline."""
        learners = {module_id: learner.get_state() for module_id, learner in self._learners.items()}
        return {"learners": learners, "pipeline": self.pipeline.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        for module_id, learner_state in state["learners"].items():
            self._learners[module_id].set_state(learner_state)
        self.pipeline.set_state(state["pipeline"])
