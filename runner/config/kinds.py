"""Kinds of classes that dotted paths of a configuration may name; nothing is imported."""

from __future__ import annotations

import re

from runner.config.source_definitions import find_ancestors
from runner.config.targets import Kinds

VECTOR_ENV = "gymnasium.vector.vector_env.VectorEnv"
PIPELINE = "runner.pipelines.pipeline.ConnectorPipeline"

ENVIRONMENTS = Kinds(
    ("gymnasium.core.Env", VECTOR_ENV, "runner.env_runners.multi_agent_env.MultiAgentEnv"),
    "gymnasium.Env, gymnasium.vector.VectorEnv or MultiAgentEnv",
    has_factories=True,
)
PIECES = Kinds(("runner.pipelines.piece.ConnectorPiece",), "runner.pipelines.ConnectorPiece")
MODULES = Kinds(("runner.modules.rl_module.RLModule",), "runner.modules.RLModule")
LOSSES = Kinds(("runner.learners.loss.Loss",), "runner.learners.loss.Loss")
AGENT_MAPPINGS = Kinds(("runner.env_runners.multi_agent_env.AgentMapping",), "AgentMapping")

# Packages whose classes somebody else's configuration may make.
PACKAGES = ("runner", "gymnasium", "torch")

_SCHEMA = ("runner.config.algorithms.AlgorithmConfig",)
_DATAFLOW = ("runner.dataflow.on_policy.on_policy", "runner.dataflow.offline.offline")
_WRAPPER = ("gymnasium.core.Wrapper", "gymnasium.vector.vector_env.VectorWrapper")
_OF_MODULES = r"multi_agent\.algorithm_config_overrides_per_module\.[^.]+"
_EDIT = r"\d+\.(prepend|append|piece)(\.pieces\.\d+)*\._target_"
# Pattern of a dotted key -> base classes, or functions that are allowed themselves.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"(algorithm|{_OF_MODULES})\.loss", LOSSES.bases),
    (rf"(algorithm|{_OF_MODULES})\.schema", _SCHEMA),
    (rf"(algorithm|{_OF_MODULES})\.dataflow", _DATAFLOW),
    (r"(module|multi_agent\.modules\.[^.]+)\._target_", MODULES.bases),
    (r"env\._target_", ENVIRONMENTS.bases),
    (r"env\.wrappers\.\d+\._target_", _WRAPPER),
    (rf"(connectors\.\w+|(algorithm|{_OF_MODULES})\.learner_pipeline)\.{_EDIT}", PIECES.bases),
    (r"multi_agent\.agent_to_module\._target_", AGENT_MAPPINGS.bases),
    (r"offline\.offline_data_class", ("runner.offline.offline_data.OfflineData",)),
    (r"offline\.prelearner_class", ("runner.offline.prelearner.OfflinePreLearner",)),
    (r"offline\.prelearner_buffer_class", ("runner.replay.episode_replay_buffer.EpisodeReplayBuffer",)),
)
# Modules of environments that wrap others: they take objects, or do more than step an environment.
_NO_ENVIRONMENTS = ("gymnasium.wrappers.", "gymnasium.vector.", "gymnasium.utils.", "gymnasium.experimental.")


def names_code(key: str) -> bool:
    """Return whether the value of a dotted key is a dotted path that is imported and called."""
    return key.rpartition(".")[2] == "_target_" or any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_known_kind(key: str, path: str) -> bool:
    """Whether `path` is in one of `PACKAGES` and of the kind that the key asks for, as far as source files tell."""
    bases = next((bases for pattern, bases in _KINDS if re.fullmatch(pattern, key)), ())
    lineage = find_ancestors(path) if path.partition(".")[0] in PACKAGES else []
    if not lineage or lineage[0].partition(".")[0] not in PACKAGES:
        return False
    if bases == ENVIRONMENTS.bases and lineage[0].startswith(_NO_ENVIRONMENTS):
        return False
    return any(one in bases for one in lineage)
