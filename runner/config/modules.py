"""Rules of the `module` block: class, memory, filters, and options of modules with one Q per action."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config.algorithms import AlgorithmConfig, APPOConfig, DQNConfig, SACConfig, TQCConfig
from runner.config.checks import valid_fields
from runner.config.errors import Problem, show_value
from runner.config.operators import AsyncGradientsConfig, ComputeGradientsConfig
from runner.config.plans.steps import read_plan, steps_of
from runner.config.schemas import ExperimentConfig, ModuleConfig
from runner.config.targets import MODULES, find_target_problems


def find_module_problems(module: ModuleConfig) -> Iterator[Problem]:
    """Yield problems of the class of the module, its memory and its filters."""
    yield from find_target_problems("module._target_", module._target_, kinds=MODULES)
    if module.use_lstm and module.use_gru:
        what = "module.use_lstm and module.use_gru are both true"
        yield Problem(what, "module.use_gru", "true and true", "only one of them")
    key = "module.conv_filters"
    for number, conv_filter in enumerate(module.conv_filters or ()):
        if len(conv_filter) != 3 or min(conv_filter) < 1:
            expected = "[out_channels, kernel, stride], integers >= 1"
            yield Problem(f"{key}[{number}] is not a valid filter", key, show_value(conv_filter), expected)


def find_q_problems(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield options of modules that contradict each other, or that the algorithm does not support."""
    of_modules = {
        f"multi_agent.modules.{id_}": (
            _with_overrides(config.module_defaults_of(id_), values),
            config.algorithm_of(id_),
        )
        for id_, values in config.multi_agent.modules.items()
        if values
    }
    for key, (module, algorithm) in {"module": (config.module, config.algorithm), **of_modules}.items():
        for name, what, got, expected in (
            *_find_unlearned(module, algorithm),
            *_find_contradictions(module, algorithm),
        ):
            yield Problem(f"{key}.{name}: {what}", f"{key}.{name}", got, expected)
        if module.critic_use_batchnorm:
            yield from _find_split_updates(f"{key}.critic_use_batchnorm", config, algorithm)
        if module.use_sde and config.env.is_external:
            what = f"{key}.use_sde: noise cannot be kept for several steps of external simulators"
            yield Problem(what, f"{key}.use_sde", "true", "false, or env.port=null")
        if module.vf_normalization != "none":
            yield from _find_unnormalized(f"{key}.vf_normalization", module.vf_normalization, config, algorithm)
        if algorithm.reset_interval is not None and module.load_state_path is not None:
            what = "algorithm.reset_interval would discard the parameters of module.load_state_path"
            got, expected = show_value(algorithm.reset_interval), "null, or module.load_state_path=null"
            yield Problem(what, "algorithm.reset_interval", got, expected)


def _find_split_updates(key: str, config: ExperimentConfig, algorithm: AlgorithmConfig) -> Iterator[Problem]:
    """Yield options that split the rows of an update, whose statistics batch renormalisation needs."""
    what = f"{key}: batch renormalisation needs all rows of an update together"
    if config.learners.num_learners > 1:
        yield Problem(what, "learners.num_learners", f"learners.num_learners={config.learners.num_learners}", "1")
    if algorithm.microbatch_size is not None:
        got = f"algorithm.microbatch_size={algorithm.microbatch_size}"
        yield Problem(what, "algorithm.microbatch_size", got, "null")


_GRADIENTS = (AsyncGradientsConfig, ComputeGradientsConfig)


