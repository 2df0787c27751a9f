"""Several learners of the same modules: Ray actors that update in step, each on rows of its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.config.errors import Problem, RunFailure, RunnerError
from runner.config.schemas import LearnersConfig
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.learners.acted_outputs import ActedOutputs
from runner.learners.learner_group import LearnerGroup, RecordedUpdates, UpdateResult, batch_of
from runner.learners.peers import Peers, ProcessGroup
from runner.learners.train_batch import BatchReader
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import LOSS_MASK
from runner.pipelines.pipeline import LearnerConnectorPipeline

_OWN = ("stream", "loss")  # parts of a learner's state that may differ between the learners of a module

# Actors that start on few cores import torch one after the other.
_START_TIMEOUT_S = 300.0

_log = logging.getLogger(__name__)


class MakeLearners(Protocol):
    """Makes the learners of one process; sent to it."""

    def device(self) -> torch.device:
        """Of their modules."""

    def __call__(self, peers: Peers) -> LearnerGroup:
        """One a module, without pipelines."""


class _LearnerActor:
    """The learners of one process."""

    def __init__(self, make_learners: MakeLearners, torch_num_threads: int) -> None:
        torch.set_num_threads(torch_num_threads)
        self._make_learners = make_learners

    def free_address(self) -> str:
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
            return f"{host}:{probe.getsockname()[1]}"

    def join(self, rank: int, num_learners: int, address: str) -> None:
        self._group = self._make_learners(ProcessGroup(rank, num_learners, address, self._make_learners.device()))

    def update_on(self, batch: Mapping[str, Any], num_env_steps: int) -> dict[str, dict[str, float]]:
        device = self._make_learners.device()

        def on_device(leaf: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.require(leaf, requirements="W")).to(device)

        return self._group.update_on(nested.map_leaves(on_device, batch), num_env_steps)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._group, method)(*args)

    def own_state(self) -> dict[str, Any]:
        """By module id, what this learner does not share with its peers."""
        learners = self._group.get_state()["learners"]
        return {module_id: {part: state[part] for part in _OWN} for module_id, state in learners.items()}


class RemoteLearnerGroup:
    """A `LearnerGroup` whose learners are Ray actors; gradients are averaged before each step.

    Learner pipelines run here, and each learner gets an equal part of their rows; recorded data it reads by itself.

    Args:
        make_learners: makes the learners of one actor.
        modules: module id -> the module that pipelines read here; it follows the learners'.
        pipelines: module id -> from its chunks to `{module id: {column: tensor}}`.
        modules_to_train: ids of the modules that are updated.
        reads: module id -> columns that its learners read.
        config: how many learners, and what they ask of Ray.
        acted_outputs: checks the first train batch of a run; None: it is not checked.

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
        import ray

        self._acted_outputs = acted_outputs

        self.num_learners = config.num_learners
        self._modules, self._pipelines, self._reads = dict(modules), dict(pipelines), dict(reads)
        self._modules_to_train = [module_id for module_id in modules if module_id in modules_to_train]
        self._parameters = {module_id: FlatParameters(module) for module_id, module in modules.items()}
        self._weights: dict[str, npt.NDArray[np.float32]] | None = None  # None: the learners have newer ones
        actor_class = ray.remote(_LearnerActor).options(
            num_cpus=config.num_cpus_per_learner, num_gpus=config.num_gpus_per_learner, max_restarts=0
        )
        make = (make_learners, config.torch_num_threads)
        self._actors: list[Any] = [actor_class.remote(*make) for _ in range(config.num_learners)]
        [address] = self._wait([self._actors[0].free_address.remote()], _START_TIMEOUT_S)
        joined = [own.join.remote(rank, self.num_learners, address) for rank, own in enumerate(self._actors)]
        self._wait(joined, _START_TIMEOUT_S)

    def update(self, rollout: Rollout, num_env_steps: int) -> UpdateResult:
        """One update of each module on all of its rows, after `num_env_steps` env steps in all.

        A module with fewer rows than learners is left as it is.
        """
        self.get_weights()  # pipelines read the newest
        batches, connector_s = batch_of(rollout, self._modules_to_train, self._pipelines, self._modules)
        if self._acted_outputs is not None:
            self._acted_outputs.check(rollout, batches, self._modules, self._pipelines)
            self._acted_outputs = None
        parts: list[dict[str, Any]] = [{} for _ in self._actors]
        for module_id, batch in batches.items():
            columns = {name: batch[name] for name in (*self._reads[module_id], LOSS_MASK) if name in batch}
            for part, own in zip(parts, split_rows(columns, self.num_learners), strict=False):
                part[module_id] = own
        calls = [actor.update_on.remote(part, num_env_steps) for actor, part in zip(self._actors, parts, strict=True)]
        self._weights = None
        return UpdateResult(self._wait(calls)[0], connector_s)

    def read_from(self, readers: Sequence[BatchReader]) -> None:
        """Let each learner take its batches from its reader from now on."""
        self._wait([actor.call.remote("read_from", [own]) for actor, own in zip(self._actors, readers, strict=True)])

    def update_on_recorded(self, most: int | None, num_env_steps: int) -> RecordedUpdates:
        """Update on the next batches up to the end of the pass, on `most` of them at most."""
        self._weights = None
        done: list[RecordedUpdates] = self._wait(
            [actor.call.remote("update_on_recorded", most, num_env_steps) for actor in self._actors]
        )
        return done[0]

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Module id -> (P,) parameters, for env runners."""
        if self._weights is None:
            [weights] = self._wait([self._actors[0].call.remote("get_weights")])
            self._weights = dict(weights)
            for module_id, parameters in self._parameters.items():
                parameters.load(self._weights[module_id])
        return self._weights

    def get_state(self) -> dict[str, Any]:
        """Learners and pipelines; `peers` is what differs in the learners after the first."""
        [state] = self._wait([self._actors[0].call.remote("get_state")])
        peers = self._wait([actor.own_state.remote() for actor in self._actors[1:]])
        pipelines = {module_id: pipeline.get_state() for module_id, pipeline in self._pipelines.items()}
        return {**state, "pipelines": pipelines, "peers": peers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also of another number of learners; random streams are then those of a new run."""
        peers = state.get("peers", ())
        if len(peers) != self.num_learners - 1:
            own_states = self._wait([actor.own_state.remote() for actor in self._actors[1:]])
            peers = [_streams_only(own, state["learners"]) for own in own_states]
        learners = [
            {module_id: {**own, **peer.get(module_id, {})} for module_id, own in state["learners"].items()}
            for peer in ({}, *peers)
        ]
        calls = [
            actor.call.remote("set_state", {"learners": own, "pipelines": {}})
            for actor, own in zip(self._actors, learners, strict=True)
        ]
        self._wait(calls)
        self._weights = self._acted_outputs = None
        for module_id, pipeline_state in state["pipelines"].items():
            self._pipelines[module_id].set_state(pipeline_state)

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def _wait(self, calls: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """The results of calls to all learners; with the first that fails all are ended, they would wait for it."""
        import ray

        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=timeout_s)
            if not done:
                self.close()
                what = f"{len(pending)} of {self.num_learners} learners did not start within {timeout_s:g} s"
                where = "learners.num_learners, num_cpus_per_learner, num_gpus_per_learner"
                raise RunFailure(Problem(what, where, allowed="what the cluster has free at the moment"))
            [ready] = done
            try:
                ray.get(ready)
            except ray.exceptions.RayError as error:
                self.close()
                rank = list(calls).index(ready)
                cause = getattr(error, "cause", None)
                if isinstance(cause, RunnerError):
                    raise cause from None
                _log.error("learner %d: %s", rank, error)
                text = f"{type(cause).__name__}: {cause}" if cause else f"it is gone ({type(error).__name__})"
                where = "its Ray actor; the stack trace is in runner.log"
                raise RunFailure(Problem(f"learner {rank} of {self.num_learners} failed: {text}", where)) from error
        results: list[Any] = ray.get(list(calls))
        return results


Learners = LearnerGroup | RemoteLearnerGroup


def split_rows(columns: Mapping[str, Any], num_parts: int) -> list[dict[str, Any]]:
    """The rows with a loss in nearly equal parts, as arrays; with memory the sequences that have one.

    No parts at all if there are fewer rows.
    """
    arrays: dict[str, Any] = nested.map_leaves(_to_array, dict(columns))
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


def _streams_only(own: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """By module id: random streams of a new run, and what else a loss has learned as it was saved."""
    parts: dict[str, Any] = {}
    for module_id, state in own.items():
        new_stream = {name: value for name, value in state["loss"].items() if name == "stream"}
        parts[module_id] = {"stream": state["stream"], "loss": {**saved[module_id]["loss"], **new_stream}}
    return parts


def _to_array(leaf: Tensor) -> npt.NDArray[Any]:
    return leaf.detach().cpu().numpy()
