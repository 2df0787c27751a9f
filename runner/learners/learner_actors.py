"""Learners in Ray actors that live and end together: the loss of one ends all."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from runner.cluster.pending_actors import find_lack_of_capacity
from runner.cluster.placement import Placement
from runner.config.blocks import LearnersConfig
from runner.config.errors import Problem, RunFailure, RunnerError
from runner.creation_failures import creation_failure
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.learners.collective import Collective, PeerLost, ProcessGroup
from runner.learners.learner import Learner
from runner.learners.train_batch import BatchReader

# A learner that misses a peer often fails before Ray tells which one died.
_NAMING_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)


class MakeLearners(Protocol):
    """A plan that makes the learners of one process; it is sent there."""

    def device(self) -> torch.device:
        """Return the device of their modules."""

    def __call__(self, collective: Collective) -> Learner:
        """Make the learner of a process."""


class LearnerLost(Exception):
    """A learner's process is gone; its peers cannot finish their calls."""


class _LearnerActor:
    """The learners of one process.

    Each call that changes them returns its answer and `state`; only the first learner's state has the shared part.
    """

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
        self._rank = rank
        self._group = self._make_learners(ProcessGroup(rank, num_learners, address, self._make_learners.device()))

    def receive(self, part: Rollout) -> None:
        """Do nothing with a part of the next rollout, which Ray brings to this node while the learner is busy."""

    def change(self, method: str, *arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Call a method of the group; a rollout among the arguments becomes writable."""
        arguments = tuple(one.with_writable_rows() if isinstance(one, Rollout) else one for one in arguments)
        return getattr(self._group, method)(*arguments), self.state()

    def read_from(self, reader: BatchReader) -> None:
        self._group.read_from(lambda: [reader])

    def state(self) -> dict[str, Any]:
        """Return the state of learners and pipelines, after the first learner only the part that is not shared."""
        state = self._group.get_unshared_state() if self._rank else self._group.get_state()
        arrays: dict[str, Any] = nested.map_leaves(to_array, state)
        return arrays

    def set_state(self, state: Mapping[str, Any]) -> None:
        pipelines = nested.map_leaves(copied, state["pipelines"])
        self._group.set_state({"learners": nested.map_leaves(_to_tensor, state["learners"]), "pipelines": pipelines})


class LearnerActors:
    """Learners in actors that have joined each other.

    Args:
        make_learners: makes the learners of one actor.
        config: number, resources and places of the actors.
        start_timeout_s: until all are there. Actors that start on few cores import torch one after the other.

    Raises:
        LearnerLost: a learner is gone before all have joined.
        RunFailure: a learner cannot be made.
    """

    def __init__(self, make_learners: MakeLearners, config: LearnersConfig, start_timeout_s: float) -> None:
        import ray

        self._num_learners = config.num_learners
        self._placement = Placement(config.resources_per_learner, config.num_learners, config.scheduling_strategy)
        make = (make_learners, config.torch_num_threads)
        self.actors: list[Any] = [
            ray.remote(_LearnerActor).options(**self._placement.place(), max_restarts=0).remote(*make)
            for _ in range(config.num_learners)
        ]
        try:
            [address] = self.answers([self.actors[0].free_address.remote()], start_timeout_s)
            joins = [actor.join.remote(rank, self._num_learners, address) for rank, actor in enumerate(self.actors)]
            self.answers(joins, start_timeout_s)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all learners, each with its arguments, and return their answers; see `answers`."""
        return self.answers(self.begin(method, arguments))

    def begin(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call all learners, each with its arguments, and return Ray's references to their answers."""
        pairs = zip(self.actors, arguments, strict=True)
        return [getattr(actor, method).remote(*its_arguments) for actor, its_arguments in pairs]

    def close(self) -> None:
        """Kill the actors, whatever they are doing."""
        import ray

        for actor in self.actors:
            ray.kill(actor)
            self._placement.leave()

    def answers(self, calls: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """Wait for the answers of all learners.

        Args:
            calls: of `begin`.
            timeout_s: after which learners count as not started; None: never.

        Raises:
            LearnerLost: a learner is gone, at once; others may wait for it until they are closed.
            RunnerError: a learner failed in a way that a restart would not mend.
        """
        import ray

        answers: dict[Any, Any] = {}
        failures: list[Exception] = []
        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=1, timeout=_NAMING_TIMEOUT_S if failures else timeout_s)
            if not done:
                break
            try:
                answers[done[0]] = ray.get(done[0])
            except ray.exceptions.RayError as error:
                failures.append(self._failure(error, list(calls).index(done[0])))
        if failures:
            raise next((failure for failure in failures if isinstance(failure, RunnerError)), failures[0])
        if pending and timeout_s is not None:
            raise self._not_started(len(pending), timeout_s)
        return [answers[call] for call in calls]

    def _failure(self, error: Any, rank: int) -> LearnerLost | RunnerError:
        """Describe a learner's failure, which the death of another learner may explain.

        Raises:
            LearnerLost: this learner died.
            RunnerError: this learner refused to go on.
        """
        cause = getattr(error, "cause", None)
        name = f"learner {rank} of {self._num_learners}"
        if isinstance(cause, PeerLost):
            return LearnerLost(f"{name} lost its peers ({cause})")
        if isinstance(cause, RunnerError):
            raise cause from None
        if cause is None and not getattr(error, "actor_init_failed", False):
            raise LearnerLost(f"{name} is gone ({type(error).__name__})") from error
        _log.error("learner %d: %s", rank, error)
        if cause is None:
            return creation_failure(error, f"{name} failed")
        text = f"{type(cause).__name__}: {cause}"
        return RunFailure(Problem(f"{name} failed: {text}", "its Ray actor; the stack trace is in runner.log"))

    def _not_started(self, num_missing: int, timeout_s: float) -> RunFailure:
        lack = find_lack_of_capacity(self.actors, timeout_s)
        if lack is not None:
            return RunFailure(lack)
        what = f"{num_missing} of {self._num_learners} learners did not start within {timeout_s:g} s"
        return RunFailure(Problem(what, "ray.actor_start_timeout_s"))


def copied(leaf: Any) -> Any:
    """Copy an array, since one of Ray's object store is read-only; other values stay."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def to_array(leaf: Any) -> Any:
    """Convert a tensor to an array on the host; other values stay."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _to_tensor(leaf: Any) -> Any:
    """Convert a (read-only) array of Ray's object store to a tensor; other values stay."""
    return torch.from_numpy(np.require(leaf, requirements="W")) if isinstance(leaf, np.ndarray) else leaf
