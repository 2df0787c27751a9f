"""Whether a policy file can play for agents: its spaces beside theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

Space = gym.Space[Any]


def find_misfits(policy: Space, agents: Space, is_of_actions: bool, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts in which a policy's space differs from its agents' space: path, the policy's, the agents'.

    Bounds and widths of numbers matter for actions alone: observations may leave their bounds, and are cast.
    """
    parts, others = _parts(policy), _parts(agents)
    if parts and type(policy) is type(agents) and parts.keys() == others.keys():
        for key, part in parts.items():
            yield from find_misfits(part, others[key], is_of_actions, f"{path}/{key}")
    elif not (policy == agents or (not is_of_actions and _are_boxes_alike(policy, agents))):
        yield path, policy, agents


def _parts(space: Space) -> dict[Any, Space]:
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, gym.spaces.Tuple) else {}


def _are_boxes_alike(policy: Space, agents: Space) -> bool:
    if not (isinstance(policy, gym.spaces.Box) and isinstance(agents, gym.spaces.Box)):
        return False
    return policy.shape == agents.shape and np.dtype(policy.dtype).kind == np.dtype(agents.dtype).kind
