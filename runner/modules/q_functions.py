"""Q functions of observation and action, and a mix-in for modules with Q functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.episodes.spaces import map_leaf_spaces
from runner.modules.batch_renorm import BatchNormEnsemble
from runner.modules.layers import ALL, EnsembleMLP, Members, layer_options
from runner.modules.observation_encoder import BlockEnsemble, ObservationEncoder, block_ensemble
from runner.modules.target_networks import target_of


class QEnsemble(nn.Module):
    """E Q functions of observation and action for any spaces, computed together.

    Each reads the concatenated features of both through hidden layers and a head. Alternatively, it reads the features
    of the observation alone and returns outputs for each action.

    Args:
        observation_space: a space that `ObservationEncoder` supports.
        action_space: a space that it supports, or None if outputs depend on the observation alone.
        config: widths, activations, dropout, and E, `num_critics`.
        num_outputs: K of each Q function.

    Attributes:
        num_members: E.
        num_hidden: total width of the hidden layers of one Q function.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any] | None,
        config: ModuleConfig,
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.num_members, self._dropout = config.num_critics, config.critic_dropout
        encoder_layers, head_layers = layer_options(config, "fcnet"), layer_options(config, "head_fcnet")
        if config.critic_use_layernorm:
            encoder_layers, head_layers = (replace(one, use_layernorm=True) for one in (encoder_layers, head_layers))
        self.obs_features = _Features(observation_space, replace(config, fcnet_hiddens=[]))
        num_features = self.obs_features.num_outputs
        self.action_features = None
        if action_space is not None:
            self.action_features = _Features(action_space, replace(config, fcnet_hiddens=[], conv_filters=None))
            num_features += self.action_features.num_outputs
        kind: type[EnsembleMLP | BatchNormEnsemble] | BlockEnsemble = EnsembleMLP
        if config.critic_use_batchnorm:
            kind = BatchNormEnsemble
        elif (blocks := block_ensemble(config)) is not None:
            kind = blocks
        self.encoder = kind(self.num_members, num_features, config.fcnet_hiddens, encoder_layers)
        num_features = self.encoder.num_outputs
        hiddens = config.head_fcnet_hiddens
        self.head = EnsembleMLP(self.num_members, num_features, hiddens, head_layers, num_outputs)
        self.num_hidden = self.encoder.num_hidden + self.head.num_hidden

    def forward(self, obs: Any, actions: Any = None, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return (M, B, K) for `obs` (B, ...) and actions (B, ...); (M, B * n, K) for n actions per row (B, n, ...).

        Args:
            obs, actions: see above.
            members: the M Q functions to compute.
            scales: (M, B, num_hidden) factors of their hidden layers.
        """
        encoder_scales, head_scales = None, None
        if scales is not None:
            encoder_scales, head_scales = torch.split(scales, [self.encoder.num_hidden, self.head.num_hidden], -1)
        features = self._features(obs, actions, members)
        return self.head.forward(self.encoder.forward(features, members, encoder_scales), members, head_scales)

    def forward_batch(self, obs: Any, actions: Any) -> Tensor:
        """Return (E, B, K) like `forward`, with batch renormalisation by the statistics of this batch."""
        assert isinstance(self.encoder, BatchNormEnsemble)  # with critic_use_batchnorm
        features = self._features(obs, actions, ALL)
        return self.head.forward(self.encoder.forward_batch(features))

    def draw_dropout(
        self, stream: np.random.Generator, num_members: int, num_rows: int
    ) -> npt.NDArray[np.float32] | None:
        """Draw factors (num_members, num_rows, num_hidden), 0 or 1 / (1 - rate), or return None without dropout."""
        rate = self._dropout
        if rate == 0.0:
            return None
        uniform = stream.random((num_members, num_rows, self.num_hidden), np.float32)
        return (uniform >= rate) * np.float32(1.0 / (1.0 - rate))

    def _features(self, obs: Any, actions: Any, members: Members) -> Tensor:
        """Return the inputs of the encoder, (B, F), or (M, B, F) if they are learned."""
        features = self.obs_features.forward(obs, members)
        if self.action_features is not None:
            of_actions = self.action_features.forward(actions, members)
            num_actions = of_actions.shape[-2] // features.shape[-2]
            if num_actions > 1:
                features = features.repeat_interleave(num_actions, -2)
            if features.ndim != of_actions.ndim:  # one is shared by all Q functions, the other is not
                num_members = len(features if features.ndim == 3 else of_actions)
                features, of_actions = (part.expand(num_members, -1, -1) for part in (features, of_actions))
            features = torch.cat((features, of_actions), -1)
        return features


class _Features(nn.Module):
    """Features of observations or actions. Learned ones, for example of images, are separate for each Q function."""

    def __init__(self, space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__()
        first = ObservationEncoder(space, config)
        self.num_outputs = first.num_outputs
        self._are_learned = any(True for _ in first.parameters())
        others = range(1, config.num_critics) if self._are_learned else ()
        self.encoders = nn.ModuleList([first, *(ObservationEncoder(space, config) for _ in others)])

    def forward(self, values: Any, members: Members) -> Tensor:
        """Return (B, F), or (M, B, F) if the features are learned."""
        if not self._are_learned:
            features: Tensor = self.encoders[0].forward(values)
            return features
        return torch.stack([encoder.forward(values) for encoder in self.encoders])[members]


def through_actions(q: Tensor, actions: Any) -> Tensor:
    """Return q (B,) with a gradient only for the actions (B, ...) that it was computed from."""
    parts = list(nested.leaves(actions))
    if not parts[0].requires_grad:
        return q.detach()
    total = q.detach()
    for slopes, part in zip(torch.autograd.grad(q.sum(), parts), parts, strict=True):
        total = total + (slopes * (part - part.detach())).reshape(len(q), -1).sum(-1)
    return total


class WithQFunctions(nn.Module):
    """Mix-in for modules with E Q functions, `num_critics`, and their targets.

    With `q_distribution: quantile` each returns N quantiles of the return with mean Q.

    Attributes:
        has_targets: whether the Q functions have targets.
    """

    has_targets = True
    critic: QEnsemble
    target_critic: QEnsemble

    def add_q_functions(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig
    ) -> None:
        """Make the networks; must be called once, in `__init__`."""
        if config.q_distribution not in ("none", "quantile"):
            raise ValueError(
                f"Q functions of actions return a number or quantiles: module.q_distribution is "
                f"{config.q_distribution}; expected: none, quantile"
            )
        self.critic = QEnsemble(observation_space, action_space, config, config.num_atoms)
        if self.has_targets:
            self.target_critic = target_of(self.critic)
        self._bounds = map_leaf_spaces(_bounds_of, action_space)

    def draw_dropout(
        self, stream: np.random.Generator, num_members: int, num_rows: int
    ) -> npt.NDArray[np.float32] | None:
        """Draw the dropout factors of M Q functions, or return None without dropout; see `QEnsemble`."""
        return self.critic.draw_dropout(stream, num_members, num_rows)

    def clamped(self, actions: Any) -> Any:
        """Clip (B, ...) actions, nested like their space, to the bounds of float Boxes.

        Recorded actions of a Gaussian policy are not clipped for the environment. Clipping makes actions with the same
        effect equal for Q.
        """
        return nested.map_leaves(lambda bounds, leaf: leaf if bounds is None else bounds(leaf), self._bounds, actions)

    def compute_q_values(self, obs: Any, actions: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return Q (M, B) of `obs` (B, ...) and actions (B, ...); (M, B * n) for n actions per row (B, n, ...).

        Args:
            obs, actions: see above.
            members: the M Q functions to compute.
            scales: (M, B, num_hidden) dropout factors.
        """
        return _mean(self.critic.forward(obs, actions, members, scales))

    def compute_target_q_values(
        self, obs: Any, actions: Any, members: Members = ALL, scales: Tensor | None = None
    ) -> Tensor:
        """Return Q of the targets, like `compute_q_values`."""
        return _mean(self.target_critic.forward(obs, actions, members, scales))

    def compute_quantiles(self, obs: Any, actions: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return (M, B, N) quantiles of the return; `compute_q_values` returns their mean."""
        return self.critic.forward(obs, actions, members, scales)

    def compute_target_quantiles(
        self, obs: Any, actions: Any, members: Members = ALL, scales: Tensor | None = None
    ) -> Tensor:
        """Return quantiles of the targets, like `compute_quantiles`."""
        return self.target_critic.forward(obs, actions, members, scales)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of the Q functions with the Q functions, and the module's other targets."""
        others: list[tuple[nn.Module, nn.Module]] = super().target_networks()  # type: ignore[misc]
        return [*others, (self.target_critic, self.critic)] if self.has_targets else others


def _mean(outputs: Tensor) -> Tensor:
    return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs.mean(-1)


class _Bounds:
    def __init__(self, space: gym.spaces.Box) -> None:
        self._low, self._high = (torch.from_numpy(bound.copy()) for bound in (space.low, space.high))

    def __call__(self, actions: Tensor) -> Tensor:
        return actions.clamp(self._low.to(actions.device), self._high.to(actions.device))


def _bounds_of(space: gym.Space[Any]) -> Any:
    """Return the bounds of a float Box, or None for all other leaves."""
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return _Bounds(space)
    return None


def check_not_recurrent(config: ModuleConfig, name: str) -> None:
    """Check that no recurrent layer is selected.

    Raises:
        ValueError: `use_lstm` or `use_gru` is true.
    """
    for key in ("use_lstm", "use_gru"):
        if getattr(config, key):
            raise ValueError(f"{name} cannot be recurrent: module.{key} is true; expected: false")
