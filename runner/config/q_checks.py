"""Checks of the options of modules with a Q for each action: distributions of returns, and noisy layers."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.algorithms import AlgorithmConfig, DQNConfig
from runner.config.checks import check_value
from runner.config.compose import Composed
from runner.config.errors import Problem, show_value
from runner.config.fields import option_of
from runner.config.schemas import ExperimentConfig, ModuleConfig


def find_q_problems(config: ExperimentConfig, composed: Composed) -> Iterator[Problem]:
    """Yield options of modules that contradict each other, or that the algorithm does not learn with."""
    of_modules = {f"multi_agent.modules.{name}": values for name, values in config.multi_agent.modules.items()}
    for key, values in {"module": {}, **of_modules}.items():
        if key == "module" or values:
            module = _with_overrides(config.module, values)
            problems = [*_find_unlearned(module, config.algorithm), *_find_contradictions(module, config.algorithm)]
            for name, what, got, allowed in problems:
                where = composed.where(f"{key}.{name}") or composed.where(f"module.{name}")
                yield Problem(f"{key}.{name}: {what}", where, got, allowed)


# Name of the option, what is wrong, got, allowed.
_Fault = tuple[str, str, str, str]


def _find_unlearned(module: ModuleConfig, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    is_set = {"q_distribution": module.q_distribution != "none", "noisy": module.noisy}
    for name, is_asked in is_set.items():
        if is_asked and name not in algorithm.module_options:
            default = "none" if name == "q_distribution" else "false"
            what = f"{algorithm.loss.rpartition('.')[2]} does not learn with it"
            yield name, what, show_value(getattr(module, name)), f"{default}, or algorithm=dqn"


def _find_contradictions(module: ModuleConfig, algorithm: AlgorithmConfig) -> Iterator[_Fault]:
    kind, v_min, v_max = module.q_distribution, module.v_min, module.v_max
    if kind != "none" and module.num_atoms < 2:
        yield (
            "num_atoms",
            f"a {kind} distribution has several",
            show_value(module.num_atoms),
            "2 or more, for example 51",
        )
    if kind == "none" and module.num_atoms > 1:
        what = "module.q_distribution is none, so that Q is one number"
        yield "num_atoms", what, show_value(module.num_atoms), "1, or module.q_distribution=categorical or quantile"
    if kind == "categorical" and (v_min is None or v_max is None or v_min >= v_max):
        what = "a categorical distribution is of returns from module.v_min to module.v_max"
        yield "v_min", what, f"v_min {show_value(v_min)}, v_max {show_value(v_max)}", "two numbers, v_min < v_max"
    for name, value in {"v_min": v_min, "v_max": v_max}.items():
        if kind != "categorical" and value is not None:
            what = f"only a categorical distribution has bounds, and module.q_distribution is {kind}"
            yield name, what, show_value(value), "null, or module.q_distribution=categorical"
    if module.noisy and (module.use_lstm or module.use_gru):
        yield "noisy", "a module with memory has no noisy layers", "true", "false, or no memory"
    if kind != "none" and isinstance(algorithm, DQNConfig) and algorithm.td_error_loss_fn == "mse":
        what = "algorithm.td_error_loss_fn mse is for a Q that is one number"
        yield "q_distribution", what, kind, "none, or algorithm.td_error_loss_fn=huber"


def _with_overrides(module: ModuleConfig, values: Mapping[str, Any]) -> ModuleConfig:
    """Return the block with the overrides that are valid by themselves; another check tells of the others."""
    annotations = typing.get_type_hints(ModuleConfig)
    valid = {
        field.name: values[field.name]
        for field in dataclasses.fields(ModuleConfig)
        if field.name in values
        and check_value(field.name, values[field.name], annotations[field.name], option_of(field), None) is None
    }
    return dataclasses.replace(module, **valid)
