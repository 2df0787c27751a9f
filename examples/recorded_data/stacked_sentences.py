"""Train on text with a memory of several words: a pre-learner with a custom constructor and call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sentences import TextOfflinePreLearner

from runner.offline.training.prelearner import PreLearnerSpec
from runner.pipelines import (
    AddColumnsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    FrameStacking,
    LearnerConnectorPipeline,
)


class StackedTextPreLearner(TextOfflinePreLearner):
    """Shows the module several last words instead of one with a separate pipeline, not the experiment's pipeline."""

    def __init__(
        self, module_spec: PreLearnerSpec, vocabulary: Sequence[str], num_frames: int, **given_by_runner: Any
    ) -> None:
        self._spec, self._vocabulary = module_spec, vocabulary
        self._module = module_spec.build().module
        connectors = [
            FrameStacking(num_frames=num_frames),
            AddObservationsFromEpisodesToBatch(),
            AddColumnsFromEpisodesToTrainBatch(),
            AgentToModuleMapping(),
            BatchIndividualItems(),
        ]
        self._pipeline = LearnerConnectorPipeline(connectors, module_spec.observation_space, module_spec.action_space)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Convert lines of text to train rows, column -> (B, ...)."""
        episodes = self._map_to_episodes(
            False,
            batch,
            to_numpy=True,
            observation_space=self._spec.observation_space,
            action_space=self._spec.action_space,
            vocabulary=self._vocabulary,
        )["episodes"]
        modules = {"default_policy": self._module}
        train_batch = self._pipeline(rl_module=modules, batch={}, episodes=episodes, shared_data={})
        columns = train_batch["default_policy"]
        return {name: np.asarray(columns[name]) for name in ("obs", "actions")}
