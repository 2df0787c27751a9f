"""The learners of this process, one for each module, as one: episodes or recorded data in, metrics out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.episodes.columns import Rollout
from runner.learners.acted_outputs import ActedOutputs
from runner.learners.learner import Learner
from runner.learners.loss_failure import LossNotFinite, with_batch
from runner.learners.peers import Alone, Peers
from runner.learners.train_batch import BatchReader, TrainBatch
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import LearnerConnectorPipeline


@dataclass(frozen=True)
class UpdateResult:
    """Metrics by module id, and the seconds that the learner pipeline took."""

    metrics: dict[str, dict[str, float]]
    connector_s: float


@dataclass
class RecordedUpdates:
    """Updates on recorded data.

    Attributes:
        metrics: of each update, by module id.
        num_env_steps: env steps of all learners together.
        ends_pass: whether the last one ended a pass over the data.
        waiting_s, update_s: seconds of waiting for batches, and of updates.
    """

    metrics: list[dict[str, dict[str, float]]] = field(default_factory=list)
    num_env_steps: int = 0
    ends_pass: bool = False
    waiting_s: float = 0.0
    update_s: float = 0.0


# Makes a reader for each learner whenever learners begin to read; it begins after the batches learned from so far.
MakeReaders = Callable[[], Sequence[BatchReader]]


class LearnerGroup:
    """Turns episode chunks into a train batch and updates the modules on it.

    Args:
        learners: module id -> its learner.
        pipelines: module id -> pipeline from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated; the others keep their parameters.
        peers: the groups in other processes that update the same modules in step; None: there are none.
        acted_outputs: check of the first train batch of each module; None: no check.

    Attributes:
        num_restarts: restarts of lost learners; 0 in this process.
    """

    num_restarts = 0
    _batches: Generator[TrainBatch, None, None] | None = None

    def __init__(
        self,
        learners: Mapping[str, Learner],
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
        peers: Peers | None = None,
        acted_outputs: ActedOutputs | None = None,
    ) -> None:
        self._peers: Peers = peers or Alone()
        self._acted_outputs = acted_outputs
        self.num_learners = self._peers.num_learners
        self._learners = dict(learners)
        self._modules = {module_id: learner.module for module_id, learner in learners.items()}
        self._pipelines = dict(pipelines)
        self._modules_to_train = [module_id for module_id in learners if module_id in modules_to_train]

    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """Update each module once on all of its rows, after `num_env_steps` env steps in all.

        A module that has no row in the rollout is left as it is.
        """
        batches, connector_s = batch_of(rollout, self._modules_to_train, self._pipelines, self._modules)
        if self._acted_outputs is not None:
            self._acted_outputs.check(rollout, batches, self._modules, self._pipelines)
        return UpdateResult(self.update_on(batches, num_env_steps), connector_s)

    def update_on(self, batch: Mapping[str, Mapping[str, Any]], num_env_steps: int) -> dict[str, dict[str, float]]:
        """Update each module once on a train batch: module id -> column -> tensor."""
        return {
            module_id: self._learners[module_id].update(batch[module_id], num_env_steps)
            for module_id in self._modules_to_train
            if module_id in batch
        }

    def read_from(self, make_readers: MakeReaders) -> None:
        """Let each learner take its batches from its reader from now on."""
        [reader] = make_readers()
        device = next(iter(self._learners.values())).device
        self._batches = reader.batches(device)

    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches up to the end of the pass, on `most` of them at most."""
        assert self._batches is not None, "read_from comes first"
        done = RecordedUpdates()
        while len(done.metrics) != most and not done.ends_pass:
            started = time.perf_counter()
            batch = next(self._batches)
            received = time.perf_counter()
            done.num_env_steps += self._peers.total(batch.num_env_steps)
            done.metrics.append(self._update_on_recorded(batch, num_env_steps + done.num_env_steps))
            done.ends_pass = batch.ends_pass
            done.waiting_s += received - started
            done.update_s += time.perf_counter() - received
        return done

    def _update_on_recorded(self, batch: TrainBatch, num_env_steps: int) -> dict[str, dict[str, float]]:
        try:
            return self.update_on(batch.columns, num_env_steps)
        except LossNotFinite as failure:
            for columns in batch.columns.values():
                failure = with_batch(failure, columns, lambda _, row: f"row {row} of the train batch")
            raise failure from None

    def close(self) -> None:
        """End the reading of recorded data."""
        if self._batches is not None:
            self._batches.close()

    def get_weights(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Return module id -> parameters (P,), for env runners."""
        return {module_id: learner.get_weights() for module_id, learner in self._learners.items()}

    def get_state(self) -> dict[str, Any]:
        """Return the states of learners and pipelines."""
        learners = {module_id: learner.get_state() for module_id, learner in self._learners.items()}
        pipelines = {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}
        return {"learners": learners, "pipelines": pipelines}

    def get_unshared_state(self) -> dict[str, dict[str, Any]]:
        """Return the state that may differ from the peers, by module id."""
        return {module_id: learner.get_unshared_state() for module_id, learner in self._learners.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._acted_outputs = None
        for module_id, learner_state in state["learners"].items():
            self._learners[module_id].set_state(learner_state)
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)


def batch_of(
    rollout: Rollout,
    module_ids: Sequence[str],
    pipelines: Mapping[str, LearnerConnectorPipeline],
    modules: Mapping[str, RLModule],
) -> tuple[dict[str, dict[str, Any]], float]:
    """Make the train batch of the modules with a row in the rollout; returns also the seconds of their pipelines."""
    started = time.perf_counter()
    batches: dict[str, dict[str, Any]] = {}
    for module_id in module_ids:
        block = rollout.blocks.get(module_id)
        if block is not None and block.num_rows:
            batch = pipelines[module_id](rl_module=modules, batch={}, episodes=block, shared_data={})
            batches[module_id] = batch[module_id]
    return batches, time.perf_counter() - started
