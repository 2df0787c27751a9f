"""Array operations of a row store, whose arrays are numpy arrays or torch tensors on a device.

A store and its writers use operators, indexing and the methods that both kinds of array share (`any`, `sum`, `clip`,
`reshape`, `swapaxes`, `max`, `tolist`). This module contains the operations whose names differ.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import Column

# An array of the store's namespace.
Array = Any


class ArrayNamespace(Protocol):
    """Operations that a row store needs. Arguments and results are arrays of this namespace, unless named `host`."""

    def __hash__(self) -> int: ...

    def zeros(self, shape: tuple[int, ...], dtype: Any, /) -> Array:
        """Return zeros; `dtype` is numpy's or the namespace's."""

    def arange(self, start: int, stop: int, /) -> Array:
        """Return the int64 numbers from `start` to `stop - 1`."""

    def copy(self, array: Array, /) -> Array:
        """Return a copy."""

    def assign(self, column: Column, index: Any, values: Column, /) -> None:
        """Assign values to an index of every array of a column, cast to its dtype."""

    def concatenate(self, parts: tuple[Array, ...], axis: int = 0, /) -> Array:
        """Return the concatenation of the parts along an axis."""

    def flatnonzero(self, array: Array, /) -> Array:
        """Return the int64 indices of the true entries, in C order."""

    def count_nonzero(self, array: Array, /) -> Any:
        """Return the number of true entries; `int()` of it waits for the device."""

    def divmod(self, dividend: Array, divisor: int, /) -> tuple[Array, Array]:
        """Return quotients and remainders of numbers that are not negative."""

    def where(self, condition: Array, values: Array, otherwise: Any, /) -> Array:
        """Return the values where the condition is true, else a number."""

    def logical_or(self, first: Array, second: Array, out: Array, /) -> Array:
        """Write whether either is true into `out`, and return `out`."""

    def segment_sums(self, array: Array, lengths: Array, /) -> Array:
        """Return the float64 sums of consecutive parts of an array, each of at least one entry."""

    def from_host(self, array: npt.NDArray[Any], /) -> Array:
        """Return a numpy array as an array of the namespace; a copy unless the namespace is numpy."""

    def to_host(self, array: Array, /) -> npt.NDArray[Any]:
        """Return a numpy array; a copy if the namespace is not in the host's memory."""


class NumpyArrays:
    """The namespace of numpy."""

    zeros: Any = staticmethod(np.zeros)
    arange: Any = staticmethod(np.arange)
    assign = staticmethod(nested.assign)
    concatenate = staticmethod(np.concatenate)
    flatnonzero = staticmethod(np.flatnonzero)
    count_nonzero = staticmethod(np.count_nonzero)
    divmod = staticmethod(np.divmod)
    where = staticmethod(np.where)
    logical_or = staticmethod(np.logical_or)

    def copy(self, array: Array) -> Array:
        return array.copy()

    def segment_sums(self, array: Array, lengths: Array) -> Array:
        return np.add.reduceat(array.astype(np.float64), np.cumsum(lengths) - lengths)

    def from_host(self, array: npt.NDArray[Any]) -> Array:
        return array

    def to_host(self, array: Array) -> npt.NDArray[Any]:
        host: npt.NDArray[Any] = array
        return host


class TorchArrays:
    """The namespace of torch on one device.

    Args:
        device: device of all tensors, as torch names it.
    """

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self._torch = torch
        self._device = torch.device(device)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if not isinstance(dtype, self._torch.dtype):
            dtype = self._torch.from_numpy(np.zeros(0, dtype)).dtype
        return self._torch.zeros(shape, dtype=dtype, device=self._device)

    def arange(self, start: int, stop: int) -> Array:
        return self._torch.arange(start, stop, device=self._device)

    def copy(self, array: Array) -> Array:
        return array.clone()

    def assign(self, column: Column, index: Any, values: Column) -> None:
        def set_(array: Array, part: Array) -> None:
            array[index] = part.to(array.dtype)

        nested.map_leaves(set_, column, values)

    def concatenate(self, parts: tuple[Array, ...], axis: int = 0) -> Array:
        return self._torch.cat(parts, dim=axis)

    def flatnonzero(self, array: Array) -> Array:
        return array.reshape(-1).nonzero().squeeze(1)

    def count_nonzero(self, array: Array) -> Any:
        return array.count_nonzero()

    def divmod(self, dividend: Array, divisor: int) -> tuple[Array, Array]:
        return dividend // divisor, dividend % divisor

    def where(self, condition: Array, values: Array, otherwise: Any) -> Array:
        return self._torch.where(condition, values, otherwise)

    def logical_or(self, first: Array, second: Array, out: Array) -> Array:
        return self._torch.logical_or(first, second, out=out)

    def segment_sums(self, array: Array, lengths: Array) -> Array:
        if len(lengths) == 0:
            return self.zeros((0,), np.float64)
        return self._torch.segment_reduce(array.double(), "sum", lengths=lengths)

    def from_host(self, array: npt.NDArray[Any]) -> Array:
        return self._torch.tensor(array, device=self._device)

    def to_host(self, array: Array) -> npt.NDArray[Any]:
        host: npt.NDArray[Any] = array.cpu().numpy()
        return host


NUMPY: ArrayNamespace = NumpyArrays()
