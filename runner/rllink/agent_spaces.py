"""Observations and actions of an agent: how they are read from messages, and which are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from runner.env_runners.observation_checks import ObservationChecks
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.rllink.arrays import SpaceCodec
from runner.rllink.messages import MessageError, describe


@dataclass(frozen=True)
class AgentSpaces:
    """An agent of the run, as messages need it.

    Attributes:
        module_id: the module that acts for it.
        obs, actions: decode its observations and actions.
        num_dist_inputs: width of `action_dist_inputs`.
        to_module: turns actions (R, ...) as the environment takes them into actions as the module draws them.
        bounds: finds observations to refuse; None: observations may leave the bounds of a Box.
    """

    module_id: str
    obs: SpaceCodec
    actions: SpaceCodec
    num_dist_inputs: int
    to_module: Callable[[Column], Column]
    bounds: ObservationChecks | None = None

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

    def check_bounds(self, obs: Column, path: str) -> None:
        """Raise `MessageError` if one of the observations (K, ...) leaves bounds that it may not leave."""
        misfit = None if self.bounds is None else self.bounds.find_misfit(obs)
        if misfit is not None:
            problem = misfit.problem
            text = f"an observation leaves its space: {problem.got}, allowed {problem.allowed} (item {misfit.row})"
            raise MessageError("bad_message", text, path)


def read(path: str, decode: Callable[[], Any]) -> Any:
    """Return the result of `decode`; raise its errors as `MessageError` with the path of the bad value."""
    try:
        return decode()
    except msgspec.DecodeError as error:
        raise describe(error, root=path) from None
    except (ValueError, OverflowError, TypeError) as error:
        raise MessageError("bad_message", str(error), path) from None
