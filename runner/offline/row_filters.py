"""Row filters from YAML: `[["episode_return", ">=", 400]]`, pyarrow's disjunctive normal form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from runner.config.errors import Problem, list_names, nearest_match
from runner.offline.foreign.data_error import DataError

_WHERE = "offline.input_read_method_kwargs.filter"
_OPERATORS = ("=", "==", "!=", "<", ">", "<=", ">=", "in", "not in")
_ALLOWED = "[[column, operator, value], ...] (all of them), or a list of such lists (one of them)"


def read_filter(given: Any, columns: Sequence[str]) -> ds.Expression | None:
    """The filter as an expression.

    Args:
        given: from the configuration; an expression is taken as it is.
        columns: of the files.

    Raises:
        DataError: it has another form, or names a column that is not there.
    """
    if given is None or isinstance(given, ds.Expression):
        return given
    rules = list(filter_rules(given))
    problems = []
    for rule in rules:
        if rule[0] not in columns:
            nearest = nearest_match(rule[0], columns)
            problems.append(Problem(f"there is no column {rule[0]}", _WHERE, str(rule), list_names(columns), nearest))
        elif rule[1] not in _OPERATORS:
            problems.append(Problem("unknown operator", _WHERE, str(rule), ", ".join(_OPERATORS)))
        elif rule[1] in ("in", "not in") and not isinstance(rule[2], (list, tuple)):
            problems.append(Problem(f"a list follows {rule[1]}", _WHERE, str(rule)))
    if problems:
        raise DataError(problems)
    try:
        return pq.filters_to_expression(given)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError([Problem(f"the filter cannot be read: {error}", _WHERE, str(given), _ALLOWED)]) from None


def filter_rules(given: Any) -> list[list[Any]]:
    """All rules of a filter; raises `DataError` if it has no such form."""
    groups = given if isinstance(given, (list, tuple)) and given and _is_list_of_lists(given[0]) else [given]
    rules = []
    for group in groups:
        for rule in group if isinstance(group, (list, tuple)) else [group]:
            if not (isinstance(rule, (list, tuple)) and len(rule) == 3 and isinstance(rule[0], str)):
                raise DataError([Problem("the filter cannot be read", _WHERE, str(given), _ALLOWED)])
            rules.append(list(rule))
    return rules


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (list, tuple))


def ray_expression(given: Any) -> Any:
    """The filter as an expression of Ray Data's."""
    from functools import reduce

    from ray.data.expressions import col

    def one(name: str, operator: str, value: Any) -> Any:
        column = col(name)
        return {
            "=": lambda: column == value,
            "==": lambda: column == value,
            "!=": lambda: column != value,
            "<": lambda: column < value,
            ">": lambda: column > value,
            "<=": lambda: column <= value,
            ">=": lambda: column >= value,
            "in": lambda: column.is_in(list(value)),
            "not in": lambda: column.not_in(list(value)),
        }[operator]()  # type: ignore[no-untyped-call]

    groups = given if _is_list_of_lists(given[0]) else [given]
    return reduce(lambda a, b: a | b, (reduce(lambda a, b: a & b, (one(*rule) for rule in group)) for group in groups))
