"""The learners as one: episodes in, metrics out. One learner in this process; the interface allows for several."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.episodes.columns import Rollout
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
        pipelines: module id -> from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated; the others keep their parameters.
    """

    def __init__(
        self,
        learners: Mapping[str, Learner],
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
    ) -> None:
        self._learners = dict(learners)
        self._modules = {module_id: learner.module for module_id, learner in learners.items()}
        self._pipelines = dict(pipelines)
        self._modules_to_train = [module_id for module_id in learners if module_id in modules_to_train]

    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """One update of each module on all of its rows, after `num_env_steps` env steps in all.

        A module that has no row in the rollout is left as it is.
        """
        metrics: dict[str, dict[str, float]] = {}
        connector_s = 0.0
        for module_id in self._modules_to_train:
            if module_id not in rollout.blocks or rollout.blocks[module_id].num_rows == 0:
                continue
            started = time.perf_counter()
            block = rollout.blocks[module_id]
            batch = self._pipelines[module_id](rl_module=self._modules, batch={}, episodes=block, shared_data={})
            connector_s += time.perf_counter() - started
            metrics[module_id] = self._learners[module_id].update(batch[module_id], num_env_steps)
        return UpdateResult(metrics, connector_s)

    def update_on(self, batch: Mapping[str, Mapping[str, Any]], num_env_steps: int) -> UpdateResult:
        """One update of each module on a train batch that is made already: module id -> column -> tensor."""
        metrics = {
            module_id: self._learners[module_id].update(batch[module_id], num_env_steps)
            for module_id in self._modules_to_train
            if module_id in batch
        }
        return UpdateResult(metrics, 0.0)

    def get_weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Module id -> (P,) parameters, for env runners."""
        return {module_id: learner.get_weights() for module_id, learner in self._learners.items()}

    def get_state(self) -> dict[str, Any]:
        """Learners and pipelines."""
        learners = {module_id: learner.get_state() for module_id, learner in self._learners.items()}
        pipelines = {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}
        return {"learners": learners, "pipelines": pipelines}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        for module_id, learner_state in state["learners"].items():
            self._learners[module_id].set_state(learner_state)
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)
