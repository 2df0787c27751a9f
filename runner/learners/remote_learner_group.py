"""Several learners of the same modules: Ray actors that update in step, each on other rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.schemas import LearnersConfig
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.learners.acted_outputs import ActedOutputs
from runner.learners.learner_actors import LearnerActors, LearnerLost, MakeLearners, to_array
from runner.learners.learner_group import LearnerGroup, MakeReaders, RecordedUpdates, UpdateResult, batch_of
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import LOSS_MASK
from runner.pipelines.pipeline import LearnerConnectorPipeline
from runner.restarts import Restarts

_log = logging.getLogger(__name__)


class RemoteLearnerGroup:
    """A `LearnerGroup` whose learners are Ray actors; gradients are averaged before each step.

    Learner pipelines run here, and each learner gets an equal part of their rows; it reads recorded data by itself.

    The answer to each update holds the state after it, so that the newest state is always here. When a learner is
    lost, all learners start again in this state and repeat the call: each update is done once by all learners, or the
    run ends.

    Args:
        make_learners: makes the learners of one actor.
        modules: module id -> the module that pipelines read here; it follows the learners' modules.
        pipelines: module id -> pipeline from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated.
        reads: module id -> columns that its learners read.
        config: number and resources of the learners, and the limit of restarts.

    Raises:
        RunFailure: a learner cannot be made.
    """

    def __init__(
        self,
        make_learners: MakeLearners,
        modules: Mapping[str, RLModule],
        pipelines: Mapping[str, LearnerConnectorPipeline],
        modules_to_train: Collection[str],
        reads: Mapping[str, Collection[str]],
        config: LearnersConfig,
        acted_outputs: ActedOutputs | None = None,
    ) -> None:
        self._acted_outputs = acted_outputs
        self.num_learners = config.num_learners
        self._make_learners, self._config = make_learners, config
        self._modules, self._pipelines, self._reads = dict(modules), dict(pipelines), dict(reads)
        self._modules_to_train = [module_id for module_id in modules if module_id in modules_to_train]
        self._parameters = {module_id: FlatParameters(module) for module_id, module in modules.items()}
        self._weights: dict[str, npt.NDArray[np.float32]] | None = None  # None: `_states` has newer ones
        self._restarts = Restarts(config.max_restarts, "learners.max_restarts")
        self._actors: LearnerActors | None = None  # None: to be started
        self._make_readers: MakeReaders | None = None
        # By rank, module id -> state: complete for the first learner, only the unshared part for others.
        self._states: list[dict[str, Any]] = []
        self._states = self._until_done(lambda actors: actors.call("state", [()] * self.num_learners))

    @property
    def num_restarts(self) -> int:
        """Number of times that all learners were started again after the loss of one."""
        return self._restarts.count

    # -- updates ---------------------------------------------------------------------------------------------------

    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """Update each module once on all of its rows, after `num_env_steps` env steps in all.

        A module with fewer rows than learners is left as it is.
        """
        self.get_weights()  # loads them into the modules that pipelines read
        batches, connector_s = batch_of(rollout, self._modules_to_train, self._pipelines, self._modules)
        if self._acted_outputs is not None:
            self._acted_outputs.check(rollout, batches, self._modules, self._pipelines)
        parts: list[dict[str, Any]] = [{} for _ in range(self.num_learners)]
        for module_id, batch in batches.items():
            columns = {name: batch[name] for name in (*self._reads[module_id], LOSS_MASK) if name in batch}
            for part, rows in zip(parts, split_rows(columns, self.num_learners), strict=False):
                part[module_id] = rows
        metrics: dict[str, dict[str, float]] = self._updated("update_on", [(part, num_env_steps) for part in parts])
        return UpdateResult(metrics, connector_s)

    def read_from(self, make_readers: MakeReaders) -> None:
        """Let each learner take its batches from its reader from now on."""
        self._until_done(lambda actors: actors.call("read_from", [(reader,) for reader in make_readers()]))
        self._make_readers = make_readers

    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches up to the end of the pass, on `most` of them at most."""
        done: RecordedUpdates = self._updated("update_on_recorded", [(most, num_env_steps)] * self.num_learners)
        return done

    def _updated(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """Let all learners update, keep their states, and return the first learner's answer."""
        answers = self._until_done(lambda actors: actors.call(method, arguments))
        self._states = [state for _, state in answers]
        self._weights = None
        return answers[0][0]

    # -- lost learners -------------------------------------------------------------------------------------------------

    def _until_done(self, attempt: Callable[[LearnerActors], list[Any]]) -> list[Any]:
        """Return the answers of all learners; after a loss, of new learners that begin in the state before the call."""
        losses_in_a_row = 0
        while True:
            try:
                return attempt(self._running())
            except LearnerLost as lost:
                losses_in_a_row += 1
                self.close()
                self._restarts.add(str(lost), losses_in_a_row)
                _log.warning("all learners begin again in the state after the last update")
            except BaseException:
                self.close()  # the others may wait for the one that failed
                raise

    def _running(self) -> LearnerActors:
        """Return learners in the newest state, starting them if needed."""
        if self._actors is None:
            self._actors = LearnerActors(self._make_learners, self._config)
            if self._states:
                self._actors.call("set_state", self._complete_states())
            if self._make_readers is not None:
                self._actors.call("read_from", [(reader,) for reader in self._make_readers()])
        return self._actors

    def _complete_states(self) -> list[tuple[dict[str, Any]]]:
        shared = self._states[0]
        return [
            ({module_id: {**state, **unshared.get(module_id, {})} for module_id, state in shared.items()},)
            for unshared in self._states
        ]

    # -- state -----------------------------------------------------------------------------------------------------

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return module id -> parameters (P,), for env runners."""
        if self._weights is None:
            for module_id, state in self._states[0].items():
                tensors = {name: torch.from_numpy(np.array(value)) for name, value in state["module"].items()}
                self._modules[module_id].load_state_dict(tensors)
            self._weights = {module_id: parameters.to_numpy() for module_id, parameters in self._parameters.items()}
        return self._weights

    def get_state(self) -> dict[str, Any]:
        """Return learners and pipelines; `peers` is the unshared state of the learners after the first."""
        learners, *peers = nested.map_leaves(_copied, tuple(self._states))
        pipelines = {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}
        return {"learners": learners, "pipelines": pipelines, "peers": peers, "num_restarts": self.num_restarts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; one of another number of learners gives random streams as in a new run."""
        learners, peers = nested.map_leaves(to_array, dict(state["learners"])), list(state.get("peers", ()))
        if len(peers) != self.num_learners - 1:
            peers = [_streams_only(unshared, learners) for unshared in self._states[1:]]
        self._states = [learners, *peers]
        self._weights = self._acted_outputs = None
        self._restarts.count = int(state.get("num_restarts", 0))
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)
        self._until_done(lambda actors: actors.call("set_state", self._complete_states()))

    def close(self) -> None:
        """End the actors."""
        if self._actors is not None:
            self._actors.close()
        self._actors = None


