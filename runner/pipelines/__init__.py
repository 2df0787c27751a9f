"""Connector pipelines: from episodes to batches, and from module outputs to actions. Each call handles all rows."""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> submodule; also read (not imported) by `runner validate`.
_EXPORTS: dict[str, str] = {
    "AddColumnsFromEpisodesToTrainBatch": "learner_connectors",
    "AddInfosFromEpisodesToTrainBatch": "train_batch_connectors",
    "AddNextObservationsFromEpisodesToTrainBatch": "train_batch_connectors",
    "AddNoiseToBatch": "noise_connectors",
    "AddObservationsFromEpisodesToBatch": "common_connectors",
    "AddObservationsOfAllAgentsToTrainBatch": "cross_agent_connectors",
    "AddOneTsToEpisodesAndTruncate": "learner_connectors",
    "AddStatesFromEpisodesToBatch": "memory_connectors",
    "AddStatesFromInfosToTrainBatch": "cross_agent_connectors",
    "AddTimeDimToBatchAndZeroPad": "memory_connectors",
    "AgentToModuleMapping": "common_connectors",
    "BatchIndividualItems": "common_connectors",
    "ClipRewards": "reward_connectors",
    "ComputeReturnsToGo": "train_batch_connectors",
    "Connector": "connector",
    "ConnectorGraph": "connector_graph",
    "ConnectorPipeline": "pipeline",
    "CustomMetrics": "custom_metrics",
    "EnvToModuleConnector": "connector_kinds",
    "EnvToModulePipeline": "pipeline",
    "EpsilonGreedyActions": "module_to_env_connectors",
    "FlattenObservations": "observation_connectors",
    "FrameStacking": "history_connectors",
    "GeneralAdvantageEstimation": "advantages",
    "GetActions": "module_to_env_connectors",
    "LearnerConnector": "connector_kinds",
    "LearnerConnectorPipeline": "pipeline",
    "ListifyDataForVectorEnv": "module_to_env_connectors",
    "MeanStdFilter": "mean_std_filter",
    "ModuleToAgentUnmapping": "module_to_env_connectors",
    "ModuleToEnvConnector": "connector_kinds",
    "ModuleToEnvPipeline": "pipeline",
    "MonteCarloReturns": "advantages",
    "MultiAgentObservationPreprocessor": "observation_connectors",
    "NetworkConnector": "network_connector",
    "NoisyActions": "noisy_actions",
    "NormalizeAndClipActions": "module_to_env_connectors",
    "NumpyToTensor": "common_connectors",
    "ObservationConnector": "observation_connector",
    "ObservationGraph": "connector_graph",
    "PrevActionsPrevRewards": "history_connectors",
    "Remembered": "connector_graph",
    "RemoveSingleTsTimeRankFromBatch": "module_to_env_connectors",
    "Requirements": "requirements",
    "ScaleRewards": "reward_connectors",
    "SingleAgentObservationPreprocessor": "observation_connectors",
    "Step": "connector_graph",
    "TargetVTrace": "vtrace",
    "TensorToNumpy": "module_to_env_connectors",
    "UnBatchToIndividualItems": "module_to_env_connectors",
    "VTrace": "vtrace",
    "WriteObservationsToEpisodes": "observation_connectors",
    # Old names, still supported.
    "ConnectorPiece": "earlier_names",
    "EnvToModulePiece": "earlier_names",
    "LearnedConnector": "earlier_names",
    "LearnerPiece": "earlier_names",
    "ModuleToEnvPiece": "earlier_names",
    "ObservationPiece": "earlier_names",
    "PieceGraph": "earlier_names",
    "PieceMetrics": "earlier_names",
}

__all__ = sorted(name for name, module in _EXPORTS.items() if module != "earlier_names")


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
