"""Kinds of classes that dotted paths of a configuration may name; nothing is imported."""

from __future__ import annotations

import re

from runner.config.module_algorithm import MODULE_ALGORITHM
from runner.config.source_definitions import find_ancestors
from runner.config.targets import Kinds

VECTOR_ENV = "gymnasium.vector.vector_env.VectorEnv"
PIPELINE = "runner.pipelines.pipeline.ConnectorPipeline"
# Pipeline -> the class of pipelines of its kind; the last part of a list of edits names the pipeline.
PIPELINE_KINDS = {
    "env_to_module": "runner.pipelines.pipeline.EnvToModulePipeline",
    "module_to_env": "runner.pipelines.pipeline.ModuleToEnvPipeline",
    "learner": "runner.pipelines.pipeline.LearnerConnectorPipeline",
}

# Bases of connectors that are given running episodes.
ENV_CONNECTORS = (
    "runner.pipelines.connector_kinds.EnvToModuleConnector",
    "runner.pipelines.connector_kinds.ModuleToEnvConnector",
)

# Bases of environments with several agents.
MULTI_AGENT_ENVS = (
    "runner.env_runners.multi_agent_env.MultiAgentEnv",
    "pettingzoo.utils.env.ParallelEnv",
    "pettingzoo.utils.env.AECEnv",
)
ENVIRONMENTS = Kinds(
    ("gymnasium.core.Env", VECTOR_ENV, *MULTI_AGENT_ENVS),
    "gymnasium.Env, gymnasium.vector.VectorEnv, MultiAgentEnv, or PettingZoo's ParallelEnv or AECEnv",
    has_factories=True,
)
CONNECTORS = Kinds(("runner.pipelines.connector.Connector",), "runner.pipelines.Connector")
MODULES = Kinds(("runner.modules.rl_module.RLModule",), "runner.modules.RLModule")
MULTI_MODULES = Kinds(("runner.modules.multi_rl_module.MultiRLModule",), "runner.modules.MultiRLModule")
OPTIMIZERS = Kinds(("torch.optim.optimizer.Optimizer",), "torch.optim.Optimizer")
LOSSES = Kinds(("runner.learners.loss.Loss",), "runner.learners.loss.Loss")
REPLAY_BUFFERS = Kinds(("runner.replay.replay_buffer.ReplayBuffer",), "runner.replay.ReplayBuffer")
CALLBACKS = Kinds(("runner.callbacks.callback.Callback",), "runner.callbacks.Callback")
PLAYERS = Kinds(("runner.league.players.Player",), "runner.league.Player")
AGENT_MAPPINGS = Kinds(("runner.env_runners.multi_agent_env.AgentMapping",), "AgentMapping")

# Packages whose classes somebody else's configuration may make.
PACKAGES = ("runner", "gymnasium", "torch")

_SCHEMA = ("runner.config.algorithms.AlgorithmConfig",)
_OPERATOR = ("runner.plans.operator.Operator",)
_ENV_RUNNERS = (
    "runner.env_runners.env_runner.SingleAgentEnvRunner",
    "runner.env_runners.multi_agent_env_runner.MultiAgentEnvRunner",
)
_WRAPPER = ("gymnasium.core.Wrapper", "gymnasium.vector.vector_env.VectorWrapper")
_ALGORITHM = rf"(algorithm|multi_agent\.algorithm_config_overrides_per_module\.[^.]+|{MODULE_ALGORITHM.pattern})"
_EDIT = r"\d+\.(prepend|append|piece)(\.pieces\.\d+)*\._target_"
# Pattern of a dotted key -> base classes, or functions that are allowed themselves.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (rf"{_ALGORITHM}\.loss", LOSSES.bases),
    (rf"{_ALGORITHM}\.schema", _SCHEMA),
    (r"algorithm\.plan\..*_target_", _OPERATOR),
    (r"algorithm\.replay_buffers\.[^.]+\._target_", REPLAY_BUFFERS.bases),
    (r"env_runners\.env_runner_class", _ENV_RUNNERS),
    (rf"{_ALGORITHM}\.optimizer\._target_", OPTIMIZERS.bases),
    (r"(module|multi_agent\.modules\.[^.]+)\._target_", MODULES.bases),
    (r"multi_agent\.multi_rl_module\._target_", MULTI_MODULES.bases),
    (r"env\._target_", ENVIRONMENTS.bases),
    (r"env\.wrappers\.\d+\._target_", _WRAPPER),
    (r"callbacks\.\d+\._target_", CALLBACKS.bases),
    (rf"(connectors\.(modules\.[^.]+\.)?\w+|{_ALGORITHM}\.\w+_pipeline)\.{_EDIT}", CONNECTORS.bases),
    (r"multi_agent\.agent_to_module\._target_", AGENT_MAPPINGS.bases),
    (r"league\.fixed\.[^.]+\._target_", PLAYERS.bases),
    (r"offline\.offline_data_class", ("runner.offline.training.offline_data.OfflineData",)),
    (r"offline\.prelearner_class", ("runner.offline.training.prelearner.OfflinePreLearner",)),
    (r"offline\.prelearner_buffer_class", ("runner.replay.episode_replay_buffer.EpisodeReplayBuffer",)),
)
# Modules of environments that wrap others: they take objects, or do more than step an environment.
_NO_ENVIRONMENTS = ("gymnasium.wrappers.", "gymnasium.vector.", "gymnasium.utils.", "gymnasium.experimental.")


def names_code(key: str) -> bool:
    """Return whether the value of a dotted key is a dotted path that is imported and called."""
    return key.rpartition(".")[2] == "_target_" or any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_part(key: str, is_inside: bool = False) -> bool:
    """Return whether the value of a dotted key is the path of a part of a run, not of an object among its arguments.

    `is_inside`: the block of the key is an argument of another `_target_`.
    """
    is_option = is_inside and key.startswith("algorithm.plan.")
    return not is_option and any(re.fullmatch(pattern, key) for pattern, _ in _KINDS)


def is_known_kind(key: str, path: str) -> bool:
    """Whether `path` is in one of `PACKAGES` and of the kind that the key asks for, as far as source files tell."""
    bases = next((bases for pattern, bases in _KINDS if re.fullmatch(pattern, key)), ())
    lineage = find_ancestors(path) if path.partition(".")[0] in PACKAGES else []
    if not lineage or lineage[0].partition(".")[0] not in PACKAGES:
        return False
    if bases == ENVIRONMENTS.bases and lineage[0].startswith(_NO_ENVIRONMENTS):
        return False
    return any(one in bases for one in lineage)
