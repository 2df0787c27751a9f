"""Numbers in messages as columns: array blocks, and lists of items of a space.

Dimension letters: K items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import gymnasium as gym
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import discrete_bounds
from runner.rllink.client.packing import DTYPES

Space = gym.Space[Any]
Array = npt.NDArray[Any]
_MOST_DIMENSIONS = 8


class Block(Struct, forbid_unknown_fields=True):
    """An array as raw bytes in C order, little endian; only fixed-size dtypes, so nothing is unpickled."""

    dtype: str
    shape: list[int]
    data: memoryview

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def array(self) -> Array:
        """Return the array as a read-only view.

        Raises:
            ValueError: the dtype or the shape is not valid, or the number of bytes does not fit.
        """
        if self.dtype not in DTYPES:
            raise ValueError(f"the dtype of an array block must be one of {', '.join(DTYPES)}, got {self.dtype!r:.40}")
        shape = self.shape
        if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
            raise ValueError(
                f"an array block must have at most {_MOST_DIMENSIONS} sizes of at least 0, got {shape!r:.80}"
            )
        dtype = np.dtype(self.dtype)
        expected = math.prod(shape) * dtype.itemsize
        if expected != len(self.data):
            raise ValueError(f"shape {shape} of {self.dtype} needs {expected} bytes, got {len(self.data)}")
        return np.frombuffer(self.data, dtype).reshape(shape)


class SpaceCodec:
    """Decodes and encodes items of a space.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or nested Dicts or Tuples of these.

    Raises:
        TypeError: the space is not supported.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._is_float_box = _is_float_box(space)
        self._decoders = {
            name: (
                decoder(_item_type(space, blocks)),
                decoder(_rows_type(space, blocks)),
                decoder(_columns_type(space, blocks)),
            )
            for name, decoder, blocks in (
                ("json", msgspec.json.Decoder, False),
                ("msgpack", msgspec.msgpack.Decoder, True),
            )
        }

    def item(self, raw: Any, body_format: str) -> Column:
        """Decode one item as arrays without a leading axis.

        Raises:
            msgspec.ValidationError, ValueError: the item does not fit the space.
        """
        item = self._decoders[body_format][0].decode(raw)
        if self._is_float_box and not isinstance(item, Block):
            return np.array(item, self.space.dtype)
        return nested.take(_column_of_items(self.space, [item]), 0)

    def to_wire(self, item: Column, body_format: str) -> Any:
        """Encode an item in the format that `item` reads: lists and numbers, or array blocks in MessagePack."""
        return _plain(item, body_format == "msgpack")

    def rows(self, raw: Any, body_format: str) -> Column:
        """Decode a list or a block of K items as arrays (K, ...); raises the errors of `item`."""
        rows = self._decoders[body_format][1].decode(raw)
        if isinstance(rows, Block):
            return _checked(self.space, rows.array())
        return _column_of_items(self.space, rows)

    def columns(self, raw: Any, body_format: str) -> Column:
        """Decode one list or block per leaf of the space as arrays (K, ...); raises the errors of `item`."""
        return _column_of_columns(self.space, self._decoders[body_format][2].decode(raw))


def number_column(values: list[Any] | Block, dtype: Any) -> Array:
    """Make an array (K, ...) of this dtype.

    Raises:
        ValueError: the dtype of a block does not fit, rows differ in length, or numbers are not finite.
    """
    array = values.array() if isinstance(values, Block) else _cast(values, dtype)
    return _as_dtype(array, np.dtype(dtype))


def _plain(item: Column, as_blocks: bool) -> Any:
    if isinstance(item, dict):
        return {key: _plain(part, as_blocks) for key, part in item.items()}
    if isinstance(item, tuple):
        return [_plain(part, as_blocks) for part in item]
    array = np.asarray(item)
    if as_blocks and array.ndim:
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return {"dtype": little.dtype.str, "shape": list(array.shape), "data": little.tobytes()}
    return (array.astype(np.int8) if array.dtype.kind == "b" else array).tolist()  # a Box holds numbers


# -- types for msgspec -------------------------------------------------------------------------------------------------


def _item_type(space: Space, blocks: bool) -> Any:
    return _structure(space, blocks, _leaf_item_type)


def _rows_type(space: Space, blocks: bool) -> Any:
    rows: Any = list[_item_type(space, blocks)]  # type: ignore[misc]
    is_leaf = not isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
    return rows | Block if blocks and is_leaf else rows


def _columns_type(space: Space, blocks: bool) -> Any:
    def leaf(part: Space, blocks: bool) -> Any:
        rows: Any = list[_leaf_item_type(part, False)]  # type: ignore[misc]
        return rows | Block if blocks else rows

    return _structure(space, blocks, leaf)


