"""Q functions of the agents of a team, mixed to a joint Q function: QMIX and VDN.

Dimension letters: B batch rows, S sequences of length L, A agents, F width of an agent's observation, H width of the
recurrent state, n the largest number of actions of an agent. `...` is (B,), or (S, L) if the module is stateful.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.action_masks import without_mask
from runner.modules.double_q_module import q_head
from runner.modules.layers import Memory, State, memory_for
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of
from runner.modules.value_distributions import of_actions


class MonotonicMixer(nn.Module):
    """Q_tot(q, s) = |W2(s)| elu(|W1(s)| q + b1(s)) + V(s) (Rashid et al., 2018, section 4).

    W1, b1 and W2 are linear in s, V has a hidden layer. Since no weight is negative, the best joint action consists of
    the best action of each agent.

    Args:
        num_agents: A.
        num_inputs: width of s.
        width: width of the hidden layer.
    """

    def __init__(self, num_agents: int, num_inputs: int, width: int) -> None:
        super().__init__()
        self._shape = num_agents, width
        self.first_weights, self.first_bias = nn.Linear(num_inputs, num_agents * width), nn.Linear(num_inputs, width)
        self.second_weights = nn.Linear(num_inputs, width)
        self.value = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot (B,) from the agents' Q (B, A) and the state (B, S)."""
        first = torch.unflatten(self.first_weights(state).abs(), -1, self._shape)  # (B, A, width)
        hidden = F.elu((q.unsqueeze(-1) * first).sum(-2) + self.first_bias(state))
        total: Tensor = (hidden * self.second_weights(state).abs()).sum(-1) + self.value(state).squeeze(-1)
        return total


class Sum(nn.Module):
    """Q_tot(q, s) = sum of q: VDN (Sunehag et al., 2018, https://arxiv.org/abs/1706.05296)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot (B,) from the agents' Q (B, A)."""
        return q.sum(-1)


