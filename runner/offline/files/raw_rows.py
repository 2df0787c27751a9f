"""Raw rows, which every file reader returns, and row filters from YAML.

A filter text is parsed as a Python expression and never executed. It consists of columns, numbers, text, comparisons,
`in`, `and`, `or` and `not`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from typing import Any, Protocol, TypeGuard

import pyarrow as pa
import pyarrow.dataset as ds

from runner.config.errors import Problem, list_names, nearest_match
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line

RawTable = tuple[pa.Table, DataLocation]
# Columns that files may lack: only some of them have infos and tasks.
OPTIONAL_COLUMNS = frozenset({"infos", "new_infos", "task"})


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


def narrowed(table: pa.Table, place: DataLocation, row_filter: Any, columns: Collection[str] | None) -> RawTable:
    """Return the rows that pass a filter, with these columns, or all columns for None. A filter hides row numbers."""
    if row_filter is not None:
        table, place = table.filter(row_filter), DataLocation(place.file)
    if columns is not None:
        table = table.select([name for name in table.column_names if name in columns])
    return table, place


def differing_columns(names: Collection[str], path: str, first: str, known: Sequence[str]) -> DataError:
    """Return the error for columns that only the file at `path` has, or only the first file, with columns `known`."""
    what = f"the files do not have the same columns: {', '.join(sorted(names))}"
    return data_error(what, DataLocation(path), expected=f"as in {first}: {list_names(known)}")


_WHERE = "offline.input_read_method_kwargs.filter"
_ALLOWED = (
    "'column >= value and ...'; or [[column, operator, value], ...] (all must hold); "
    "or a list of such lists (at least one must hold)"
)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.Gt: operator.gt, ast.LtE: operator.le, ast.GtE: operator.ge},
}
_SYMBOLS: dict[str, type[ast.cmpop]] = {
    **{"=": ast.Eq, "==": ast.Eq, "!=": ast.NotEq, "<": ast.Lt, ">": ast.Gt, "<=": ast.LtE, ">=": ast.GtE},
    **{"in": ast.In, "not in": ast.NotIn},
}
_VALUES = (bool, int, float, str, list, tuple)  # in a filter as text
_WORDS = {"true": True, "false": False}


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
    tree = _tree_of(given)
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _is_column(node))
    expression = _expression(given, tree, ds.field)
    problems = [
        Problem(f"there is no column {name}", _WHERE, str(given), list_names(schema.names),
                nearest_match(name, schema.names))
        for name in names
        if name not in schema.names
    ]  # fmt: skip
    if problems:
        raise DataError(problems)
    try:
        schema.empty_table().filter(expression)  # fails if numbers are compared with text
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise _unreadable(given, first_line(error)) from None
    return expression


def ray_expression(given: Any) -> Any:
    """Return the filter as a Ray Data expression."""
    from ray.data.expressions import col

    return _expression(given, _tree_of(given), col)


def _expression(given: Any, tree: ast.expr, column: Callable[[str], Any]) -> Any:
    """Build an expression of pyarrow (`ds.field`) or Ray Data (`col`), whose classes overload the same operators."""
    try:
        return _built(tree, column)
    except (TypeError, ValueError, RecursionError, pa.ArrowException) as error:
        raise _unreadable(given, first_line(error)) from None


def _built(node: ast.expr, column: Callable[[str], Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        parts = [_built(part, column) for part in node.values]
        return reduce(operator.and_ if isinstance(node.op, ast.And) else operator.or_, parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_built(node.operand, column)
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return reduce(operator.and_, [_compared(*pair, column) for pair in pairs])
    if _is_column(node):
        return column(node.id) == True  # noqa: E712 - an expression
    raise ValueError(f"{ast.unparse(node)} is not a comparison")


def _compared(left: ast.expr, symbol: ast.cmpop, right: ast.expr, column: Callable[[str], Any]) -> Any:
    if _is_column(left) == _is_column(right):
        raise ValueError("a comparison needs a column on one side and a value on the other")
    first, second = (column(side.id) if _is_column(side) else _value_of(side) for side in (left, right))
    if isinstance(symbol, (ast.In, ast.NotIn)):
        if not _is_column(left) or not isinstance(second, (list, tuple)):
            raise ValueError("in and not in need a list of values")
        is_in = (first.isin if hasattr(first, "isin") else first.is_in)(list(second))
        return is_in if isinstance(symbol, ast.In) else ~is_in
    if type(symbol) not in _COMPARE:
        raise ValueError(f"the comparison of {ast.unparse(left)} uses an unsupported operator")
    return _COMPARE[type(symbol)](first, second)


def _tree_of(given: Any) -> ast.expr:
    """Return the syntax tree of a filter. Raises `DataError` if its form is invalid."""
    if isinstance(given, str):
        try:
            tree = ast.parse(given.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise _unreadable(given, error.msg if isinstance(error, SyntaxError) else str(error)) from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and not isinstance(node.value, _VALUES):
                raise _unreadable(given, f"{ast.unparse(node)} is not a number, text or list")
        return tree
    try:
        groups = given if isinstance(given[0][0], (list, tuple)) else [given]
        every = [[_rule_tree(rule) for rule in rules] for rules in groups]
    except (TypeError, IndexError, KeyError):
        raise _unreadable(given) from None
    if not all(every):
        raise _unreadable(given)
    return ast.BoolOp(ast.Or(), [ast.BoolOp(ast.And(), list(rules)) for rules in every])


def _rule_tree(rule: Any) -> ast.expr:
    if not isinstance(rule, (list, tuple)) or len(rule) != 3 or not isinstance(rule[0], str):
        raise TypeError("a rule is [column, operator, value]")
    name, symbol, value = rule
    if symbol not in _SYMBOLS:
        raise DataError([Problem("unknown operator", _WHERE, str(rule), ", ".join(_SYMBOLS))])
    return ast.Compare(ast.Name(name), [_SYMBOLS[symbol]()], [ast.Constant(value)])


def _is_column(node: ast.expr) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id not in _WORDS


def _value_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise ValueError("a comparison needs a column on one side and a value on the other") from None
    if not isinstance(value, _VALUES):
        raise ValueError(f"{ast.unparse(node)} is not a number, text or list")
    return value


def _unreadable(given: Any, reason: str = "") -> DataError:
    what = f"the filter cannot be read: {reason}" if reason else "the filter cannot be read"
    return DataError([Problem(what, _WHERE, str(given), _ALLOWED)])
