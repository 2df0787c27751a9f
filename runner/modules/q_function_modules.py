"""Modules with Q functions (SAC, discrete SAC, TD3, IQL), which may share one recurrent layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.errors import show_value
from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules.action_masks import without_mask
from runner.modules.actor_critic_module import ActorCriticModule
from runner.modules.distributions import squashed_distribution
from runner.modules.layers import ALL, Members, State, make_head, memory_for, through_memory
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.q_functions import QEnsemble, WithQFunctions, check_not_recurrent
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of

_FEATURES = "features"


class Seen(NamedTuple):
    """Inputs of policy and Q functions for the observations of a train batch, each (B, ...).

    Attributes:
        obs, new_obs: inputs of the networks.
        target_obs: inputs of the target networks for `new_obs`.
    """

    obs: Any
    new_obs: Any
    target_obs: Any


class Recall(nn.Module):
    """An encoder and a recurrent layer, whose features replace the observations.

    Args:
        observation_space: a space that `ObservationEncoder` supports.
        action_space: space of the module's actions; the mask must match it.
        config: widths, filters, recurrent layer.

    Attributes:
        space: space of the outputs of `forward`: features (H,), or a Dict of them and the action mask.
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
        """Return outputs in `space` (S, L, ...) for `obs` (S, L, ...), and the next state."""
        features, state_out = through_memory(self.encoder, self.memory, obs, state_in)
        seen = features if self._mask_key is None else {_FEATURES: features, self._mask_key: obs[self._mask_key]}
        return seen, state_out


