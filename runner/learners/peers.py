"""What the learners of one module tell each other: gradients, metrics, and how many minibatches they take."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class PeerLost(Exception):
    """A learner cannot reach its peers any more; the update that it is in cannot be finished."""


class Peers(Protocol):
    """The learners that update the same module in step, each on rows of its own; `rank` numbers them.

    All of them make the same calls in the same order. A call raises PeerLost where another learner is gone.
    """

    rank: int
    num_learners: int

    def mean(self, values: Tensor) -> None:
        """Replace `values` by their mean over the learners."""

    def most(self, number: int) -> int:
        """The largest `number` of any learner."""

    def total(self, number: int) -> int:
        """The sum of `number` over the learners."""


class Alone:
    """A learner without peers."""

    rank = 0
    num_learners = 1

    def mean(self, values: Tensor) -> None:
        """They are the mean already."""

    def most(self, number: int) -> int:
        """Its own number."""
        return number

    def total(self, number: int) -> int:
        """Its own number."""
        return number


class ProcessGroup:
    """Learners in processes of their own, joined by torch.distributed: NCCL between GPUs, else Gloo.

    Args:
        rank: of this learner.
        num_learners: in all; the call returns when all have joined.
        address: `host:port` at which the first one listens.
        device: of the module.

    Raises:
        PeerLost: not all can join.
    """

    def __init__(self, rank: int, num_learners: int, address: str, device: torch.device) -> None:
        from torch import distributed

        self.rank = rank
        self.num_learners = num_learners
        self._device = device
        self._backend = distributed
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            distributed.init_process_group(backend, f"tcp://{address}", rank=rank, world_size=num_learners)
        except RuntimeError as error:
            raise _peer_lost(error) from error

    def mean(self, values: Tensor) -> None:
        """All-reduce."""
        self._all_reduce(values, self._backend.ReduceOp.SUM)
        values.div_(self.num_learners)

    def most(self, number: int) -> int:
        """All-reduce."""
        return self._reduced(number, self._backend.ReduceOp.MAX)

    def total(self, number: int) -> int:
        """All-reduce."""
        return self._reduced(number, self._backend.ReduceOp.SUM)

    def _reduced(self, number: int, operation: Any) -> int:
        value = torch.tensor(number, device=self._device)
        self._all_reduce(value, operation)
        return int(value)

    def _all_reduce(self, values: Tensor, operation: Any) -> None:
        try:
            self._backend.all_reduce(values, op=operation)
        except RuntimeError as error:  # Gloo tells of a closed connection, NCCL of a call that was given up
            raise _peer_lost(error) from error


def _peer_lost(error: RuntimeError) -> PeerLost:
    return PeerLost(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
