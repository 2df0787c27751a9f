"""Default pipelines of a module, and edits of them in YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import gymnasium as gym
import numpy.typing as npt
import torch

from runner.pipelines.common_connectors import (
    AddObservationsFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
)
from runner.pipelines.connector import Connector
from runner.pipelines.learner_connectors import AddColumnsFromEpisodesToTrainBatch
from runner.pipelines.memory_connectors import AddStatesFromEpisodesToBatch, AddTimeDimToBatchAndZeroPad
from runner.pipelines.module_to_env_connectors import (
    GetActions,
    ListifyDataForVectorEnv,
    ModuleToAgentUnmapping,
    NormalizeAndClipActions,
    RemoveSingleTsTimeRankFromBatch,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from runner.pipelines.noise_connectors import AddNoiseToBatch
from runner.pipelines.pipeline import (
    ConnectorPipeline,
    EnvToModulePipeline,
    LearnerConnectorPipeline,
    ModuleToEnvPipeline,
)

Space = gym.Space[Any]
# Makes a connector from a YAML block {_target_: ..., arguments} at a key such as `connectors.learner`.
MakeConnector = Callable[[Mapping[str, Any], str], Connector]
Edit = Mapping[str, Any]
P = TypeVar("P", bound=ConnectorPipeline)


def env_to_module_pipeline(
    observation_space: Space,
    action_space: Space,
    device: torch.device,
    edits: Sequence[Edit],
    make_connector: MakeConnector,
    max_seq_len: int | None = None,
    has_noise: bool = False,
) -> EnvToModulePipeline:
    """Make the pipeline from running episodes to the next forward pass.

    `max_seq_len` is for stateful modules, `has_noise` for modules that read noise.
    """
    memory = [] if max_seq_len is None else [AddTimeDimToBatchAndZeroPad(), AddStatesFromEpisodesToBatch()]
    noise = [AddNoiseToBatch()] if has_noise else []
    connectors = [AddObservationsFromEpisodesToBatch(), *memory, *noise, BatchIndividualItems(), NumpyToTensor(device)]
    return edited(EnvToModulePipeline(connectors, observation_space, action_space), edits, make_connector)


def module_to_env_pipeline(
    observation_space: Space,
    action_space: Space,
    normalize_actions: bool,
    clip_actions: bool,
    edits: Sequence[Edit],
    make_connector: MakeConnector,
    has_memory: bool = False,
    has_several_agents: bool = False,
) -> ModuleToEnvPipeline:
    """Make the pipeline from module outputs to the actions of the next vector step."""
    connectors = default_module_to_env_connectors(normalize_actions, clip_actions, has_memory, has_several_agents)
    return edited(ModuleToEnvPipeline(connectors, observation_space, action_space), edits, make_connector)


def default_module_to_env_connectors(
    normalize_actions: bool, clip_actions: bool, has_memory: bool, has_several_agents: bool
) -> list[Connector]:
    """Return the default connectors of `module_to_env_pipeline`."""
    return [
        *([RemoveSingleTsTimeRankFromBatch()] if has_memory else []),
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        NormalizeAndClipActions(normalize_actions, clip_actions),
        ListifyDataForVectorEnv(),
        *([ModuleToAgentUnmapping()] if has_several_agents else []),
    ]


def learner_pipeline(
    observation_space: Space,
    action_space: Space,
    device: torch.device,
    edits: Sequence[Edit],
    make_connector: MakeConnector,
    recorded_columns: Sequence[str] = (),
    max_seq_len: int | None = None,
    ones: Mapping[str, npt.DTypeLike] = MappingProxyType({}),
) -> LearnerConnectorPipeline:
    """Make the pipeline from episode chunks to the train batch.

    Args:
        observation_space: space of the observations in the episodes.
        action_space: space of the actions in the episodes.
        device: device of the train batch.
        edits: edits of this pipeline.
        make_connector: makes the connector of an edit.
        recorded_columns: extra model outputs in the episodes.
        max_seq_len: length of sequences for a stateful module, or None for other modules.
        ones: see `AddColumnsFromEpisodesToTrainBatch`.
    """
    memory: list[Connector] = []
    if max_seq_len is not None:
        time_dim = AddTimeDimToBatchAndZeroPad(max_seq_len, as_learner_connector=True)
        memory = [time_dim, AddStatesFromEpisodesToBatch(max_seq_len, as_learner_connector=True)]
    connectors = [
        AddObservationsFromEpisodesToBatch(),
        AddColumnsFromEpisodesToTrainBatch(recorded_columns, ones),
        *memory,
        AgentToModuleMapping(),
        BatchIndividualItems(),
        NumpyToTensor(device),
    ]
    return edited(LearnerConnectorPipeline(connectors, observation_space, action_space), edits, make_connector)


def edited(pipeline: P, edits: Sequence[Edit], make_connector: MakeConnector) -> P:
    """Apply edits in order: {prepend: connector}, {append: connector}, {insert_before | insert_after | replace: anchor,
    connector: connector}, {remove: anchor}.
    """
    where = f"connectors.{pipeline.name}"
    for edit in edits:
        verb = next(key for key in edit if key != "connector")
        if verb in ("prepend", "append"):
            getattr(pipeline, verb)(make_connector(edit[verb], where))
        elif verb == "remove":
            pipeline.remove(edit[verb])
        else:
            getattr(pipeline, verb)(edit[verb], make_connector(edit["connector"], where))
    return pipeline
