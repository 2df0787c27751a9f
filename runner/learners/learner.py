"""The learner: updates the modules of a run on sampled or recorded data."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.errors import ConfigError, Problem
from runner.config.operators import LEARNERS
from runner.episodes.columns import Rollout
from runner.learners.collective import Collective
from runner.learners.eager_gradient import zip_by_key
from runner.learners.gradients import GroupGradients, ModuleGradient
from runner.learners.loss_failure import LossNotFinite, with_batch
from runner.learners.on_policy_check import OnPolicyConsistencyCheck
from runner.learners.train_batch import MakeReaders, TrainBatch
from runner.learners.trained_module import TrainedModule
from runner.learners.trained_network import TrainedNetwork, in_present_layout
from runner.learners.update_results import RecordedUpdates, UpdateResult
from runner.modules.default_settings import default_settings
from runner.modules.multi_rl_module import members_in
from runner.modules.rl_module import RLModule
from runner.parts import Part
from runner.pipelines.custom_metrics import merge_metrics
from runner.pipelines.pipeline import LearnerConnectorPipeline, taken_metrics


class Learner(Part):
    """Owns networks with their losses and optimisers, and updates them.

    Each module is a separate network, except that modules that share parameters form one network. In a network, the
    k-th minibatches of all modules form one step, along the gradient of the sum of the modules' losses. A module with
    fewer minibatches, or without rows, adds no gradient to the other steps, but the optimiser's moments (Adam's, for
    example) still move its parameters.

    Args:
        networks: module id, or `ALL_MODULES` for modules that share parameters -> network. The keys name the networks
            in weights and states.
        pipelines: module id -> pipeline from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated; the others keep their parameters.
        collective: learners in other processes that update the same modules synchronously, or None.
        consistency_check: check of the first train batch of each module, or None.
        acting: keys of the networks that env runners use, or None if they use all.

    Attributes:
        num_restarts: restarts of crashed learners; 0 in this process.
        num_learners: number of learners in the collective.
    """

    name = LEARNERS
    num_restarts = 0
    _recorded: Generator[TrainBatch, None, None] | None = None

    def __init__(
        self,
        networks: Mapping[str, TrainedNetwork],
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
        collective: Collective | None = None,
        consistency_check: OnPolicyConsistencyCheck | None = None,
        acting: Collection[str] | None = None,
    ) -> None:
        self._networks, self._pipelines = dict(networks), dict(pipelines)
        self._acting = list(networks if acting is None else acting)
        self._modules = members_in({key: one.updater.network for key, one in networks.items()})
        self._modules_to_train = [module_id for module_id in self._modules if module_id in modules_to_train]
        self._collective = collective or Collective()
        self._consistency_check = consistency_check
        self.num_learners = self._collective.num_learners

    # -- updates -------------------------------------------------------------------------------------------------------

    @default_settings()
    def update(self, data: Rollout | TrainBatch, num_env_steps: int) -> UpdateResult:
        """Update each module in `num_epochs` passes over its rows.

        A module without rows is not changed.

        Args:
            data: sampled episodes, which learner pipelines convert to a train batch; or a train batch.
            num_env_steps: env steps of the run so far, for schedules.

        Raises:
            LossNotFinite: a loss is not finite. The parameters are then unusable; continue from a checkpoint.
        """
        started, compiled_s = time.perf_counter(), self._compile_s
        batch, connector_s = self._batch_of(data)
        metrics, rows = {}, {}
        for network, modules in self._begin_updates(batch.columns, num_env_steps):
            learning_rates = network.updater.learning_rates(num_env_steps)
            epochs = {module: module.epochs(batch.columns[module.module_id]) for module in modules}
            for minibatches in zip_by_key(epochs):  # one for each module
                records = network.gradient.compute(minibatches)
                if any(module.is_at_limit(record) for module, record in records.items()):
                    break
                norms = network.gradient.clip()
                norms = network.updater.step(learning_rates, norms, _frozen_groups(minibatches))
                for module, minibatch in minibatches.items():
                    module.end_step(minibatch.num_rows_of_all, records[module] | norms)
                network.end_step()
            for module in modules:
                metrics[module.module_id] = module.end(network.updater.metrics(learning_rates))
                rows[module.module_id] = module.take_rows()
        return UpdateResult(
            _filled(metrics),
            connector_s,
            update_s=time.perf_counter() - started,
            rows=_filled(rows),
            connector_metrics=batch.connector_metrics,
            compile_s=self._compile_s - compiled_s,
        )

    @default_settings()
    def gradients(self, data: Rollout | TrainBatch, num_env_steps: int) -> GroupGradients:
        """Compute one gradient of all rows for each trained module that has rows; parameters do not change.

        With peers, gradients are averaged over all of them, while rows and their number belong to this learner. The
        gradient of a network is the sum of its modules' gradients. Pipelines run, so the states of their connectors
        change.

        Args:
            data, num_env_steps: see `update`.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        batch, connector_s = self._batch_of(data)
        found = {}
        for network, modules in self._begin_updates(batch.columns, num_env_steps):
            for module in modules:
                minibatch = module.minibatches.all_rows(batch.columns[module.module_id])
                if minibatch is None:
                    continue
                metrics = module.means([network.eager.compute({module: minibatch})[module]])
                vector, rows = network.updater.gradient.cpu().numpy().copy(), module.take_rows()
                found[module.module_id] = ModuleGradient(vector, metrics, rows, minibatch.num_rows)
        return GroupGradients(found, connector_s, batch.connector_metrics)

    @default_settings()
    def apply(self, gradients: GroupGradients, num_env_steps: int) -> dict[str, dict[str, float]]:
        """Take one clipped step of each network along the sum of its gradients, after `num_env_steps` env steps.

        With peers, all of them apply the same gradients.

        Returns:
            Metrics by module id: metrics of the gradient, norms before clipping, and learning rates.

        Raises:
            ValueError: the gradient belongs to another network.
            LossNotFinite: the gradient is not finite. The parameters are then unusable.
        """
        self._consistency_check = None  # the modules now differ from the acting modules
        metrics = {}
        for network, modules in self._begin_updates(gradients.modules, num_env_steps):
            updater = network.updater
            learning_rates = updater.learning_rates(num_env_steps)
            updater.gradient.zero_()
            for module in modules:
                updater.add(gradients.modules[module.module_id])
            norms = updater.step(learning_rates, updater.clip(), _frozen_groups(modules))
            for module in modules:
                gradient = gradients.modules[module.module_id]
                module.end_step(gradient.num_rows, norms)
                metrics[module.module_id] = module.end(updater.metrics(learning_rates), gradient.metrics)
            network.end_step()
        return metrics

    @default_settings()
    def update_targets(self, tau: float) -> None:
        """Move the targets of each trained module: target <- target + tau (network - target)."""
        for module_id in self._modules_to_train:
            self._modules[module_id].update_targets(tau)

    def _begin_updates(
        self, module_ids: Collection[str], num_env_steps: int
    ) -> Iterator[tuple[TrainedNetwork, list[TrainedModule]]]:
        """Begin the updates of the trained modules among these, and yield each network with its modules."""
        trained = [module_id for module_id in self._modules_to_train if module_id in module_ids]
        for network in self._networks.values():
            modules = network.find_modules(trained)
            for module in modules:
                module.begin(num_env_steps)
            if modules:
                yield network, modules

    @property
    def _compile_s(self) -> float:
        return sum(network.gradient.compile_s for network in self._networks.values())

    def _batch_of(self, data: Rollout | TrainBatch) -> tuple[TrainBatch, float]:
        """Make the train batch from sampled episodes, and check the first one of each module.

        Returns:
            The batch, and the seconds that the learner pipelines took.
        """
        if isinstance(data, TrainBatch):
            return data, 0.0
        started = time.perf_counter()
        columns = self._run_pipelines(data)
        connector_s = time.perf_counter() - started
        if self._consistency_check is not None:
            self._consistency_check.check(data, columns, self._modules, self._pipelines)
        reported = taken_metrics({module_id: [self._pipelines[module_id]] for module_id in self._modules_to_train})
        return TrainBatch(columns, connector_metrics=reported), connector_s

    def _run_pipelines(self, rollout: Rollout) -> dict[str, dict[str, Any]]:
        """Make the columns of the trained modules that have rows in the rollout, with their learner pipelines."""
        batches: dict[str, dict[str, Any]] = {}
        blocks = rollout.unsplit or rollout.blocks
        for module_id in self._modules_to_train:
            block = rollout.blocks.get(module_id)
            if block is not None and block.num_rows:
                batch = self._pipelines[module_id](
                    rl_module=self._modules, batch={}, episodes=block, episodes_of_modules=blocks, shared_data={}
                )
                batches[module_id] = batch[module_id]
        return batches

    # -- recorded data -------------------------------------------------------------------------------------------------

    @default_settings()
    def read_from(self, make_readers: MakeReaders) -> None:
        """Read recorded batches from this learner's reader from now on."""
        [reader] = make_readers()
        self._recorded = reader.batches(self.device)

    @default_settings()
    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches until the end of the pass, at most `most` of them."""
        assert self._recorded is not None, "read_from was not called"
        done = RecordedUpdates()
        while len(done.metrics) != most and not done.ends_pass:
            started = time.perf_counter()
            batch = next(self._recorded)
            received = time.perf_counter()
            done.num_env_steps += self._collective.total(batch.num_env_steps)
            update = self._update_on_recorded(batch, num_env_steps + done.num_env_steps)
            done.metrics.append(update.metrics)
            done.compile_s += update.compile_s
            merge_metrics(done.connector_metrics, batch.connector_metrics)
            done.ends_pass = batch.ends_pass
            done.waiting_s += received - started
            done.update_s += time.perf_counter() - received
        return done

    def _update_on_recorded(self, batch: TrainBatch, num_env_steps: int) -> UpdateResult:
        try:
            return self.update(batch, num_env_steps)
        except LossNotFinite as failure:
            for columns in batch.columns.values():
                failure = with_batch(failure, columns, lambda _, row: f"row {row} of the train batch")
            raise failure from None

    def close(self) -> None:
        """Stop reading recorded data."""
        if self._recorded is not None:
            self._recorded.close()

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def modules(self) -> Mapping[str, RLModule]:
        """The modules by id; with remote learners, the copies in this process, which are kept up to date."""
        return self._modules

    @property
    def device(self) -> torch.device:
        """The device of the modules."""
        return next(iter(self._networks.values())).updater.device

    def metrics(self) -> dict[str, int]:
        """Return the metrics for the end of an iteration."""
        return {"fault_tolerance/num_learner_restarts": self.num_restarts}

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the parameters (P,) of each network that acts, for env runners."""
        return {key: self._networks[key].updater.get_weights() for key in self._acting}

    @default_settings()
    def set_weights(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Set parameters from `get_weights` of a learner with the same modules.

        Raises:
            ValueError: a network has a different number of parameters.
        """
        for key, values in weights.items():
            self._networks[key].updater.set_weights(values)

    def get_state(self) -> dict[str, Any]:
        """Return the states of networks and pipelines."""
        networks = {key: network.get_state() for key, network in self._networks.items()}
        return {"learners": networks, "pipelines": self._pipeline_states()}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ between peers: all of the pipelines, and some of each network."""
        networks = {key: network.get_unshared_state() for key, network in self._networks.items()}
        return {"learners": networks, "pipelines": self._pipeline_states()}

    def set_unshared_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_unshared_state`; the state that peers share is unchanged."""
        state, shared = in_present_layout(state), self.get_state()["learners"]
        networks = {key: {**shared[key], **unshared} for key, unshared in state["learners"].items()}
        self.set_state({"learners": networks, "pipelines": state["pipelines"]})

    def _pipeline_states(self) -> dict[str, Any]:
        return {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}

    @default_settings()
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ConfigError: the parameters belong to a different network.
        """
        self._consistency_check = None
        for key, of_network in in_present_layout(state)["learners"].items():
            if key not in self._networks:
                what = f"the checkpoint contains a module {key}, which does not exist in this configuration"
                raise ConfigError([Problem(what, "multi_agent.modules", expected=", ".join(self._networks))])
            self._networks[key].set_state(of_network)
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)


def _frozen_groups(modules: Iterable[TrainedModule]) -> list[str]:
    """Return the optimisers that skip the step for all of these modules, since an optimiser moves all of them."""
    of_modules = [module.loss.frozen_groups for module in modules]
    return [name for name in of_modules[0] if all(name in others for others in of_modules[1:])]


def _filled(by_module: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {module_id: values for module_id, values in by_module.items() if values}
