"""The learner of modules that share parameters: one step moves all of them.

Dimension letters: P parameters that are learned, all modules together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.algorithms import AlgorithmConfig
from runner.learners.collective import Collective, SingleProcess
from runner.learners.gradients import ModuleGradient
from runner.learners.loss import Loss, with_noise
from runner.learners.loss_checks import ComputeLoss, checked_once
from runner.learners.minibatch_loop import LearnerUpdate, MinibatchLoop, Record, weighted_sums
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater
from runner.learners.per_row_metrics import PerRowMetrics
from runner.modules.multi_rl_module import JointPass, MultiRLModule, member_of

# Module id -> column -> tensor.
TrainBatches = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class ModuleLearning:
    """How one of the modules learns.

    Attributes:
        loss: of the algorithm.
        config: of the algorithm.
        stream: shuffles rows.
        loss_stream: for the random numbers of the loss; None: the loss has one already.
    """

    loss: Loss
    config: AlgorithmConfig
    stream: np.random.Generator
    loss_stream: np.random.Generator | None = None


class SharedParameterLearner:
    """Updates the modules of a `MultiRLModule` together: the k-th minibatches of all modules are one step.

    Its loss is the sum of the modules' losses. A module with fewer minibatches, or without rows, adds no
    gradient to the other steps; the optimiser's moments (Adam's, for example) move its own parameters in them, too.

    Args:
        together: on the learner's device; parameters that no trained module uses are frozen.
        trained: module id -> how it learns, for the modules that are trained.
        config: learning rate, optimiser and clipping of all.
        collective: learners that update the same modules on other rows; None: there are none.
    """

    def __init__(
        self,
        together: MultiRLModule,
        trained: Mapping[str, ModuleLearning],
        config: AlgorithmConfig,
        collective: Collective | None = None,
    ) -> None:
        self.module = together
        self._collective: Collective = collective or SingleProcess()
        self._updater = ParameterUpdater(together, config)
        self._updates = {
            module_id: MinibatchLoop(
                member_of(together, module_id),
                of_one.loss,
                of_one.config,
                of_one.stream,
                self.device,
                self._collective,
                of_one.loss_stream,
            )
            for module_id, of_one in trained.items()
        }
        self._compute_loss: dict[str, ComputeLoss] = {}
        for module_id, of_one in trained.items():
            checked_once(of_one.loss, of_one.config, partial(self._compute_loss.__setitem__, module_id))

    def update(self, batches: TrainBatches, num_env_steps: int) -> dict[str, LearnerUpdate]:
        """Update the modules that have a batch; see `Learner.update`.

        Returns:
            By module id, what the update gave.
        """
        lrs = self._updater.learning_rates(num_env_steps)
        updates = self._begin(batches, num_env_steps)
        records: dict[str, list[Record]] = {module_id: [] for module_id in updates}
        rows = {module_id: update.new_rows() for module_id, update in updates.items()}
        cut = [update.minibatches.of_update(batches[module_id]) for module_id, update in updates.items()]
        for together in zip_longest(*cut):
            minibatches = {id_: one for id_, one in zip(updates, together, strict=True) if one is not None}
            by_module = self._backward(minibatches, rows)
            norms = self._updater.step(lrs, self._frozen_groups(minibatches))
            for module_id, record in by_module.items():
                updates[module_id].end_step(minibatches[module_id].num_rows_of_all)
                records[module_id].append(record | norms)
        of_steps = self._updater.metrics(lrs)
        ended = {}
        for module_id, update in updates.items():
            means = update.means(records[module_id], self._updater.lr_fields)
            metrics = update.end(means, of_steps, len(records[module_id]))
            ended[module_id] = LearnerUpdate(metrics, rows[module_id])
        return ended

    def gradients(self, batches: TrainBatches, num_env_steps: int) -> dict[str, ModuleGradient]:
        """Compute the gradient of each module's loss for all P parameters; no parameter changes.

        The gradient of the sum of the losses is the sum of these; see `Learner.gradients`.
        """
        found = {}
        for module_id, update in self._begin(batches, num_env_steps).items():
            rows, minibatch = update.new_rows(), update.minibatches.whole(batches[module_id])
            if minibatch is not None:
                record = self._backward({module_id: minibatch}, {module_id: rows})[module_id]
                metrics = update.means([record], self._updater.lr_fields)
                vector = self._updater.gradient.cpu().numpy().copy()
                found[module_id] = ModuleGradient(vector, metrics, rows.in_order(), minibatch.num_rows)
        return found

    def apply(self, gradients: Mapping[str, ModuleGradient], num_env_steps: int) -> dict[str, dict[str, float]]:
        """Take one step along the sum of the modules' gradients, clipped; see `Learner.apply`.

        Returns:
            Metrics by module id.
        """
        lrs = self._updater.learning_rates(num_env_steps)
        updates = self._begin(gradients, num_env_steps)
        if not updates:
            return {}
        self._updater.gradient.zero_()
        for module_id in updates:
            self._updater.add(gradients[module_id])
        norms = self._updater.step(lrs, self._frozen_groups(updates))
        metrics = {}
        for module_id, update in updates.items():
            of_module = gradients[module_id]
            update.end_step(of_module.num_rows)
            reported = {**of_module.metrics, **update.means([norms], self._updater.lr_fields)}
            metrics[module_id] = update.end(reported, self._updater.metrics(lrs), 1)
        return metrics

    def update_targets(self, tau: float) -> None:
        """Let the targets of each module that is trained follow: target <- target + tau (network - target)."""
        for update in self._updates.values():
            update.module.update_targets(tau)

    def _begin(self, module_ids: Iterable[str], num_env_steps: int) -> dict[str, MinibatchLoop]:
        """Prepare the losses of some modules, and return these modules' updates; others are not trained."""
        found = {module_id: update for module_id, update in self._updates.items() if module_id in module_ids}
        for update in found.values():
            update.loss.before_update(num_env_steps)
        return found

    def _frozen_groups(self, module_ids: Iterable[str]) -> list[str]:
        """Return the optimisers that rest for all of these modules: an optimiser moves the parameters of all."""
        of_modules = [self._updates[module_id].loss.frozen_groups for module_id in module_ids]
        return [name for name in of_modules[0] if all(name in others for others in of_modules)] if of_modules else []

    def _backward(self, minibatches: Mapping[str, Minibatch], rows: Mapping[str, PerRowMetrics]) -> dict[str, Record]:
        """Compute the gradient of the sum of losses, the mean over the peers; returns each module's metrics."""
        self._updater.gradient.zero_()
        records: dict[str, list[tuple[Record, float]]] = {module_id: [] for module_id in minibatches}
        for together in zip_longest(*(minibatch.microbatches() for minibatch in minibatches.values())):
            parts = {id_: one for id_, one in zip(minibatches, together, strict=True) if one is not None}
            joint_pass = JointPass(self.module, {module_id: columns for module_id, (columns, _) in parts.items()})
            losses: list[Tensor] = []
            of_optimizers: dict[str, list[Tensor]] = {}
            for module_id, (columns, share) in parts.items():
                module = member_of(self.module, module_id, joint_pass)
                minibatch = minibatches[module_id]
                loss = self._updates[module_id].loss
                columns = with_noise(columns, loss, module)
                metrics = self._compute_loss[module_id](module, columns, minibatch.is_last_epoch)
                if metrics.losses is None:
                    losses.append(share * metrics.total_loss)
                for name, of_one in (metrics.losses or {}).items():
                    of_optimizers.setdefault(name, []).append(share * of_one)
                records[module_id].append((rows[module_id].without_rows(metrics.reported(), minibatch), share))
            sums = {name: torch.stack(of_one).sum() for name, of_one in of_optimizers.items()}
            self._updater.backward_each(sums, keeps_graph=bool(losses))
            if losses:
                self._updater.backward(torch.stack(losses).sum())
        self._collective.mean(self._updater.gradient)
        return {module_id: weighted_sums(of_module) for module_id, of_module in records.items()}

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the modules."""
        return self._updater.device

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return the parameters of all modules as one vector, for env runners."""
        return self._updater.get_weights()

    def set_weights(self, weights: npt.NDArray[np.float32]) -> None:
        """Take over the parameters of `get_weights`; raises `ValueError` for another number of them."""
        self._updater.set_weights(weights)

    def get_state(self) -> dict[str, Any]:
        """Return parameters, optimiser, and the state of each module's update."""
        return {**self._updater.get_state(), **self._by_name(MinibatchLoop.get_state), **self.get_unshared_state()}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: losses and random streams."""
        return self._by_name(MinibatchLoop.get_unshared_state)

    def _by_name(self, get_state: Callable[[MinibatchLoop], dict[str, Any]]) -> dict[str, Any]:
        """Return name -> module id -> value, from the states of the modules."""
        found: dict[str, dict[str, Any]] = {}
        for module_id, update in self._updates.items():
            for name, value in get_state(update).items():
                found.setdefault(name, {})[module_id] = value
        return found

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`; where other modules were trained, with a new optimiser.

        Raises:
            ConfigError: the parameters are of another network.
        """
        self._updater.set_state(state, has_same_parameters=state["loss"].keys() == self._updates.keys())
        by_name = {name: by_id for name, by_id in state.items() if name not in ("module", "optimizer")}
        for module_id, update in self._updates.items():
            if module_id in state["loss"]:
                update.set_state({name: by_id[module_id] for name, by_id in by_name.items() if module_id in by_id})
