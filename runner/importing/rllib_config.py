"""A configuration of RLlib 2.60: its values, its defaults, and the corresponding names in runner."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from runner.config.algorithms import AlgorithmConfig, APPOConfig
from runner.config.blocks import ConnectorsConfig, EnvRunnersConfig, EvaluationConfig, LearnersConfig, MultiAgentConfig
from runner.config.checks import check_value
from runner.config.defaults import default_values
from runner.config.errors import show_value
from runner.config.fields import option_of
from runner.config.offline import OfflineConfig
from runner.config.optimizer import OptimizerConfig
from runner.config.schemas import ModuleConfig
from runner.importing.imported import Imported

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
# Name in an older RLlib -> key in `to_dict()` of RLlib 2.60.
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
# Block -> field -> RLlib's key, whose value is copied.
RENAMED: Mapping[type, Mapping[str, str]] = {
    AlgorithmConfig: {"lambda_": "lambda"},
    LearnersConfig: {"compile": "torch_compile_learner"},
    OfflineConfig: {"input_": "input"},
}
# Block -> field -> RLlib's key with the same meaning in another form, or that only the user can convert: code.
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
    """Return field -> RLlib's key for a block whose fields are copied, including its base classes."""
    return _of_bases(RENAMED, schema)


def names_in_rllib(schema: type) -> dict[str, str]:
    """Return field -> name in RLlib 2.60, for fields with a different name."""
    arguments = {key: argument for argument, key in ARGUMENTS.items()}
    keys = renamed_fields(schema) | _of_bases(CONVERTED, schema)
    names = {field: arguments.get(key, key) for field, key in keys.items()}
    return {field: name for field, name in names.items() if name != field}


def _of_bases(tables: Mapping[type, Mapping[str, str]], schema: type) -> dict[str, str]:
    """Return the table of a block, including its base classes; entries of the block itself take precedence."""
    merged: dict[str, str] = {}
    for block in reversed(schema.__mro__):
        merged |= tables.get(block, {})
    return merged


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Texts of Python objects, interpolations of Hydra, and blocks that make an object; they are not valid as values.
_NO_VALUE = re.compile(r'"<[^"]*>"|object at 0x|\$\{|"\?\?\?"|"_target_"')
_LONGEST_VALUE = 80
_OTHER_NAMES = ARGUMENTS | OLDER_NAMES


@cache
def rllib_defaults() -> Mapping[str, dict[str, Any]]:
    """Return algorithm -> its keys with their defaults in RLlib 2.60; also `DefaultModelConfig`."""
    defaults = json.loads(Path(__file__).with_name("rllib_defaults.json").read_text())
    common = defaults.pop("AlgorithmConfig")
    model = defaults.pop("DefaultModelConfig")
    return {"DefaultModelConfig": model, **{name: {**common, **values} for name, values in defaults.items()}}


def own_keys(algorithm: str) -> set[str]:
    """Return the keys that an algorithm has in addition to the common keys."""
    others = [keys for name, keys in rllib_defaults().items() if name != "DefaultModelConfig"]
    own = set(rllib_defaults()[algorithm])
    return own - own.intersection(*others) - _OTHER_NAMES.keys()


