"""Optimisers of a module's parameters, made from the configuration.

Dimension letters: P parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.optimizer import OptimizerConfig
from runner.fast.flat_adam import FlatAdam
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule

_CLASSES = {
    "adamw": torch.optim.AdamW,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


class TorchOptimizer:
    """Adapter of a torch optimiser for learners."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self, *lrs: float | None) -> None:
        """Take a step along the gradient, with a learning rate for each group, or None to skip the group."""
        frozen_groups: list[tuple[nn.Parameter, Tensor | None]] = []
        for group, lr in zip(self._optimizer.param_groups, lrs, strict=True):
            if lr is None:
                frozen_groups += [(parameter, parameter.grad) for parameter in group["params"]]
            else:
                group["lr"] = lr
        for parameter, _ in frozen_groups:
            parameter.grad = None  # torch's optimisers skip parameters without a gradient
        self._optimizer.step()
        for parameter, gradient in frozen_groups:
            parameter.grad = gradient

    def get_state(self) -> dict[str, Any]:
        """Return index of the parameter -> name -> value, copied; hyperparameters come from the configuration."""
        state: dict[int, Mapping[str, Any]] = self._optimizer.state_dict()["state"]
        return {
            str(number): {name: _copied(value) for name, value in values.items() if value is not None}
            for number, values in state.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        values = {
            int(number): {name: _as_state(value) for name, value in of_one.items()} for number, of_one in state.items()
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": values, "param_groups": groups})


def make_optimizer(
    config: OptimizerConfig, weights: FlatParameters, module: RLModule | MultiRLModule, groups: Sequence[str] | None
) -> FlatAdam | TorchOptimizer:
    """Make the optimiser of the configuration.

    Adam is a single kernel on the flat parameters. adamw, rmsprop and sgd, which treat all parameters equally, are
    torch's optimisers on slices of the flat parameters. A custom class gets the module's parameters in their shapes,
    since it may depend on them.

    Args:
        config: configuration with the options of the optimiser.
        weights: flat parameters of the module.
        module: module whose parameters are views of `weights`.
        groups: parameter groups with separate learning rates, or None for one group.

    Raises:
        ConfigError: the class cannot be created, or is not an optimiser that steps along given gradients.
    """
    parts = [slice(None)] if groups is None else [weights.groups[name] for name in groups]
    options: dict[str, Any] = {_TORCH_NAMES.get(name, name): value for name, value in config.given_options().items()}
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    if config._target_ is not None:
        named = module.parameter_groups()
        all_of = [parameter for group in named.values() for parameter in group]
        return TorchOptimizer(_made(config, [all_of] if groups is None else [named[name] for name in groups]))
    if config.name == "adam":
        return FlatAdam(weights.parameter, parts, **options)
    vectors = [{"params": [_part(weights, part)]} for part in parts]
    return TorchOptimizer(_CLASSES[config.name](vectors, lr=0.0, **options))


_TORCH_NAMES = {"epsilon": "eps"}


def _part(weights: FlatParameters, part: slice) -> nn.Parameter:
    """Return a slice of the parameters as a leaf whose gradient is the corresponding slice of their gradient."""
    vector = nn.Parameter(weights.parameter.detach()[part])
    vector.grad = weights.gradient[part]
    return vector


def _made(config: OptimizerConfig, groups: Sequence[Sequence[nn.Parameter]]) -> torch.optim.Optimizer:
    optimizer_class = import_target(str(config._target_), "algorithm.optimizer._target_", torch.optim.Optimizer)
    needs_closure = inspect.signature(optimizer_class.step).parameters.get("closure")
    if needs_closure is not None and needs_closure.default is inspect.Parameter.empty:
        what = f"{config._target_} evaluates the loss several times per step, but a learner computes a single gradient"
        raise ConfigError(
            [Problem(what, "algorithm.optimizer._target_", fix="use another optimiser, for example torch.optim.RAdam")]
        )
    arguments = with_callables(config.arguments, "algorithm.optimizer.arguments")
    try:
        optimizer: torch.optim.Optimizer
        optimizer = optimizer_class([{"params": group} for group in groups], lr=0.0, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"{config._target_} cannot be created: {error}"
        raise ConfigError([Problem(what, "algorithm.optimizer.arguments", str(config.arguments))]) from error
    return optimizer


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _as_state(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str)) else torch.as_tensor(value).clone()
