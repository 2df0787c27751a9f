"""The learners of this process, one for each module, as one: episodes or recorded data in, metrics out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.operators import LEARNERS
from runner.episodes.columns import Rollout
from runner.learners.collective import Collective, SingleProcess
from runner.learners.gradients import GroupGradients, ModuleGradient
from runner.learners.learner import Learner
from runner.learners.loss_failure import LossNotFinite, with_batch
from runner.learners.minibatch_loop import LearnerUpdate
from runner.learners.on_policy_check import OnPolicyConsistencyCheck
from runner.learners.train_batch import BatchReader, TrainBatch
from runner.modules.default_settings import default_settings
from runner.modules.rl_module import RLModule
from runner.parts import Part
from runner.pipelines.piece_metrics import ConnectorMetrics, merge_metrics
from runner.pipelines.pipeline import LearnerConnectorPipeline, taken_metrics


@dataclass(frozen=True)
class UpdateResult:
    """What an update gives.

    Attributes:
        metrics: by module id; only modules that were updated.
        connector_s: seconds that learner pipelines took.
        update_s: seconds in the learner, its pipelines included.
        rows: module id -> name -> (V, ...), what the loss reported for each of the V rows with a loss, in the order of
            the rollout's rows.
        connector_metrics: metric of the run -> what pieces of the learner pipelines have reported for it.
        compile_s: seconds that compiling took.
    """

    metrics: dict[str, dict[str, float]]
    connector_s: float
    update_s: float
    rows: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    connector_metrics: ConnectorMetrics = field(default_factory=dict)
    compile_s: float = 0.0


@dataclass
class RecordedUpdates:
    """Updates on recorded data.

    Attributes:
        metrics: of each update, by module id.
        num_env_steps: env steps of all learners together.
        ends_pass: whether the last one ended a pass over the data.
        waiting_s, update_s, compile_s: seconds of waiting for batches, of updates, and of compiling within these.
        connector_metrics: metric of the run -> what pieces of the learner pipelines have reported for these batches.
    """

    metrics: list[dict[str, dict[str, float]]] = field(default_factory=list)
    num_env_steps: int = 0
    ends_pass: bool = False
    waiting_s: float = 0.0
    update_s: float = 0.0
    compile_s: float = 0.0
    connector_metrics: ConnectorMetrics = field(default_factory=dict)


# Makes a reader for each learner whenever learners begin to read; it begins after the batches learned from so far.
MakeReaders = Callable[[], Sequence[BatchReader]]


class LearnerGroup(Part):
    """Turns episode chunks into a train batch and updates the modules on it.

    Args:
        learners: module id -> its learner.
        pipelines: module id -> pipeline from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated; the others keep their parameters.
        collective: the groups in other processes that update the same modules in step; None: there are none.
        consistency_check: check of the first train batch of each module; None: no check.

    Attributes:
        num_restarts: restarts of lost learners; 0 in this process.
    """

    name = LEARNERS
    num_restarts = 0
    _batches: Generator[TrainBatch, None, None] | None = None

    def __init__(
        self,
        learners: Mapping[str, Learner],
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
        collective: Collective | None = None,
        consistency_check: OnPolicyConsistencyCheck | None = None,
    ) -> None:
        self._collective: Collective = collective or SingleProcess()
        self._consistency_check = consistency_check
        self.num_learners = self._collective.num_learners
        self._learners = dict(learners)
        self._modules = {module_id: learner.module for module_id, learner in learners.items()}
        self._pipelines = dict(pipelines)
        self._modules_to_train = [module_id for module_id in learners if module_id in modules_to_train]

    @default_settings()
    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """Update each module once on all of its rows, after `num_env_steps` env steps in all.

        A module that has no row in the rollout is left as it is.
        """
        started = time.perf_counter()
        batches, reported, connector_s = self._train_batches(rollout)
        updates = self._update_each(batches, num_env_steps)
        rows = {module_id: found for module_id, update in updates.items() if (found := update.rows)}
        update_s = time.perf_counter() - started
        return UpdateResult(_metrics(updates), connector_s, update_s, rows, reported, _compile_s(updates))

    def send(self, rollout: Rollout) -> Rollout:
        """Return the rollout for `begin_update`; other groups send it to their learners."""
        return rollout

    def begin_update(self, sent: Rollout, num_env_steps: int) -> Callable[[], UpdateResult]:
        """Return a function that updates on what `send` returned, as `update` does, and returns what was done."""
        return partial(self.update, sent, num_env_steps)

    def _update_each(self, batches: Mapping[str, Mapping[str, Any]], num_env_steps: int) -> dict[str, LearnerUpdate]:
        """Update each module once on its train batch: module id -> column -> tensor."""
        return {
            module_id: self._learners[module_id].update(batches[module_id], num_env_steps)
            for module_id in self._modules_to_train
            if module_id in batches
        }

    @default_settings()
    def gradients(self, rollout: Rollout, num_env_steps: int) -> GroupGradients:
        """Compute one gradient of all rows for each module that is trained and has a row; no parameter changes.

        Pipelines run, so that their pieces go on from what they saw.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        batches, reported, connector_s = self._train_batches(rollout)
        modules = self._gradients_of_each(batches, num_env_steps)
        having_rows = {id_: one for id_, one in modules.items() if one.num_rows}
        return GroupGradients(having_rows, connector_s, reported)

    def _gradients_of_each(
        self, batches: Mapping[str, Mapping[str, Any]], num_env_steps: int
    ) -> Mapping[str, ModuleGradient]:
        """Return module id -> gradient of its train batch."""
        return {id_: self._learners[id_].gradients(batch, num_env_steps) for id_, batch in batches.items()}

    @default_settings()
    def apply(self, gradients: GroupGradients, num_env_steps: int) -> dict[str, dict[str, float]]:
        """Take one step of each module along its gradient, after `num_env_steps` env steps in all.

        Returns:
            Metrics by module id: what the gradient reports, norms before clipping, and learning rates.
        """
        self._consistency_check = None  # the modules have moved away from the ones that acted
        return self._apply_to_each(gradients.modules, num_env_steps)

    def _apply_to_each(
        self, gradients: Mapping[str, ModuleGradient], num_env_steps: int
    ) -> dict[str, dict[str, float]]:
        return {
            module_id: self._learners[module_id].apply(gradients[module_id], num_env_steps)
            for module_id in self._modules_to_train
            if module_id in gradients
        }

    @default_settings()
    def update_targets(self, tau: float) -> None:
        """Let the targets of each module that is trained follow: target <- target + tau (network - target)."""
        for module_id in self._modules_to_train:
            self._learners[module_id].update_targets(tau)

    def _train_batches(self, rollout: Rollout) -> tuple[dict[str, dict[str, Any]], ConnectorMetrics, float]:
        """Make the train batches, and check the first one of each module.

        Returns:
            The batches, what pieces of the pipelines have reported, and the seconds that these took.
        """
        batches, connector_s = batch_of(rollout, self._modules_to_train, self._pipelines, self._modules)
        if self._consistency_check is not None:
            self._consistency_check.check(rollout, batches, self._modules, self._pipelines)
        reported = taken_metrics({module_id: [self._pipelines[module_id]] for module_id in self._modules_to_train})
        return batches, reported, connector_s

    @default_settings()
    def read_from(self, make_readers: MakeReaders) -> None:
        """Let each learner take its batches from its reader from now on."""
        [reader] = make_readers()
        device = next(iter(self._learners.values())).device
        self._batches = reader.batches(device)

    @default_settings()
    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches up to the end of the pass, on `most` of them at most."""
        assert self._batches is not None, "read_from comes first"
        done = RecordedUpdates()
        while len(done.metrics) != most and not done.ends_pass:
            started = time.perf_counter()
            batch = next(self._batches)
            received = time.perf_counter()
            done.num_env_steps += self._collective.total(batch.num_env_steps)
            updates = self._update_on_recorded(batch, num_env_steps + done.num_env_steps)
            done.metrics.append(_metrics(updates))
            done.compile_s += _compile_s(updates)
            merge_metrics(done.connector_metrics, batch.connector_metrics)
            done.ends_pass = batch.ends_pass
            done.waiting_s += received - started
            done.update_s += time.perf_counter() - received
        return done

    def _update_on_recorded(self, batch: TrainBatch, num_env_steps: int) -> dict[str, LearnerUpdate]:
        try:
            return self._update_each(batch.columns, num_env_steps)
        except LossNotFinite as failure:
            for columns in batch.columns.values():
                failure = with_batch(failure, columns, lambda _, row: f"row {row} of the train batch")
            raise failure from None

    def close(self) -> None:
        """End the reading of recorded data."""
        if self._batches is not None:
            self._batches.close()

    @property
    def modules(self) -> Mapping[str, RLModule]:
        """The modules by id; with remote learners the ones of this process, which follow theirs."""
        return self._modules

    def metrics(self) -> dict[str, int]:
        """Return what is reported at the end of an iteration."""
        return {"fault_tolerance/num_learner_restarts": self.num_restarts}

    def get_weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Return module id -> parameters (P,), for env runners."""
        return {module_id: learner.get_weights() for module_id, learner in self._learners.items()}

    @default_settings()
    def set_weights(self, weights: Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]) -> None:
        """Take over parameters from `get_weights` of a group with the same modules.

        Raises:
            ValueError: a module has another number of parameters.
        """
        for module_id, values in weights.items():
            self._learners[module_id].set_weights(values)

    def get_state(self) -> dict[str, Any]:
        """Return the states of learners and pipelines."""
        learners = {module_id: learner.get_state() for module_id, learner in self._learners.items()}
        return {"learners": learners, "pipelines": self._pipeline_states()}

    def get_unshared_state(self) -> dict[str, Any]:
        """Return the state that may differ from the peers: all of the pipelines, and a part of each learner."""
        learners = {module_id: learner.get_unshared_state() for module_id, learner in self._learners.items()}
        return {"learners": learners, "pipelines": self._pipeline_states()}

    def set_unshared_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_unshared_state`; what peers share stays."""
        shared = self.get_state()["learners"]
        learners = {module_id: {**shared[module_id], **unshared} for module_id, unshared in state["learners"].items()}
        self.set_state({"learners": learners, "pipelines": state["pipelines"]})

    def _pipeline_states(self) -> dict[str, Any]:
        return {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}

    @default_settings()
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._consistency_check = None
        for module_id, learner_state in state["learners"].items():
            self._learners[module_id].set_state(learner_state)
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)


def _metrics(updates: Mapping[str, LearnerUpdate]) -> dict[str, dict[str, float]]:
    """Return the metrics of the modules that had something to learn from, by module id."""
    return {module_id: update.metrics for module_id, update in updates.items() if update.metrics}


def _compile_s(updates: Mapping[str, LearnerUpdate]) -> float:
    return sum(update.compile_s for update in updates.values())


def batch_of(
    rollout: Rollout,
    module_ids: Sequence[str],
    pipelines: Mapping[str, LearnerConnectorPipeline],
    modules: Mapping[str, RLModule],
) -> tuple[dict[str, dict[str, Any]], float]:
    """Make the train batch of the modules with a row in the rollout.

    Returns:
        The batch, and the seconds that it took.
    """
    started = time.perf_counter()
    batches: dict[str, dict[str, Any]] = {}
    others = {"episodes_of_modules": rollout.whole or rollout.blocks}
    for module_id in module_ids:
        block = rollout.blocks.get(module_id)
        if block is not None and block.num_rows:
            batch = pipelines[module_id](rl_module=modules, batch={}, episodes=block, shared_data={}, **others)
            batches[module_id] = batch[module_id]
    return batches, time.perf_counter() - started
