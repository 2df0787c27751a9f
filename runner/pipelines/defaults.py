"""The default pipelines of a stateless single-agent run, and the edits that YAML makes to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium as gym
import torch

from runner.pipelines.common_pieces import (
    AddObservationsFromEpisodesToBatch,
    BatchIndividualItems,
    NumpyToTensor,
)
from runner.pipelines.learner_pieces import AddColumnsFromEpisodesToTrainBatch
from runner.pipelines.module_to_env_pieces import (
    GetActions,
    ListifyDataForVectorEnv,
    NormalizeAndClipActions,
    TensorToNumpy,
    UnBatchToIndividualItems,
)
from runner.pipelines.piece import ConnectorPiece
from runner.pipelines.pipeline import (
    ConnectorPipeline,
    EnvToModulePipeline,
    LearnerConnectorPipeline,
    ModuleToEnvPipeline,
)

Space = gym.Space[Any]
# Makes a piece of a YAML block {_target_: ..., arguments}.
MakePiece = Callable[[Mapping[str, Any]], ConnectorPiece]
Edit = Mapping[str, Any]
P = TypeVar("P", bound=ConnectorPipeline)


def env_to_module_pipeline(
    observation_space: Space,
    action_space: Space,
    device: torch.device,
    edits: Sequence[Edit],
    make_piece: MakePiece,
) -> EnvToModulePipeline:
    """From running episodes to the batch of the next forward pass."""
    pieces = [AddObservationsFromEpisodesToBatch(), BatchIndividualItems(), NumpyToTensor(device)]
    return edited(EnvToModulePipeline(pieces, observation_space, action_space), edits, make_piece)


def module_to_env_pipeline(
    observation_space: Space,
    action_space: Space,
    normalize_actions: bool,
    clip_actions: bool,
    edits: Sequence[Edit],
    make_piece: MakePiece,
) -> ModuleToEnvPipeline:
    """From module outputs to the actions of the next vector step."""
    pieces = [
        GetActions(),
        TensorToNumpy(),
        UnBatchToIndividualItems(),
        NormalizeAndClipActions(normalize_actions, clip_actions),
        ListifyDataForVectorEnv(),
    ]
    return edited(ModuleToEnvPipeline(pieces, observation_space, action_space), edits, make_piece)


def learner_pipeline(
    observation_space: Space,
    action_space: Space,
    device: torch.device,
    edits: Sequence[Edit],
    make_piece: MakePiece,
    recorded_columns: Sequence[str] = (),
) -> LearnerConnectorPipeline:
    """From episode chunks, which hold the extra model outputs `recorded_columns`, to the train batch."""
    pieces = [
        AddObservationsFromEpisodesToBatch(),
        AddColumnsFromEpisodesToTrainBatch(recorded_columns),
        BatchIndividualItems(by_module=True),
        NumpyToTensor(device),
    ]
    return edited(LearnerConnectorPipeline(pieces, observation_space, action_space), edits, make_piece)


def edited(pipeline: P, edits: Sequence[Edit], make_piece: MakePiece) -> P:
    """Apply edits in order: {prepend: piece}, {append: piece}, {insert_before | insert_after | replace: anchor,
    piece: piece}, {remove: anchor}.
    """
    for edit in edits:
        verb = next(key for key in edit if key != "piece")
        if verb in ("prepend", "append"):
            getattr(pipeline, verb)(make_piece(edit[verb]))
        elif verb == "remove":
            pipeline.remove(edit[verb])
        else:
            getattr(pipeline, verb)(edit[verb], make_piece(edit["piece"]))
    return pipeline
