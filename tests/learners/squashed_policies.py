"""Squashed Gaussian policies written anew with torch.distributions, row by row, and Q of a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution


def policy(theta: Tensor) -> TransformedDistribution:
    """Of one row (2 A,)."""
    mean, log_std = theta.chunk(2)
    return TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])


def sampled(theta: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action (A,) and its log density; the same noise as ours."""
    mean, log_std = theta.chunk(2)
    dist = policy(theta)
    action = dist.transforms[0](mean + log_std.exp() * noise)
    return action, dist.log_prob(action).sum()


def q_values(critic: Any, obs: Tensor, action: Tensor) -> Tensor:
    """(E,) of an action (A,) in a batch of one observation."""
    return torch.cat([q.forward(obs, action[None]) for q in critic])
