"""Check the result of a user-defined loss for its first minibatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.errors import Problem, nearest_match
from runner.config.first_call import Contract
from runner.config.user_code import line_of, outline, place_of
from runner.episodes import nested
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule

# (module, batch, is_reporting) -> record.
ComputeLoss = Callable[..., LossMetrics]


def loss_contract(loss: Loss, config: AlgorithmConfig) -> Contract[LossMetrics]:
    """Return the contract that the first call of a loss must satisfy.

    Args:
        loss: loss of an algorithm.
        config: configuration of the algorithm, which names the class of the record and the optimisers.
    """

    def find_problems(
        before: Mapping[str, Any], record: Any, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True
    ) -> Iterator[Problem]:
        yield from _problems(loss, record, config)
        for column, given in before.items():
            if not all(nested.leaves(nested.map_leaves(_is_same, given, batch[column]))):
                what = f"{type(loss).__name__} changes column {column} of the batch, which later epochs read again"
                yield Problem(what, _place(loss), fix="change a copy: write 2 * x instead of x *= 2")

    return Contract(_place(loss), "__call__(self, module, batch, is_reporting=True)", find_problems, _copy_of)


def _copy_of(module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> Any:
    return nested.map_leaves(_copied, dict(batch))


def _problems(loss: Loss, record: Any, config: AlgorithmConfig) -> Iterator[Problem]:
    name, record_class = type(loss).__name__, config.metrics
    names = [field.name for field in fields(record_class) if field.name != "losses"]
    expected = f"{record_class.__name__}({', '.join(names)}), {line_of(record_class)}"
    if not isinstance(record, LossMetrics):
        got = "None" if record is None else f"{type(record).__name__} {outline(record) or ''}".rstrip()
        yield Problem(f"{name} does not return {record_class.__name__}", _place(loss), got, expected)
        return
    if loss.limits and record_class.rows:
        what = f"{name} reports values per row, but its limits may end an update before all rows have one"
        got = f"limits of {', '.join(loss.limits)}, and rows {', '.join(record_class.rows)}"
        yield Problem(what, _place(loss), got, fix=f"remove the limits, or `rows` of {record_class.__name__}")
    if record.losses is not None:
        yield from _wrong_losses(name, record.losses, list(config.optimizers), _place(loss))
    for field, value in record.reported().items():
        got = f"{field} {outline(value) or repr(value)}"
        if field in record_class.rows:
            if not isinstance(value, Tensor) or not value.ndim:
                yield Problem(f"{name} returns {field} without a row axis", _place(loss), got, "a tensor (B, ...)")
        elif field == "total_loss" and record.losses is None:
            yield from _wrong_loss(name, value, got, _place(loss))
        elif value is not None:
            yield from _wrong_metric(name, field, value, got, _place(loss))


def _wrong_losses(name: str, losses: Any, optimizers: Sequence[str], place: str) -> Iterator[Problem]:
    expected = "{" + ", ".join(f'"{one}": loss' for one in optimizers) + "}"
    if not isinstance(losses, Mapping) or not losses:
        got = outline(losses) or type(losses).__name__
        yield Problem(f"{name} returns losses that are not a dict of optimisers", place, got, expected)
        return
    for optimizer, value in losses.items():
        if optimizer not in optimizers:
            what = f"{name} returns a loss for {optimizer}, which is not an optimiser of the algorithm"
            yield Problem(what, place, ", ".join(map(str, losses)), expected, nearest_match(str(optimizer), optimizers))
        else:
            got = f"{optimizer} {outline(value) or repr(value)}"
            yield from _wrong_loss(name, value, got, place, f"loss for {optimizer}")


def _wrong_loss(name: str, value: Any, got: str, place: str, which: str = "total_loss") -> Iterator[Problem]:
    expected = "a 0-d tensor with a gradient: the mean over rows, computed from the module's outputs"
    if not isinstance(value, Tensor):
        yield Problem(f"{name} returns a {which} that is not a tensor", place, got, expected)
    elif value.ndim:
        yield Problem(f"{name} returns a {which} of several numbers", place, got, expected, fix="return its .mean()")
    elif not value.requires_grad:
        what = f"{name} returns a {which} without a gradient"
        yield Problem(what, place, got, expected, fix="avoid .detach(), .item(), torch.no_grad() and numpy")


def _wrong_metric(name: str, field: str, value: Any, got: str, place: str) -> Iterator[Problem]:
    if not isinstance(value, Tensor) or value.ndim:
        expected, fix = "a 0-d tensor", "use torch.tensor(x) for a number, and .mean() for several"
        yield Problem(f"{name} returns a metric {field} that is not a 0-d tensor", place, got, expected, fix=fix)


def _place(loss: Loss) -> str:
    return place_of(type(loss), "__call__")


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _is_same(before: Any, after: Any) -> bool:
    return not isinstance(before, Tensor) or bool(((before == after) | (before.isnan() & after.isnan())).all())