def _find_unnormalized(key: str, kind: str, config: ExperimentConfig, algorithm: AlgorithmConfig) -> Iterator[Problem]:
    """Yield options that would give learners different scales, or compute values outside of the module."""
    if kind == "popart" and isinstance(algorithm, APPOConfig):
        what = f"{key}: popart does not work with APPO, whose target network has another scale"
        yield Problem(what, key, kind, "none or symlog")
    if kind == "popart" and config.learners.num_learners > 1:
        what = f"{key}: popart does not work with several learners, each of which would have its own scale"
        got = f"learners.num_learners={config.learners.num_learners}"
        yield Problem(what, "learners.num_learners", got, "1, or symlog")
    steps = steps_of(read_plan(config.algorithm.plan))
    if kind == "popart" and any(isinstance(step.config, _GRADIENTS) for step in steps):
        what = f"{key}: popart does not work with plans that compute gradients before an update"
        yield Problem(what, "algorithm.plan", expected="TrainOneStep, or module.vf_normalization=symlog")
    if config.multi_agent.multi_rl_module is not None:
        what = f"{key} does not work with multi_agent.multi_rl_module, which may compute the values"
        yield Problem(what, key, kind, "none")


# Option -> algorithms that support other values than its default.
_LEARNED_BY_SOME: Mapping[str, str] = {
    "q_distribution": "dqn or tqc",
    "noisy": "dqn",
    "critic_dropout": "sac, tqc or sac_discrete",
    "critic_use_batchnorm": "crossq",
    "vf_normalization": "ppo",
}
# Built-in modules whose policies and action distributions are fixed, and options that they do not read.
_Q_MODULES = (
    *("runner.modules.QModule", "runner.modules.DoubleQModule", "runner.modules.MixedQModule"),
    *("runner.modules.SACModule", "runner.modules.DiscreteSACModule", "runner.modules.CrossQModule"),
    "runner.modules.TD3Module",
)
_OF_ACTOR_CRITICS = ("action_distribution", "free_log_std", "use_sde")
# Name of the option, problem, got, expected.
_Fault = tuple[str, str, str, str]


def _find_set(module: ModuleConfig, names: Sequence[str], what: str, otherwise: str = "") -> Iterator[_Fault]:
    """Yield the options that differ from their defaults; `otherwise` would allow that."""
    defaults = ModuleConfig()
    for name in names:
        value, default = getattr(module, name), getattr(defaults, name)
        if value != default:
            yield name, what, show_value(value), show_value(default) + (otherwise and f", or {otherwise}")