Learners = LearnerGroup | RemoteLearnerGroup


def split_rows(columns: Mapping[str, Any], num_parts: int) -> list[dict[str, Any]]:
    """Split rows with a loss into nearly equal parts, as arrays; with memory, sequences with such a row.

    There are no parts if there are fewer rows than parts.
    """
    arrays: dict[str, Any] = nested.map_leaves(to_array, dict(columns))
    mask = arrays.get(LOSS_MASK)
    if mask is None:
        rows = np.arange(nested.row_count(arrays))
    elif mask.ndim == 1:
        rows = np.flatnonzero(arrays.pop(LOSS_MASK))
    else:
        rows = np.flatnonzero(mask.any(1))
    if len(rows) < num_parts:
        return []
    return [
        {name: nested.take(column, part) for name, column in arrays.items()} for part in np.array_split(rows, num_parts)
    ]


def _streams_only(unshared: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Combine, by module id, random streams of a new run with the saved state of the loss."""
    parts: dict[str, Any] = {}
    for module_id, state in unshared.items():
        new_stream = {name: value for name, value in state["loss"].items() if name == "stream"}
        parts[module_id] = {"stream": state["stream"], "loss": {**saved[module_id]["loss"], **new_stream}}
    return parts


def _copied(leaf: Any) -> Any:
    """Copy an array, since one of Ray's object store is read-only; other values stay."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf
