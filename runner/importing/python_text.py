"""Values that a file has as Python text: literals and a few calls, which are read and never run."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any


def read_python(text: str, calls: Collection[str]) -> Any:
    """Return the value of a Python literal.

    Args:
        text: of an expression.
        calls: names of functions whose calls, with keyword arguments alone, are read as the dict of these.

    Raises:
        ValueError: the text is something else.
    """
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body, calls)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"no Python literal: {error}") from error


def _value_of(node: ast.expr, calls: Collection[str]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value_of(item, calls) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {_value_of(key, calls): _value_of(value, calls) for key, value in pairs if key is not None}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in calls:
        return {word.arg: _value_of(word.value, calls) for word in node.keywords}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value_of(node.operand, calls)
    if isinstance(node, ast.Attribute):  # nn.ReLU
        return node.attr
    raise ValueError(ast.dump(node))
