"""Gymnasium spaces as JSON-able dicts, leaves of nested spaces, and items of a space: blank and one-hot encoded.

Gymnasium is imported only inside the functions, because it is not needed without a space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.nested import Array, StateError, read_key

if TYPE_CHECKING:
    from gymnasium import Space

# Keys and indices that lead to a leaf of a nested space.
Path = tuple[Any, ...]

_MAX_DEPTH = 32
_MAX_BOX_SIZE = 2**24
_KINDS = ("box", "discrete", "multi-discrete", "multi-binary", "text", "dict", "tuple")
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple"


def discrete_bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Return the lowest and highest value of a Discrete, MultiDiscrete or MultiBinary space, or None for both."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gs.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, gs.MultiBinary) else (None, None)


# --- spaces as dicts ------------------------------------------------------------------------------


def space_to_dict(space: Space[Any]) -> dict[str, Any]:
    """Return a JSON-able dict with the key `space` (the kind) and that kind's parameters; random state is left out.

    Bounds of a Box are one number if all are equal, else nested lists; infinities are the strings "inf" and "-inf".
    Raises `TypeError` for spaces other than Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict and Tuple.
    """
    from gymnasium import spaces as gs

    if isinstance(space, gs.Box):
        shape = list(space.shape)
        bounds = {"low": plain_array(space.low), "high": plain_array(space.high)}
        return {"space": "box", **bounds, "shape": shape, "dtype": str(space.dtype)}
    if isinstance(space, gs.Discrete):
        return {"space": "discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, gs.MultiDiscrete):
        lists = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"space": "multi-discrete", **lists, "dtype": str(space.dtype)}
    if isinstance(space, gs.MultiBinary):
        return {
            "space": "multi-binary",
            "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n],
        }
    if isinstance(space, gs.Text):
        lengths = {"min_length": space.min_length, "max_length": space.max_length}
        return {"space": "text", **lengths, "charset": "".join(space.character_list)}
    if isinstance(space, gs.Dict):
        return {
            "space": "dict",
            "spaces": [[_dict_key(k), space_to_dict(s)] for k, s in space.spaces.items()],
        }
    if isinstance(space, gs.Tuple):
        return {"space": "tuple", "spaces": [space_to_dict(s) for s in space.spaces]}
    raise TypeError(f"a {type(space).__name__} space cannot be saved; expected: {_SUPPORTED}")


def space_from_dict(state: Any, where: str = "space", depth: int = 0) -> Space[Any]:
    """Invert `space_to_dict`; raises `StateError` naming the key that is missing or wrong."""
    if depth > _MAX_DEPTH:
        raise StateError(f"{where[:120]}: nested deeper than {_MAX_DEPTH} levels")
    kind = read_key(state, "space", (str,), where)
    if kind not in _KINDS:
        raise StateError(f"{where}.space: unknown kind {kind!r:.60}; expected: {', '.join(_KINDS)}")
    try:
        return _read(kind, state, where, depth)
    except StateError:
        raise
    except (AssertionError, ValueError, TypeError, OverflowError) as error:
        raise StateError(f"{where}: not a valid {kind} space: {error}") from None


def _dict_key(key: Any) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise TypeError(f"keys of a Dict space must be strings or integers to be saved, got {key!r}")


def plain_array(array: Array) -> Any:
    """Return nested lists, or one number if all are equal, 0 if there are none; infinities as "inf" and "-inf"."""
    if array.size == 0:
        return 0
    if (array == array.flat[0]).all():
        return _number_to_plain(array.flat[0].item())
    return _map_numbers(_number_to_plain, array.tolist())


def _number_to_plain(number: Any) -> Any:
    return str(number) if isinstance(number, float) and math.isinf(number) else number


def _map_numbers(fn: Callable[[Any], Any], numbers: Any) -> Any:
    return [_map_numbers(fn, n) for n in numbers] if isinstance(numbers, (list, tuple)) else fn(numbers)


def _read_bound(state: dict[str, Any], key: str, where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    def number(value: Any) -> Any:
        if value in ("inf", "-inf"):
            return float(value)
        if not isinstance(value, (int, float)):
            raise StateError(f"{where}.{key}: expected numbers, 'inf' or '-inf', got {value!r:.60}")
        return value

    bound = np.asarray(_map_numbers(number, read_key(state, key, (int, float, str, list, tuple, bool), where)), dtype)
    if bound.shape not in ((), shape):
        raise StateError(f"{where}.{key}: expected one number or shape {list(shape)}, got {list(bound.shape)}")
    return np.full(shape, bound, dtype)


def _read_sizes(state: dict[str, Any], key: str, where: str) -> tuple[int, ...]:
    sizes = tuple(read_key(state, key, (list, tuple), where))
    if not all(type(size) is int and size >= 0 for size in sizes) or math.prod(sizes) > _MAX_BOX_SIZE:
        raise StateError(f"{where}.{key}: expected non-negative integers, product at most 2**24, got {sizes!r:.80}")
    return sizes


def _read_dtype(state: dict[str, Any], where: str, kinds: str, default: str) -> Any:
    name = read_key(state, "dtype", (str,), where, default=default)
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in kinds:
        raise StateError(f"{where}.dtype: expected a numpy dtype of kind {'/'.join(kinds)}, got {name!r:.60}")
    return dtype


def _read(kind: str, state: dict[str, Any], where: str, depth: int) -> Space[Any]:
    from gymnasium import spaces as gs

    match kind:
        case "box":
            shape, dtype = _read_sizes(state, "shape", where), _read_dtype(state, where, "biuf", "float32")
            low, high = (_read_bound(state, key, where, shape, dtype) for key in ("low", "high"))
            return gs.Box(low, high, shape, dtype.type)
        case "discrete":
            n, start = read_key(state, "n", (int,), where), read_key(state, "start", (int,), where, default=0)
            return gs.Discrete(n, start=start, dtype=_read_dtype(state, where, "iu", "int64").type)
        case "multi-discrete":
            dtype = _read_dtype(state, where, "iu", "int64")
            nvec = np.array(read_key(state, "nvec", (list, tuple), where), dtype)
            start = read_key(state, "start", (list, tuple), where, default=None)
            return gs.MultiDiscrete(nvec, dtype.type, start=None if start is None else np.array(start, dtype))
        case "multi-binary":
            n = state.get("n")
            return gs.MultiBinary(n if type(n) is int and 0 < n <= _MAX_BOX_SIZE else _read_sizes(state, "n", where))
        case "text":
            longest = read_key(state, "max_length", (int,), where)
            shortest = read_key(state, "min_length", (int,), where, default=1)
            return gs.Text(longest, min_length=shortest, charset=read_key(state, "charset", (str,), where))
        case "dict":
            return gs.Dict(list(_read_pairs(state, where, depth)))
        case _:
            parts = enumerate(read_key(state, "spaces", (list, tuple), where))
            return gs.Tuple([space_from_dict(part, f"{where}[{i}]", depth + 1) for i, part in parts])


def _read_pairs(state: dict[str, Any], where: str, depth: int) -> Iterator[tuple[Any, Space[Any]]]:
    for i, pair in enumerate(read_key(state, "spaces", (list, tuple), where)):
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], (str, int))):
            raise StateError(f"{where}.spaces[{i}]: expected [key, space], got {pair!r:.60}")
        yield pair[0], space_from_dict(pair[1], f"{where}.{pair[0]}", depth + 1)


# --- leaves of nested spaces ----------------------------------------------------------------------


def leaf_spaces(space: Space[Any], path: Path = ()) -> Iterator[tuple[Path, Space[Any]]]:
    """Yield the leaves of a space with their paths, in the order of its keys; `((), space)` if it is not nested."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        for key, part in space.spaces.items():
            yield from leaf_spaces(part, (*path, key))
    elif isinstance(space, gs.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaf_spaces(part, (*path, index))
    else:
        yield path, space


def map_leaf_spaces(fn: Callable[[Space[Any]], Any], space: Space[Any]) -> Any:
    """Return `fn(leaf)` for every leaf of a space, in dicts and tuples like its Dict and Tuple spaces."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        return {key: map_leaf_spaces(fn, part) for key, part in space.spaces.items()}
    if isinstance(space, gs.Tuple):
        return tuple(map_leaf_spaces(fn, part) for part in space.spaces)
    return fn(space)


def replace_leaf_spaces(
    fn: Callable[[Space[Any]], Space[Any]], space: Space[Any], left: Collection[str] = ()
) -> Space[Any]:
    """Return a space with `fn(leaf)` instead of each leaf.

    Args:
        fn: returns the new leaf.
        space: nested or not.
        left: keys of a Dict space whose parts stay unchanged.
    """
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        parts = space.spaces.items()
        return gs.Dict([(key, part if key in left else replace_leaf_spaces(fn, part)) for key, part in parts])
    if isinstance(space, gs.Tuple):
        return gs.Tuple([replace_leaf_spaces(fn, part) for part in space.spaces])
    return fn(space)


def leaf_at(tree: Any, path: Path) -> Any:
    """Return the leaf of a nested column or item at a path."""
    for key in path:
        tree = tree[key]
    return tree


# --- items of a space -----------------------------------------------------------------------------


def blank_item(space: Space[Any]) -> Any:
    """Return an item with the structure, shapes and dtypes of `space`.

    Discrete and MultiDiscrete leaves get their first value, text and unknown leaves None, and others zeros.
    """
    return map_leaf_spaces(_blank_leaf, space)


def _blank_leaf(space: Space[Any]) -> Any:
    from gymnasium import spaces as gs

    if space.shape is None or space.dtype is None or space.dtype.kind not in "biufc":
        return None
    if isinstance(space, gs.Discrete):
        return space.start
    return np.full(space.shape, space.start if isinstance(space, gs.MultiDiscrete) else 0, space.dtype)


def one_hot(space: Space[Any], tree: Any) -> Any:
    """One-hot encode the Discrete and MultiDiscrete leaves of `tree` (an item, or columns with leading row axes).

    A Discrete(n) leaf `(...)` becomes float32 `(..., n)`; a MultiDiscrete leaf `(..., *nvec.shape)` becomes
    float32 `(..., sum(nvec))`, one block after another. Other leaves are returned unchanged. Raises
    `ValueError` if the structure differs from the space's or a value is outside of it.
    """
    from gymnasium import spaces as gs

    if isinstance(space, gs.Discrete):
        if isinstance(tree, (int, np.integer)) and 0 <= (place := int(tree) - int(space.start)) < space.n:
            encoded = np.zeros(space.n, np.float32)
            encoded[place] = 1.0
            return encoded
        values = np.asarray(tree)
        return _one_hot(values[..., None] - space.start, np.array([space.n]))
    if isinstance(space, gs.Dict):
        if not isinstance(tree, dict) or tree.keys() != space.spaces.keys():
            raise ValueError(f"one_hot_discrete: the data is not a dict with the space's keys {list(space.spaces)}")
        return {key: one_hot(space.spaces[key], branch) for key, branch in tree.items()}
    if isinstance(space, gs.Tuple):
        if not isinstance(tree, tuple) or len(tree) != len(space.spaces):
            raise ValueError(f"one_hot_discrete: the data is not a tuple of the space's {len(space.spaces)} parts")
        return tuple(one_hot(part, branch) for part, branch in zip(space.spaces, tree, strict=True))
    if isinstance(space, gs.MultiDiscrete):
        values = np.asarray(tree) - space.start
        rows = values.shape[: values.ndim - space.nvec.ndim]
        return _one_hot(values.reshape(*rows, space.nvec.size), space.nvec.reshape(-1))
    return tree


def _one_hot(values: Array, sizes: Array) -> Array:
    """Encode `values` (..., K) in [0, sizes[k]) -> float32 (..., sum(sizes))."""
    if ((values < 0) | (values >= sizes)).any():
        raise ValueError(f"one_hot_discrete: a value is outside of its Discrete space of size {sizes.tolist()}")
    rows, width = math.prod(values.shape[:-1]), int(sizes.sum())
    places = (values + (np.cumsum(sizes) - sizes)).astype(np.intp).reshape(rows, len(sizes))
    encoded = np.zeros((rows, width), np.float32)
    encoded[np.arange(rows)[:, None], places] = 1.0
    return encoded.reshape(*values.shape[:-1], width)