def _find_unlearned(module: ModuleConfig, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    for name, algorithms in _LEARNED_BY_SOME.items():
        if name not in algorithm.module_options:
            what = f"{algorithm.loss.rpartition('.')[2]} does not support it"
            yield from _find_set(module, [name], what, f"algorithm={algorithms}")


def _find_contradictions(module: ModuleConfig, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    if module._target_ in _Q_MODULES:
        yield from _find_set(module, _OF_ACTOR_CRITICS, f"{module._target_.rpartition('.')[2]} does not support it")
    yield from _find_in_value_distribution(module)
    if module.action_distribution == "beta" and module.free_log_std:
        what = "module.action_distribution=beta does not have a standard deviation"
        yield "free_log_std", what, "true", "false, or module.action_distribution=gaussian"
    if module.use_sde and (module.action_distribution == "beta" or module.free_log_std):
        what = "gSDE sets the standard deviation of Gaussian actions"
        expected = "false, or module.action_distribution=gaussian module.free_log_std=false"
        yield "use_sde", what, "true", expected
    if not module.use_sde:
        yield from _find_set(module, ["sde_sample_freq"], "it has no effect with module.use_sde=false")
    if not (module.free_log_std or module.use_sde):
        what = "it has no effect with module.free_log_std=false"
        yield from _find_set(module, ["initial_log_std"], what, "module.free_log_std=true")
    yield from _find_in_residual_blocks(module)
    yield from _find_in_ensembles(module, algorithm)
    yield from _find_in_dqn(module.q_distribution, algorithm)


def _find_in_dqn(kind: str, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    if kind == "none" or not isinstance(algorithm, DQNConfig):
        return
    if algorithm.td_error_loss_fn == "mse":
        what = "algorithm.td_error_loss_fn=mse does not work with distributions of returns"
        yield "q_distribution", what, kind, "none, or algorithm.td_error_loss_fn=huber"
    if algorithm.value_rescaling:
        what = "algorithm.value_rescaling=true does not work with distributions of returns"
        yield "q_distribution", what, kind, "none, or algorithm.value_rescaling=false"


def _find_in_value_distribution(module: ModuleConfig) -> Iterator[_Fault]:
    kind, v_min, v_max = module.q_distribution, module.v_min, module.v_max
    if kind != "none" and module.num_atoms < 2:
        what = f"a {kind} distribution needs several"
        yield "num_atoms", what, show_value(module.num_atoms), ">= 2, for example 51"
    if kind == "none" and module.num_atoms > 1:
        what = "module.q_distribution=none has one number per action"
        yield (
            "num_atoms",
            what,
            show_value(module.num_atoms),
            "1, or module.q_distribution=categorical, quantile or implicit_quantile",
        )
    if kind == "implicit_quantile" and module.noisy:
        yield "noisy", "module.q_distribution=implicit_quantile does not support it", "true", "false"
    if kind == "categorical" and (v_min is None or v_max is None or v_min >= v_max):
        what = "a categorical distribution needs module.v_min < module.v_max"
        yield "v_min", what, f"v_min {show_value(v_min)}, v_max {show_value(v_max)}", "numbers with v_min < v_max"
    if kind != "categorical":
        what = f"it has no effect with module.q_distribution={kind}"
        yield from _find_set(module, ["v_min", "v_max"], what, "module.q_distribution=categorical")


# Options that residual blocks do not support.
_UNUSED_IN_SIMBA = ("fcnet_use_layernorm", "critic_use_layernorm", "critic_use_batchnorm", "critic_dropout")
_UNUSED_IN_BLOCKS: Mapping[str, Sequence[str]] = {
    "simba": _UNUSED_IN_SIMBA,
    "simba_v2": (*_UNUSED_IN_SIMBA, "fcnet_bias_initializer"),
}


def _find_in_residual_blocks(module: ModuleConfig) -> Iterator[_Fault]:
    if module.architecture in _UNUSED_IN_BLOCKS:
        if len(set(module.fcnet_hiddens)) != 1:
            what = f"module.architecture={module.architecture} needs one width for all residual blocks"
            expected = "for example [256, 256] for two blocks of width 256"
            yield "fcnet_hiddens", what, show_value(module.fcnet_hiddens), expected
        what = f"residual blocks (module.architecture={module.architecture}) do not support it"
        yield from _find_set(module, _UNUSED_IN_BLOCKS[module.architecture], what)
    elif module.critic_use_batchnorm and module.critic_use_layernorm:
        what = "it has no effect with module.critic_use_batchnorm=true"
        yield "critic_use_layernorm", what, "true", "false"


def _find_in_ensembles(module: ModuleConfig, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    if isinstance(algorithm, SACConfig):
        num_drawn = algorithm.num_target_critics
        if num_drawn is not None and num_drawn > module.num_critics:
            what = f"it must not be less than algorithm.num_target_critics={num_drawn}"
            yield "num_critics", what, show_value(module.num_critics), f">= {num_drawn}"
    if isinstance(algorithm, TQCConfig):
        num_dropped = algorithm.top_quantiles_to_drop_per_net
        if module.q_distribution != "quantile":
            yield "q_distribution", "TQC learns quantiles", module.q_distribution, "quantile, as in module=tqc"
        elif num_dropped >= module.num_atoms:
            what = f"algorithm.top_quantiles_to_drop_per_net={num_dropped} would drop all quantiles"
            yield "num_atoms", what, show_value(module.num_atoms), f">= {num_dropped + 1}"


def _with_overrides(module: ModuleConfig, values: Mapping[str, Any]) -> ModuleConfig:
    """Return the block with the valid overrides; another check reports the invalid ones."""
    return dataclasses.replace(module, **valid_fields(ModuleConfig, values))
