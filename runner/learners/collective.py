"""Communication between the learners of one module: gradients, metrics, and numbers of minibatches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runner.restarts import PeerDied


class Collective:
    """The peers of a learner, which update the same module on different rows. This base class is for one learner.

    All of them make the same calls in the same order.

    Attributes:
        rank: number of this learner.
        num_learners: number of learners.
    """

    rank = 0
    num_learners = 1

    def mean(self, values: Tensor) -> None:
        """Replace `values` by their mean over the learners; without peers, they do not change."""

    def most(self, number: int) -> int:
        """Return the largest `number` of all learners."""
        return number

    def total(self, number: int) -> int:
        """Return the sum of `number` over the learners."""
        return number


class ProcessGroup(Collective):
    """Learners in separate processes, connected by torch.distributed: NCCL between GPUs, otherwise Gloo.

    Calls raise `PeerDied` if another learner has crashed.

    Args:
        rank: rank of this learner.
        num_learners: number of learners; the constructor returns when all have joined.
        address: `host:port` at which the first learner listens.
        device: device of the module.

    Raises:
        PeerDied: a peer cannot join.
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
        """Average by an all-reduce."""
        self._all_reduce(values, self._backend.ReduceOp.SUM)
        values.div_(self.num_learners)

    def most(self, number: int) -> int:
        """Compute the maximum by an all-reduce."""
        return self._reduced(number, self._backend.ReduceOp.MAX)

    def total(self, number: int) -> int:
        """Sum by an all-reduce."""
        return self._reduced(number, self._backend.ReduceOp.SUM)

    def _reduced(self, number: int, operation: Any) -> int:
        value = torch.tensor(number, device=self._device)
        self._all_reduce(value, operation)
        return int(value)

    def _all_reduce(self, values: Tensor, operation: Any) -> None:
        try:
            self._backend.all_reduce(values, op=operation)
        except RuntimeError as error:  # Gloo reports a closed connection, NCCL an aborted call
            raise _peer_lost(error) from error


def _peer_lost(error: RuntimeError) -> PeerDied:
    return PeerDied(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
