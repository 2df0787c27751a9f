"""Nested columns: a dict or tuple (at any depth) whose leaves are arrays, or one array.

Lists are leaves, never structure: a list is either "many items" or an array-like value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_REQUIRED = object()


class StateError(ValueError):
    """A state (plain dict) that cannot be read; the message names the key and the expected value."""


# --- structure ------------------------------------------------------------------------------------


def map_leaves(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Call `fn(leaf, *other_leaves)` for every leaf; raises `ValueError` if the structures differ."""
    if type(tree) is np.ndarray and not others:
        return fn(tree)
    kind = dict if isinstance(tree, dict) else tuple if isinstance(tree, tuple) else None
    for other in others:
        if not _same_branches(tree, other, kind):
            raise ValueError(f"structure differs: expected {_outline(tree)}, got {_outline(other)}")
    if kind is None:
        return fn(tree, *others)
    if kind is dict:
        return {key: map_leaves(fn, branch, *(o[key] for o in others)) for key, branch in tree.items()}
    return tuple(map_leaves(fn, *branches) for branches in zip(tree, *others, strict=True))


def _same_branches(tree: Any, other: Any, kind: Any) -> bool:
    if kind is None:
        return not isinstance(other, (dict, tuple))
    if not isinstance(other, kind):
        return False
    same: bool = other.keys() == tree.keys() if isinstance(tree, dict) else len(other) == len(tree)
    return same


def leaves(tree: Any) -> Iterator[Any]:
    """Yield all leaves, depth first."""
    if isinstance(tree, (dict, tuple)):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)
    else:
        yield tree


def row_count(columns: Any) -> int:
    """Return the length of axis 0, taken from the first leaf; `ValueError` without any leaf."""
    if not isinstance(columns, (dict, tuple)):
        return len(columns)
    for leaf in leaves(columns):
        return len(leaf)
    raise ValueError(f"a nested column needs at least one array, got {_outline(columns)}")


def check_columns(columns: Any) -> None:
    """Check that every leaf is an array with a row axis, not of objects, and that all lengths are equal.

    Raises `TypeError` or `ValueError`.
    """
    for leaf in leaves(columns):
        if not hasattr(leaf, "shape"):
            raise TypeError(f"a column must be a list of items or array(s), got {_outline(columns)}")
        if len(leaf.shape) == 0:
            raise ValueError("every array of a column needs a row axis, got shape ()")
        _reject_objects(leaf)
    rows = row_count(columns)
    for leaf in leaves(columns):
        if leaf.shape[0] != rows:
            raise ValueError(f"every array of a column needs {rows} rows, got shape {tuple(leaf.shape)}")


def stack(items: list[Any]) -> Any:
    """Return columns of `len(items)` rows from items of one structure.

    Raises `ValueError` for an empty list, unequal structures or shapes, and `TypeError` for items other than numbers,
    bools and text.
    """
    if not items:
        raise ValueError("cannot stack an empty list: its structure is unknown")
    first = items[0]
    if next(leaves(first), _REQUIRED) is _REQUIRED:
        raise ValueError(f"an item needs at least one value to become an array, got {_outline(first)}")
    if isinstance(first, (dict, tuple)):
        return map_leaves(lambda *leaf: _stack_leaf(list(leaf)), *items)
    return _stack_leaf(items)


def unstack(columns: Any) -> list[Any]:
    """Return the rows of columns as a list of items, which are views if rows are arrays."""
    rows = row_count(columns)
    if isinstance(columns, (dict, tuple)):
        return [map_leaves(lambda column, row=row: column[row], columns) for row in range(rows)]
    return list(columns)


def take(columns: Any, index: Any) -> Any:
    """Return `leaf[index]` for every leaf."""
    if type(columns) is np.ndarray or type(columns) is list:
        return columns[index]
    return map_leaves(lambda leaf: leaf[index], columns)


def gather(columns: Any, rows: Array) -> Any:
    """Gather rows (B,) int64 of every leaf as copies; faster than `take` for rows with several values."""
    if type(columns) is np.ndarray:
        return columns.take(rows, 0)
    return map_leaves(lambda leaf: leaf.take(rows, 0), columns)


def assign(columns: Any, index: Any, values: Any) -> None:
    """Assign `leaf[index] = value` for every leaf; raises `ValueError` if the structures differ."""
    if type(columns) is np.ndarray:
        columns[index] = values
        return
    map_leaves(lambda leaf, value: leaf.__setitem__(index, value), columns, values)