class RecallingModule(RLModule):
    """Base class of modules with a policy and Q functions; with `use_lstm` or `use_gru` they share a recurrent layer.

    The recurrent layer learns with the Q functions and has a target network. The policy reads its features, but does
    not propagate gradients through them.

    Attributes:
        recall, target_recall: the recurrent layer with its encoder, and its target, or None.
        seen_space: space of the inputs of policy and Q functions.
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
        """Return `action_dist_inputs` (B, K) for inputs of the policy (B, ...), see `seen`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement dist_inputs")

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (B, K) from `obs` (B, ...); if stateful (S, L, K) from `obs` (S, L, ...) and
        `state_in`.
        """
        outputs = self.forward_exploration(batch)
        return {"action_dist_inputs": outputs["action_dist_inputs"]}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, K) from `obs` (N, ...); if stateful (N, 1, K) and `state_out`."""
        if self.recall is None:
            return {"action_dist_inputs": self.dist_inputs(batch["obs"])}
        seen, state_out = self.recall.forward(batch["obs"], batch["state_in"])
        leading = next(iter(nested.leaves(seen))).shape[:2]
        flat = nested.map_leaves(lambda leaf: leaf.flatten(0, 1), seen)
        return {"action_dist_inputs": self.dist_inputs(flat).reshape(*leading, -1), "state_out": state_out}

    def seen(self, batch: Mapping[str, Any]) -> Seen:
        """Return the inputs of policy and Q functions for a train batch: its observations or recurrent features.

        Args:
            batch: `obs`, `new_obs` (B, ...); if stateful (S, L, ...), `state_in`, `new_state_in`, and B env steps in
                total, see `outputs_at_steps`.

        Returns:
            The inputs; only `obs` has a gradient for the recurrent layer, and `target_obs` come from its target.
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
        """Return {} for a stateless module, otherwise {"h": (H,), "c": (H,)} (without "c" for a GRU)."""
        return {} if self.recall is None else dict(self.recall.memory.initial_state())

    def recall_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the recurrent layer, which belong to the Q functions' group."""
        return [] if self.recall is None else list(self.recall.parameters())

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target of the recurrent layer, and the layer."""
        return [] if self.recall is None or self.target_recall is None else [(self.target_recall, self.recall)]

    def without_gradient(self, obs: Any) -> Any:
        """Return inputs of the policy without gradients for the recurrent layer."""
        return obs if self.recall is None else nested.map_leaves(Tensor.detach, obs)


class _SquashedPolicyModule(WithQFunctions, RecallingModule):
    """Base class of modules whose policy is a squashed Gaussian over bounded actions; only SAC learns its deviation."""

    train_outputs = ("action_dist_inputs",)
    _is_log_std: Tensor

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        unsupported = {
            "use_sde": False,
            "free_log_std": False,
            "action_mask_key": None,
            "action_distribution": "gaussian",
        }
        for key, allowed in unsupported.items():
            if getattr(config, key) != allowed:
                shown = show_value(allowed)
                raise ValueError(f"{type(self).__name__}: module.{key} is set; expected: {shown}")
        super().__init__(observation_space, action_space, config)
        self.action_dist = self.squashed = squashed_distribution(action_space)
        is_log_std = torch.zeros(self.squashed.num_inputs, dtype=torch.bool)
        is_log_std[list(self.squashed.log_std_inputs)] = True
        self.register_buffer("_is_log_std", is_log_std, persistent=False)


_MAX_LOG_STD = 2.0  # before the tanh, as in the authors' code


class SACModule(_SquashedPolicyModule):
    """Policy, Q functions with targets, and the logarithms of SAC's alpha and CQL's alpha'.

    Args:
        observation_space: a space that `ObservationEncoder` supports.
        action_space: a bounded float Box, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        log_alpha, log_alpha_prime: (), logarithms of factors of the initial values.

    Raises:
        TypeError: the module does not support a space.
        ValueError: the module does not support an option.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        if math.isinf(self.squashed.log_volume):
            what = f"{type(self).__name__} learns densities of actions, but bounds of {action_space} are equal"
            raise TypeError(f"{what}; expected: other bounds, or env.normalize_actions=true")
        self.encoder = ObservationEncoder(self.seen_space, self.head_config)
        self.pi = make_head(self.encoder.num_outputs, config, self.squashed.num_inputs)
        self.add_q_functions(self.seen_space, action_space, self.head_config)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.log_alpha_prime = nn.Parameter(torch.zeros(()))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `alpha`."""
        return {
            "actor": [*self.encoder.parameters(), *self.pi.parameters()],
            "critic": [*self.recall_parameters(), *self.critic.parameters()],
            "alpha": [self.log_alpha, self.log_alpha_prime],
        }

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) for inputs of the policy (B, ...); log stds are clamped."""
        outputs: Tensor = self.pi.forward(self.encoder.forward(self.without_gradient(obs)))
        clamped = outputs.clamp(-self.config.log_std_clip_param, _MAX_LOG_STD)
        return torch.where(self._is_log_std, clamped, outputs)


