"""The interface of an algorithm's loss for a learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.config.algorithms import AlgorithmConfig, LossMetrics, TargetNetworksConfig
from runner.config.errors import Problem
from runner.modules.rl_module import RLModule
from runner.state import DeclaredState


class Loss(DeclaredState):
    """Base of losses, whose only constructor argument is the algorithm's configuration.

    Attributes:
        reads: columns of the batch that the loss or the module needs.
        sequences: columns that the loss gives to a module with memory as its `inputs`, besides these; they reach it in
            sequences, too. With none it learns with memory only if `new_obs` is not among `reads`.
        needs: outputs of `forward_train`, methods and attributes of the module that not every RLModule has.
        made_for: the option of `conf/module` that has them, for messages.
        varying: attributes, floats, that change from update to update: coefficients that follow a schedule or adapt.
            Where the loss is compiled they are 0-d tensors, so that no branch may depend on them.
        frozen_groups: optimisers that skip the next gradient step, as a delayed policy's does: their parameters and
            moments stay as they are.
    """

    reads: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    made_for: str | None = None
    varying: tuple[str, ...] = ()
    frozen_groups: tuple[str, ...] = ()

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """Compute the metrics of one minibatch as 0-d tensors, and as (B, ...) what `rows` of their record names.

        `total_loss`, a mean over rows, is minimised.
        With several optimisers return `losses`, one for each; or a sum of which each term reaches the parameters of one
        optimiser only. Unless
        `is_reporting`, fields that are no part of `total_loss` may be None, to save their computation.
        """
        raise NotImplementedError(f"{type(self).__name__} has no __call__")

    def use_stream(self, stream: np.random.Generator) -> None:
        """Take the random stream that this loss draws from; the learner saves and restores it.

        Keep the stream itself: checkpoints do not include generators that the loss makes of it.
        """

    def draw_noise(self, module: RLModule, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw what is random in the loss of a minibatch: column -> values that its batch has besides `columns`."""
        return {}

    def before_update(self, num_env_steps: int) -> None:
        """Prepare for an update after so many env steps."""

    def after_step(self, module: RLModule, num_rows: int) -> None:
        """Follow up a gradient step on so many rows, for example by counting it."""

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of this update to report; the configuration's `coefficients` names them."""
        return {}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Adapt to what the update reported."""

    @property
    def draws(self) -> bool:
        """Whether it uses its random stream."""
        return type(self).use_stream is not Loss.use_stream

    @property
    def adapts(self) -> bool:
        """Whether what it computes depends on the updates before: env runners, which make none, cannot compute it."""
        return bool(self.get_state())


def with_noise(columns: dict[str, Any], loss: Loss, module: RLModule) -> dict[str, Any]:
    """Return the columns of a minibatch with what is random in its loss."""
    noise = loss.draw_noise(module, columns)
    return columns | noise if noise else columns


def find_misfit(loss: type[Loss], module: RLModule, algorithm: AlgorithmConfig) -> Problem | None:
    """Find what the loss or the optimisers of an algorithm need and the module lacks."""
    name, groups = type(module).__name__, list(module.parameter_groups())
    lacking = [need for need in loss.needs if need not in module.train_outputs and not hasattr(module, need)]
    hint = f"{loss.made_for}, or your own class" if loss.made_for else "a module"
    if lacking:
        what = f"{loss.__name__} needs {', '.join(lacking)} of the module, and {name} has none"
        return Problem(what, "algorithm.loss, module._target_", name, f"{hint} with {', '.join(loss.needs)}")
    if module.is_stateful and "new_obs" in loss.reads and not loss.sequences:
        what = f"{loss.__name__} reads single steps, and {name} has memory"
        return Problem(what, "algorithm.loss, module._target_", name, "module.use_lstm=false module.use_gru=false")
    if isinstance(algorithm, TargetNetworksConfig) and not module.target_networks():
        what = f"{loss.__name__} learns from target networks, and {name} has none"
        return Problem(what, "algorithm.loss, module._target_", name, f"{hint} that gives `target_networks`")
    optimizers = list(algorithm.optimizers)
    if len(optimizers) > 1 and sorted(groups) != sorted(optimizers):
        what = f"the optimisers of {loss.__name__} step other parameter groups than {name} has"
        return Problem(
            what, "algorithm.loss, module._target_", ", ".join(groups), f"{hint} with {', '.join(optimizers)}"
        )
    return None
