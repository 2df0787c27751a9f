"""Connector pipelines: episodes to batches, module outputs to actions. Every piece handles all rows in one call."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "AddColumnsFromEpisodesToTrainBatch": "learner_pieces",
    "AddInfosFromEpisodesToTrainBatch": "train_batch_pieces",
    "AddNextObservationsFromEpisodesToTrainBatch": "train_batch_pieces",
    "AddNoiseToBatch": "noise_pieces",
    "AddObservationsFromEpisodesToBatch": "common_pieces",
    "AddObservationsOfAllAgentsToTrainBatch": "cross_agent_pieces",
    "AddOneTsToEpisodesAndTruncate": "learner_pieces",
    "AddStatesFromEpisodesToBatch": "memory_pieces",
    "AddStatesFromInfosToTrainBatch": "cross_agent_pieces",
    "AddTimeDimToBatchAndZeroPad": "memory_pieces",
    "AgentToModuleMapping": "common_pieces",
    "BatchIndividualItems": "common_pieces",
    "ClipRewards": "reward_pieces",
    "ComputeReturnsToGo": "train_batch_pieces",
    "ConnectorPiece": "piece",
    "ConnectorPipeline": "pipeline",
    "EnvToModulePiece": "piece_kinds",
    "EnvToModulePipeline": "pipeline",
    "EpsilonGreedyActions": "module_to_env_pieces",
    "NoisyActions": "noisy_actions",
    "FlattenObservations": "observation_pieces",
    "FrameStacking": "history_pieces",
    "GeneralAdvantageEstimation": "advantages",
    "GetActions": "module_to_env_pieces",
    "LearnedConnector": "learned_connector",
    "LearnerConnectorPipeline": "pipeline",
    "LearnerPiece": "piece_kinds",
    "ListifyDataForVectorEnv": "module_to_env_pieces",
    "MeanStdFilter": "mean_std_filter",
    "ModuleToAgentUnmapping": "module_to_env_pieces",
    "ModuleToEnvPiece": "piece_kinds",
    "ModuleToEnvPipeline": "pipeline",
    "MonteCarloReturns": "advantages",
    "MultiAgentObservationPreprocessor": "observation_pieces",
    "NormalizeAndClipActions": "module_to_env_pieces",
    "NumpyToTensor": "common_pieces",
    "ObservationGraph": "piece_graph",
    "ObservationPiece": "observation_piece",
    "PieceGraph": "piece_graph",
    "PieceMetrics": "piece_metrics",
    "PrevActionsPrevRewards": "history_pieces",
    "Remembered": "piece_graph",
    "RemoveSingleTsTimeRankFromBatch": "module_to_env_pieces",
    "ScaleRewards": "reward_pieces",
    "SingleAgentObservationPreprocessor": "observation_pieces",
    "Step": "piece_graph",
    "TargetVTrace": "vtrace",
    "TensorToNumpy": "module_to_env_pieces",
    "UnBatchToIndividualItems": "module_to_env_pieces",
    "VTrace": "vtrace",
    "WriteObservationsToEpisodes": "observation_pieces",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
