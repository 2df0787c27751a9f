"""The action distribution of any action space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runner.modules.action_distribution import ActionDistribution, torch_dtype
from runner.modules.bernoulli import Bernoulli
from runner.modules.categorical import Categorical, MultiCategorical, ShiftedCategorical
from runner.modules.gaussian import DiagGaussian
from runner.modules.nested_distribution import NestedDistribution
from runner.modules.squashed_gaussian import SquashedGaussian

_MAX_LOGITS = 2**20
_SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, non-empty Box, and Dict and Tuple of these"


def distribution_for(action_space: gym.Space[Any], where: str = "actions") -> ActionDistribution:
    """Return a categorical for Discrete, MultiDiscrete and integer Box, Bernoulli for MultiBinary, a diagonal Gaussian
    for a Box of floats, and these side by side for Dict and Tuple.

    Args:
        action_space: the space of the actions.
        where: name of the space in messages.

    Raises:
        TypeError: a space, or a part of one, that has no distribution.
    """
    spaces = gym.spaces
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        return _nested_distribution(action_space, where)
    if isinstance(action_space, spaces.Discrete):
        return _categorical(action_space)
    if isinstance(action_space, spaces.MultiDiscrete):
        dtype = torch_dtype(action_space.dtype, torch.int64)
        sizes, starts = action_space.nvec.reshape(-1).tolist(), action_space.start.reshape(-1).tolist()
        return MultiCategorical(sizes, starts, action_space.nvec.shape, dtype)
    if isinstance(action_space, spaces.MultiBinary):
        return Bernoulli(action_space.shape)
    if isinstance(action_space, spaces.Box) and np.prod(action_space.shape) > 0:
        if np.issubdtype(action_space.dtype, np.floating):
            return DiagGaussian(action_space.shape, torch_dtype(action_space.dtype, torch.float32))
        return _integer_distribution(action_space, where)
    raise TypeError(f"no action distribution for {where}: got {action_space}; allowed: {_SUPPORTED}")


def squashed_distribution(action_space: gym.Space[Any]) -> SquashedGaussian | NestedDistribution:
    """Return tanh of a Gaussian for a bounded Box of floats, and several side by side for Dict and Tuple of them.

    Raises:
        TypeError: another space, or a part of one.
    """
    if isinstance(action_space, gym.spaces.Dict) and len(action_space):
        return NestedDistribution({key: squashed_distribution(part) for key, part in action_space.items()})
    if isinstance(action_space, gym.spaces.Tuple) and len(action_space):
        return NestedDistribution(tuple(squashed_distribution(part) for part in action_space.spaces))
    return SquashedGaussian(action_space)


def _categorical(space: gym.spaces.Discrete) -> Categorical:
    num_actions, start, dtype = int(space.n), int(space.start), torch_dtype(space.dtype, torch.int64)
    if start == 0 and dtype == torch.int64:
        return Categorical(num_actions)
    return ShiftedCategorical(num_actions, start, dtype)


def _integer_distribution(space: gym.spaces.Box, where: str) -> MultiCategorical:
    """Return one choice among all integers between the bounds, for each number of the Box."""
    lows = [int(low) for low in space.low.reshape(-1)]
    highs = [int(high) for high in space.high.reshape(-1)]
    sizes = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if sum(sizes) > _MAX_LOGITS:
        raise TypeError(
            f"no action distribution for {where}: got {space}, {sum(sizes):,} possible integers; "
            f"allowed: at most {_MAX_LOGITS:,}, or a Box of floats"
        )
    return MultiCategorical(sizes, lows, space.shape, torch_dtype(space.dtype, torch.int64))


def _nested_distribution(space: gym.spaces.Dict | gym.spaces.Tuple[Any], where: str) -> NestedDistribution:
    if not len(space):
        raise TypeError(f"no action distribution for {where}: got the empty {space}; allowed: {_SUPPORTED}")
    if isinstance(space, gym.spaces.Dict):
        return NestedDistribution({key: distribution_for(part, f"{where}[{key!r}]") for key, part in space.items()})
    return NestedDistribution(
        tuple(distribution_for(part, f"{where}[{index}]") for index, part in enumerate(space.spaces))
    )