def concatenate(parts: Sequence[Any]) -> Any:
    """Return the concatenated rows of all `parts`, which have the same structure."""
    if type(parts[0]) is np.ndarray:
        return np.concatenate(parts)
    return map_leaves(lambda *leaves_: np.concatenate(leaves_), *parts)


def zeros(template: Any, leading: tuple[int, ...]) -> Any:
    """Return arrays of zeros (*leading, *shape of the leaf), with the dtypes of the leaves of an item."""
    return map_leaves(lambda leaf: np.zeros((*leading, *np.shape(leaf)), np.asarray(leaf).dtype), template)


def equal(a: Any, b: Any) -> bool:
    """Return whether two have the same structure, shapes and values; NaN equals NaN, dtypes may differ."""
    if type(a) is np.ndarray and type(b) is np.ndarray:
        return _leaf_equal(a, b)
    try:
        return all(leaves(map_leaves(_leaf_equal, a, b)))
    except ValueError:
        return False


def full(shape: tuple[int, ...], fill: Any, dtype: np.dtype[Any]) -> Array:
    """Return an array of `fill`; raises `ValueError` if `dtype` cannot hold it or it does not broadcast to `shape`."""
    kind = dtype.kind
    if kind in "US":
        return np.full(shape, fill)
    out = np.empty(shape, dtype)
    if kind == "f" and type(fill) is float:
        out.fill(fill)  # takes half the time
        return out
    try:
        out[...] = fill
        exact = kind not in "biu" or np.array_equal(out, np.broadcast_to(fill, shape))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise ValueError(f"fill value {fill!r} does not fit the column: dtype {dtype}, row shape {shape[1:]}")
    return out


def cast_exactly(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return `values` as an array of `dtype`; floats may lose precision, any other change raises `ValueError`."""
    array = np.asarray(values)
    truncates = dtype.kind in "US" and array.dtype.itemsize > dtype.itemsize
    if array.dtype == dtype or (not truncates and _is_same_kind(array.dtype, dtype)):
        return array.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype) if array.dtype.kind in "biufc" and dtype.kind in "biufc" else None
    if cast is None or not np.array_equal(cast, array):
        raise ValueError(f"values of dtype {array.dtype} do not fit a column of dtype {dtype}")
    return cast


def _is_same_kind(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    both_text = source.kind in "US" and target.kind in "US"
    both_numbers = source.kind in "biufc" and target.kind in "biufc"
    return (both_text or both_numbers) and np.can_cast(source, target, "same_kind")


def _stack_leaf(items: list[Any]) -> Array:
    try:
        column = np.stack(items) if isinstance(items[0], np.ndarray) else np.array(items)
    except ValueError as error:
        shapes = sorted({str(np.shape(item)) for item in items if isinstance(item, np.ndarray)})
        raise ValueError(f"items of unequal shape cannot become one array: {', '.join(shapes) or error}") from None
    _reject_objects(column)
    return column


def _reject_objects(array: Any) -> None:
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biufcSUmM":
        raise TypeError(f"items must be numbers, bools or text to become an array, got dtype {array.dtype}")


def _leaf_equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    a, b = np.asarray(a), np.asarray(b)
    if np.array_equal(a, b):  # comparing NaN takes twice as long
        return True
    return a.dtype.kind in "fc" and b.dtype.kind in "fc" and bool(np.array_equal(a, b, equal_nan=True))


def _outline(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"dict with keys {list(tree)}"
    return f"tuple of {len(tree)}" if isinstance(tree, tuple) else type(tree).__name__


def read_key(state: Any, key: str, types: tuple[type, ...], where: str, default: Any = _REQUIRED) -> Any:
    """Return `state[key]` after checking its type; a missing key or None gives `default`, if there is one."""
    if not isinstance(state, dict):
        raise StateError(f"{where}: expected a dict, got {type(state).__name__}")
    value = state.get(key)
    if value is None and default is not _REQUIRED:
        return default
    expected = " or ".join(t.__name__ for t in types)
    if key not in state:
        raise StateError(f"{where}: missing key {key!r}, expected {expected}")
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise StateError(f"{where}.{key}: expected {expected}, got {type(value).__name__}")
    return value
