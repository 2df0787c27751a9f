"""Q functions over all discrete actions, with and without a target network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from runner.compat.torch_functions import submodules
from runner.config.schemas import ModuleConfig
from runner.modules.action_masks import without_mask
from runner.modules.implicit_quantiles import ImplicitQuantileHead
from runner.modules.layers import (
    MLP,
    LayerOptions,
    Memory,
    State,
    factorised_noise,
    layer_options,
    memory_for,
    through_memory,
)
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.modules.target_networks import target_of
from runner.modules.value_distributions import ImplicitQuantiles, of_actions, per_action, value_distribution_for


class DuelingHead(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a') (Wang et al., 2016, https://arxiv.org/abs/1511.06581, eq. 9).

    Args:
        num_inputs: width of the features.
        hiddens, options: hidden layers and options of each of the two heads.
        num_actions: A.
        num_atoms: N, outputs per action; the sum above is applied to each atom separately (Hessel et al., 2018).
    """

    def __init__(
        self, num_inputs: int, hiddens: Sequence[int], options: LayerOptions, num_actions: int, num_atoms: int = 1
    ) -> None:
        super().__init__()
        self.value = MLP(num_inputs, hiddens, options, num_atoms)
        self.advantages = MLP(num_inputs, hiddens, options, num_actions * num_atoms)
        self.num_noise = self.value.num_noise + self.advantages.num_noise
        self._num_atoms = num_atoms

    def forward(self, features: Tensor) -> Tensor:
        """Return Q (..., A * N) of features (..., F)."""
        return self._joined(self.value.forward(features), self.advantages.forward(features))

    def forward_with_noise(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return Q with the noise of noisy layers: (..., num_noise), or (num_noise,) for all rows."""
        of_value, of_advantages = noise.tensor_split([self.value.num_noise], -1)
        value = self.value.forward_with_noise(features, of_value)
        return self._joined(value, self.advantages.forward_with_noise(features, of_advantages))

    def _joined(self, value: Tensor, advantages: Tensor) -> Tensor:
        if self._num_atoms == 1:
            return value + advantages - advantages.mean(-1, keepdim=True)
        advantages = per_action(advantages, self._num_atoms)
        return (value.unsqueeze(-2) + advantages - advantages.mean(-2, keepdim=True)).flatten(-2)


class _QNetwork(nn.Sequential):
    """Encoder and head. Bypasses the call overhead of `nn.Module`, which takes longer than a layer."""

    def forward(self, obs: Any, noise: Tensor | None = None) -> Tensor:
        return self.of_features(submodules(self)["0"].forward(obs), noise)

    def of_features(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """Return the outputs (..., A * N) for features (..., F), with noise for the head."""
        head: Any = submodules(self)["1"]
        q: Tensor = head.forward(features) if noise is None else head.forward_with_noise(features, noise)
        return q


class QModule(RLModule):
    """Q(s, .), with the value max_a Q(s, a); acts greedily, or with probabilities softmax(Q) when exploring.

    With `q_distribution` the network returns N outputs per action, the inputs of a distribution of returns with mean Q.
    With `noisy` the layers of the head are noisy if the batch has a column `noise`.

    Args:
        observation_space: a space that `ObservationEncoder` supports, with a mask if `action_mask_key` is set.
        action_space: Discrete.
        config: widths and activations, see `ModuleConfig`.

    Attributes:
        value_distribution: distribution of returns, or None if Q is a number.

    Raises:
        TypeError: the module does not support a space.
        ValueError: options contradict each other.
    """

    train_outputs: tuple[str, ...] = ("action_dist_inputs", "qf_preds")

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        if not isinstance(action_space, gym.spaces.Discrete):
            name = type(self).__name__
            raise TypeError(f"{name} computes a Q value for each action: got {action_space}; expected: Discrete")
        super().__init__(observation_space, action_space, config)
        self._mask_key = config.action_mask_key
        self._first_action = int(action_space.start)
        encoder = ObservationEncoder(without_mask(observation_space, action_space, self._mask_key), config)
        memory = memory_for(encoder.num_outputs, config)
        num_features = encoder.num_outputs if memory is None else memory.num_outputs
        self.value_distribution = value_distribution_for(config)
        self._num_atoms = 1 if self.value_distribution is None else config.num_atoms
        if self.value_distribution is not None:
            self.train_outputs = (*self.train_outputs, "qf_dist_inputs")
        self.draws_per_row = isinstance(self.value_distribution, ImplicitQuantiles)
        if self.draws_per_row and config.noisy:
            raise ValueError("module.q_distribution=implicit_quantile does not support module.noisy=true")
        head = q_head(num_features, int(action_space.n), self._num_atoms, config)
        self.num_noise = head.num_noise
        self.qf = _QNetwork(encoder, head)
        self.memory = memory
        if memory is not None:
            self.is_stateful = True
            self.inputs = ("obs", "state_in")
            self.outputs = ("action_dist_inputs", "state_out")

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `qf_preds` (B, A), also as `action_dist_inputs`, from `obs` (B, ...); very low for forbidden actions.

        With a distribution, also compute `qf_dist_inputs` (B, A, N), ignoring the mask. If stateful: (S, L, A) from
        `obs` (S, L, ...) and `state_in`.
        """
        outputs, _ = self._q(self.qf, self.memory, batch)
        return {"action_dist_inputs": outputs["qf_preds"], **outputs}

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute `action_dist_inputs` (N, A); if stateful (N, 1, A) and `state_out`."""
        outputs, state_out = self._q(self.qf, self.memory, batch)
        q = outputs["qf_preds"]
        return {"action_dist_inputs": q} if self.memory is None else {"action_dist_inputs": q, "state_out": state_out}

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Return (B,) max_a Q(s, a) of `obs` (B, ...); if stateful (S, L)."""
        values: Tensor = self._q(self.qf, self.memory, batch)[0]["qf_preds"].amax(-1)
        return values

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw noise `(*leading, num_noise)`: factors for noisy layers, or the fractions of implicit quantiles."""
        if self.draws_per_row:
            return stream.random((*leading, self.num_noise), np.float32)
        return factorised_noise(stream, (*leading, self.num_noise))

    def get_initial_state(self) -> dict[str, Any]:
        """Return {} for a stateless module, otherwise {"h": (H,), "c": (H,)} (without "c" for a GRU)."""
        return {} if self.memory is None else dict(self.memory.initial_state())

    def q_of(self, q: Tensor, actions: Tensor) -> Tensor:
        """Return (B,) Q of actions (B,) of the space, from `qf_preds`; or (B, N) from `qf_dist_inputs`."""
        numbers = actions.long() - self._first_action if self._first_action else actions.long()
        return of_actions(q, numbers)

    def _q(self, qf: _QNetwork, memory: Memory | None, batch: Mapping[str, Any]) -> tuple[dict[str, Tensor], State]:
        """Return Q of all actions, its distribution if there is one, and the next state."""
        obs: Any = batch["obs"]
        noise = batch.get("noise") if self.num_noise else None
        state_out: State = {}
        if memory is None:
            q = qf.forward(obs, noise)
        else:
            features, state_out = through_memory(qf[0], memory, obs, batch["state_in"])
            if noise is not None and noise.ndim > 1:
                noise = self.in_sequences(noise, batch, features)
            q = qf.of_features(features, noise)
        outputs = {}
        if self.value_distribution is not None:
            outputs["qf_dist_inputs"] = q = per_action(q, self._num_atoms)
            q = self.value_distribution.mean(q)
        outputs["qf_preds"] = q if self._mask_key is None else self.action_dist.masked(q, obs[self._mask_key])
        return outputs, state_out


class DoubleQModule(QModule):
    """`QModule` with a target network."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__(observation_space, action_space, config)
        self.target_qf = target_of(self.qf)
        self.target_memory = None if self.memory is None else target_of(self.memory)

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the target's `qf_preds`, and `qf_dist_inputs` for a distribution, like `forward_train`."""
        return self._q(self.target_qf, self.target_memory, batch)[0]

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the target of Q with Q, and the target of the recurrent layer with that layer."""
        memories = [] if self.memory is None or self.target_memory is None else [(self.target_memory, self.memory)]
        return [(self.target_qf, self.qf), *memories]


def q_head(
    num_features: int, num_actions: int, num_atoms: int, config: ModuleConfig
) -> MLP | DuelingHead | ImplicitQuantileHead:
    """Make the head that returns Q, or `num_atoms` outputs, for each action."""
    if config.q_distribution == "implicit_quantile":
        head_config = replace(config, q_distribution="none")
        return ImplicitQuantileHead(num_features, lambda: q_head(num_features, num_actions, 1, head_config), num_atoms)
    options = replace(layer_options(config, "head_fcnet"), sigma0=config.sigma0 if config.noisy else None)
    if config.dueling:
        return DuelingHead(num_features, config.head_fcnet_hiddens, options, num_actions, num_atoms)
    return MLP(num_features, config.head_fcnet_hiddens, options, num_actions * num_atoms)
