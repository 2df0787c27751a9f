"""Old names of classes in `runner.pipelines`, for connectors that still use them."""

from runner.pipelines.connector import Connector as ConnectorPiece
from runner.pipelines.connector_graph import ConnectorGraph as PieceGraph
from runner.pipelines.connector_kinds import EnvToModuleConnector as EnvToModulePiece
from runner.pipelines.connector_kinds import LearnerConnector as LearnerPiece
from runner.pipelines.connector_kinds import ModuleToEnvConnector as ModuleToEnvPiece
from runner.pipelines.custom_metrics import CustomMetrics as PieceMetrics
from runner.pipelines.network_connector import NetworkConnector as LearnedConnector
from runner.pipelines.observation_connector import ObservationConnector as ObservationPiece

__all__ = [
    "ConnectorPiece",
    "EnvToModulePiece",
    "LearnedConnector",
    "LearnerPiece",
    "ModuleToEnvPiece",
    "ObservationPiece",
    "PieceGraph",
    "PieceMetrics",
]
