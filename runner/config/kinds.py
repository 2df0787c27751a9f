"""Which kind of class each configuration key asks for, and whether a dotted path names one; nothing is imported."""

from __future__ import annotations

import re

from runner.config.targets import find_ancestors

# Packages of which classes are made for a configuration of somebody else.
PACKAGES = ("runner", "gymnasium", "torch")

_LOSS = ("runner.learners.loss.Loss",)
_SCHEMA = ("runner.config.algorithms.AlgorithmConfig",)
_DATAFLOW = ("runner.dataflow.on_policy.on_policy", "runner.dataflow.offline.offline")
_MODULE = ("runner.modules.rl_module.RLModule",)
_ENVIRONMENT = (
    "gymnasium.core.Env",
    "gymnasium.vector.vector_env.VectorEnv",
    "runner.env_runners.multi_agent_env.MultiAgentEnv",
)
_WRAPPER = ("gymnasium.core.Wrapper", "gymnasium.vector.vector_env.VectorWrapper")
_PIECE = ("runner.pipelines.piece.ConnectorPiece",)
_OF_MODULES = r"multi_agent\.algorithm_config_overrides_per_module\.[^.]+"
_EDIT = r"\d+\.(prepend|append|piece)\._target_"
# Dotted key -> base classes, or functions that are allowed themselves.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"(algorithm|{_OF_MODULES})\.loss", _LOSS),
    (rf"(algorithm|{_OF_MODULES})\.schema", _SCHEMA),
    (rf"(algorithm|{_OF_MODULES})\.dataflow", _DATAFLOW),
    (r"(module|multi_agent\.modules\.[^.]+)\._target_", _MODULE),
    (r"env\._target_", _ENVIRONMENT),
    (r"env\.wrappers\.\d+\._target_", _WRAPPER),
    (rf"(connectors\.\w+|(algorithm|{_OF_MODULES})\.learner_pipeline)\.{_EDIT}", _PIECE),
    (r"multi_agent\.agent_to_module\._target_", ("runner.env_runners.multi_agent_env.AgentMapping",)),
    (r"offline\.offline_data_class", ("runner.offline.offline_data.OfflineData",)),
    (r"offline\.prelearner_class", ("runner.offline.prelearner.OfflinePreLearner",)),
    (r"offline\.prelearner_buffer_class", ("runner.replay.episode_replay_buffer.EpisodeReplayBuffer",)),
)
# Their classes are environments that wrap others: they take objects or do things of their own.
_NO_ENVIRONMENTS = ("gymnasium.wrappers.", "gymnasium.vector.", "gymnasium.utils.", "gymnasium.experimental.")


def names_code(key: str) -> bool:
    """Whether the value of a dotted key is the dotted path of something that is imported and called."""
    return key.rpartition(".")[2] == "_target_" or any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_known_kind(key: str, path: str) -> bool:
    """Whether `path` is in one of `PACKAGES` and of the kind that the key asks for, as far as source files tell."""
    bases = next((bases for pattern, bases in _KINDS if re.fullmatch(pattern, key)), ())
    lineage = find_ancestors(path) if path.partition(".")[0] in PACKAGES else []
    if not lineage or lineage[0].partition(".")[0] not in PACKAGES:
        return False
    if bases == _ENVIRONMENT and lineage[0].startswith(_NO_ENVIRONMENTS):
        return False
    return any(one in bases for one in lineage)
