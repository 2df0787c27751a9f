"""Makes valid and invalid items of a space as described in `SET_CONFIG`; imports only numpy.

Specification: docs/reference/rllink.md, sections 4 and 6.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Space = Mapping[str, Any]

_KEYS = {
    "box": ("low", "high", "shape", "dtype"),
    "discrete": ("n", "start", "dtype"),
    "multi-discrete": ("nvec", "start", "dtype"),
    "multi-binary": ("n",),
    "dict": ("spaces",),
    "tuple": ("spaces",),
}


def find_mistake(space: Any, path: str) -> str | None:
    """Return the first mistake in the description of a space, or None."""
    kind = space.get("space") if isinstance(space, Mapping) else None
    if not isinstance(space, Mapping) or not isinstance(kind, str) or kind not in _KEYS:
        return f"{path}.space is not one of {', '.join(_KEYS)}"
    missing = [key for key in _KEYS[kind] if key not in space]
    if missing:
        return f"{path}.{missing[0]} is missing"
    mistakes = [find_mistake(part, f"{path}.spaces[{name}]") for name, part in _parts(space)]
    return next((mistake for mistake in mistakes if mistake), None)


def draw_item(space: Space, rng: random.Random) -> Any:
    """Draw one item of the space as a JSON value."""
    match space["space"]:
        case "dict":
            return {name: draw_item(part, rng) for name, part in _parts(space)}
        case "tuple":
            return [draw_item(part, rng) for _, part in _parts(space)]
        case "discrete":
            return space["start"] + rng.randrange(space["n"])
        case "multi-discrete":
            return _zipped(lambda size, start: start + rng.randrange(size), space["nvec"], space["start"])
        case "multi-binary":
            return _filled(_shape_of(space), (), lambda _: rng.randrange(2))
        case _:
            return _filled(space["shape"], (), lambda place: _number(space, place, rng))


def out_of_range_item(space: Space, item: Any) -> Any:
    """Return the item with one invalid value: an integer out of range, or text in a box."""
    match space["space"]:
        case "dict":
            name, part = _parts(space)[0]
            return {**item, name: out_of_range_item(part, item[name])}
        case "tuple":
            return [out_of_range_item(_parts(space)[0][1], item[0]), *item[1:]]
        case "discrete":
            return space["start"] + space["n"]
        case "multi-discrete":
            return _zipped(lambda size, start: start + size, space["nvec"], space["start"])
        case "multi-binary":
            return _filled(_shape_of(space), (), lambda _: 2)
        case _:
            return [item] if item == [] else "no number"


def out_of_bounds_item(space: Space) -> Any:
    """Return an item outside the finite bounds of a box of floats, or None for other spaces and unbounded boxes."""
    if space["space"] != "box" or not np.issubdtype(np.dtype(space["dtype"]), np.floating):
        return None
    highs = _filled(space["shape"], (), lambda place: _at(space["high"], place))
    numbers = _leaves(highs)
    if not numbers or all(isinstance(number, str) for number in numbers):
        return None
    return _filled(
        space["shape"],
        (),
        lambda place: 0.0 if isinstance(_at(space["high"], place), str) else _at(space["high"], place) + 1.0,
    )


def contains(space: Space, item: Any) -> bool:
    """Return whether the space contains the item; floats may exceed their bounds by rounding errors."""
    match space["space"]:
        case "dict":
            names = [name for name, _ in _parts(space)]
            return (
                isinstance(item, Mapping)
                and list(item) == names
                and all(contains(p, item[n]) for n, p in _parts(space))
            )
        case "tuple":
            parts = _parts(space)
            is_list = isinstance(item, Sequence) and len(item) == len(parts)
            return is_list and all(contains(part, value) for (_, part), value in zip(parts, item, strict=True))
    array = np.asarray(item)
    low, high = _range(space)
    if array.shape != tuple(_shape_of(space)) or array.dtype.kind not in "biuf":
        return False
    return bool(((array >= np.asarray(low) - 1e-5) & (array <= np.asarray(high) + 1e-5)).all())


def stack_items(space: Space, items: Sequence[Any]) -> Any:
    """Stack K items to arrays (K, ...); nested spaces give maps and lists of arrays."""
    match space["space"]:
        case "dict":
            return {name: stack_items(part, [item[name] for item in items]) for name, part in _parts(space)}
        case "tuple":
            return [stack_items(part, [item[n] for item in items]) for n, (_, part) in enumerate(_parts(space))]
    dtype = np.dtype(space.get("dtype", "int8")).newbyteorder("<")
    return np.array(items, dtype)


def is_leaf(space: Space) -> bool:
    """Return whether items of the space are not nested, unlike items of dict and tuple."""
    return space["space"] not in ("dict", "tuple")


def _parts(space: Space) -> list[tuple[str, Space]]:
    if space["space"] == "dict":
        return [(str(name), part) for name, part in space["spaces"]]
    return [(str(n), part) for n, part in enumerate(space["spaces"])] if space["space"] == "tuple" else []


def _shape_of(space: Space) -> Sequence[int]:
    match space["space"]:
        case "discrete":
            return []
        case "multi-discrete":
            return np.shape(space["nvec"])
        case "multi-binary":
            return [space["n"]] if isinstance(space["n"], int) else space["n"]
    shape: Sequence[int] = space["shape"]
    return shape


def _range(space: Space) -> tuple[Any, Any]:
    match space["space"]:
        case "discrete":
            return space["start"], space["start"] + space["n"] - 1
        case "multi-discrete":
            return space["start"], np.asarray(space["start"]) + np.asarray(space["nvec"]) - 1
        case "multi-binary":
            return 0, 1
    low, high = (np.array(space[key]).astype(np.float64) for key in ("low", "high"))
    return low, high


def _number(space: Space, place: tuple[int, ...], rng: random.Random) -> float | int:
    low, high = (float(_at(space[key], place)) for key in ("low", "high"))
    low = max(low, (high if np.isfinite(high) else 1.0) - 2.0) if not np.isfinite(low) else low
    high = low + 2.0 if not np.isfinite(high) else high
    if np.issubdtype(np.dtype(space["dtype"]), np.floating):
        return float(np.float32(low + (high - low) * rng.uniform(0.1, 0.9)))
    return rng.randint(int(low), int(high))


def _at(bound: Any, place: tuple[int, ...]) -> Any:
    for index in place:
        bound = bound[index] if isinstance(bound, list) else bound
    return bound


def _filled(shape: Sequence[int], place: tuple[int, ...], make: Any) -> Any:
    if len(place) == len(shape):
        return make(place)
    return [_filled(shape, (*place, index), make) for index in range(shape[len(place)])]


def _zipped(make: Any, sizes: Any, starts: Any) -> Any:
    if isinstance(sizes, list):
        return [_zipped(make, size, start) for size, start in zip(sizes, starts, strict=True)]
    return make(sizes, starts)


def _leaves(nested: Any) -> list[Any]:
    return [leaf for part in nested for leaf in _leaves(part)] if isinstance(nested, list) else [nested]
