"""The learner: computes gradients of a loss on train batches of one module, and applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.algorithms import AlgorithmConfig
from runner.learners.collective import Collective, SingleProcess
from runner.learners.gradients import ModuleGradient
from runner.learners.loss import Loss, with_noise
from runner.learners.loss_checks import ComputeLoss, checked_once
from runner.learners.minibatch_loop import LearnerUpdate as LearnerUpdate
from runner.learners.minibatch_loop import MinibatchLoop, Record, weighted_sums
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.per_row_metrics import PerRowMetrics
from runner.modules.rl_module import RLModule


class Learner:
    """Updates one module.

    Args:
        module: on the learner's device.
        loss: of the algorithm.
        config: learning rate, epochs, minibatches, clipping.
        stream: shuffles rows.
        collective: learners that update the same module on other rows; None: there are none.
        loss_stream: for the random numbers of the loss, saved with the learner; None: the loss has one already.

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
        self.module = module
        self.loss = loss
        self._collective: Collective = collective or SingleProcess()
        self._updater = ParameterUpdater(module, config)
        self._update = MinibatchLoop(module, loss, config, stream, self.device, self._collective, loss_stream)
        checked_once(loss, config, self._use)

    def _use(self, compute_loss: ComputeLoss) -> None:
        """Compute the loss by this from now on."""
        self._compute_loss = compute_loss

    # -- updates -------------------------------------------------------------------------------------------------------

    def update(self, batch: Mapping[str, Any], num_env_steps: int) -> LearnerUpdate:
        """Update the module in `num_epochs` passes over the batch.

        Args:
            batch: column -> (B, ...) tensor on the module's device, nested where the space is; for a module with
                memory (S, L, ...), zero-padded sequences. Rows whose `loss_mask` is false take no part.
            num_env_steps: env steps sampled so far, for schedules.

        Raises:
            LossNotFinite: a loss is not finite. The parameters are then unusable; go on from a checkpoint.
        """
        lrs = self._updater.learning_rates(num_env_steps)
        self.loss.before_update(num_env_steps)
        records: list[Record] = []
        rows = self._update.new_rows()
        for minibatch in self._update.minibatches.of_update(batch):  # of all epochs
            records.append(self._step(minibatch, lrs, rows))
            self._update.end_step(minibatch.num_rows_of_all)
        means = self._update.means(records, self._updater.lr_fields)
        metrics = self._update.end(means, self._updater.metrics(lrs), len(records))
        return LearnerUpdate(metrics, rows)

    def gradients(self, batch: Mapping[str, Any], num_env_steps: int) -> ModuleGradient:
        """Compute the gradient of all rows with a loss at once; no parameter changes.

        With peers it is the mean over all of them, while rows and their number are those of this learner.

        Args:
            batch, num_env_steps: as in `update`.

        Raises:
            LossNotFinite: the loss is not finite.
        """
        self.loss.before_update(num_env_steps)
        rows = self._update.new_rows()
        minibatch = self._update.minibatches.whole(batch)
        gradient = self._updater.gradient
        if minibatch is None:
            return ModuleGradient(np.zeros(len(gradient), np.float32), {}, {}, 0)
        metrics = self._update.means([self._backward(minibatch, rows)], self._updater.lr_fields)
        return ModuleGradient(gradient.cpu().numpy().copy(), metrics, rows.in_order(), minibatch.num_rows)

    def apply(self, gradients: ModuleGradient, num_env_steps: int) -> dict[str, float]:
        """Take one step along a gradient of `gradients`, clipped; returns the metrics of this update.

        With peers all of them apply the same gradient.

        Raises:
            ValueError: the gradient is of another network.
            LossNotFinite: the gradient is not finite. The parameters are then unusable.
        """
        lrs = self._updater.learning_rates(num_env_steps)
        self.loss.before_update(num_env_steps)
        self._updater.gradient.zero_()
        self._updater.add(gradients)
        norms = self._updater.step(lrs, self.loss.frozen_groups)
        self._update.end_step(gradients.num_rows)
        reported = {**gradients.metrics, **self._update.means([norms], self._updater.lr_fields)}
        return self._update.end(reported, self._updater.metrics(lrs), 1)

    def update_targets(self, tau: float) -> None:
        """Let the module's targets follow: target <- target + tau (network - target)."""
        self.module.update_targets(tau)

    def _step(self, minibatch: Minibatch, lrs: Sequence[float], rows: PerRowMetrics) -> Record:
        """Take a step along the gradient of a minibatch; returns the metrics, with the norms before clipping."""
        return self._backward(minibatch, rows) | self._updater.step(lrs, self.loss.frozen_groups)

    def _backward(self, minibatch: Minibatch, rows: PerRowMetrics) -> Record:
        """Compute the gradient of a minibatch, the mean over the peers; returns the metrics."""
        self._updater.gradient.zero_()
        records: list[tuple[Record, float]] = []
        for columns, share in minibatch.microbatches():
            metrics = self._compute_loss(
                self.module, with_noise(columns, self.loss, self.module), minibatch.is_last_epoch
            )
            if metrics.losses is None:
                loss = metrics.total_loss if share == 1.0 else share * metrics.total_loss
                self._updater.backward(loss)
            else:
                self._updater.backward_each({name: share * loss for name, loss in metrics.losses.items()})
            records.append((rows.without_rows(metrics.reported(), minibatch), share))
        self._collective.mean(self._updater.gradient)
        return weighted_sums(records)

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return self._updater.device

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return all parameters (P,), for env runners."""
        return self._updater.get_weights()

    def set_weights(self, weights: npt.NDArray[np.float32]) -> None:
        """Take over the parameters (P,) of `get_weights`.

        Raises:
            ValueError: another number of parameters.
        """
        self._updater.set_weights(weights)

    def get_state(self) -> dict[str, Any]:
        """Return parameters, optimiser, rows since the targets' last update, loss and random streams."""
        return {**self._updater.get_state(), **self._update.get_state(), **self.get_unshared_state()}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: loss and random streams."""
        return self._update.get_unshared_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`.

        Raises:
            ConfigError: the parameters are of another network.
        """
        self._updater.set_state(state)
        self._update.set_state(state)
