"""Modules whose policy and Q functions read one memory of the episode so far, where they have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules.actor_critic_module import without_mask
from runner.modules.memory import State, memory_for, through_memory
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of

_FEATURES = "features"


class Seen(NamedTuple):
    """What policy and Q functions read of the observations of a train batch, each (B, ...).

    Attributes:
        obs, new_obs: by the networks themselves.
        target_obs: `new_obs` by their targets.
    """

    obs: Any
    new_obs: Any
    target_obs: Any


class Recall(nn.Module):
    """An encoder and a memory, whose features take the place of observations.

    Args:
        observation_space: what `ObservationEncoder` can encode.
        action_space: of the module; the mask must fit it.
        config: widths, filters, the memory.

    Attributes:
        space: of what `forward` gives: features (H,), or a Dict of them and the action mask.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__()
        self._mask_key = config.action_mask_key
        self.encoder = ObservationEncoder(without_mask(observation_space, action_space, self._mask_key), config)
        memory = memory_for(self.encoder.num_outputs, config)
        assert memory is not None
        self.memory = memory
        self.space: gym.Space[Any] = gym.spaces.Box(-np.inf, np.inf, (memory.num_outputs,), np.float32)
        if self._mask_key is not None:
            assert isinstance(observation_space, gym.spaces.Dict)
            self.space = gym.spaces.Dict({_FEATURES: self.space, self._mask_key: observation_space[self._mask_key]})

    def forward(self, obs: Any, state_in: State) -> tuple[Any, State]:
        """Return what `space` describes (S, L, ...) of `obs` (S, L, ...), and the state after it."""
        features, state_out = through_memory(self.encoder, self.memory, obs, state_in)
        seen = features if self._mask_key is None else {_FEATURES: features, self._mask_key: obs[self._mask_key]}
        return seen, state_out


class RecallingModule(RLModule):
    """Base of modules with a policy and Q functions, which with `use_lstm` or `use_gru` read one memory.

    The memory learns with the Q functions, and has a target; the policy gets its features and no gradient goes back
    through them.

    Attributes:
        recall, target_recall: the memory with its encoder, and its target; None: there is none.
        seen_space: space of what policy and Q functions read.
        head_config: the `module` block for them.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.recall: Recall | None = None
        self.target_recall: Recall | None = None
        self.seen_space, self.head_config = observation_space, config
        if config.use_lstm or config.use_gru:
            self.recall = Recall(observation_space, action_space, config)
            self.target_recall = target_of(self.recall)
            self.seen_space, self.head_config = self.recall.space, replace(config, conv_filters=None)
            self.is_stateful = True
            self.inputs = ("obs", "state_in")
            self.outputs = ("action_dist_inputs", "state_out")

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, K) of what the policy reads (B, ...), see `seen`."""
        raise NotImplementedError(f"{type(self).__name__} has no dist_inputs")

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (B, K) from `obs` (B, ...); with memory (S, L, K) from `obs` (S, L, ...) and
        `state_in`.
        """
        outputs = self.forward_exploration(batch)
        return {"action_dist_inputs": outputs["action_dist_inputs"]}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, K) from `obs` (N, ...); with memory (N, 1, K) and `state_out`."""
        if self.recall is None:
            return {"action_dist_inputs": self.dist_inputs(batch["obs"])}
        seen, state_out = self.recall.forward(batch["obs"], batch["state_in"])
        leading = next(iter(nested.leaves(seen))).shape[:2]
        flat = nested.map_leaves(lambda leaf: leaf.flatten(0, 1), seen)
        return {"action_dist_inputs": self.dist_inputs(flat).reshape(*leading, -1), "state_out": state_out}

    def seen(self, batch: Mapping[str, Any]) -> Seen:
        """Return what policy and Q functions read of a train batch: its observations, or features of the memory.

        Args:
            batch: `obs`, `new_obs` (B, ...); with memory (S, L, ...), `state_in`, `new_state_in`, and B env steps in
                all, see `outputs_at_steps`.

        Returns:
            With a gradient for the memory in `obs` only; `target_obs` are of its target.
        """
        if self.recall is None or self.target_recall is None:
            return Seen(batch["obs"], batch["new_obs"], batch["new_obs"])
        new = {**batch, "obs": batch["new_obs"], "state_in": batch["new_state_in"]}
        with torch.no_grad():
            new_obs, target_obs = self._at_steps(self.recall, new), self._at_steps(self.target_recall, new)
        return Seen(self._at_steps(self.recall, batch), new_obs, target_obs)

    def _at_steps(self, recall: Recall, batch: Mapping[str, Any]) -> Any:
        seen, _ = recall.forward(batch["obs"], batch["state_in"])
        return self.at_steps({"obs": seen}, batch)["obs"]

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} without memory; else {"h": (H,), "c": (H,)} (a GRU has no "c")."""
        return {} if self.recall is None else dict(self.recall.memory.initial_state())

    def recall_parameters(self) -> list[nn.Parameter]:
        """Return the memory's parameters, which belong to the Q functions' group."""
        return [] if self.recall is None else list(self.recall.parameters())

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the memory's target and the memory."""
        return [] if self.recall is None or self.target_recall is None else [(self.target_recall, self.recall)]

    def without_gradient(self, obs: Any) -> Any:
        """Return what the policy reads without the memory's graph."""
        return obs if self.recall is None else nested.map_leaves(Tensor.detach, obs)
