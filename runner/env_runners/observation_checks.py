"""Checks that an environment's observations are in its space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from numpy import ndarray

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.env_runners.leaf_checks import LeafChecks, Misfit, converts, keys
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import Path, leaf_spaces

Array = npt.NDArray[Any]
_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_NOTHING = object()


class ObservationChecks:
    """Finds observations that do not fit `space`.

    A wrong shape, numbers that the dtype cannot hold, numbers that are not finite and values outside of a Discrete,
    MultiDiscrete or MultiBinary space are always errors. `validate_observations` determines the treatment of finite
    numbers outside of the bounds of a Box.

    Args:
        space: space of one observation.
        num_rows: N, number of observations in a vector step.
        owner: owner of the space, for messages.
        validate_observations: `error`, `warn` (they are counted) or `off` (they are not checked).

    Raises:
        ConfigError: a part of the space cannot be stored in a column (Text, Graph, Sequence, ...).
    """

    def __init__(self, space: gym.Space[Any], num_rows: int, owner: str, validate_observations: str = "warn") -> None:
        self._space = space
        self._num_rows = num_rows
        self._leaves: list[LeafChecks] = []
        for path, part in leaf_spaces(space):
            if part.shape is None or part.dtype is None or np.dtype(part.dtype).kind not in "biuf":
                where = f"{owner}, obs{keys(path)}" if path else owner
                raise ConfigError([Problem("this observation space is not supported", where, str(part), _SUPPORTED)])
            self._leaves.append(LeafChecks(path, part, validate_observations))
        is_flat = [checks.path for checks in self._leaves] == [()]
        self._flat_shape = (num_rows, *self._leaves[0].shape) if is_flat else None
        self._flat_dtype = self._leaves[0].dtype if is_flat else None

    def check_shapes(self, obs: Column, method: str, num_rows: int | None = None) -> None:
        """Check the shapes and dtypes of (N, ...) observations, or of another number of them, in each step.

        Only `check`, which raises the same errors, also finds parts that the space does not have.
        """
        if type(obs) is ndarray and obs.shape == self._flat_shape and obs.dtype is self._flat_dtype:
            return
        num_rows = self._num_rows if num_rows is None else num_rows
        for checks in self._leaves:
            if not checks.fit(_leaf(obs, checks.path), num_rows):
                self.check(obs, method, num_rows)

    def check(self, obs: Column, method: str, num_rows: int | None = None) -> None:
        """Check structure, shapes and dtypes of (N, ...) observations, or of another number of them.

        Raises:
            RunFailure: another structure or shape, or numbers that the space's dtype cannot hold.
        """
        found = find_difference(obs, self._space, num_rows=self._num_rows if num_rows is None else num_rows)
        if found is not None:
            raise RunFailure(Problem("the environment's observations do not fit its space", method, *found))

    def find_misfit(self, obs: Column) -> Misfit | None:
        """Return the misfits among observations (rows, ...) of valid shapes; errors take precedence."""
        found = [
            misfit for checks in self._leaves if (misfit := checks.find_misfit(_leaf(obs, checks.path))) is not None
        ]
        if not found:
            return None
        first = next((misfit for misfit in found if misfit.is_error), found[0])
        return replace(first, rows=np.unique(np.concatenate([misfit.rows for misfit in found])))


def _leaf(tree: Any, path: Path) -> Any:
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(tree, (dict, tuple)) else tree


def find_difference(obs: Any, space: Any, path: Path = (), num_rows: int | None = None) -> tuple[str, str] | None:
    """Return the first difference in structure, shape or dtype between observations and their space, as two texts.

    Args:
        obs: one observation, `num_rows` of them stacked along the first axis, or a part of either.
        space: space of one observation.
        path: path of the part.
        num_rows: number of observations; None for one observation without a first axis.

    Returns:
        The part's path with its type, shape or dtype, and the same path with the expected one; None if all are equal.
    """
    got, expected = _difference(obs, space, num_rows)
    if got != expected:
        named = f"obs{keys(path)}: " if path else ""
        return named + got, named + expected
    spaces, parts = _parts_of(space), _parts_of(obs)
    for key in {**spaces, **parts}:
        found = find_difference(parts.get(key, _NOTHING), spaces.get(key, _NOTHING), (*path, key), num_rows)
        if found is not None:
            return found
    return None


def _difference(obs: Any, space: Any, num_rows: int | None) -> tuple[str, str]:
    """Return the type, shape or dtype of a part and of its space, whichever differs; equal texts if none does."""
    array = _array_of(obs)
    if array is None or getattr(space, "shape", None) is None:
        return _text_of(obs), _text_of(space)
    if array.shape != (space.shape if num_rows is None else (num_rows, *space.shape)):
        return _shapes(array.shape, space.shape, num_rows)
    dtype = np.dtype(space.dtype)
    return ("", "") if converts(array, dtype) else (f"dtype {array.dtype}", f"dtype {dtype}")


def _shapes(shape: tuple[int, ...], expected: tuple[int, ...], num_rows: int | None) -> tuple[str, str]:
    """Return the shape of one observation and the expected one; of all rows if their number is wrong."""
    if num_rows is None:
        return f"shape {shape}", f"shape {expected}"
    of_one = f"shape {expected}" + (f" for each of {num_rows} sub-environments" if num_rows > 1 else "")
    if shape[:1] == (num_rows,):
        return f"shape {shape[1:]}", of_one
    return f"shape {shape}", f"shape {(num_rows, *expected)}, which is {of_one}"


def _array_of(obs: Any) -> Array | None:
    """Return a number, an array or a list of numbers as an array; None for anything else."""
    if isinstance(obs, np.ndarray):
        return obs
    try:
        array = np.asarray(obs)
    except ValueError:  # lists of different lengths
        return None
    return None if isinstance(obs, tuple) or array.dtype.kind not in "biuf" else array


def _parts_of(tree: Any) -> dict[Any, Any]:
    """Return key or index -> part of an observation, or of its space."""
    if isinstance(tree, (dict, gym.spaces.Dict)):
        return dict(tree.items())
    return dict(enumerate(tree)) if isinstance(tree, (tuple, gym.spaces.Tuple)) else {}


def _text_of(tree: Any) -> str:
    """Describe a part of an observation, or its space."""
    if tree is None or tree is _NOTHING:
        return "None" if tree is None else "nothing"
    if isinstance(tree, (dict, gym.spaces.Dict)):
        return "a dict"
    if isinstance(tree, (tuple, gym.spaces.Tuple)):
        return "a tuple"
    if isinstance(tree, gym.Space):
        return f"shape {tree.shape} and dtype {tree.dtype}"
    return type(tree).__name__ if _array_of(tree) is None else outline(tree)


def outline(obs: Any) -> str:
    """Return type, shape and dtype of an observation, for each of its parts."""
    if isinstance(obs, (dict, tuple)):
        return str(nested.map_leaves(outline, obs))
    dtype = f" and dtype {obs.dtype}" if hasattr(obs, "dtype") else ""
    return f"{type(obs).__name__} of shape {np.shape(obs)}{dtype}"
