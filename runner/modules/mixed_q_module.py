"""Q functions of the agents of a team, mixed to one of all: QMIX and VDN.

Dimension letters: B batch rows, S sequences, L their length, A agents, F width of an agent's observation, H width of
the memory, n actions of the agent with the most. `...` is (B,), or (S, L) where agents have a memory.
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
from runner.modules.actor_critic_module import without_mask
from runner.modules.double_q_module import q_head
from runner.modules.layers import Memory, State, memory_for
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of
from runner.modules.value_distributions import of_actions


class MonotonicMixer(nn.Module):
    """Q_tot(q, s) = |W2(s)| elu(|W1(s)| q + b1(s)) + V(s) (Rashid et al., 2018, section 4).

    W1, b1 and W2 are linear in s, V has a hidden layer. As no weight is negative, the best actions of all agents
    together are the best ones of each by itself.

    Args:
        num_agents: A.
        num_inputs: width of s.
        width: of the hidden layer.
    """

    def __init__(self, num_agents: int, num_inputs: int, width: int) -> None:
        super().__init__()
        self._shape = num_agents, width
        self.first_weights, self.first_bias = nn.Linear(num_inputs, num_agents * width), nn.Linear(num_inputs, width)
        self.second_weights = nn.Linear(num_inputs, width)
        self.value = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot (B,) of the agents' Q (B, A) and the state (B, S)."""
        first = torch.unflatten(self.first_weights(state).abs(), -1, self._shape)  # (B, A, width)
        hidden = F.elu((q.unsqueeze(-1) * first).sum(-2) + self.first_bias(state))
        total: Tensor = (hidden * self.second_weights(state).abs()).sum(-1) + self.value(state).squeeze(-1)
        return total


class Sum(nn.Module):
    """Q_tot(q, s) = sum of q: VDN (Sunehag et al., 2018, https://arxiv.org/abs/1706.05296)."""

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        """Return Q_tot (B,) of the agents' Q (B, A)."""
        return q.sum(-1)


class MixedQModule(RLModule):
    """Q of each agent's actions by one network of its observation and its number, a mixer, and targets of both.

    Each agent acts on what it observes; with `use_lstm` or `use_gru` on what it has observed so far in the episode, and
    has a state (H,) of its own. Mixers are for learning. Agents that do not act (`mask` 0) count as q = 0; memories of
    agents that are not there see zeros.

    Args:
        observation_space: as `AgentsAsOne` gives it: a Dict of `agents` (A, F), `mask` (A,), and perhaps `state` (S,),
            for the mixer, which else sees `agents` and `mask`; with `action_mask_key` a mask.
        action_space: MultiDiscrete, the action of each agent.
        config: widths, activations, dueling heads, memory; `mixer` and `mixer_width`.

    Raises:
        TypeError: spaces that this module cannot use.
        ValueError: options that it does not have: noise, distributions of returns.
    """

    train_outputs = ("action_dist_inputs", "qf_preds")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.MultiDiscrete) or len(action_space.shape) != 1:
            raise TypeError(f"MixedQModule has a Q for each action of each agent: got {action_space}; {_ALLOWED}")
        parts = getattr(without_mask(observation_space, action_space, config.action_mask_key), "spaces", {})
        if not isinstance(parts, Mapping) or not {"agents", "mask"} <= set(parts) <= {"agents", "mask", "state"}:
            raise TypeError(
                f"MixedQModule reads the observations of several agents: got {observation_space}; {_ALLOWED}"
            )
        if config.noisy or config.q_distribution != "none":
            raise ValueError("MixedQModule has neither noisy layers nor distributions of returns")
        super().__init__(observation_space, action_space, config)
        sizes = action_space.nvec
        num_agents, width = parts["agents"].shape
        if len(sizes) != num_agents:
            raise TypeError(f"observations are of {num_agents} agents, actions of {len(sizes)}")
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
        """Compute `qf_preds` (..., A, n) of `obs`, far below where there is no such action or a mask forbids it.

        Also as `action_dist_inputs` (..., sum of numbers of actions); and `mask`, `mixer_inputs` for `mix`. With memory
        `obs` has sequences (S, L, ...), and `state_in` the states before them (S, A, H).
        """
        return self._outputs(self.qf, self.memory, batch)[0]

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs`; with memory (N, 1, ...) and `state_out`."""
        outputs, state_out = self._outputs(self.qf, self.memory, batch)
        acting = {"action_dist_inputs": outputs["action_dist_inputs"]}
        return acting if self.memory is None else {**acting, "state_out": state_out}

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the same by the target, for `mix_target`."""
        return self._outputs(self.target_qf, self.target_memory, batch)[0]

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} without memory; else {"h": (A, H), "c": (A, H)} (a GRU has no "c")."""
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
        """Return the targets of Q, of its memory and of the mixer, with the networks that they follow."""
        memories = [] if self.memory is None or self.target_memory is None else [(self.target_memory, self.memory)]
        mixers = [] if isinstance(self.mixer, Sum) else [(self.target_mixer, self.mixer)]
        return [(self.target_qf, self.qf), *memories, *mixers]

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
    """Return (S * L * A, H) of the agents' features (S, L, A, F) so far, and the state (S, A, H) after them."""
    num_sequences, _, num_agents, _ = features.shape
    of_each = features.transpose(1, 2).flatten(0, 1)  # (S * A, L, F): a sequence for each agent
    outputs, state_out = memory.forward(of_each, {name: value.flatten(0, 1) for name, value in state_in.items()})
    by_agent = (num_sequences, num_agents)
    in_steps = torch.unflatten(outputs, 0, by_agent).transpose(1, 2).flatten(0, 2)
    return in_steps, {name: torch.unflatten(value, 0, by_agent) for name, value in state_out.items()}


_ALLOWED = "expected: what runner.environments.AgentsAsOne gives"
