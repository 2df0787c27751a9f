"""Interface of an algorithm's loss for a learner."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from runner.config.algorithms import AlgorithmConfig, LossMetrics, TargetNetworksConfig
from runner.config.errors import Problem
from runner.modules.rl_module import RLModule
from runner.state import DeclaredState


class Loss(DeclaredState):
    """Base class of losses. Override `reads` and `__call__`; the other attributes and methods have defaults.

    The only constructor argument is the algorithm's configuration. An update calls `before_update` and `before_epochs`,
    then `draw_noise`, `__call__` and `after_step` for each minibatch, and at the end `coefficients` and `after_update`.
    If a minibatch consists of several microbatches, `draw_noise` and `__call__` are called for each of them.

    Attributes:
        reads: columns of the batch that the loss or the module needs.
        sequences: columns that the loss passes to a stateful module in addition to its `inputs`, also in sequences. If
            empty, stateful modules are supported only if `new_obs` is not among `reads`.
        needs: outputs of `forward_train`, methods and attributes of the module that not every RLModule has.
        made_for: override that selects a module with all of them, such as `module=sac`, which messages suggest.
        varying: float attributes that change from update to update: coefficients that follow a schedule or adapt. In a
            compiled loss they are 0-d tensors, so no branch may depend on them.
        frozen_groups: optimisers that skip the next gradient step, as for a delayed policy: their parameters and
            moments are unchanged.
        limits: metric -> its upper limit. An update ends before a gradient step whose minibatch exceeds it. Every
            minibatch must report these metrics. Losses with limits cannot report values per row.
    """

    reads: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    made_for: str | None = None
    varying: tuple[str, ...] = ()
    frozen_groups: tuple[str, ...] = ()
    limits: Mapping[str, float] = MappingProxyType({})

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """Compute the metrics of one minibatch as 0-d tensors; fields in `rows` of their record have one value per row.

        `total_loss`, a mean over rows, is minimised. With several optimisers, return `losses` with one loss for each,
        or a sum of terms each of which affects the parameters of one optimiser only. If `is_reporting` is false, fields
        that are not part of `total_loss` may be None to save time.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def use_stream(self, stream: np.random.Generator) -> None:
        """Set the random stream that this loss draws from; the learner saves and restores it.

        Keep the stream itself: checkpoints do not include generators derived from it.
        """

    def draw_noise(self, module: RLModule, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the random numbers for a minibatch: column -> values to add to `columns`."""
        return {}

    def before_update(self, num_env_steps: int) -> None:
        """Prepare for an update after `num_env_steps` env steps."""

    def before_epochs(self, module: RLModule, batch: Mapping[str, Any]) -> None:
        """Prepare the module for the passes over a train batch, which contains padding where `loss_mask` is false."""

    def after_step(self, module: RLModule, num_rows: int) -> None:
        """Called after a gradient step on `num_rows` rows, for example to count it."""

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of this update for reporting; the configuration's `coefficients` names them."""
        return {}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Adapt to the metrics of an update."""

    @property
    def draws(self) -> bool:
        """Whether the loss uses its random stream."""
        return type(self).use_stream is not Loss.use_stream

    @property
    def adapts(self) -> bool:
        """Whether the loss depends on earlier updates, so that env runners, which do not perform updates, cannot
        compute it."""
        return bool(self.get_state())


def with_noise(columns: dict[str, Any], loss: Loss, module: RLModule) -> dict[str, Any]:
    """Return the columns of a minibatch, including the random numbers of its loss."""
    noise = loss.draw_noise(module, columns)
    return columns | noise if noise else columns


def find_misfit(loss: type[Loss], module: RLModule, algorithm: AlgorithmConfig) -> Problem | None:
    """Return a problem if the module lacks something that the loss or the optimisers of an algorithm need."""
    name, groups = type(module).__name__, list(module.parameter_groups())
    lacking = [need for need in loss.needs if need not in module.train_outputs and not hasattr(module, need)]
    hint = f"use {loss.made_for}, or a custom class" if loss.made_for else "use a module"
    if lacking:
        what = f"{loss.__name__} needs {', '.join(lacking)}, which {name} does not provide"
        return Problem(what, "algorithm.loss, module._target_", name, fix=f"{hint} with {', '.join(loss.needs)}")
    if module.is_stateful and "new_obs" in loss.reads and not loss.sequences:
        what = f"{loss.__name__} reads single steps, but {name} is stateful"
        return Problem(what, "algorithm.loss, module._target_", name, fix="module.use_lstm=false module.use_gru=false")
    if "is_first" in module.train_inputs and loss.sequences:
        what = f"{loss.__name__} needs sequences of single episodes, but {name} reads is_first"
        return Problem(what, "algorithm.loss, module._target_", name, fix=f"remove is_first from {name}.train_inputs")
    if isinstance(algorithm, TargetNetworksConfig) and not module.target_networks():
        what = f"{loss.__name__} needs target networks, which {name} does not provide"
        return Problem(what, "algorithm.loss, module._target_", name, fix=f"{hint} that defines `target_networks`")
    optimizers = list(algorithm.optimizers)
    if len(optimizers) > 1 and sorted(groups) != sorted(optimizers):
        what = f"the parameter groups of {name} do not match the optimisers of {loss.__name__}"
        fix = f"{hint} with parameter groups {', '.join(optimizers)}"
        return Problem(what, "algorithm.loss, module._target_", ", ".join(groups), fix=fix)
    return None
