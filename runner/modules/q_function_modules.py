"""Modules with Q functions (SAC, discrete SAC, TD3, IQL), whose parts may read one memory of the episode so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules.actor_critic_module import ActorCriticModule, head_options, without_mask
from runner.modules.distributions import squashed_distribution
from runner.modules.layers import ALL, MLP, Members, State, memory_for, through_memory
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.q_functions import QEnsemble, WithQFunctions, draw_dropout, refuse_memory
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


class _SquashedPolicyModule(WithQFunctions, RecallingModule):
    """Base of modules whose policy is a squashed Gaussian over bounded actions; only SAC learns its deviation."""

    train_outputs = ("action_dist_inputs",)
    _is_log_std: Tensor

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        for key, allowed in (("free_log_std", False), ("action_mask_key", None)):
            if getattr(config, key) != allowed:
                shown = "null" if allowed is None else "false"
                raise ValueError(f"{type(self).__name__}: module.{key} is set; expected: {shown}")
        super().__init__(observation_space, action_space, config)
        self.action_dist = self.squashed = squashed_distribution(action_space)
        is_log_std = torch.zeros(self.squashed.num_inputs, dtype=torch.bool)
        is_log_std[list(self.squashed.log_std_inputs)] = True
        self.register_buffer("_is_log_std", is_log_std, persistent=False)


_MAX_LOG_STD = 2.0  # as in the authors' code; before the tanh


class SACModule(_SquashedPolicyModule):
    """Policy, Q functions with targets, and the logarithms of SAC's alpha and CQL's alpha'.

    Args:
        observation_space: what `ObservationEncoder` can encode.
        action_space: a bounded Box of floats, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        log_alpha, log_alpha_prime: (), of what the initial values are multiplied by.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.encoder = ObservationEncoder(self.seen_space, self.head_config)
        hiddens, num_dist_inputs = config.head_fcnet_hiddens, self.squashed.num_inputs
        self.pi = MLP(self.encoder.num_outputs, hiddens, head_options(config), num_dist_inputs)
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
        """Return `action_dist_inputs` (B, 2 A) of what the policy reads (B, ...); log stds are clamped."""
        outputs: Tensor = self.pi.forward(self.encoder.forward(self.without_gradient(obs)))
        clamped = outputs.clamp(-self.config.log_std_clip_param, _MAX_LOG_STD)
        return torch.where(self._is_log_std, clamped, outputs)


class DiscreteSACModule(RecallingModule):
    """Policy, E Q functions with A outputs each, their targets, and the logarithm of SAC's alpha.

    Args:
        observation_space: what `ObservationEncoder` can encode, with `action_mask_key` a mask.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        num_actions: A.
        log_alpha: (), of what the initial value is multiplied by.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    train_outputs = ("action_dist_inputs",)

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            raise TypeError(f"DiscreteSACModule has a Q for each action: got {action_space}; expected: Discrete")
        super().__init__(observation_space, action_space, config)
        self.num_actions = int(action_space.n)
        self._first_action, self._mask_key = int(action_space.start), config.action_mask_key
        self._dropout = config.critic_dropout
        seen, config = without_mask(self.seen_space, action_space, self._mask_key), self.head_config
        encoder = ObservationEncoder(seen, config)
        head = MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), self.num_actions)
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
        """Return `action_dist_inputs`, logits (B, A), of what the policy reads (B, ...); far below where a mask
        forbids.
        """
        logits: Tensor = self.actor(self.without_gradient(obs))
        return logits if self._mask_key is None else self.action_dist.masked(logits, obs[self._mask_key])

    def compute_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return (M, B, A) Q of all actions in `obs` (B, ...), of the Q functions `members`, with dropout `scales`."""
        return self.critic.forward(obs, None, members, scales)

    def compute_target_q_values(self, obs: Any, members: Members = ALL, scales: Tensor | None = None) -> Tensor:
        """Return the same of the targets."""
        return self.target_critic.forward(obs, None, members, scales)

    def draw_dropout(
        self, stream: np.random.Generator, num_members: int, num_rows: int
    ) -> npt.NDArray[np.float32] | None:
        """Draw factors (num_members, num_rows, num_hidden) of hidden units; None: no dropout."""
        return draw_dropout(stream, self._dropout, (num_members, num_rows, self.critic.num_hidden))

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (E, B) Q of actions (B,) of the space, from Q (E, B, A)."""
        numbers = actions.long() - self._first_action
        return q.gather(-1, numbers.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of memory and Q functions, each with its network."""
        return [*super().target_networks(), (self.target_critic, self.critic)]


_LOG_STD = -20.0  # of a squashed Gaussian that is its mean: float32 cannot tell them apart


class TD3Module(_SquashedPolicyModule):
    """Policy a = center + scale * tanh(mu(s)), Q functions, and targets of both.

    To the rest of the house the policy is a squashed Gaussian whose standard deviation is next to 0.

    Args:
        observation_space: what `ObservationEncoder` can encode.
        action_space: a bounded Box of floats, or a Dict or Tuple of them.
        config: widths and activations, see `ModuleConfig`.

    Raises:
        TypeError: a space that this module cannot use.
        ValueError: options that have no meaning here.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        encoder = ObservationEncoder(self.seen_space, self.head_config)
        head = MLP(encoder.num_outputs, config.head_fcnet_hiddens, head_options(config), self.squashed.num_inputs)
        self.actor = nn.Sequential(encoder, head)
        self.target_actor = target_of(self.actor)
        self.add_q_functions(self.seen_space, action_space, self.head_config)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return `actor` and `critic`."""
        critic = [*self.recall_parameters(), *self.critic.parameters()]
        return {"actor": list(self.actor.parameters()), "critic": critic}

    def dist_inputs(self, obs: Any) -> Tensor:
        """Return `action_dist_inputs` (B, 2 A) of what the policy reads (B, ...)."""
        return self._dist_inputs(self.actor, self.without_gradient(obs))

    def compute_target_dist_inputs(self, obs: Any) -> Tensor:
        """Return the same of the target policy."""
        return self._dist_inputs(self.target_actor, obs)

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the targets of policy, memory and Q functions, each with its network."""
        return [(self.target_actor, self.actor), *super().target_networks()]

    def _dist_inputs(self, actor: nn.Module, obs: Any) -> Tensor:
        outputs: Tensor = actor.forward(obs)
        return outputs.masked_fill(self._is_log_std, _LOG_STD)


class IQLModule(WithQFunctions, ActorCriticModule):
    """An `ActorCriticModule` with Q functions and their targets, for any observation and action space.

    Args:
        observation_space, action_space, config: see `ActorCriticModule`.

    Raises:
        TypeError: a space that cannot be encoded.
        ValueError: options that contradict each other or the spaces, memory, or shared layers.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        refuse_memory(config, "IQLModule")
        if config.vf_share_layers:
            raise ValueError("IQLModule learns V on its own: module.vf_share_layers is true; expected: false")
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
