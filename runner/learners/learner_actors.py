"""The Ray actor that holds the learner of one process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from runner.cluster.actors import Actor
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.learners.collective import Collective, ProcessGroup
from runner.learners.learner import Learner
from runner.learners.train_batch import BatchReader


class MakeLearners(Protocol):
    """A picklable factory of the learner of one process."""

    def device(self) -> torch.device:
        """Return the device of their modules."""

    def __call__(self, collective: Collective) -> Learner:
        """Make the learner of a process."""


class LearnerActor(Actor):
    """Holds the learner of one process, which has peers. Methods of `Learner` also return the state afterwards.

    Args:
        make: returns the factory of the learner, which is called when the learner joins the others.
    """

    def __init__(self, make: Callable[[], MakeLearners]) -> None:
        self._make_learners = make()
        super().__init__(lambda: None)

    def _answer(self, method: str, *args: Any) -> Any:
        if hasattr(self, method):
            return getattr(self, method)(*args)
        writable = [one.with_writable_rows() if isinstance(one, Rollout) else one for one in args]
        return super()._answer(method, *writable), self.state()

    def free_address(self) -> str:
        """Return an unused address of this node, `host:port`."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{self.node()}:{probe.getsockname()[1]}"

    def join(self, rank: int, num_learners: int, address: str) -> None:
        """Make the learner, which connects to its peers at the address."""
        self._rank = rank
        self.held = self._make_learners(ProcessGroup(rank, num_learners, address, self._make_learners.device()))

    def receive(self, part: Rollout) -> None:
        """Do nothing; the call makes Ray transfer a part of the next rollout to this node while the learner is busy."""

    def read_from(self, reader: BatchReader) -> None:
        """Read batches from this reader from now on."""
        self.held.read_from(lambda: [reader])

    def state(self) -> dict[str, Any]:
        """Return the state of modules and pipelines; except for the first learner, only the unshared state."""
        state = self.held.get_unshared_state() if self._rank else self.held.get_state()
        arrays: dict[str, Any] = nested.map_leaves(to_array, state)
        return arrays

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a complete state."""
        pipelines = nested.map_leaves(copied, state["pipelines"])
        self.held.set_state({"learners": nested.map_leaves(_to_tensor, state["learners"]), "pipelines": pipelines})


def with_threads(make_learners: MakeLearners, torch_num_threads: int, index: int, generation: int) -> MakeLearners:
    """Set the number of torch threads of this process, and return the factory of its learner."""
    torch.set_num_threads(torch_num_threads)
    return make_learners


def copied(leaf: Any) -> Any:
    """Copy an array, since arrays in Ray's object store are read-only; other values are unchanged."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def to_array(leaf: Any) -> Any:
    """Convert a tensor to an array on the host; other values are unchanged."""
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _to_tensor(leaf: Any) -> Any:
    """Convert a (read-only) array of Ray's object store to a tensor; other values are unchanged."""
    return torch.from_numpy(np.require(leaf, requirements="W")) if isinstance(leaf, np.ndarray) else leaf
