"""Q functions of observation and action, and what modules that have some share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules.actor_critic_module import head_options
from runner.modules.mlp import MLP
from runner.modules.observation_encoder import ObservationEncoder, encoder_options
from runner.modules.target_networks import target_of


class QFunction(nn.Module):
    """Q(s, a) for any spaces: the features of both, side by side, through hidden layers and a head.

    Args:
        observation_space, action_space: what `ObservationEncoder` can encode.
        config: widths and activations.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__()
        self.obs_features = ObservationEncoder(observation_space, replace(config, fcnet_hiddens=[]))
        self.action_features = ObservationEncoder(action_space, replace(config, fcnet_hiddens=[], conv_filters=None))
        num_features = self.obs_features.num_outputs + self.action_features.num_outputs
        self.encoder = MLP(num_features, config.fcnet_hiddens, encoder_options(config))
        self.head = MLP(self.encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), 1)

    def forward(self, obs: Any, actions: Any) -> Tensor:
        """Return (B,) of `obs` (B, ...) and actions (B, ...); (B * n,) of n actions a row (B, n, ...)."""
        obs_features = self.obs_features.forward(obs)
        action_features = self.action_features.forward(actions)
        num_actions = len(action_features) // len(obs_features)
        if num_actions > 1:
            obs_features = obs_features.repeat_interleave(num_actions, 0)
        features = torch.cat((obs_features, action_features), -1)
        return self.head.forward(self.encoder.forward(features)).squeeze(-1)


class QEnsemble(nn.ModuleList):
    """E Q functions."""

    def forward(self, obs: Any, actions: Any) -> Tensor:
        """Return (E, B) or (E, B * n), see `QFunction.forward`."""
        return torch.stack([q_function.forward(obs, actions) for q_function in self])


def through_actions(q: Tensor, actions: Any) -> Tensor:
    """Return q (B,) with a gradient for the actions (B, ...) that it was computed for, and for nothing else."""
    parts = list(nested.leaves(actions))
    if not parts[0].requires_grad:
        return q.detach()
    total = q.detach()
    for slopes, part in zip(torch.autograd.grad(q.sum(), parts), parts, strict=True):
        total = total + (slopes * (part - part.detach())).reshape(len(q), -1).sum(-1)
    return total


class WithQFunctions(nn.Module):
    """Part of modules with Q functions (two unless `twin_q` is false) and their targets."""

    critic: QEnsemble
    target_critic: QEnsemble

    def add_q_functions(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig
    ) -> None:
        """Make the networks; to be called once, in `__init__`."""
        num_critics = 2 if config.twin_q else 1
        self.critic = QEnsemble(QFunction(observation_space, action_space, config) for _ in range(num_critics))
        self.target_critic = target_of(self.critic)
        self._bounds = _bounds_of(action_space)

    def clamped(self, actions: Any) -> Any:
        """Return (B, ...) actions, nested as their space, moved to the bounds of a Box of floats where they lie beyond.

        A Gaussian policy's recorded actions are as it chose them, not as clipped for the environment: to Q, all that
        had the same effect must be the same.
        """
        return nested.map_leaves(lambda bounds, leaf: leaf if bounds is None else bounds(leaf), self._bounds, actions)

    def compute_q_values(self, obs: Any, actions: Any) -> Tensor:
        """Return (E, B) Q of `obs` (B, ...) and actions (B, ...); (E, B * n) for n actions a row (B, n, ...)."""
        return self.critic.forward(obs, actions)

    def compute_target_q_values(self, obs: Any, actions: Any) -> Tensor:
        """Return the same of the targets."""
        return self.target_critic.forward(obs, actions)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the Q functions' targets and the Q functions."""
        return [(self.target_critic, self.critic)]


class _Bounds:
    """The bounds of a Box."""

    def __init__(self, space: gym.spaces.Box) -> None:
        self._low, self._high = (torch.from_numpy(bound.copy()) for bound in (space.low, space.high))

    def __call__(self, actions: Tensor) -> Tensor:
        return actions.clamp(self._low.to(actions.device), self._high.to(actions.device))


def _bounds_of(space: gym.Space[Any]) -> Any:
    """Return the bounds nested as the space, None for all but Boxes of floats."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _bounds_of(part) for key, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_bounds_of(part) for part in space.spaces)
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _Bounds(space)
    return None


def refuse_memory(config: ModuleConfig, name: str) -> None:
    """Check that no memory is asked for.

    Raises:
        ValueError: it is.
    """
    for key in ("use_lstm", "use_gru"):
        if getattr(config, key):
            raise ValueError(f"{name} has no memory: module.{key} is true; allowed: false")
