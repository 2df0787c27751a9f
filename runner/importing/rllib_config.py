"""A configuration of RLlib 2.60: its values, its defaults, and which names its fields have here."""

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


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Texts of Python objects, interpolations of Hydra, and blocks that make an object: a configuration's values have none.
_NO_VALUE = re.compile(r'"<[^"]*>"|object at 0x|\$\{|"\?\?\?"|"_target_"')
_LONGEST_VALUE = 80
_OTHER_NAMES = ARGUMENTS | OLDER_NAMES


@cache
def rllib_defaults() -> Mapping[str, dict[str, Any]]:
    """Return algorithm -> what its keys are in RLlib 2.60; also `DefaultModelConfig`."""
    defaults = json.loads(Path(__file__).with_name("rllib_defaults.json").read_text())
    common = defaults.pop("AlgorithmConfig")
    model = defaults.pop("DefaultModelConfig")
    return {"DefaultModelConfig": model, **{name: {**common, **values} for name, values in defaults.items()}}


def own_keys(algorithm: str) -> set[str]:
    """Return the keys that an algorithm has beyond the ones of all algorithms."""
    others = [keys for name, keys in rllib_defaults().items() if name != "DefaultModelConfig"]
    own = set(rllib_defaults()[algorithm])
    return own - own.intersection(*others) - _OTHER_NAMES.keys()


def rename(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names of RLlib 2.60; -1 marks a name that is no longer in use."""
    values = {key: value for key, value in given.items() if key not in _OTHER_NAMES}
    others = {key: value for key, value in given.items() if key in _OTHER_NAMES and value is not None and value != -1}
    return {**values, **{_OTHER_NAMES[key]: value for key, value in others.items()}}


@dataclass
class RLlibConfig:
    """The values that are not taken over yet, and the experiment that takes them over.

    Attributes:
        given: the file's values.
        values: the same and RLlib's defaults, less what was taken over.
        defaults: RLlib's defaults of the algorithm.
        imported: the experiment.
    """

    given: dict[str, Any]
    values: dict[str, Any]
    defaults: Mapping[str, Any]
    imported: Imported

    @property
    def is_old_stack(self) -> bool:
        """Whether RLlib would run it on its old API stack; older files do not say so."""
        is_new = self.given.get("enable_rl_module_and_learner")
        return is_new is False or (is_new is None and "model" in self.given and "_model_config" not in self.given)

    def take(self, key: str) -> Any:
        """Return a value that is taken over by this."""
        return self.values.pop(key, self.defaults.get(key))

    def count(self, key: str, default: int) -> int:
        """Return an integer of at least 1 that other numbers are computed from; where it is none, the default."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    def take_block(self, key: str) -> dict[str, Any]:
        """Take a block of keys; what is none is left out."""
        value = self.take(key)
        if value is not None and not isinstance(value, dict):
            self.leave_out(key, value)
        return dict(value) if isinstance(value, dict) else {}

    def leave_out(self, key: str, value: Any, why: str = "") -> None:
        """Say that a value has no counterpart."""
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
        """Take over the keys that are fields of a block.

        Args:
            block: its name.
            schema: its dataclass.
            not_copied: fields that mean something else.
            unless_default: fields that stay at runner's default where RLlib's key is at RLlib's.
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
        """Write a field if its value is not runner's default; what runner does not take is left out.

        Args:
            block: name of the block.
            schema: its dataclass.
            name: of the field.
            value: RLlib's.
            key: RLlib's name, for the user.
            default: RLlib's; a default that runner does not take is left out silently.
            is_needed: write runner's default, too, which the chosen option of the block may replace.
        """
        if value == _defaults_of(schema)[name] and not is_needed:
            return
        why = find_fault(schema, name, value)
        if why is None:
            self.imported.values.setdefault(block, {})[name] = value
        elif value != default:
            self.leave_out(key, value, why)

    def leave_out_others(self, hints: Mapping[str, str]) -> None:
        """Say which of the other values differ from RLlib's defaults; `hints`: key, or how it begins -> what to do."""
        for key, value in self.values.items():
            default = self.defaults.get(key)
            is_unused = key not in self.defaults and value in (None, -1)
            if is_unused or _comparable(value) == _comparable(default):
                continue
            hint = next((text for start, text in hints.items() if key.startswith(start)), "")
            if not hint and key not in self.defaults:
                hint = "RLlib 2.60 has no such key for this algorithm"
            self.leave_out(key, value, hint)


def find_fault(schema: type, name: str, value: Any) -> str | None:
    """Return why a value is none of a field; None: it is one."""
    if _NO_VALUE.search(json.dumps(value)):
        return "it is no plain value"
    field = next(field for field in dataclasses.fields(schema) if field.name == name)
    problem = check_value(name, value, _annotations_of(schema)[name], option_of(field), None)
    return None if problem is None else f"runner takes {problem.expected}"


@cache
def _defaults_of(schema: type) -> Mapping[str, Any]:
    return default_values(schema)


@cache
def _annotations_of(schema: type) -> Mapping[str, Any]:
    return typing.get_type_hints(schema)


def _comparable(value: Any) -> Any:
    """Return a value without what differs from process to process."""
    return _ADDRESS.sub("", value) if isinstance(value, str) else value
