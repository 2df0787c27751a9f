"""The terms of a loss, and the parameters that each of them reaches, read from torch's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

# Operations that add up what they are given, or scale it: they do not make one term of two.
_LINEAR = ("Add", "Sub", "Mean", "Sum", "Neg", "Stack", "Cat", "Where", "View", "Reshape", "Squeeze", "Unsqueeze")
_PRODUCTS = ("Mul", "Div", "Dot")  # linear if only one factor has a gradient


def mixed_terms(
    loss: Tensor, members: Mapping[str, Sequence[nn.Parameter]], names: Mapping[int, str]
) -> Iterator[dict[str, str]]:
    """Yield what each term of a sum reaches that reaches the parameters of several optimisers.

    Args:
        loss: the sum, 0-d.
        members: optimiser -> its parameters.
        names: id of a parameter -> its name.

    Yields:
        Optimiser -> the name of one of its parameters.
    """
    owner = {id(parameter): optimizer for optimizer, group in members.items() for parameter in group}
    for term in _terms(loss.grad_fn):
        reached: dict[str, str] = {}
        for parameter in _leaves(term):
            if id(parameter) in owner:
                reached.setdefault(owner[id(parameter)], names[id(parameter)])
        if len(reached) > 1:
            yield reached


def _terms(node: Any) -> Iterator[Any]:
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [one for one, _ in node.next_functions if one is not None]
        kind = type(node).__name__
        is_linear = kind.startswith(_LINEAR) or (kind.startswith(_PRODUCTS) and len(before) == 1)
        if is_linear and before:
            waiting += before
        else:
            yield node


def _leaves(node: Any) -> Iterator[Tensor]:
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [one for one, _ in node.next_functions]
