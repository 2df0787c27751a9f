"""Import experiments from the JSON of RLlib's `AlgorithmConfig.to_dict()`, written with `json.dump(..., default=str)`.

The JSON does not name its algorithm. Missing values have the defaults of RLlib 2.60. Classes and functions are strings
that are never executed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.config.algorithms import AlgorithmConfig
from runner.config.blocks import (
    ENV_STEPS,
    ConnectorsConfig,
    EnvRunnersConfig,
    EvaluationConfig,
    LearnersConfig,
    MultiAgentConfig,
)
from runner.config.errors import Problem, UserError, nearest_match, show_value
from runner.config.offline import OfflineConfig
from runner.config.schemas import EnvConfig, ExperimentConfig, ModuleConfig
from runner.importing.imported import Imported, read_python
from runner.importing.rllib_algorithms import ALGORITHMS, Counterpart, counterpart_of, take_algorithm
from runner.importing.rllib_config import CONVERTED, RLlibConfig, find_fault, own_keys, rename, rllib_defaults

_NEW, _SPEC = "_model_config", "_rl_module_spec"
# Old key -> new key.
_RENAMED = {"post_fcnet_hiddens": "head_fcnet_hiddens", "post_fcnet_activation": "head_fcnet_activation"}
_ACTIVATIONS = ("fcnet_activation", "head_fcnet_activation", "conv_activation")


def take_module(config: RLlibConfig, counterpart: Counterpart) -> None:
    """Convert the module's block."""
    defaults = dict(rllib_defaults()["DefaultModelConfig"])
    if counterpart.option == "ppo":
        defaults["vf_share_layers"] = False
    given = _read_old(config, defaults) if config.is_old_stack else _read_new(config)
    prefix = "model" if config.is_old_stack else "model_config"
    model = {**defaults, **given}
    for name in _ACTIVATIONS:
        model[name] = _activation(model[name])
    model["conv_filters"] = _conv_filters(model["conv_filters"])
    if model["conv_filters"] is not None:
        config.imported.missing[f"{prefix}.padding"] = "RLlib pads images before convolutions, but runner does not"
    if counterpart.module != "mlp":  # other modules do not have a value function, or do not share layers
        del model["vf_share_layers"]
    fields = ModuleConfig.__dataclass_fields__
    for name, value in model.items():
        key, default = f"{prefix}.{name}", defaults.get(name)
        if name in defaults and name in fields:
            config.write("module", ModuleConfig, name, value, key, default, is_needed=name == "fcnet_activation")
        elif value != default:
            why = "" if name in defaults else "arguments of a custom module class go into module.model_config"
            config.leave_out(key, value, why)
    if counterpart.learns_from == "replay" and model["use_lstm"] is True:
        buffer = config.imported.values["algorithm"]["replay_buffers"]["replay"]
        buffer["batch_length_T"] = config.imported.values["module"].get("max_seq_len", defaults["max_seq_len"])


def _read_new(config: RLlibConfig) -> dict[str, Any]:
    """Return the settings of `model_config`, and of a module spec that contains nothing else."""
    if isinstance(config.values.get(_NEW), str):
        with suppress(ValueError):
            config.values[_NEW] = read_python(config.values[_NEW], ("DefaultModelConfig",))
    given = config.take_block(_NEW)
    try:
        spec = read_python(str(config.values.get(_SPEC)), ("RLModuleSpec", "DefaultModelConfig"))
    except ValueError:
        return given
    if isinstance(spec, dict) and all(value in (None, False) for key, value in spec.items() if key != "model_config"):
        config.take(_SPEC)
        of_spec = spec.get("model_config")
        return {**given, **(of_spec if isinstance(of_spec, dict) else {})}
    return given


