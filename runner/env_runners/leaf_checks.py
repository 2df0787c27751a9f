"""The checks of one leaf of an observation space: shape, dtype and values of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem
from runner.episodes.spaces import Path, discrete_bounds

Array = npt.NDArray[Any]
Limits = tuple[Array, Array]


@dataclass(frozen=True)
class Misfit:
    """Observations with a value that does not fit their space.

    Attributes:
        rows: indices (K,) int64 of the observations, ascending.
        row: the observation that `problem` describes.
        problem: the first value that is an error, or else the first value out of bounds.
        is_error: whether the value is an error; otherwise it is counted.
    """

    rows: npt.NDArray[np.int64]
    row: int
    problem: Problem
    is_error: bool


class LeafChecks:
    """Checks of the values (rows, ...) of one leaf.

    Args:
        path: path of the leaf.
        space: Box, Discrete, MultiDiscrete or MultiBinary.
        validate_observations: see `ObservationChecks`.
    """

    def __init__(self, path: Path, space: gym.Space[Any], validate_observations: str) -> None:
        self.path = path
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.dtype: np.dtype[Any] = np.dtype(np.dtype(space.dtype).type)  # one that came in a pickle is another object
        self._bounds = _bounds(space)
        of_dtype = _limits(self.dtype)
        finite = np.clip(self._bounds[0], *of_dtype), np.clip(self._bounds[1], *of_dtype)
        is_box = isinstance(space, gym.spaces.Box)
        # Values beyond `allowed` are errors. Values beyond `watched`, which are equal or tighter, are found.
        self._allowed = of_dtype if is_box and validate_observations != "error" else finite
        self._watched = of_dtype if is_box and validate_observations == "off" else finite
        admits_dtype = all((bound == limit).all() for bound, limit in zip(self._watched, of_dtype, strict=True))
        self._fits_always = admits_dtype and self.dtype.kind != "f"

    def fit(self, rows: Any, num_rows: int) -> bool:
        """Return whether these are arrays of the right shape, with a dtype whose numbers the space's dtype holds."""
        dtype = getattr(rows, "dtype", None)
        if dtype is None or rows.shape != (num_rows, *self.shape):
            return False
        return dtype is self.dtype or converts(np.asarray(rows), self.dtype)  # the rows of a library may be tensors

    def find_misfit(self, rows: Array) -> Misfit | None:
        """Return the rows with a value that is not finite, not in the space, or watched and out of bounds."""
        lowest, highest = self._watched
        if self._fits_always or (_are_all(rows >= lowest) and _are_all(rows <= highest)):  # not for NaN
            return None
        is_outside, is_error = ~_is_within(rows, self._watched), ~_is_within(rows, self._allowed)
        has_error = bool(is_error.any())
        row, *place = (int(index) for index in np.argwhere(is_error if has_error else is_outside)[0])
        found = np.flatnonzero(is_outside.reshape(len(rows), -1).any(axis=1))
        return Misfit(found, row, self._problem(rows[(row, *place)], tuple(place)), has_error)

    def _problem(self, value: Any, place: tuple[int, ...]) -> Problem:
        index = f"[{', '.join(map(str, place))}]" if place else ""
        got = f"obs{keys(self.path)}{index} = {value!s}"
        if not np.isfinite(value):
            return Problem("an observation of the environment is not finite", got=got, expected="finite numbers")
        low, high = (np.broadcast_to(bound, self.shape)[place] for bound in self._bounds)
        return Problem(
            "an observation is outside the environment's observation space", got=got, expected=f"{low!s} to {high!s}"
        )


def converts(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds these numbers: floats up to rounding, integers exactly."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind != "f"):
        return False
    return dtype.kind == "f" or bool((array.astype(dtype) == array).all())


def keys(path: Path) -> str:
    """Return the path to a leaf as Python indexing."""
    return "".join(f"[{key!r}]" for key in path)


def _are_all(facts: npt.NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(facts) == facts.size)  # `all` takes five times longer on a few values


def _is_within(rows: Array, limits: Limits) -> npt.NDArray[np.bool_]:
    is_within: npt.NDArray[np.bool_] = (rows >= limits[0]) & (rows <= limits[1])
    return is_within


def _limits(dtype: np.dtype[Any]) -> Limits:
    """Return the lowest and highest finite numbers."""
    if dtype.kind == "b":
        return np.array(False), np.array(True)
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array(limits.min, dtype), np.array(limits.max, dtype)


def _bounds(space: gym.Space[Any]) -> Limits:
    """Return the lowest and highest values of the space."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    low, high = discrete_bounds(space)
    return np.asarray(low, space.dtype), np.asarray(high, space.dtype)
