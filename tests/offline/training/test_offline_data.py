"""Columns that are read from recorded data for a pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from runner.config.schemas import ModuleConfig
from runner.modules import ActorCriticModule
from runner.offline.training.offline_data import columns_read
from runner.offline.training.prelearner import PreLearnerParts
from runner.pipelines import (
    AddColumnsFromEpisodesToTrainBatch,
    AddInfosFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    ComputeReturnsToGo,
    Connector,
    ConnectorPipeline,
    EnvToModulePipeline,
    LearnerConnectorPipeline,
)


class OwnConnector(Connector):
    """May read anything."""


class OwnPipeline(ConnectorPipeline):
    """May read anything."""


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (ComputeReturnsToGo(0.9), {"obs", "action_logp", "rewards"}),
        (AddInfosFromEpisodesToTrainBatch(), None),
        (OwnConnector(), None),
        (OwnPipeline([]), None),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_everything_is_read_for_connectors_that_may_read_anything(
    connector: Connector, expected: Any, is_nested: bool
) -> None:
    spaces = Box(-1, 1, (2,), np.float32), Discrete(2)
    connector = ConnectorPipeline([connector]) if is_nested else connector
    learner = [AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch(), connector]
    parts = PreLearnerParts(
        ActorCriticModule(*spaces, ModuleConfig()),
        EnvToModulePipeline([AddObservationsFromEpisodesToBatch()], *spaces),
        LearnerConnectorPipeline(learner, *spaces),
        ("obs", "action_logp"),
    )
    assert columns_read(parts) == expected
