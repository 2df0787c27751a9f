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
    """(E,) of an action (A,) in a batch of one observation, one Q function at a time."""
    features = torch.cat((obs, action[None]), -1)
    return torch.cat([_q_value(critic, features, number) for number in range(critic.num_members)])


def _q_value(critic: Any, features: Tensor, number: int) -> Tensor:
    """(1,) of Q function `number`, whose hidden layers have ReLU or tanh."""
    [hidden], [hidden_bias] = critic.encoder.weights, critic.encoder.biases
    [last], [last_bias] = critic.head.weights, critic.head.biases
    inside = (features @ hidden[number] + hidden_bias[number]).tanh()
    return (inside @ last[number] + last_bias[number]).mean(-1)
