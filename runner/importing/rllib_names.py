"""What RLlib calls fields that have another name here; the import reads these tables, and the reference shows them."""

from __future__ import annotations

from collections.abc import Mapping

from runner.config.algorithms import AlgorithmConfig, APPOConfig
from runner.config.offline import OfflineConfig
from runner.config.optimizer import OptimizerConfig
from runner.config.schemas import (
    ConnectorsConfig,
    EnvRunnersConfig,
    EvaluationConfig,
    LearnersConfig,
    ModuleConfig,
    MultiAgentConfig,
)

# Argument of a method of RLlib's `AlgorithmConfig` -> its key in `to_dict()` of RLlib 2.60.
ARGUMENTS = {
    "lambda_": "lambda",
    "input_": "input",
    "model_config": "_model_config",
    "rl_module_spec": "_rl_module_spec",
    "train_batch_size_per_learner": "_train_batch_size_per_learner",
    "env_to_module_connector": "_env_to_module_connector",
    "module_to_env_connector": "_module_to_env_connector",
    "learner_connector": "_learner_connector",
    "learner_class": "_learner_class",
}
# Name of an older RLlib -> the key in `to_dict()` of RLlib 2.60.
OLDER_NAMES = {
    "model_config_dict": "_model_config",
    "sgd_minibatch_size": "minibatch_size",
    "num_sgd_iter": "num_epochs",
    "lr_schedule": "lr",
    "entropy_coeff_schedule": "entropy_coeff",
    "num_workers": "num_env_runners",
    "num_rollout_workers": "num_env_runners",
    "num_envs_per_worker": "num_envs_per_env_runner",
    "num_cpus_per_worker": "num_cpus_per_env_runner",
    "num_gpus_per_worker": "num_gpus_per_env_runner",
    "custom_resources_per_worker": "custom_resources_per_env_runner",
    "evaluation_num_workers": "evaluation_num_env_runners",
    "recreate_failed_workers": "restart_failed_env_runners",
    "recreate_failed_env_runners": "restart_failed_env_runners",
    "max_num_worker_restarts": "max_num_env_runner_restarts",
}
# Block -> field -> RLlib's key, whose value is taken over as it is.
RENAMED: Mapping[type, Mapping[str, str]] = {
    AlgorithmConfig: {"lambda_": "lambda"},
    LearnersConfig: {"compile": "torch_compile_learner"},
    OfflineConfig: {"input_": "input"},
}
# Block -> field -> RLlib's key that says the same in another way, or what only the user can take over: code.
CONVERTED: Mapping[type, Mapping[str, str]] = {
    AlgorithmConfig: {
        "loss": "_learner_class",
        "replay_buffers": "replay_buffer_config",
        "replay_capacity": "replay_buffer_config.capacity",
        "minibatching": "shuffle_batch_per_epoch",
    },
    APPOConfig: {
        "replay_capacity": "circular_buffer_num_batches",
        "replay_proportion": "circular_buffer_iterations_per_batch",
    },
    OptimizerConfig: {"epsilon": "adam_epsilon"},
    ModuleConfig: {"_target_": "_rl_module_spec", "num_critics": "n_critics", "num_atoms": "n_quantiles"},
    ConnectorsConfig: {
        "env_to_module": "_env_to_module_connector",
        "module_to_env": "_module_to_env_connector",
        "learner": "_learner_connector",
    },
    EnvRunnersConfig: {"env_runner_class": "env_runner_cls"},
    MultiAgentConfig: {"agent_to_module": "policy_mapping_fn", "modules_to_train": "policies_to_train"},
    EvaluationConfig: {
        "explore": "evaluation_config.explore",
        "num_envs_per_env_runner": "evaluation_config.num_envs_per_env_runner",
    },
}


def renamed_fields(schema: type) -> dict[str, str]:
    """Return field -> RLlib's key of a block whose fields are taken over as they are, also of its bases."""
    return _of_bases(RENAMED, schema)


def names_in_rllib(schema: type) -> dict[str, str]:
    """Return field -> what a user of RLlib 2.60 writes, where that is another name."""
    arguments = {key: argument for argument, key in ARGUMENTS.items()}
    keys = renamed_fields(schema) | _of_bases(CONVERTED, schema)
    names = {field: arguments.get(key, key) for field, key in keys.items()}
    return {field: name for field, name in names.items() if name != field}


def _of_bases(tables: Mapping[type, Mapping[str, str]], schema: type) -> dict[str, str]:
    """Return the table of a block with its bases; entries of the block itself win."""
    merged: dict[str, str] = {}
    for block in reversed(schema.__mro__):
        merged |= tables.get(block, {})
    return merged
