"""Checks that an environment's observations lie in its space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import REWARDS, Column, ColumnBlock

Array = npt.NDArray[Any]
Bounds = tuple[Array, Array]
Key = str | int

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


class ObservationChecks:
    """What must hold for N rows of observations of `space`.

    Args:
        space: of one observation.
        num_rows: N.
        owner: whose space it is, for messages.

    Raises:
        ConfigError: the space holds a part that no column can hold (Text, Graph, Sequence, ...).
    """

    def __init__(self, space: gym.Space[Any], num_rows: int, owner: str) -> None:
        self._num_rows = num_rows
        self._parts = [(path, part, _bounds(part)) for path, part in _leaf_spaces(space, ())]
        for path, part, _ in self._parts:
            if part.shape is None or part.dtype is None or np.dtype(part.dtype).kind not in "biuf":
                where = f"{owner}, obs{_keys(path)}" if path else owner
                raise ConfigError([Problem("this observation space is not supported", where, str(part), _SUPPORTED)])
        self._flat_shape = (num_rows, *space.shape) if space.shape is not None else None

    def check_shapes(self, obs: Column, method: str, num_rows: int | None = None) -> None:
        """Check the shapes of (N, ...) observations, or of another number of them.

        Raises:
            RunFailure: another structure or shape.
        """
        if type(obs) is np.ndarray and obs.shape == self._flat_shape:
            return
        num_rows = self._num_rows if num_rows is None else num_rows
        for path, part, _ in self._parts:
            expected = (num_rows, *(part.shape or ()))
            leaf = _leaf(obs, path)
            if np.shape(leaf) != expected:
                problem = Problem(
                    "the environment's observations do not have the shape of its space",
                    where=method,
                    got=_path_text(path) + ("nothing" if leaf is None else f"shape {np.shape(leaf)}"),
                    allowed=_path_text(path) + f"shape {expected}, {num_rows} rows of {part}",
                )
                raise RunFailure(problem)

    def find_outside(self, obs: Column) -> tuple[int, Problem] | None:
        """The first row of (rows, ...) observations with a value outside of the space, and what is wrong with it."""
        for path, part, bounds in self._parts:
            if bounds is None:
                continue
            leaf = _leaf(obs, path)
            is_inside = (leaf >= bounds[0]) & (leaf <= bounds[1])  # false for NaN
            if not is_inside.all():
                row, *place = (int(i) for i in np.argwhere(~is_inside)[0])
                return row, _outside(path, part, bounds, leaf, row, tuple(place))
        return None


def _outside(
    path: tuple[Key, ...], part: gym.Space[Any], bounds: Bounds, leaf: Array, row: int, place: tuple[int, ...]
) -> Problem:
    low, high = (np.broadcast_to(bound, part.shape or ())[place] for bound in bounds)
    index = f"[{', '.join(map(str, place))}]" if place else ""
    return Problem(
        "an observation leaves the environment's observation space",
        got=f"obs{_keys(path)}{index} = {leaf[(row, *place)]}",
        allowed=f"{low} to {high}",
    )


def _leaf_spaces(space: gym.Space[Any], path: tuple[Key, ...]) -> Iterator[tuple[tuple[Key, ...], gym.Space[Any]]]:
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaf_spaces(part, (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaf_spaces(part, (*path, index))
    else:
        yield path, space


def _leaf(tree: Any, path: tuple[Key, ...]) -> Any:
    """The array at `path`, None where there is none."""
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return None if isinstance(tree, (dict, tuple)) else tree


def _keys(path: tuple[Key, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _path_text(path: tuple[Key, ...]) -> str:
    return f"obs{_keys(path)}: " if path else ""


def _bounds(space: gym.Space[Any]) -> Bounds | None:
    """Lowest and highest admitted values, None where the dtype admits nothing else."""
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray(space.start), np.asarray(space.start + space.n - 1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gym.spaces.MultiBinary):
        return np.asarray(0), np.asarray(1)
    if isinstance(space, gym.spaces.Box):
        is_whole_dtype = space.dtype.kind == "u" and _admits_all(space)
        return None if is_whole_dtype else (space.low, space.high)
    return None


def _admits_all(space: gym.spaces.Box) -> bool:
    limits = np.iinfo(str(space.dtype))
    return bool((space.low == limits.min).all() and (space.high == limits.max).all())


def check_fragment(block: ColumnBlock, raw_obs: Column, checks: ObservationChecks) -> None:
    """Check all rewards and observations of a fragment at once.

    Args:
        block: the fragment.
        raw_obs: (R + E, ...) its observations as the environment returned them.
        checks: of their space.

    Raises:
        RunFailure: a reward that is not finite, an observation outside of its space.
    """
    is_bad_reward = ~np.isfinite(block.columns[REWARDS])
    if is_bad_reward.any():
        row = int(np.flatnonzero(is_bad_reward)[0])
        where = _place(block, block.offsets[:-1], row)
        got = f"{block.columns[REWARDS][row]}"
        raise RunFailure(Problem("the environment's reward is not finite", where=where, got=got))
    bad = checks.find_outside(raw_obs)
    if bad is not None:
        raise RunFailure(replace(bad[1], where=_place(block, block.first_obs_rows, bad[0])))


def _place(block: ColumnBlock, first_rows: Array, row: int) -> str:
    chunk = int(np.searchsorted(first_rows, row, side="right")) - 1
    time_step = int(block.t_started[chunk]) + row - int(first_rows[chunk])
    return f"episode {block.episode_ids[chunk]}, time step {time_step}"


def outline(obs: Any) -> str:
    """Type and shape of an observation, part by part."""
    if isinstance(obs, (dict, tuple)):
        return str(nested.map_leaves(outline, obs))
    return f"{type(obs).__name__} of shape {np.shape(obs)}"
