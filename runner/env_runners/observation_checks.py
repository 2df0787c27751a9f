"""Checks that an environment's observations are in its space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy import ndarray

from runner.config.errors import ConfigError, Problem
from runner.env_runners.leaf_checks import LeafChecks, Misfit, keys
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import Path, leaf_spaces

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


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
        """Check the shapes and dtypes of (N, ...) observations, or of another number of them.

        Raises:
            RunFailure: another structure or shape, or numbers that the space's dtype cannot hold.
        """
        if type(obs) is ndarray and obs.shape == self._flat_shape and obs.dtype is self._flat_dtype:
            return
        num_rows = self._num_rows if num_rows is None else num_rows
        for checks in self._leaves:
            checks.check_shape(_leaf(obs, checks.path), num_rows, method)

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


def outline(obs: Any) -> str:
    """Return type, shape and dtype of an observation, for each of its parts."""
    if isinstance(obs, (dict, tuple)):
        return str(nested.map_leaves(outline, obs))
    dtype = f" and dtype {obs.dtype}" if hasattr(obs, "dtype") else ""
    return f"{type(obs).__name__} of shape {np.shape(obs)}{dtype}"