class MixedQModule(RLModule):
    """Q of each agent's actions, by one network of its observation and its index, a mixer, and targets of both.

    Each agent acts on its observation; with `use_lstm` or `use_gru` on its observations so far in the episode, with a
    separate state (H,). Mixers are used for learning only. Agents that do not act (`mask` 0) count as q = 0; recurrent
    layers of absent agents get zeros.

    Args:
        observation_space: space of `AgentsAsOne`: a Dict of `agents` (A, F), `mask` (A,), and optionally `state` (S,)
            for the mixer, which otherwise reads `agents` and `mask`; with a mask if `action_mask_key` is set.
        action_space: MultiDiscrete, the action of each agent.
        config: widths, activations, dueling heads, recurrent layer; `mixer` and `mixer_width`.

    Raises:
        TypeError: the module does not support the spaces.
        ValueError: the configuration has unsupported options: noise, distributions of returns.
    """

    train_outputs = ("action_dist_inputs", "qf_preds")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.MultiDiscrete) or len(action_space.shape) != 1:
            raise TypeError(f"MixedQModule needs a MultiDiscrete action space: got {action_space}; {_ALLOWED}")
        parts = getattr(without_mask(observation_space, action_space, config.action_mask_key), "spaces", {})
        if not isinstance(parts, Mapping) or not {"agents", "mask"} <= set(parts) <= {"agents", "mask", "state"}:
            raise TypeError(f"MixedQModule needs observations of several agents: got {observation_space}; {_ALLOWED}")
        if config.noisy or config.q_distribution != "none":
            raise ValueError("MixedQModule supports neither noisy layers nor distributions of returns")
        super().__init__(observation_space, action_space, config)
        sizes = action_space.nvec
        num_agents, width = parts["agents"].shape
        if len(sizes) != num_agents:
            raise TypeError(f"there are observations of {num_agents} agents, but actions of {len(sizes)}")
        self._num_agents, self._mask_key, self._reads_state = num_agents, config.action_mask_key, "state" in parts
        num_inputs = parts["state"].shape[0] if self._reads_state else num_agents * (width + 1)
        seen = gym.spaces.Box(-float("inf"), float("inf"), (width + num_agents,))
        encoder = ObservationEncoder(seen, config)
        self.memory = memory_for(encoder.num_outputs, config)
        self.target_memory = None if self.memory is None else target_of(self.memory)
        num_features = encoder.num_outputs if self.memory is None else self.memory.num_outputs
        self.qf = nn.Sequential(encoder, q_head(num_features, int(sizes.max()), 1, config))
        self.mixer = MonotonicMixer(num_agents, num_inputs, config.mixer_width) if config.mixer == "qmix" else Sum()
        self.target_qf, self.target_mixer = target_of(self.qf), target_of(self.mixer)
        is_action = np.arange(sizes.max()) < sizes[:, None]  # (A, n)
        tables = {"_columns": np.flatnonzero(is_action), "_numbers": np.eye(num_agents, dtype=np.float32)}
        for name, table in tables.items():
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self._padded_shape = is_action.shape
        if self.memory is not None:
            self.is_stateful = True
            self.inputs = ("obs", "state_in")
            self.outputs = ("action_dist_inputs", "state_out")

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` (..., A, n) from `obs`; very low for missing or forbidden actions.

        Also return them as `action_dist_inputs` (..., sum of numbers of actions), and `mask` and `mixer_inputs` for
        `mix`. If stateful, `obs` contains sequences (S, L, ...), and `state_in` the states (S, A, H) before them.
        """
        return self._outputs(self.qf, self.memory, batch)[0]

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs`; if stateful (N, 1, ...) and `state_out`."""
        outputs, state_out = self._outputs(self.qf, self.memory, batch)
        acting = {"action_dist_inputs": outputs["action_dist_inputs"]}
        return acting if self.memory is None else {**acting, "state_out": state_out}

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs of `forward_train` with the target, for `mix_target`."""
        return self._outputs(self.target_qf, self.target_memory, batch)[0]

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} for a stateless module, otherwise {"h": (A, H), "c": (A, H)} (without "c" for a GRU)."""
        if self.memory is None:
            return {}
        return {name: value.repeat(self._num_agents, 1) for name, value in self.memory.initial_state().items()}

    def mix(self, outputs: Mapping[str, Any], actions: Tensor) -> Tensor:
        """Return Q_tot (B,) of actions (B, A) of the agents, from outputs of `forward_train`."""
        return self._mixed(self.mixer, outputs, actions)

    def mix_target(self, outputs: Mapping[str, Any], actions: Tensor) -> Tensor:
        """Return the target's Q_tot (B,), from outputs of `forward_target`."""
        return self._mixed(self.target_mixer, outputs, actions)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of Q, recurrent layer and mixer, with the networks that they follow."""
        memories = [] if self.memory is None or self.target_memory is None else [(self.target_memory, self.memory)]
        return [(self.target_qf, self.qf), *memories, (self.target_mixer, self.mixer)]

    def _outputs(
        self, qf: nn.Sequential, memory: Memory | None, batch: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the outputs of `forward_train`, and the state after them."""
        obs = batch["obs"]
        agents, mask = obs["agents"], obs["mask"].float()  # (..., A, F), (..., A)
        leading = mask.shape[:-1]
        state_out: State = {}
        numbers = self._numbers.expand(*leading, -1, -1)
        features: Tensor = qf[0](torch.cat((agents, numbers), -1).flatten(0, -2))
        if memory is not None:
            features, state_out = _remembered(memory, torch.unflatten(features, 0, mask.shape), batch["state_in"])
        q = torch.unflatten(qf[1](features), 0, mask.shape)  # (..., A, n)
        flat = q.flatten(-2).index_select(-1, self._columns)
        if self._mask_key is not None:
            flat = self.action_dist.masked(flat, obs[self._mask_key])
        padded = q.new_full((*leading, math.prod(self._padded_shape)), MASKED_LOGIT)
        outputs = {
            "action_dist_inputs": flat,
            "qf_preds": torch.unflatten(padded.index_copy(-1, self._columns, flat), -1, self._padded_shape),
            "mask": mask,
            "mixer_inputs": obs["state"] if self._reads_state else torch.cat((agents.flatten(-2), mask), -1),
        }
        return outputs, state_out

    @staticmethod
    def _mixed(mixer: nn.Module, outputs: Mapping[str, Any], actions: Tensor) -> Tensor:
        q = of_actions(outputs["qf_preds"].flatten(0, 1), actions.long().flatten()).view_as(outputs["mask"])
        total: Tensor = mixer(q * outputs["mask"], outputs["mixer_inputs"])
        return total

    _columns: Tensor
    _numbers: Tensor


def _remembered(memory: Memory, features: Tensor, state_in: State) -> tuple[Tensor, State]:
    """Return (S * L * A, H) recurrent features from the agents' features (S, L, A, F), and the next state (S, A, H)."""
    num_sequences, _, num_agents, _ = features.shape
    of_each = features.transpose(1, 2).flatten(0, 1)  # (S * A, L, F): a sequence for each agent
    outputs, state_out = memory.forward(of_each, {name: value.flatten(0, 1) for name, value in state_in.items()})
    by_agent = (num_sequences, num_agents)
    in_steps = torch.unflatten(outputs, 0, by_agent).transpose(1, 2).flatten(0, 2)
    return in_steps, {name: torch.unflatten(value, 0, by_agent) for name, value in state_out.items()}


_ALLOWED = "expected: a space of runner.environments.AgentsAsOne"
