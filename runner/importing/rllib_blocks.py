"""Blocks of an experiment out of an RLlib configuration, but for the algorithm and its module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runner.config.errors import Problem, UserError, show_value
from runner.config.offline import OfflineConfig
from runner.config.schemas import (
    ENV_STEPS,
    EnvConfig,
    EnvRunnersConfig,
    EvaluationConfig,
    ExperimentConfig,
    LearnersConfig,
    MultiAgentConfig,
)
from runner.importing.rllib_algorithms import Counterpart, counterpart_of, take_algorithm
from runner.importing.rllib_config import RLlibConfig, find_fault
from runner.importing.rllib_module import take_module
from runner.importing.rllib_names import CONVERTED

_CLASS = re.compile(r"<class '((?!__main__\.)[A-Za-z_][\w.]*\.\w+)'>")
_GYM_ID = re.compile(r".*-v\d+|.*[/:].*|[^.]*")
_DEFAULT_POLICIES = ["default_policy"]


def take_blocks(config: RLlibConfig, algorithm: str, env: str | None, path: Path) -> None:
    """Take over all that has a counterpart.

    Raises:
        UserError: neither the file nor `env` names an environment.
    """
    counterpart = counterpart_of(algorithm, config)
    _take_env(config, env, path)
    take_algorithm(config, counterpart)
    take_module(config, counterpart)
    _take_policies(config, counterpart)
    _take_evaluation(config)
    _take_env_runners(config, counterpart)
    config.copy_fields("learners", LearnersConfig)
    _take_offline(config, counterpart)
    if config.values.get("observation_filter") == "MeanStdFilter":
        config.take("observation_filter")
        config.imported.options["connectors"] = "mean_std_filter"
    seed = config.take("seed")
    why = find_fault(ExperimentConfig, "seed", seed)
    if why is None:
        config.imported.values["seed"] = seed
    elif seed is not None:
        config.leave_out("seed", seed, why)
    stop = {"training_iteration": 100} if counterpart.is_offline else {"num_env_steps_sampled_lifetime": 1_000_000}
    config.imported.set("stop", **stop)
    told = ", ".join(f"{metric} {value:,}" for metric, value in stop.items())
    config.imported.missing["stop"] = f"Ray Tune has it, and not the configuration: the run ends at {told}"


def _take_env(config: RLlibConfig, env: str | None, path: Path) -> None:
    of_file = config.take("env")
    name = of_file if env is None else env
    is_class = _CLASS.fullmatch(name) if isinstance(name, str) else None
    if is_class is not None:
        name = is_class.group(1)
        why = f"{name} gets its items as keyword arguments, and not one dict"
        config.imported.missing["env_config"] = why
    if find_fault(EnvConfig, "env", name) is not None or name is None:
        got = None if name is None else show_value(name)
        what, allowed = "the environment has no name", "--env with a gymnasium id, or a class's dotted path"
        raise UserError(Problem(what, f"{path}, env", got, allowed).render_alone())
    is_id = is_class is None and _GYM_ID.fullmatch(name) is not None
    config.imported.set("env", **{"env" if is_id else "_target_": name})
    config.copy_fields("env", EnvConfig, not_copied=("env", "_target_", "observation_space", "action_space"))


def _take_policies(config: RLlibConfig, counterpart: Counterpart) -> None:
    policies = config.take("policies")
    overrides = config.take("algorithm_config_overrides_per_module")
    key_of_mapping, key_of_trained = CONVERTED[MultiAgentConfig].values()
    to_train = config.take(key_of_trained)
    specs = dict.fromkeys(map(str, policies)) if isinstance(policies, list) else policies
    if not isinstance(specs, dict) or list(specs) == _DEFAULT_POLICIES:
        left = {"policies": policies, key_of_trained: to_train, "algorithm_config_overrides_per_module": overrides}
        config.values |= left
        return
    names = list(specs)
    mapping = {"*": names[0]} if len(names) == 1 else dict(zip(names, names, strict=True))
    if not mapping or find_fault(MultiAgentConfig, "agent_to_module", mapping) is not None:
        config.leave_out("policies", policies)
        return
    config.imported.set("multi_agent", agent_to_module=mapping)
    mapping_fn = config.take(key_of_mapping)
    if len(mapping) > 1:
        why = "agents have the policies of their names; write the others into multi_agent.agent_to_module"
        config.leave_out(key_of_mapping, mapping_fn, why)
    if isinstance(to_train, list) and to_train and all(str(name) in specs for name in to_train):
        config.imported.set("multi_agent", modules_to_train=[str(name) for name in to_train])
    elif to_train is not None:
        config.leave_out(key_of_trained, to_train, "see multi_agent.modules_to_train")
    for name, spec in specs.items():
        *parts, of_policy = spec if isinstance(spec, list) and len(spec) == 4 else (spec, None)
        if any(part is not None for part in parts):
            config.leave_out(f"policies.{name}", parts, "a module class of its own goes into multi_agent.modules")
        _take_overrides(config, counterpart, name, of_policy, f"policies.{name}")
    for name, values in overrides.items() if isinstance(overrides, dict) else ():
        key = f"algorithm_config_overrides_per_module.{name}"
        if name in specs:
            _take_overrides(config, counterpart, name, values, key)
        else:
            config.leave_out(key, values)


def _take_overrides(config: RLlibConfig, counterpart: Counterpart, policy: str, values: Any, key: str) -> None:
    """Take over what differs for a policy: fields of the algorithm that modules do not share."""
    if values and not isinstance(values, dict):  # an AlgorithmConfig's text
        config.leave_out(key, values)
    schema = counterpart.schema
    own = [name for name in schema.__dataclass_fields__ if name not in (*schema.of_run, "optimizer", "schema", "loss")]
    for given, value in values.items() if isinstance(values, dict) else ():
        name = "lambda_" if given == "lambda" else given
        why = "modules share it, or it is no field of the algorithm" if name not in own else None
        why = why or find_fault(schema, name, value)
        if why is not None:
            config.leave_out(f"{key}.{given}", value, why)
            continue
        block = config.imported.values["multi_agent"].setdefault("algorithm_config_overrides_per_module", {})
        block.setdefault(policy, {})[name] = value


def _take_evaluation(config: RLlibConfig) -> None:
    overrides = config.take_block("evaluation_config")
    explore = overrides.pop("explore", config.values.get("explore"))
    num_envs = overrides.pop("num_envs_per_env_runner", None)
    for key, value in overrides.items():
        config.leave_out(f"evaluation_config.{key}", value)
    if config.values.get("evaluation_interval") is not None:
        config.write("evaluation", EvaluationConfig, "explore", explore, CONVERTED[EvaluationConfig]["explore"])
    if num_envs is not None:
        name = "num_envs_per_env_runner"
        config.write("evaluation", EvaluationConfig, name, num_envs, CONVERTED[EvaluationConfig][name])
    offline = [name for name in EvaluationConfig.__dataclass_fields__ if name.startswith("offline_")]
    not_copied = ["explore", "num_envs_per_env_runner", "video", "evaluation_duration_unit", *offline]
    name = "evaluation_duration_unit"
    unit = config.take(name)
    config.write("evaluation", EvaluationConfig, name, ENV_STEPS if unit == "timesteps" else unit, name)
    config.copy_fields("evaluation", EvaluationConfig, not_copied=not_copied)


def _take_env_runners(config: RLlibConfig, counterpart: Counterpart) -> None:
    mode = config.values.get("gym_env_vectorize_mode")
    if isinstance(mode, str):  # an enum's text: VectorizeMode.SYNC
        config.values["gym_env_vectorize_mode"] = mode.rpartition(".")[2].lower()
    unless_default = ["gym_env_vectorize_mode"]
    if counterpart.is_offline:
        unless_default.append("rollout_fragment_length")
    config.copy_fields("env_runners", EnvRunnersConfig, unless_default=unless_default)


def _take_offline(config: RLlibConfig, counterpart: Counterpart) -> None:
    source = config.values["input"]
    if source == "sampler" or not counterpart.is_offline:
        config.take("input")
        if counterpart.is_offline:
            config.imported.missing["input"] = "no recorded data are named: give offline.input_=PATH"
        elif source != "sampler":
            config.leave_out("input", source, "the algorithm learns from what it samples")
    if counterpart.is_offline:
        _prepare_recorded(config)
    guessed = ("input_read_method", "input_read_episodes")  # told by the files
    code = ["offline_data_class", "prelearner_class"]
    if "." in str(config.values.get("input_read_method")):  # a function
        code.append("input_read_method")
    config.copy_fields("offline", OfflineConfig, not_copied=code, unless_default=guessed)


def _prepare_recorded(config: RLlibConfig) -> None:
    """Settle what runner asks for where it learns from recorded data."""
    keeps_batches = config.values["materialize_mapped_data"] is True
    if keeps_batches and config.values["materialize_data"] is True:
        config.leave_out("materialize_data", config.take("materialize_data"), "train batches are kept in memory")
    if not keeps_batches and config.values["dataset_num_iters_per_learner"] is None:
        config.values["dataset_num_iters_per_learner"] = 1
        config.imported.missing["dataset_num_iters_per_learner"] = "it has no value: an iteration is one update"
    if "evaluation_interval" in config.imported.values.get("evaluation", {}):
        config.imported.set("checkpoint", metric="evaluation/env_runners/episode_return_mean")
    else:  # nothing else tells which checkpoint is the best
        config.imported.set("checkpoint", metric="learners/default_policy/total_loss", mode="min")
