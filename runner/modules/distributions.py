"""Action distributions for all action spaces; Dict and Tuple actions use a joint distribution of independent parts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.modules.action_distribution import ActionDistribution, torch_dtype
from runner.modules.beta import Beta
from runner.modules.categorical import Bernoulli, Categorical, MultiCategorical, ShiftedCategorical
from runner.modules.gaussian import DiagGaussian, SquashedGaussian


class NestedDistribution(ActionDistribution):
    """Joint distribution of independent parts; inputs and noise are the concatenated inputs and noise of the parts.

    Args:
        parts: distributions for a Dict space by key, or for a Tuple space; they may be nested.

    Attributes:
        parts: distributions in the order of the space.
    """

    def __init__(self, parts: Mapping[str, ActionDistribution] | tuple[ActionDistribution, ...]) -> None:
        self._keys = tuple(parts) if isinstance(parts, Mapping) else None
        self.parts: tuple[Any, ...] = tuple(parts.values()) if isinstance(parts, Mapping) else parts
        self._input_sizes = [part.num_inputs for part in self.parts]
        self._noise_sizes = [part.num_noise for part in self.parts]
        self.num_inputs = sum(self._input_sizes)
        self.num_noise = sum(self._noise_sizes)
        starts = np.cumsum([0, *self._input_sizes])[:-1].tolist()
        placed = zip(starts, self.parts, strict=True)
        self.log_std_inputs = tuple(start + column for start, part in placed for column in part.log_std_inputs)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw the noise of all parts (*leading, M)."""
        return np.concatenate([part.draw_noise(stream, leading) for part in self.parts], -1)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Any:
        """Return a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        return self._joined([part.sample(inputs, part_noise) for part, inputs, part_noise in by_part])

    def sample_with_log_prob(self, dist_inputs: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
        """Return a dict or tuple of (B, ...) actions and their (B,) log densities; see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        sampled = [part.sample_with_log_prob(inputs, part_noise) for part, inputs, part_noise in by_part]
        actions, log_probs = zip(*sampled, strict=True)
        return self._joined(list(actions)), _sum(list(log_probs))

    def mode(self, dist_inputs: Tensor) -> Any:
        """Return a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), strict=True)
        return self._joined([part.mode(inputs) for part, inputs in by_part])

    def log_prob(self, dist_inputs: Tensor, actions: Any) -> Tensor:
        """Return (B,) log probabilities of a dict or tuple of (B, ...) actions."""
        by_part = zip(self.parts, self._split(dist_inputs), self._branches(actions), strict=True)
        return _sum([part.log_prob(inputs, branch) for part, inputs, branch in by_part])

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return the entropy (B,) in nats."""
        by_part = zip(self.parts, self._split(dist_inputs), strict=True)
        return _sum([part.entropy(inputs) for part, inputs in by_part])

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return the KL divergence (B,) in nats."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split(other_inputs), strict=True)
        return _sum([part.kl(inputs, others) for part, inputs, others in by_part])

    def masked(self, dist_inputs: Tensor, mask: Any) -> Tensor:
        """Return (B, K) inputs under a dict or tuple with the masks of some parts."""
        by_part = zip(self.parts, self._split(dist_inputs), self._masks(mask), strict=True)
        return torch.cat([inputs if m is None else part.masked(inputs, m) for part, inputs, m in by_part], -1)

    def first_fully_forbidden(self, mask: Any) -> int | None:
        """Return the first row in which all actions of some choice are forbidden."""
        by_part = zip(self.parts, self._masks(mask), strict=True)
        rows = [part.first_fully_forbidden(m) for part, m in by_part if m is not None]
        return min((row for row in rows if row is not None), default=None)

    def mode_with_noise(self, dist_inputs: Tensor, noise: Tensor) -> Any:
        """Return a dict or tuple of modes of bounded Boxes, plus noise (B, M); see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split(dist_inputs), self._split_noise(noise), strict=True)
        return self._joined([part.mode_with_noise(inputs, of_part) for part, inputs, of_part in by_part])

    @property
    def log_volume(self) -> float:
        """Log of the volume of a space of bounded Boxes."""
        return float(sum(part.log_volume for part in self.parts))

    def draw_shares(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return uniform fractions (*leading, M) of the distance between the bounds of Boxes, for `at_shares`."""
        return np.concatenate([part.draw_shares(stream, leading) for part in self.parts], -1)

    def at_shares(self, shares: Tensor) -> Any:
        """Return a dict or tuple of the actions (..., *shape) at fractions (..., M); see `SquashedGaussian`."""
        by_part = zip(self.parts, self._split_noise(shares), strict=True)
        return self._joined([part.at_shares(of_part) for part, of_part in by_part])

    def _split(self, dist_inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.split(dist_inputs, self._input_sizes, -1)

    def _split_noise(self, noise: Tensor) -> tuple[Tensor, ...]:
        return torch.split(noise, self._noise_sizes, -1)

    def _joined(self, branches: list[Any]) -> Any:
        return tuple(branches) if self._keys is None else dict(zip(self._keys, branches, strict=True))

    def _branches(self, actions: Any) -> Any:
        return actions if self._keys is None else [actions[key] for key in self._keys]

    def _masks(self, mask: Any) -> list[Any]:
        """Return one mask or None for each part; a Dict may omit parts, a Tuple contains empty Tuples for them."""
        masks = mask if self._keys is None else [mask.get(key) for key in self._keys]
        return [None if isinstance(m, (tuple, dict)) and not m else m for m in masks]


def _sum(terms: list[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


_MAX_LOGITS = 2**20
_SUPPORTED = "Discrete, MultiDiscrete, MultiBinary, non-empty Box, and Dict and Tuple of these"


def distribution_for(
    action_space: gym.Space[Any], where: str = "actions", float_distribution: str = "gaussian"
) -> ActionDistribution:
    """Return a categorical distribution for Discrete, MultiDiscrete and integer Box, Bernoulli for MultiBinary, a
    diagonal Gaussian or beta distribution for a float Box, and joint distributions for Dict and Tuple.

    Args:
        action_space: space of the actions.
        where: name of the space in messages.
        float_distribution: `gaussian` or `beta`, for a float Box.

    Raises:
        TypeError: there is no distribution for a space or one of its entries.
    """
    spaces = gym.spaces
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        return _nested_distribution(action_space, where, float_distribution)
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
            if float_distribution == "beta":
                return Beta(action_space)
            return DiagGaussian(action_space.shape, torch_dtype(action_space.dtype, torch.float32))
        return _integer_distribution(action_space, where)
    raise TypeError(f"no action distribution for {where}: got {action_space}; expected: {_SUPPORTED}")


def squashed_distribution(action_space: gym.Space[Any]) -> SquashedGaussian | NestedDistribution:
    """Return the tanh of a Gaussian for a bounded float Box, and joint distributions for a Dict or Tuple of them.

    Raises:
        TypeError: a space or one of its entries is not a bounded float Box.
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
    """Return a choice among all integers between the bounds, for each number of the Box."""
    lows = [int(low) for low in space.low.reshape(-1)]
    highs = [int(high) for high in space.high.reshape(-1)]
    sizes = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if sum(sizes) > _MAX_LOGITS:
        raise TypeError(
            f"no action distribution for {where}: got {space}, {sum(sizes):,} possible integers; "
            f"expected: at most {_MAX_LOGITS:,}, or a Box of floats"
        )
    return MultiCategorical(sizes, lows, space.shape, torch_dtype(space.dtype, torch.int64))


def _nested_distribution(
    space: gym.spaces.Dict | gym.spaces.Tuple[Any], where: str, float_distribution: str
) -> NestedDistribution:
    if not len(space):
        raise TypeError(f"no action distribution for {where}: got the empty {space}; expected: {_SUPPORTED}")
    if isinstance(space, gym.spaces.Dict):
        return NestedDistribution(
            {key: distribution_for(part, f"{where}[{key!r}]", float_distribution) for key, part in space.items()}
        )
    return NestedDistribution(
        tuple(
            distribution_for(part, f"{where}[{index}]", float_distribution) for index, part in enumerate(space.spaces)
        )
    )
