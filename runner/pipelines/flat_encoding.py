"""Encoding of items of any space as flat float32 vectors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.episodes.spaces import Path, leaf_at

Space = gym.Space[Any]
Floats = npt.NDArray[np.float32]

_ENCODABLE = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


@dataclass(frozen=True)
class _Leaf:
    """A leaf of `num_numbers` numbers: its path in the space and its slice of the vector.

    `classes` (K,): the values that its K one-hot columns represent; column k belongs to number `components[k]`.
    """

    path: Path
    num_numbers: int
    columns: slice
    classes: npt.NDArray[Any] | None
    components: npt.NDArray[np.intp] | None


class FlatEncoding:
    """Encodes items of a space as float32 vectors: Discrete and MultiDiscrete leaves one-hot, the others flattened.

    Args:
        leaves: leaves from `leaf_spaces`.
        connector: name of the connector in errors.

    Attributes:
        size: D, the length of a vector.
        low, high: (D,) float32, bounds of the vectors.

    Raises:
        TypeError: a leaf cannot be encoded, or there are no leaves.
    """

    def __init__(self, leaves: Iterable[tuple[Path, Space]], connector: str) -> None:
        self._leaves: list[_Leaf] = []
        self.size = 0
        bounds: list[tuple[Floats, Floats]] = []
        for path, space in leaves:
            classes, components = _one_hot_columns(space)
            bounds.append(_flat_bounds(space, path, connector) if classes is None else _unit_bounds(len(classes)))
            columns = slice(self.size, self.size + len(bounds[-1][0]))
            self._leaves.append(_Leaf(path, math.prod(space.shape or ()), columns, classes, components))
            self.size = columns.stop
        if not bounds:
            raise TypeError(f"{connector} cannot make a vector: the space does not contain any values")
        self.low, self.high = (np.concatenate(part) for part in zip(*bounds, strict=True))

    def encode(self, items: Any, num_rows: int) -> Floats:
        """Return (num_rows, D) vectors of a nested column with `num_rows` items.

        A Discrete value outside its space is encoded as zeros only.
        """
        vectors = np.empty((num_rows, self.size), np.float32)
        for leaf in self._leaves:
            rows = leaf_at(items, leaf.path).reshape(num_rows, leaf.num_numbers)
            if leaf.classes is None:
                vectors[:, leaf.columns] = rows
            else:
                values = rows if leaf.components is None else rows[:, leaf.components]
                np.equal(values, leaf.classes, out=vectors[:, leaf.columns])
        return vectors

    def encode_tensors(self, items: Any) -> Tensor:
        """Return (B, D) vectors of nested tensors (B, ...), like `encode`."""
        return torch.cat([_encoded(leaf, leaf_at(items, leaf.path)) for leaf in self._leaves], -1)


def _encoded(leaf: _Leaf, items: Tensor) -> Tensor:
    rows = items.reshape(-1, leaf.num_numbers)
    if leaf.classes is None:
        return rows.float()
    if leaf.components is not None:
        rows = rows.index_select(1, torch.from_numpy(leaf.components.copy()))
    return (rows.long() == torch.from_numpy(leaf.classes.astype(np.int64))).float()


def _one_hot_columns(space: Space) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.intp] | None]:
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(space.start, space.start + space.n, dtype=space.dtype), None
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        within = [np.arange(size) for size in sizes]
        starts = np.repeat(space.start.reshape(-1), sizes)
        return (np.concatenate(within) + starts).astype(space.dtype), np.repeat(np.arange(sizes.size), sizes)
    return None, None


def _unit_bounds(size: int) -> tuple[Floats, Floats]:
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _flat_bounds(space: Space, path: Path, connector: str) -> tuple[Floats, Floats]:
    if isinstance(space, gym.spaces.MultiBinary):
        return _unit_bounds(math.prod(space.shape))
    if not isinstance(space, gym.spaces.Box):
        where = f" at {list(path)}" if path else ""
        raise TypeError(f"{connector} cannot make a vector of {space}{where}; expected {_ENCODABLE}")
    with np.errstate(over="ignore"):  # float64 bounds beyond the range of float32 mean no bounds
        return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
