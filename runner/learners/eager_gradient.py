"""Gradients of minibatches, computed operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import torch
from torch import Tensor

from runner.learners.collective import Collective
from runner.learners.loss import with_noise
from runner.learners.minibatches import Minibatch
from runner.learners.parameter_updater import ParameterUpdater, backward_each
from runner.learners.trained_module import Record, TrainedModule
from runner.modules.multi_rl_module import JointPass, MultiRLModule, member_of

K = TypeVar("K")
V = TypeVar("V")


class EagerGradient:
    """Computes the gradient of minibatches into the vector of a `ParameterUpdater`.

    Args:
        updater: updater of a module, or of modules that share parameters.
        collective: learners that update the same network on other rows.
    """

    compile_s = 0.0

    def __init__(self, updater: ParameterUpdater, collective: Collective) -> None:
        self._together = updater.network if isinstance(updater.network, MultiRLModule) else None
        self._updater, self._collective = updater, collective

    def compute(self, minibatches: Mapping[TrainedModule, Minibatch]) -> dict[TrainedModule, Record]:
        """Compute the gradient of the sum of the modules' losses, averaged over the peers.

        Returns:
            The metrics of each module's loss.
        """
        self._updater.gradient.zero_()
        records: dict[TrainedModule, list[tuple[Record, float]]] = {module: [] for module in minibatches}
        for parts in zip_by_key({module: one.microbatches() for module, one in minibatches.items()}):
            batches = {one: with_noise(columns, one.loss, one.module) for one, (columns, _) in parts.items()}
            joint_pass = None
            if self._together is not None:
                joint_pass = JointPass(self._together, {one.module_id: columns for one, columns in batches.items()})
            losses: dict[str, list[Tensor]] = {}  # by optimiser; "" for losses of all optimisers
            for trained, (_, share) in parts.items():
                minibatch, module = minibatches[trained], trained.module
                if joint_pass is not None:
                    module = member_of(joint_pass.together, trained.module_id, joint_pass)
                metrics = trained.compute_loss(module, batches[trained], minibatch.is_last_epoch)
                for name, loss in (metrics.losses or {"": metrics.total_loss}).items():
                    losses.setdefault(name, []).append(loss if share == 1.0 else share * loss)
                record = metrics.reported()
                records[trained].append((trained.rows.extract(record, minibatch), share))
            self._backward({name: _sum(of_one) for name, of_one in losses.items()})
        self._collective.mean(self._updater.gradient)
        return {module: _weighted_sums(of_module) for module, of_module in records.items()}

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradient; return the norms before clipping, for the parameters of each optimiser."""
        return self._updater.clip()

    def get_state(self) -> dict[str, Any]:
        """Return an empty state, since gradients depend on the minibatch only."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Ignore the state, which a compiled gradient may have saved."""

    def _backward(self, losses: dict[str, Tensor]) -> None:
        """Add the gradients of losses by optimiser; the loss under the empty name applies to all of them."""
        total = losses.pop("", None)
        if losses:
            backward_each(losses, self._updater.members, keeps_graph=total is not None)
        if total is not None:
            self._updater.backward(total)


def zip_by_key(iterables: Mapping[K, Iterable[V]]) -> Iterator[dict[K, V]]:
    """Yield dicts of the first elements, the second elements, and so on, leaving out iterables that have ended."""
    if len(iterables) == 1:  # takes a fifth of the time
        [(key, iterable)] = iterables.items()
        for one in iterable:
            yield {key: one}
        return
    for together in zip_longest(*iterables.values()):
        yield {key: one for key, one in zip(iterables, together, strict=True) if one is not None}


def _sum(losses: Sequence[Tensor]) -> Tensor:
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).sum()


def _weighted_sums(records: Sequence[tuple[Record, float]]) -> Record:
    """Combine the metrics of microbatches to metrics of the minibatch; each is weighted by its fraction of rows."""
    if len(records) == 1:
        return records[0][0]
    first = records[0][0]
    return {
        name: None if value is None else sum(share * record[name].detach() for record, share in records)
        for name, value in first.items()
    }
