"""Observations and actions of an agent: how they are read from messages, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

from runner.env_runners.observation_checks import ObservationChecks
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.rllink.arrays import SpaceCodec
from runner.rllink.messages import MessageError, describe

_WIDTHS = 10.0


@dataclass(frozen=True)
class AgentSpaces:
    """An agent of the run, as messages need it.

    Attributes:
        module_id: the module that acts for it.
        obs, actions: decode its observations and actions.
        num_dist_inputs: width of `action_dist_inputs`.
        to_module: turns actions (R, ...) as the environment takes them into actions as the module draws them.
        bounds: finds observations to refuse; None: observations may leave the bounds of a Box.
        action_bounds: finds actions to refuse; None: actions may leave the bounds of a Box.
    """

    module_id: str
    obs: SpaceCodec
    actions: SpaceCodec
    num_dist_inputs: int
    to_module: Callable[[Column], Column]
    bounds: ObservationChecks | None = None
    action_bounds: ObservationChecks | None = None

    def read_obs(self, raw: Any, body_format: str, path: str) -> Column:
        """Read a list or block of observations as arrays (K, ...); `MessageError` with the path if one is refused."""
        obs = read(path, lambda: self.obs.rows(raw, body_format))
        self.check_bounds(obs, path)
        return obs

    def read_one_obs(self, raw: Any, body_format: str, path: str) -> Any:
        """Read one observation as arrays without leading axis; `MessageError` with the path if it is refused."""
        obs = read(path, lambda: self.obs.item(raw, body_format))
        if self.bounds is not None:
            self.check_bounds(nested.map_leaves(lambda leaf: leaf[None], obs), path)
        return obs

    def read_actions(self, decode: Callable[[], Column], path: str) -> Column:
        """Read actions (R, ...) as the module draws them; `MessageError` with the path if one is refused."""
        actions = read(path, decode)
        _check(self.action_bounds, actions, "an action", path)
        return read(path, lambda: self.to_module(actions))

    def check_bounds(self, obs: Column, path: str) -> None:
        """Raise `MessageError` if one of the observations (K, ...) leaves bounds that it may not leave."""
        _check(self.bounds, obs, "an observation", path)


def _check(bounds: ObservationChecks | None, items: Column, what: str, path: str) -> None:
    misfit = None if bounds is None else bounds.find_misfit(items)
    if misfit is not None:
        problem = misfit.problem
        got = str(problem.got).replace("obs", "action" if what == "an action" else "obs", 1)
        text = f"{what} leaves its space: {got}, allowed {problem.allowed} (item {misfit.row})"
        raise MessageError("bad_message", text, path)


def widened(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return a space of actions with room for samples that are not clipped, which clients send (specification, E3).

    A Box of floats with bounds becomes wider by ten times its width on each side.
    """
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: widened(part) for key, part in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple(tuple(widened(part) for part in space.spaces))
    if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    largest = np.finfo(space.dtype).max
    low, high = (np.clip(bound.astype(np.float64), -largest, largest) for bound in (space.low, space.high))
    room = _WIDTHS * (high - low)
    low, high = (np.clip(bound, -largest, largest).astype(space.dtype) for bound in (low - room, high + room))
    return gym.spaces.Box(low, high, dtype=space.dtype.type)


def read(path: str, decode: Callable[[], Any]) -> Any:
    """Return the result of `decode`; raise its errors as `MessageError` with the path of the bad value."""
    try:
        return decode()
    except msgspec.DecodeError as error:
        raise describe(error, root=path) from None
    except (ValueError, OverflowError, TypeError) as error:
        raise MessageError("bad_message", str(error), path) from None
