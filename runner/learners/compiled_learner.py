"""A learner whose loss, gradient and clipping are one compiled function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.compat.libraries import LibraryChangedError
from runner.config.algorithms import AlgorithmConfig
from runner.config.errors import ConfigError, Problem
from runner.learners.collective import Collective
from runner.learners.learner import Learner
from runner.learners.loss import Loss
from runner.learners.minibatch_loop import LearnerUpdate, Record
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.per_row_metrics import PerRowMetrics
from runner.modules.rl_module import RLModule

if TYPE_CHECKING:
    from runner.learners.compiled_gradient import CompiledGradient


class CompiledLearner(Learner):
    """Updates one module like `Learner`, with gradients from one compiled function.

    Args:
        module, loss, config, stream, collective, loss_stream: see `Learner`.

    Raises:
        ConfigError: the module cannot be compiled.
    """

    def __init__(
        self,
        module: RLModule,
        loss: Loss,
        config: AlgorithmConfig,
        stream: np.random.Generator,
        collective: Collective | None = None,
        loss_stream: np.random.Generator | None = None,
    ) -> None:
        super().__init__(module, loss, config, stream, collective, loss_stream)
        self._compiled = _compiled_gradient(module, loss, self._updater, self._collective)
        self._cut = [config.train_batch_size_per_learner, config.minibatch_size]

    def update(self, batch: Mapping[str, Any], num_env_steps: int) -> LearnerUpdate:
        """Update the module like `Learner.update`, and measure the seconds of compiling."""
        compile_s = self._compiled.compile_s
        update = super().update(batch, num_env_steps)
        return replace(update, compile_s=self._compiled.compile_s - compile_s)

    def _step(self, minibatch: Minibatch, lrs: Sequence[float], rows: PerRowMetrics) -> Record:
        if not self._compiled.takes(minibatch):
            return super()._step(minibatch, lrs, rows)
        record, norms = self._compiled(minibatch)
        return rows.without_rows(record, minibatch) | self._updater.move(lrs, norms, self.loss.frozen_groups)

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: loss, random streams, and sizes that are compiled."""
        return {**super().get_unshared_state(), "compiled": {"of": self._cut, "sizes": list(self._compiled.sizes)}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`, also of a learner that is not compiled.

        Raises:
            ConfigError: the parameters belong to another network.
        """
        super().set_state(state)
        compiled = state.get("compiled", {})  # another cut gives other sizes
        self._compiled.sizes = list(compiled["sizes"]) if compiled and compiled["of"] == self._cut else []


def _compiled_gradient(
    module: RLModule, loss: Loss, updater: ParameterUpdater, collective: Collective
) -> CompiledGradient:
    try:
        from runner.learners.compiled_gradient import CompiledGradient  # imports torch's compilers, which takes seconds
    except LibraryChangedError as error:
        raise ConfigError([Problem(str(error), "learners.compile", allowed="learners.compile=false")]) from error
    return CompiledGradient(module, loss, updater, collective)
