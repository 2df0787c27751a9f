"""Adapters of the observations and infos of a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

# Index of each row's sub-environment; not needed, because runner's rows are in order.
_BOOKKEEPING = ("env_id", "players")


class ChannelsLast:
    """Converts images to the layout of runner's networks: bytes (C, H, W) become (H, W, C).

    Coloured frames that are stacked, (F, H, W, 3), become (H, W, F * 3). Other observations are unchanged.

    Args:
        space: space of one observation from the library.

    Attributes:
        space: space of one converted observation.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        shape = space.shape or ()
        self._is_first = (
            isinstance(space, gym.spaces.Box)
            and space.dtype == np.uint8
            and (len(shape) == 4 or (len(shape) == 3 and shape[0] < min(shape[1:])))
        )
        self.space = space
        if self._is_first:
            assert isinstance(space, gym.spaces.Box)
            low, high = (self(bound[None])[0] for bound in (space.low, space.high))
            self.space = gym.spaces.Box(low, high, dtype=np.uint8)

    def __call__(self, obs: Any) -> Any:
        """Return observations (N, ...) in this layout."""
        if not self._is_first:
            return obs
        frames = np.moveaxis(obs, 1, 3)  # (N, H, W, C) or (N, H, W, F, 3)
        return frames.reshape(*frames.shape[:3], -1)


def numbers_of(infos: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Return the infos with one number per sub-environment; others are dropped."""
    return {
        key: values
        for key, values in infos.items()
        if key not in _BOOKKEEPING
        and isinstance(values, np.ndarray)
        and values.shape == (num_rows,)
        and values.dtype.kind in "biuf"
    }
