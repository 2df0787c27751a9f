"""Makes valid and invalid items of a space as described in `SET_CONFIG`.

Specification: docs/reference/rllink.md, sections 4 and 6. Gymnasium is imported only for items, so that the checker
starts fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.nested import StateError
from runner.episodes.spaces import discrete_bounds, space_from_dict

if TYPE_CHECKING:
    import gymnasium as gym

    Space = gym.Space[Any]

# Keys that RLlink requires and `space_from_dict` does not.
_REQUIRED = {"discrete": ("start", "dtype"), "multi-discrete": ("start", "dtype"), "box": ("dtype",)}
_ROUNDING = 1e-5
_LARGEST = 1e6  # drawn number, if the bounds are wide


def find_mistake(described: Any, path: str) -> str | None:
    """Return the first mistake in the description of a space, or None."""
    try:
        space_from_dict(described, path)
    except StateError as error:
        return str(error)
    kind = described["space"]
    if kind == "text":
        return f"{path}.space: RLlink does not support text"
    if kind in ("dict", "tuple"):
        parts = described["spaces"] if kind == "dict" else enumerate(described["spaces"])
        mistakes = [find_mistake(part, f"{path}.spaces[{name}]") for name, part in parts]
        return next((mistake for mistake in mistakes if mistake), None)
    missing = [key for key in _REQUIRED.get(kind, ()) if key not in described]
    return f"{path}.{missing[0]} is missing" if missing else None


def draw_item(space: Space) -> Any:
    """Draw one item of the space as a JSON value."""
    from gymnasium import spaces as gs

    parts = parts_of(space)
    if parts is not None:
        items = {key: draw_item(part) for key, part in parts.items()}
        return items if isinstance(space, gs.Dict) else list(items.values())
    item = _drawn_from_box(space) if isinstance(space, gs.Box) else space.sample()
    return np.asarray(item).tolist()


def _drawn_from_box(box: gym.spaces.Box) -> Any:
    """Draw from a narrower box, because gymnasium cannot draw from the widest ones."""
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    low = np.maximum(low, np.minimum(high, _LARGEST) - 2 * _LARGEST)
    drawn = np.asarray(box.np_random.uniform(low, np.minimum(high, low + 2 * _LARGEST)))
    return (drawn if np.issubdtype(box.dtype, np.floating) else np.rint(drawn)).astype(box.dtype)


def parts_of(space: Space) -> dict[Any, Space] | None:
    """Return the parts of a Dict by key as text, or of a Tuple by index; None for other spaces."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        return {str(key): part for key, part in space.spaces.items()}
    return dict(enumerate(space.spaces)) if isinstance(space, gs.Tuple) else None


def out_of_range_item(space: Space, item: Any) -> Any:
    """Return the item with one invalid value: an integer out of range, or text in a box."""
    for key, part in (parts_of(space) or {}).items():
        wrong = out_of_range_item(part, item[key])
        return {**item, key: wrong} if isinstance(item, dict) else [wrong, *item[1:]]
    _, highest = discrete_bounds(space)
    if highest is None:
        return [item] if item == [] else "no number"
    return (np.broadcast_to(highest, space.shape or ()) + 1).tolist()


def out_of_bounds_item(space: Space) -> Any:
    """Return an item outside the finite bounds of a box of floats, or None for other spaces and unbounded boxes."""
    highest = getattr(space, "high", np.array([]))
    if not np.issubdtype(highest.dtype, np.floating) or not np.isfinite(highest).any():
        return None
    return np.where(np.isfinite(highest), highest + 1.0, 0.0).tolist()


def contains(space: Space, item: Any) -> bool:
    """Return whether the space contains the item; floats may exceed their bounds by rounding errors."""
    from gymnasium import spaces as gs

    parts = parts_of(space)
    if parts is not None:
        keys = list(item) if isinstance(item, Mapping) else list(range(len(item))) if isinstance(item, list) else None
        return keys == list(parts) and all(contains(part, item[key]) for key, part in parts.items())
    array = np.asarray(item)
    low, high = (space.low, space.high) if isinstance(space, gs.Box) else discrete_bounds(space)
    if array.shape != (space.shape or ()) or array.dtype.kind not in "biuf":
        return False
    return bool(((array >= low - _ROUNDING) & (array <= high + _ROUNDING)).all())


def stack_items(space: Space, items: Sequence[Any]) -> Any:
    """Stack K items to arrays (K, ...); nested spaces give maps and lists of arrays."""
    parts = parts_of(space)
    if parts is None:
        return np.array(items, space.dtype)
    stacked = {key: stack_items(part, [item[key] for item in items]) for key, part in parts.items()}
    return stacked if isinstance(items[0], Mapping) else list(stacked.values())
