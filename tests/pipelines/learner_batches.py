"""Train batches of hand-made episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from runner.module_building import make_connector
from runner.pipelines import Connector
from runner.pipelines.defaults import learner_pipeline
from tests.episodes.test_columns import episode_of
from tests.support.environments import CodedEnv


def learner_batch(edits: Sequence[Mapping[str, Any]], *connectors: tuple[str, Connector]) -> dict[str, Any]:
    """The train batch of two hand-made episodes, with numbers 0 1 2 and 10."""
    spaces = CodedEnv.observation_space, CodedEnv.action_space
    pipeline = learner_pipeline(*spaces, torch.device("cpu"), edits, make_connector)
    for anchor, connector in connectors:
        pipeline.insert_before(anchor, connector)
    episodes = [episode_of("a", 3), episode_of("b", 1, first=10, terminated=False)]
    batch: dict[str, Any] = pipeline(rl_module={}, batch={}, episodes=episodes)["default_policy"]
    return batch
