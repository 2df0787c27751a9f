"""Raw rows, which every file reader returns, and row filters from YAML.

A filter text is parsed as a Python expression and never executed. It consists of columns, numbers, text, comparisons,
`in`, `and`, `or` and `not`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from runner.config.errors import Problem, list_names, nearest_match
from runner.offline.files.data_error import DataError, DataLocation, first_line

RawTable = tuple[pa.Table, DataLocation]


class RawReader(Protocol):
    """Stream of raw rows in tables of bounded size, in the order of the files. Can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the first rows. Files with the same kind of data may differ in detail."""

    @property
    def row_filter(self) -> Any:
        """Filter of the rows, or None to keep all rows."""

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """Return the tables of rows, each with the location of its first row."""


_WHERE = "offline.input_read_method_kwargs.filter"
_NEGATED = {"==": "!=", "<": ">=", ">": "<=", "in": "not in"}
_NEGATED |= {b: a for a, b in _NEGATED.items()}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_OPERATORS = ("=", "==", "!=", "<", ">", "<=", ">=", "in", "not in")
_ALLOWED = (
    "'column >= value and ...'; or [[column, operator, value], ...] (all must hold); "
    "or a list of such lists (at least one must hold)"
)
_SYNTAX = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">="},
    **{ast.In: "in", ast.NotIn: "not in"},
}
_WORDS = {"true": True, "false": False}

Rule = list[Any]
Rules = list[list[Rule]]  # disjunctive normal form: at least one group must hold, with all of its rules


def read_filter(given: Any, schema: pa.Schema) -> ds.Expression | None:
    """Return the filter as a pyarrow expression.

    Args:
        given: filter from the configuration, or None for no filter.
        schema: schema of the files.

    Raises:
        DataError: the form is invalid, a column does not exist, or values are not comparable.
    """
    if given is None:
        return None
    rules = filter_rules(given)
    problems = [problem for group in rules for rule in group if (problem := _fault_of(rule, schema.names)) is not None]
    if problems:
        raise DataError(problems)
    try:
        expression = pq.filters_to_expression(rules)
        schema.empty_table().filter(expression)  # fails if numbers are compared with text
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise _unreadable(given, first_line(error)) from None
    return expression


def ray_expression(given: Any) -> Any:
    """Return the filter as a Ray Data expression."""
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

    groups = [reduce(lambda a, b: a & b, (one(*rule) for rule in group)) for group in filter_rules(given)]
    return reduce(lambda a, b: a | b, groups)


def filter_rules(given: Any) -> Rules:
    """Return all rules of a filter, in groups. Raises `DataError` if its form is invalid."""
    if isinstance(given, str):
        try:
            return _rules_of(ast.parse(given.strip(), mode="eval").body, is_negated=False)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise _unreadable(given, error.msg if isinstance(error, SyntaxError) else str(error)) from None
    groups = (
        given if _is_list(given) and given and _is_list(given[0]) and given[0] and _is_list(given[0][0]) else [given]
    )
    rules = [list(group) for group in groups if _is_list(group) and group]
    if len(rules) != len(groups) or not all(_is_rule(rule) for group in rules for rule in group):
        raise _unreadable(given)
    return [[list(rule) for rule in group] for group in rules]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_rule(value: Any) -> bool:
    return _is_list(value) and len(value) == 3 and isinstance(value[0], str)


def _fault_of(rule: Rule, columns: Sequence[str]) -> Problem | None:
    name, operator, value = rule
    if name not in columns:
        return Problem(
            f"there is no column {name}", _WHERE, str(rule), list_names(columns), nearest_match(name, columns)
        )
    if operator not in _OPERATORS:
        return Problem("unknown operator", _WHERE, str(rule), ", ".join(_OPERATORS))
    if operator in ("in", "not in") and not _is_list(value):
        return Problem(f"{operator} needs a list of values", _WHERE, str(rule))
    return None


def _unreadable(given: Any, reason: str = "") -> DataError:
    what = f"the filter cannot be read: {reason}" if reason else "the filter cannot be read"
    return DataError([Problem(what, _WHERE, str(given), _ALLOWED)])


# --- text -----------------------------------------------------------------------------------------


def _rules_of(node: ast.expr, is_negated: bool) -> Rules:
    """Return the rules of an expression or of its negation. Raises `ValueError` for anything except comparisons."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _rules_of(node.operand, not is_negated)
    if isinstance(node, ast.BoolOp):
        return _joined(
            [_rules_of(part, is_negated) for part in node.values], isinstance(node.op, ast.And) != is_negated
        )
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return _joined([[[_rule_of(*pair, is_negated)]] for pair in pairs], not is_negated)
    if isinstance(node, ast.Name):
        return [[[node.id, "==", not is_negated]]]
    raise ValueError(f"{ast.unparse(node)} is not a comparison")


def _joined(parts: list[Rules], all_hold: bool) -> Rules:
    if not all_hold:
        return [group for part in parts for group in part]
    return [[rule for group in groups for rule in group] for groups in product(*parts)]


def _rule_of(left: ast.expr, comparison: ast.cmpop, right: ast.expr, is_negated: bool) -> Rule:
    operator = _SYNTAX.get(type(comparison))
    if operator is None:
        raise ValueError(f"the comparison of {ast.unparse(left)} uses an unsupported operator")
    if not _is_column(left):
        left, right, operator = right, left, _MIRRORED.get(operator, "")
    if not _is_column(left) or not operator:
        raise ValueError("a comparison needs a column on one side and a value on the other")
    assert isinstance(left, ast.Name)
    return [left.id, _NEGATED[operator] if is_negated else operator, _value_of(right)]


def _is_column(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id not in _WORDS


def _value_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise ValueError("a comparison needs a column on one side and a value on the other") from None
    if not isinstance(value, (bool, int, float, str, list, tuple)):
        raise ValueError(f"{ast.unparse(node)} is not a number, text or list")
    return value