def rename(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names of RLlib 2.60; -1 marks a name that is no longer used."""
    values = {key: value for key, value in given.items() if key not in _OTHER_NAMES}
    others = {key: value for key, value in given.items() if key in _OTHER_NAMES and value is not None and value != -1}
    return {**values, **{_OTHER_NAMES[key]: value for key, value in others.items()}}


@dataclass
class RLlibConfig:
    """The remaining values of a configuration, and the experiment they are converted to.

    Attributes:
        given: values of the file.
        values: these values and RLlib's defaults, without those already converted.
        defaults: RLlib's defaults of the algorithm.
        imported: the experiment.
    """

    given: dict[str, Any]
    values: dict[str, Any]
    defaults: Mapping[str, Any]
    imported: Imported

    @property
    def is_old_stack(self) -> bool:
        """Whether RLlib would run it on its old API stack; older files do not contain this information."""
        is_new = self.given.get("enable_rl_module_and_learner")
        return is_new is False or (is_new is None and "model" in self.given and "_model_config" not in self.given)

    def take(self, key: str) -> Any:
        """Remove a value from the remaining values and return it."""
        return self.values.pop(key, self.defaults.get(key))

    def count(self, key: str, default: int) -> int:
        """Return an integer of at least 1 that other numbers depend on, or the default if it is not valid."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    def take_block(self, key: str) -> dict[str, Any]:
        """Take a block of keys; report it as left out if it is not a block."""
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            self.leave_out(key, value)
        return dict(value) if isinstance(value, dict) else {}

    def leave_out(self, key: str, value: Any, why: str = "") -> None:
        """Record that a value cannot be converted."""
        shown = show_value(value)
        if len(shown) > _LONGEST_VALUE:
            shown = shown[: _LONGEST_VALUE - 3] + "..."
        self.imported.missing[key] = f"{shown} is left out" + (f": {why}" if why else "")

    def copy_fields(
        self,
        block: str,
        schema: type,
        not_copied: Collection[str] = (),
        unless_default: Collection[str] = (),
    ) -> None:
        """Copy the keys that are fields of a block.

        Args:
            block: name of the block.
            schema: its dataclass.
            not_copied: fields with a different meaning.
            unless_default: fields that keep runner's default if RLlib's key has RLlib's default.
        """
        renamed = renamed_fields(schema)
        for field in dataclasses.fields(schema):
            key = renamed.get(field.name, field.name)
            if field.name in not_copied or key not in self.values:
                continue
            value = self.take(key)
            if field.name in unless_default and value == self.defaults.get(key):
                continue
            self.write(block, schema, field.name, value, key, self.defaults.get(key))

    def write(
        self, block: str, schema: type, name: str, value: Any, key: str, default: Any = None, *, is_needed: bool = False
    ) -> None:
        """Write a field if its value differs from runner's default; unsupported values are left out and reported.

        Args:
            block: name of the block.
            schema: its dataclass.
            name: name of the field.
            value: RLlib's value.
            key: RLlib's name, for messages.
            default: RLlib's default; if runner does not support it, it is left out silently.
            is_needed: whether to write a value that equals runner's default, since the chosen option may change it.
        """
        if value == _defaults_of(schema)[name] and not is_needed:
            return
        why = find_fault(schema, name, value)
        if why is None:
            self.imported.values.setdefault(block, {})[name] = value
        elif value != default:
            self.leave_out(key, value, why)

    def leave_out_others(self, hints: Mapping[str, str]) -> None:
        """Report the remaining values that differ from RLlib's defaults; `hints`: key or its prefix -> what to do."""
        for key, value in self.values.items():
            default = self.defaults.get(key)
            is_unused = key not in self.defaults and value in (None, -1)
            if is_unused or _comparable(value) == _comparable(default):
                continue
            hint = next((text for start, text in hints.items() if key.startswith(start)), "")
            if not hint and key not in self.defaults:
                hint = "RLlib 2.60 does not define this key for this algorithm"
            self.leave_out(key, value, hint)


def find_fault(schema: type, name: str, value: Any) -> str | None:
    """Return the reason why a value is not valid for a field, or None if it is valid."""
    if _NO_VALUE.search(json.dumps(value)):
        return "it is not a plain value"
    field = next(field for field in dataclasses.fields(schema) if field.name == name)
    problem = check_value(name, value, _annotations_of(schema)[name], option_of(field))
    return None if problem is None else f"expected {problem.expected}"


@cache
def _defaults_of(schema: type) -> Mapping[str, Any]:
    return default_values(schema)


@cache
def _annotations_of(schema: type) -> Mapping[str, Any]:
    return typing.get_type_hints(schema)


def _comparable(value: Any) -> Any:
    """Return a value without addresses, which differ between processes."""
    return _ADDRESS.sub("", value) if isinstance(value, str) else value