class DiscreteSACModule(RecallingModule):
    """Policy, E Q functions with A outputs each, their targets, and the logarithm of SAC's alpha.

    Args:
        observation_space: a space that `ObservationEncoder` supports, with a mask if `action_mask_key` is set.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        num_actions: A.
        log_alpha: (), logarithm of a factor of the initial value.

    Raises:
        TypeError: the module does not support a space.
        ValueError: the module does not support an option.
    """

    train_outputs = ("action_dist_inputs",)

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise TypeError(
                f"DiscreteSACModule computes a Q value for each action: got {action_space}; expected: Discrete"
            )
        super().__init__(observation_space, action_space, config)
        self.num_actions = int(action_space.n)
        self._first_action, self._mask_key = int(action_space.start), config.action_mask_key
        seen, config = without_mask(self.seen_space, action_space, self._mask_key), self.head_config
        encoder = ObservationEncoder(seen, config)
        head = make_head(encoder.num_outputs, config, self.num_actions)
        self.actor = nn.Sequential(encoder, head)
        self.critic = QEnsemble(seen, None, config, self.num_actions)
        self.target_critic = target_of(self.critic)
        self.log_alpha = nn.Parameter(torch.zeros(()))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `alpha`."""
        return {
            "actor": list(self.actor.parameters()),
            "critic": [*self.recall_parameters(), *self.critic.parameters()],
            "alpha": [self.log_alpha],
        }

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs`, logits (B, A), for inputs of the policy (B, ...); very low for forbidden
        actions.
        """
        logits: Tensor = self.actor(self.without_gradient(obs))
        return logits if self._mask_key is None else self.action_dist.masked(logits, obs[self._mask_key])

    def compute_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return Q (M, B, A) of all actions in `obs` (B, ...) from the Q functions `members`, with dropout `scales`."""
        return self.critic.forward(obs, None, members, scales)

    def compute_target_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return Q (M, B, A) of the targets, like `compute_q_values`."""
        return self.target_critic.forward(obs, None, members, scales)

    def draw_dropout(
        self, stream: np.random.Generator, num_members: int, num_rows: int
    ) -> npt.NDArray[np.float32] | None:
        """Draw the dropout factors of M Q functions, or return None without dropout; see `QEnsemble`."""
        return self.critic.draw_dropout(stream, num_members, num_rows)

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (E, B) Q of actions (B,) of the space, from Q (E, B, A)."""
        numbers = actions.long() - self._first_action
        return q.gather(-1, numbers.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of recurrent layer and Q functions, each with its network."""
        return [*super().target_networks(), (self.target_critic, self.critic)]


_LOG_STD = -20.0  # of a squashed Gaussian that equals its mean in float32


class TD3Module(_SquashedPolicyModule):
    """Policy a = center + scale * tanh(mu(s)), Q functions, and targets of both.

    The policy is represented as a squashed Gaussian with a standard deviation close to 0.

    Args:
        observation_space: a space that `ObservationEncoder` supports.
        action_space: a bounded float Box, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: the module does not support a space.
        ValueError: the module does not support an option.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        encoder = ObservationEncoder(self.seen_space, self.head_config)
        head = make_head(encoder.num_outputs, config, self.squashed.num_inputs)
        self.actor = nn.Sequential(encoder, head)
        self.target_actor = target_of(self.actor)
        self.add_q_functions(self.seen_space, action_space, self.head_config)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor` and `critic`."""
        critic = [*self.recall_parameters(), *self.critic.parameters()]
        return {"actor": list(self.actor.parameters()), "critic": critic}

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) for inputs of the policy (B, ...)."""
        return self._dist_inputs(self.actor, self.without_gradient(obs))

    def compute_target_dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) of the target policy."""
        return self._dist_inputs(self.target_actor, obs)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of policy, recurrent layer and Q functions, each with its network."""
        return [(self.target_actor, self.actor), *super().target_networks()]

    def _dist_inputs(self, actor: nn.Module, obs: Any) -> Tensor:
        outputs: Tensor = actor.forward(obs)
        return outputs.masked_fill(self._is_log_std, _LOG_STD)


class IQLModule(WithQFunctions, ActorCriticModule):
    """An `ActorCriticModule` with Q functions and their targets, for any observation and action space.

    Args:
        observation_space, action_space, config: see `ActorCriticModule`.

    Raises:
        TypeError: a space cannot be encoded.
        ValueError: options contradict each other or the spaces, or select a recurrent layer or shared layers.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        check_not_recurrent(config, "IQLModule")
        if config.vf_share_layers:
            raise ValueError("IQLModule learns V separately: module.vf_share_layers is true; expected: false")
        super().__init__(observation_space, action_space, config)
        self.add_q_functions(
            without_mask(observation_space, action_space, config.action_mask_key), action_space, config
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor`, `critic` and `value`."""
        assert self.vf_encoder is not None
        groups = {
            "critic": list(self.critic.parameters()),
            "value": [*self.vf_encoder.parameters(), *self.vf.parameters()],
        }
        others = {id(parameter) for group in groups.values() for parameter in group}
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return {"actor": [parameter for parameter in learned if id(parameter) not in others], **groups}