def _structure(space: Space, blocks: bool, leaf: Callable[[Space, bool], Any]) -> Any:
    if isinstance(space, gym.spaces.Dict):
        names = [f"f{index}" for index in range(len(space.spaces))]
        fields = [(name, _structure(part, blocks, leaf)) for name, part in zip(names, space.values(), strict=True)]
        keys = dict(zip(names, map(str, space.spaces), strict=True))
        return msgspec.defstruct("Item", fields, rename=keys, forbid_unknown_fields=True)
    if isinstance(space, gym.spaces.Tuple):
        return tuple[tuple(_structure(part, blocks, leaf) for part in space.spaces)]  # type: ignore[misc]
    return leaf(space, blocks)


def _leaf_item_type(space: Space, blocks: bool) -> Any:
    if isinstance(space, gym.spaces.Discrete):
        return Annotated[int, Meta(ge=int(space.start), le=int(space.start + space.n - 1))]
    if isinstance(space, gym.spaces.Box):
        integer: Any = int | bool if space.dtype == np.bool_ else int
        number: Any = _finite(space) if _is_float_box(space) else integer
    elif isinstance(space, gym.spaces.MultiBinary):
        number = Annotated[int, Meta(ge=0, le=1)]
    elif isinstance(space, gym.spaces.MultiDiscrete):
        number = int
    else:
        raise TypeError(
            f"RLlink supports Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces; got {space}"
        )
    for size in reversed(space.shape or ()):
        number = Annotated[list[number], Meta(min_length=size, max_length=size)]
    return number | Block if blocks and space.shape else number


def _is_float_box(space: Space) -> bool:
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _finite(space: Space) -> Any:
    """Return the type of numbers that are finite in the space's dtype, which makes further checks unnecessary."""
    largest = float(np.finfo(space.dtype).max)
    return Annotated[float, Meta(ge=-largest, le=largest)]


# -- to arrays --------------------------------------------------------------------------------------------------------


def _column_of_items(space: Space, items: list[Any]) -> Column:
    if isinstance(space, gym.spaces.Dict):
        return {
            key: _column_of_items(part, [getattr(item, f"f{index}") for item in items])
            for index, (key, part) in enumerate(space.spaces.items())
        }
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_column_of_items(part, [item[index] for item in items]) for index, part in enumerate(space.spaces))
    if any(type(item) is Block for item in items):
        return _checked(space, np.stack([item.array() if isinstance(item, Block) else item for item in items]))
    if items and _is_float_box(space):
        return np.array(items, space.dtype)
    return _checked(space, _cast(items, space.dtype))


def _column_of_columns(space: Space, columns: Any) -> Column:
    if isinstance(space, gym.spaces.Dict):
        return {
            key: _column_of_columns(part, getattr(columns, f"f{index}"))
            for index, (key, part) in enumerate(space.spaces.items())
        }
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_column_of_columns(part, column) for part, column in zip(space.spaces, columns, strict=True))
    return _checked(space, columns.array() if isinstance(columns, Block) else _cast(columns, space.dtype))


def _checked(space: Space, rows: Array) -> Array:
    """Check the shape, dtype and range of rows (K, ...) of a leaf space."""
    shape = space.shape or ()
    if rows.shape[1:] != shape and len(rows):
        raise ValueError(f"expected items of shape {list(shape)}, got {list(rows.shape[1:])}")
    rows = _as_dtype(rows.reshape(len(rows), *shape), np.dtype(space.dtype))  # restore the shape of an empty list
    if isinstance(space, gym.spaces.Box):
        return rows
    low, high = discrete_bounds(space)
    if len(rows) and ((rows < low) | (rows > high)).any():
        raise ValueError(f"a value is outside of {space}")
    return rows


def _as_dtype(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.dtype != dtype:
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(f"expected numbers of dtype {dtype}, got {array.dtype}")
        if array.size and array.dtype.kind in "iu" and dtype.kind in "iu":
            _check_range(array, dtype)
        array = _cast(array, dtype)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("a number is not finite")
    return array


def _cast(numbers: Any, dtype: Any) -> Array:
    with np.errstate(over="ignore"):  # numbers that overflow become infinite, which is an error later
        return np.array(numbers, dtype)


def _check_range(integers: Array, dtype: np.dtype[Any]) -> None:
    """Raise `ValueError` if a cast would overflow."""
    limits = np.iinfo(dtype)
    if int(integers.min()) < limits.min or int(integers.max()) > limits.max:
        raise ValueError(f"an integer does not fit into {dtype}")
