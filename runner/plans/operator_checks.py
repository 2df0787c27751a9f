"""Check the outputs of a user-defined operator for each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from runner.config.errors import Problem
from runner.config.first_call import Contract
from runner.config.user_code import place_of

# An item -> the outputs of an operator.
Transform = Callable[[Any], Iterable[Any]]


def listed(transform: Transform, item: Any) -> Any:
    """Return the outputs for one item as a list, so that they can be checked."""
    made = transform(item)
    return list(made) if isinstance(made, Iterable) else made


def operator_contract(operator: type, gives: tuple[str, ...] | None) -> Contract[Any]:
    """Return the contract that each call of an operator must satisfy.

    Args:
        operator: class of the operator.
        gives: class names of the items that it may return, or None for all.
    """
    name, where = operator.__name__, place_of(operator, "transform")

    def find_problems(_: None, made: Any, item: Any) -> Iterator[Problem]:
        if not isinstance(made, Iterable):
            got = "None" if made is None else type(made).__name__
            expected, fix = "a list or a generator of items", "return [item], yield item, or return [] for no item"
            yield Problem(f"{name}.transform does not return a list of items", where, got, expected, fix=fix)
            return
        for one in made:
            kinds = [kind.__name__ for kind in type(one).__mro__]
            if gives is not None and not set(kinds) & set(gives):
                what = f"{name}.transform returned an item of a class that its `gives` does not name"
                got = f"{type(one).__name__} for {type(item).__name__}"
                yield Problem(what, where, got, ", ".join(gives) or "none")

    return Contract(where, "transform(self, item)", find_problems)
