"""A learner of one module, for tests of losses and modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.algorithms import AlgorithmConfig
from runner.learners.gradients import GroupGradients, ModuleGradient
from runner.learners.learner import Learner
from runner.learners.loss import Loss
from runner.learners.train_batch import TrainBatch
from runner.learners.trained_module import TrainedModule
from runner.learners.trained_network import TrainedNetwork
from runner.modules.rl_module import RLModule

_ID = "default_policy"


@dataclass(frozen=True)
class ModuleUpdate:
    """Result of an update of one module: metrics, per-row values by name, and seconds of compiling."""

    metrics: dict[str, float]
    rows: dict[str, npt.NDArray[Any]]
    compile_s: float


class ModuleLearner:
    """A `Learner` of one module that takes the columns of a train batch directly.

    Args:
        module: module on its device.
        loss: loss of the algorithm.
        config: learning rate, epochs, minibatches, clipping.
        stream: random stream for shuffling rows.
        loss_stream: random stream of the loss, or None if the loss already has one.
        is_compiled: whether updates use compiled code.
    """

    def __init__(
        self,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        loss_stream: np.random.Generator | None = None,
        is_compiled: bool = False,
    ) -> None:
        self.module, self.loss = module, loss
        self.trained = TrainedModule(_ID, module, loss, config, stream, loss_stream)
        self.network = TrainedNetwork(module, [self.trained], config, is_compiled=is_compiled)
        self.learner = Learner({_ID: self.network}, {}, [_ID])

    def update(self, batch: Mapping[str, Any], num_env_steps: int) -> ModuleUpdate:
        """Update on columns (B, ...), or (S, L, ...) for a stateful module. See `Learner.update`."""
        done = self.learner.update(TrainBatch({_ID: dict(batch)}), num_env_steps)
        return ModuleUpdate(done.metrics.get(_ID, {}), done.rows.get(_ID, {}), done.compile_s)

    def gradients(self, batch: Mapping[str, Any], num_env_steps: int) -> ModuleGradient:
        """Compute the gradient of columns with at least one row; see `Learner.gradients`."""
        return self.learner.gradients(TrainBatch({_ID: dict(batch)}), num_env_steps).modules[_ID]

    def apply(self, gradient: ModuleGradient, num_env_steps: int) -> dict[str, float]:
        """Take a step; see `Learner.apply`."""
        return self.learner.apply(GroupGradients({_ID: gradient}), num_env_steps)[_ID]

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return the parameters (P,)."""
        return self.learner.get_weights()[_ID]

    def get_state(self) -> dict[str, Any]:
        """Return the state of the learner."""
        return self.learner.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.learner.set_state(state)
