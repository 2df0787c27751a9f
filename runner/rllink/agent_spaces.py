"""What the server knows of an agent's items: how they are read from messages, and which are refused."""

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
    """What the server knows of an agent: its module, how its items are read, and its actions for the module.

    Attributes:
        num_dist_inputs: width of `action_dist_inputs`.
        to_module: (R, ...) actions as the environment gets them -> as the module draws them.
        bounds: observations that it finds are refused; None: only what is no item of the space is.
    """

    module_id: str
    obs: SpaceCodec
    actions: SpaceCodec
    num_dist_inputs: int
    to_module: Callable[[Column], Column]
    bounds: ObservationChecks | None = None

    def read_obs(self, raw: Any, body_format: str, path: str) -> Column:
        """(K, ...) of a list or block of observations; `MessageError` with the path if one is refused."""
        obs = read(path, lambda: self.obs.rows(raw, body_format))
        self.check_bounds(obs, path)
        return obs

    def read_one_obs(self, raw: Any, body_format: str, path: str) -> Any:
        """One observation as arrays without leading axis."""
        obs = read(path, lambda: self.obs.item(raw, body_format))
        if self.bounds is not None:
            self.check_bounds(nested.map_leaves(lambda leaf: leaf[None], obs), path)
        return obs

    def check_bounds(self, obs: Column, path: str) -> None:
        """`MessageError` where one of (K, ...) observations leaves its bounds and may not."""
        misfit = None if self.bounds is None else self.bounds.find_misfit(obs)
        if misfit is not None:
            problem = misfit.problem
            text = f"an observation leaves its space: {problem.got}, allowed {problem.allowed} (item {misfit.row})"
            raise MessageError("bad_message", text, path)


def read(path: str, decode: Callable[[], Any]) -> Any:
    """What `decode` returns; its complaints with the path of what is wrong."""
    try:
        return decode()
    except msgspec.DecodeError as error:
        raise describe(error, root=path) from None
    except (ValueError, OverflowError, TypeError) as error:
        raise MessageError("bad_message", str(error), path) from None
