"""The network of an RLlib configuration: `model_config` of the new API stack, or `model` of the old one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from runner.config.schemas import ModuleConfig
from runner.importing.python_text import read_python
from runner.importing.rllib_algorithms import Counterpart
from runner.importing.rllib_config import RLlibConfig, rllib_defaults

_NEW, _SPEC = "_model_config", "_rl_module_spec"
# Old key -> new one.
_RENAMED = {"post_fcnet_hiddens": "head_fcnet_hiddens", "post_fcnet_activation": "head_fcnet_activation"}
_ACTIVATIONS = ("fcnet_activation", "head_fcnet_activation", "conv_activation")


def take_module(config: RLlibConfig, counterpart: Counterpart) -> None:
    """Take over the module's block."""
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
        config.imported.missing[f"{prefix}.padding"] = "RLlib pads images before convolutions, runner does not"
    if counterpart.module != "mlp":  # these have no value function beside their Q functions, or share no layers
        del model["vf_share_layers"]
    fields = ModuleConfig.__dataclass_fields__
    for name, value in model.items():
        key, default = f"{prefix}.{name}", defaults.get(name)
        if name in defaults and name in fields:
            config.write("module", ModuleConfig, name, value, key, default, is_needed=name == "fcnet_activation")
        elif value != default:
            why = "" if name in defaults else "arguments of a module class of your own go into module.model_config"
            config.leave_out(key, value, why)
    if counterpart.learns_from == "replay" and model["use_lstm"] is True:
        buffer = config.imported.values["algorithm"]["replay_buffers"]["replay"]
        buffer["batch_length_T"] = config.imported.values["module"].get("max_seq_len", defaults["max_seq_len"])


def _read_new(config: RLlibConfig) -> dict[str, Any]:
    """Return the settings of `model_config`, and of a module spec that has nothing else."""
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
    """Return the settings of `model` by their new names; the ones that have none are left out."""
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
    """Return [channels, kernel, stride] of each convolution, where kernels and strides are squares."""
    if not isinstance(filters, list):
        return filters
    return [[_side(value) for value in item[:3]] if isinstance(item, list) else item for item in filters]


def _side(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value