def _read_old(config: RLlibConfig, new_defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of `model` by their new names; settings without a new name are reported."""
    defaults = dict(config.defaults["model"])
    policy, q = "policy_model_config", "q_model_config"
    if policy in config.defaults:
        defaults |= config.defaults[policy]
        of_policy = config.take_block(policy)
        model = {**defaults, **config.take_block("model"), **config.defaults[policy], **of_policy}
        if config.values[q] == {**config.defaults[policy], **of_policy}:
            config.take(q)
    else:
        model = {**defaults, **config.take_block("model")}
    given = {}
    for key, value in model.items():
        name = _RENAMED.get(key, key)
        if name in new_defaults:
            given[name] = value
        elif value != defaults.get(key):
            config.leave_out(f"model.{key}", value)
    return given


def _activation(value: Any) -> Any:
    if value is None:
        return "linear"
    return {"swish": "silu"}.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _conv_filters(filters: Any) -> Any:
    """Return [channels, kernel, stride] of each convolution, if kernels and strides are squares."""
    if not isinstance(filters, list):
        return filters
    return [[_side(value) for value in item[:3]] if isinstance(item, list) else item for item in filters]


def _side(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value


_CLASS = re.compile(r"<class '((?!__main__\.)[A-Za-z_][\w.]*\.\w+)'>")
_GYM_ID = re.compile(r".*-v\d+|.*[/:].*|[^.]*")
_DEFAULT_POLICIES = ["default_policy"]


def take_blocks(config: RLlibConfig, algorithm: str, env: str | None, path: Path) -> None:
    """Convert all settings that have a counterpart.

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
    criteria = ", ".join(f"{metric} {value:,}" for metric, value in stop.items())
    config.imported.missing["stop"] = (
        f"stop criteria belong to Ray Tune, not to the configuration; the run ends at {criteria}"
    )


def _take_env(config: RLlibConfig, env: str | None, path: Path) -> None:
    of_file = config.take("env")
    name = of_file if env is None else env
    is_class = _CLASS.fullmatch(name) if isinstance(name, str) else None
    if is_class is not None:
        name = is_class.group(1)
        why = f"{name} gets its items as keyword arguments, not as one dict"
        config.imported.missing["env_config"] = why
    if find_fault(EnvConfig, "env", name) is not None or name is None:
        got = None if name is None else show_value(name)
        what, fix = "the environment is not named", "use --env with a gymnasium id, or a class's dotted path"
        raise UserError(Problem(what, f"{path}, env", got, fix=fix))
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
        why = "agents use the policies of the same name; add others to multi_agent.agent_to_module"
        config.leave_out(key_of_mapping, mapping_fn, why)
    if isinstance(to_train, list) and to_train and all(str(name) in specs for name in to_train):
        config.imported.set("multi_agent", modules_to_train=[str(name) for name in to_train])
    elif to_train is not None:
        config.leave_out(key_of_trained, to_train, "see multi_agent.modules_to_train")
    for name, spec in specs.items():
        *parts, of_policy = spec if isinstance(spec, list) and len(spec) == 4 else (spec, None)
        if any(part is not None for part in parts):
            config.leave_out(f"policies.{name}", parts, "a custom module class goes into multi_agent.modules")
        _take_overrides(config, counterpart, name, of_policy, f"policies.{name}")
    for name, values in overrides.items() if isinstance(overrides, dict) else ():
        key = f"algorithm_config_overrides_per_module.{name}"
        if name in specs:
            _take_overrides(config, counterpart, name, values, key)
        else:
            config.leave_out(key, values)


def _take_overrides(config: RLlibConfig, counterpart: Counterpart, policy: str, values: Any, key: str) -> None:
    """Convert the settings of a single policy: fields of the algorithm that modules do not share."""
    if values and not isinstance(values, dict):  # the text of an AlgorithmConfig
        config.leave_out(key, values)
    schema = counterpart.schema
    own = [name for name in schema.__dataclass_fields__ if name not in (*schema.of_run, "optimizer", "schema", "loss")]
    for given, value in values.items() if isinstance(values, dict) else ():
        name = "lambda_" if given == "lambda" else given
        why = "modules share it, or it is not a field of the algorithm" if name not in own else None
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
    if isinstance(mode, str):  # the text of an enum member: VectorizeMode.SYNC
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
            config.imported.missing["input"] = "no recorded data is named: set offline.input_=PATH"
        elif source != "sampler":
            config.leave_out("input", source, "the algorithm learns from its own samples")
    if counterpart.is_offline:
        _prepare_recorded(config)
    guessed = ("input_read_method", "input_read_episodes")  # detected from the files
    code = ["offline_data_class", "prelearner_class"]
    if "." in str(config.values.get("input_read_method")):  # a function
        code.append("input_read_method")
    config.copy_fields("offline", OfflineConfig, not_copied=code, unless_default=guessed)


def _prepare_recorded(config: RLlibConfig) -> None:
    """Set the options that runner needs for recorded data."""
    keeps_batches = config.values["materialize_mapped_data"] is True
    if keeps_batches and config.values["materialize_data"] is True:
        config.leave_out("materialize_data", config.take("materialize_data"), "train batches are kept in memory")
    if not keeps_batches and config.values["dataset_num_iters_per_learner"] is None:
        config.values["dataset_num_iters_per_learner"] = 1
        config.imported.missing["dataset_num_iters_per_learner"] = "it is not set, so an iteration is one update"
    if "evaluation_interval" in config.imported.values.get("evaluation", {}):
        config.imported.set("checkpoint", metric="evaluation/env_runners/episode_return_mean")
    else:  # otherwise no metric ranks checkpoints
        config.imported.set("checkpoint", metric="learners/default_policy/total_loss", mode="min")


# Keys without a counterpart that need no message: the API stack, the exploration before it, and whether checkpoints
# contain replay buffers, which is always the case here.
_SILENT = (
    *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2", "_prior_exploration_config"),
    *("_is_online", "store_buffer_in_checkpoints"),
)
_MOST_DIGITS = 19
_HINTS: Mapping[str, str] = {
    "callbacks": "callbacks have RLlib's hook names, see docs/guides/callbacks_and_metrics.md",
    **{key: f"its connectors go into connectors.{name}" for name, key in CONVERTED[ConnectorsConfig].items()},
    CONVERTED[AlgorithmConfig]["loss"]: "a custom loss goes into algorithm.loss",
    CONVERTED[ModuleConfig]["_target_"]: "a custom class goes into module._target_, its settings into module",
    CONVERTED[EnvRunnersConfig]["env_runner_class"]: "a custom runner goes into env_runners.env_runner_class",
    "model": "RLlib ignores it on its new API stack, where model_config counts",
    "clip_rewards": "put the connector ClipRewards into connectors.learner",
    "action_mask_key": "see module.action_mask_key",
    "observation_space": "spaces come from the environment",
    "action_space": "spaces come from the environment",
    "num_gpus": "see learners.num_gpus_per_learner",
    "grad_clip_by": "gradients are clipped by their global norm",
    "offline_evaluation": "name held-out data in evaluation.offline_evaluation_input_",
    "hiddens": "RLlib ignores it on its new API stack; see module.head_fcnet_hiddens",
    "noisy": "RLlib ignores it on its new API stack; see module.noisy",
    "burn_in_len": "an argument of the replay buffer in algorithm.replay_buffers, for stateful modules",
    "batch_mode": "fragments may end within episodes",
    "framework": "modules use torch",
}


def import_rllib(path: Path, algorithm: str | None = None, env: str | None = None) -> Imported:
    """Import a configuration of RLlib.

    Args:
        path: path of the file.
        algorithm: RLlib's name of the algorithm, for example PPO.
        env: gymnasium id or dotted path of a class that replaces the configuration's environment.

    Raises:
        UserError: the file cannot be read; the algorithm is missing, unsupported, or not the file's; or the file does
            not name an environment.
    """
    given = _read_json(path)
    name = _check_algorithm(algorithm, given, path)
    defaults = rllib_defaults()[name]
    imported = Imported(f"RLlib: {name}, {path.name}")
    config = RLlibConfig(given, {**defaults, **given}, defaults, imported)
    for key in _SILENT:
        config.values.pop(key, None)
    take_blocks(config, name, env, path)
    config.leave_out_others(_HINTS)
    return imported


def _read_json(path: Path) -> dict[str, Any]:
    """Return the values by the names of RLlib 2.60; numbers that are out of range for all fields stay strings."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"), parse_constant=str, parse_float=_finite, parse_int=_short)
    except (OSError, ValueError, RecursionError) as error:
        expected = "JSON written by json.dump(config.to_dict(), file, default=str)"
        raise UserError(Problem(f"the file cannot be read: {error}", str(path), None, expected)) from error
    if not isinstance(given, dict) or not given:
        raise UserError(Problem("the file is not a configuration", str(path), None, "a JSON object"))
    return rename(given)


def _finite(text: str) -> float | str:
    return float(text) if math.isfinite(float(text)) else text


def _short(text: str) -> int | str:
    return int(text) if len(text) < _MOST_DIGITS else text


def _check_algorithm(algorithm: str | None, given: Mapping[str, Any], path: Path) -> str:
    """Return the algorithm's name in RLlib's spelling."""
    fitting = _fitting_algorithms(given)
    expected, fix = ", ".join(ALGORITHMS), "name the algorithm with --algorithm"
    nearest = f"{' or '.join(fitting)}, according to the file's keys" if fitting else None
    if algorithm is None:
        what = "RLlib's configuration does not name its algorithm"
        raise UserError(Problem(what, str(path), None, expected, nearest, fix))
    names = {name.lower(): name for name in rllib_defaults() if name != "DefaultModelConfig"}
    name = names.get(algorithm.lower(), algorithm)
    if name not in ALGORITHMS:
        what, near = (
            f"runner does not have a counterpart of {name}",
            None if name in names.values() else nearest_match(name, ALGORITHMS),
        )
        raise UserError(Problem(what, str(path), f"--algorithm {algorithm}", expected, near))
    if fitting and name not in fitting:
        what = f"the file is not a configuration of {name}"
        raise UserError(Problem(what, str(path), f"--algorithm {algorithm}", expected, nearest))
    return name


def _fitting_algorithms(given: Mapping[str, Any]) -> list[str]:
    """Return the algorithms whose specific keys are all in the configuration, with the largest number of keys."""
    fitting = {name: own_keys(name) for name in rllib_defaults() if name != "DefaultModelConfig"}
    fitting = {name: own for name, own in fitting.items() if own <= given.keys()}
    most = max(map(len, fitting.values()), default=0)
    return [name for name, own in fitting.items() if len(own) == most]
