"""Action distributions as functions of a module's outputs. Noise is an argument: nothing here draws random numbers.

B is any number of leading dimensions, A the number of actions or action dimensions.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from torch import Tensor

_LOG_2PI = math.log(2 * math.pi)


class ActionDistribution(Protocol):
    """What a policy's distribution offers; `dist_inputs` are the module's `action_dist_inputs` (B, K) float32."""

    num_inputs: int

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Noise for `sample`, (*leading, ...)."""

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """Actions (B, ...) as a function of the noise."""

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """The most likely actions (B, ...)."""

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) log probabilities (densities) of actions."""

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """(B,) entropies in nats."""

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """(B,) KL divergence from the first distribution to the second, in nats."""


class Categorical:
    """One of A actions; `dist_inputs` are logits (B, A)."""

    def __init__(self, num_actions: int) -> None:
        self.num_inputs = num_actions

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Standard Gumbel noise (*leading, A)."""
        exponential = stream.standard_exponential((*leading, self.num_inputs), dtype=np.float32)
        noise: npt.NDArray[np.float32] = -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))
        return noise

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """(B,) int64; argmax of logits plus Gumbel noise is a sample of the distribution (Gumbel, 1954)."""
        return (dist_inputs + noise).argmax(-1)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """(B,) int64."""
        return dist_inputs.argmax(-1)

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) log probabilities of (B,) int64 actions."""
        return dist_inputs.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """(B,) nats."""
        log_probs = dist_inputs.log_softmax(-1)
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """(B,) nats."""
        log_probs = dist_inputs.log_softmax(-1)
        return (log_probs.exp() * (log_probs - other_inputs.log_softmax(-1))).sum(-1)


class DiagGaussian:
    """A independent normal variables; `dist_inputs` are means and log standard deviations (B, 2 A)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._size = math.prod(shape)
        self.num_inputs = 2 * self._size

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Standard normal noise (*leading, A)."""
        return stream.standard_normal((*leading, self._size), dtype=np.float32)

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Tensor:
        """(B, *shape) float32."""
        mean, log_std = dist_inputs.chunk(2, -1)
        return self._shaped(mean + log_std.exp() * noise)

    def mode(self, dist_inputs: Tensor) -> Tensor:
        """(B, *shape) float32, the means."""
        return self._shaped(dist_inputs[..., : self._size])

    def log_prob(self, dist_inputs: Tensor, actions: Tensor) -> Tensor:
        """(B,) log densities of (B, *shape) actions."""
        mean, log_std = dist_inputs.chunk(2, -1)
        z = (actions.reshape(mean.shape) - mean) * (-log_std).exp()
        return -(0.5 * z.square() + log_std).sum(-1) - 0.5 * self._size * _LOG_2PI

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """(B,) nats."""
        log_std = dist_inputs[..., self._size :]
        return log_std.sum(-1) + 0.5 * self._size * (1.0 + _LOG_2PI)

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """(B,) nats."""
        mean, log_std = dist_inputs.chunk(2, -1)
        other_mean, other_log_std = other_inputs.chunk(2, -1)
        squares = (2 * log_std).exp() + (mean - other_mean).square()
        return (other_log_std - log_std + 0.5 * squares * (-2 * other_log_std).exp() - 0.5).sum(-1)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat if len(self._shape) == 1 else flat.reshape(*flat.shape[:-1], *self._shape)


def distribution_for(action_space: gym.Space[Any]) -> ActionDistribution:
    """Categorical for Discrete, a diagonal Gaussian for a Box of floats.

    Raises:
        TypeError: another space, or Discrete that does not start at 0.
    """
    if isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0:
        return Categorical(int(action_space.n))
    if isinstance(action_space, gym.spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
        return DiagGaussian(action_space.shape)
    raise TypeError(f"no action distribution for {action_space}; supported: Discrete from 0, Box of floats")
