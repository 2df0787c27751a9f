"""A Q function over all discrete actions, and its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.actor_critic_module import head_options, without_mask
from runner.modules.memory import Memory, State, memory_for, through_memory
from runner.modules.mlp import MLP, LayerOptions
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a') (Wang et al., 2016, https://arxiv.org/abs/1511.06581, eq. 9).

    Args:
        num_inputs: width of the features.
        hiddens, options: of each of the two heads.
        num_actions: A.
    """

    def __init__(self, num_inputs: int, hiddens: Sequence[int], options: LayerOptions, num_actions: int) -> None:
        super().__init__()
        self.value = MLP(num_inputs, hiddens, options, 1)
        self.advantages = MLP(num_inputs, hiddens, options, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """Return Q (..., A) of features (..., F)."""
        advantages = self.advantages.forward(features)
        q: Tensor = self.value.forward(features) + advantages - advantages.mean(-1, keepdim=True)
        return q


class _QNetwork(nn.Sequential):
    """Encoder and head, called without what `nn.Module` does around a call: it takes longer than a layer."""

    def forward(self, obs: Any) -> Tensor:
        encoder, head = self
        q: Tensor = head.forward(encoder.forward(obs))
        return q


class DoubleQModule(RLModule):
    """Q(s, .) and its target; acts greedily, or with probabilities softmax(Q) when it explores.

    Args:
        observation_space: what `ObservationEncoder` can encode, with `action_mask_key` a mask.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that contradict each other.
    """

    train_outputs = ("action_dist_inputs", "qf_preds")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise TypeError(f"DoubleQModule has a Q for each action: got {action_space}; allowed: Discrete")
        super().__init__(observation_space, action_space, config)
        self._mask_key = config.action_mask_key
        self._first_action = int(action_space.start)
        encoder = ObservationEncoder(without_mask(observation_space, action_space, self._mask_key), config)
        head = DuelingHead if config.dueling else MLP
        memory = memory_for(encoder.num_outputs, config)
        num_features = encoder.num_outputs if memory is None else memory.num_outputs
        self.qf = _QNetwork(
            encoder, head(num_features, config.head_fcnet_hiddens, head_options(config), int(action_space.n))
        )
        self.target_qf = target_of(self.qf)
        self.memory = memory
        self.target_memory = None if memory is None else target_of(memory)
        if memory is not None:
            self.is_stateful = True
            self.inputs = ("obs", "state_in")
            self.outputs = ("action_dist_inputs", "state_out")

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` (B, A), also `action_dist_inputs`, of `obs` (B, ...); far below where a mask forbids.

        With memory: (S, L, A) from `obs` (S, L, ...) and `state_in`.
        """
        q, _ = self._q(self.qf, self.memory, batch)
        return {"action_dist_inputs": q, "qf_preds": q}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, A); with memory (N, 1, A) and `state_out`."""
        q, state_out = self._q(self.qf, self.memory, batch)
        return {"action_dist_inputs": q} if self.memory is None else {"action_dist_inputs": q, "state_out": state_out}

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` of the target, as `forward_train`."""
        return {"qf_preds": self._q(self.target_qf, self.target_memory, batch)[0]}

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} without memory; else {"h": (H,), "c": (H,)} (a GRU has no "c")."""
        return {} if self.memory is None else dict(self.memory.initial_state())

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) Q of actions (B,) of the space, from `qf_preds`."""
        numbers = actions.long() - self._first_action if self._first_action else actions.long()
        return q.gather(-1, numbers.unsqueeze(-1)).squeeze(-1)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return Q's target and Q, and the same of its memory."""
        memories = [] if self.memory is None or self.target_memory is None else [(self.target_memory, self.memory)]
        return [(self.target_qf, self.qf), *memories]

    def _q(self, qf: _QNetwork, memory: Memory | None, batch: Mapping[str, Any]) -> tuple[Tensor, State]:
        """Return Q of all actions, and the state after it."""
        obs: Any = batch["obs"]
        state_out: State = {}
        if memory is None:
            q = qf.forward(obs)
        else:
            encoder, head = qf
            features, state_out = through_memory(encoder, memory, obs, batch["state_in"])
            q = head.forward(features)
        return q if self._mask_key is None else self.action_dist.masked(q, obs[self._mask_key]), state_out
