"""A policy and a value function that are linear, whose gradients can be written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules import RLModule

Array = npt.NDArray[np.float64]


class LinearModule(RLModule):
    """Logits W s (B, 3) and values w s (B,) of observations s (B, 2)."""

    def __init__(self, policy: Array, value: Array) -> None:
        super().__init__(gym.spaces.Box(-5, 5, (2,), np.float32), gym.spaces.Discrete(3), ModuleConfig())
        self.policy = nn.Parameter(torch.tensor(policy))
        self.value = nn.Parameter(torch.tensor(value))

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Both outputs."""
        return {"action_dist_inputs": batch["obs"] @ self.policy.T, "vf_preds": batch["obs"] @ self.value}


def linear_module(seed: int) -> LinearModule:
    """With random weights."""
    stream = np.random.default_rng(seed)
    return LinearModule(stream.normal(size=(3, 2)), stream.normal(size=2))


def probabilities(module: LinearModule, obs: Array) -> Array:
    """The policy's (B, 3)."""
    powers = np.exp(obs @ module.policy.detach().numpy().T)
    probs: Array = powers / powers.sum(1, keepdims=True)
    return probs


def values(module: LinearModule, obs: Array) -> Array:
    """The value function's (B,)."""
    predicted: Array = obs @ module.value.detach().numpy()
    return predicted


def policy_gradient(module: LinearModule, obs: Array, actions: Array, weights: Array, entropy_coeff: float) -> Array:
    """Of -mean(log pi(a | s) weight) - c mean(H) with respect to W, (3, 2).

    With logits z: d log pi(a) / dz[k] = 1[k = a] - p[k] and dH / dz[k] = -p[k] (log p[k] + H).
    """
    probs = probabilities(module, obs)
    entropies = -(probs * np.log(probs)).sum(1, keepdims=True)
    of_logits = -(np.eye(3)[actions] - probs) * weights[:, None] + entropy_coeff * probs * (np.log(probs) + entropies)
    gradient: Array = of_logits.T @ obs / len(obs)
    return gradient


def value_gradient(module: LinearModule, obs: Array, targets: Array, coeff: float) -> Array:
    """Of c mean((w s - target)^2) with respect to w, (2,)."""
    gradient: Array = coeff * 2 * (values(module, obs) - targets) @ obs / len(obs)
    return gradient
