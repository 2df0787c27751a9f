"""Fitted-Q evaluation: estimate the action values of a policy from recorded transitions.

Le, Voloshin and Yue, 2019, Batch policy learning under constraints, ICML, arXiv 1903.08738, algorithm 3:
Q_{k+1} = argmin_f mean over the data of (f(s, a) - r - gamma E_{a' ~ pi(s')} Q_k(s', a'))^2. The last term is 0 after a
terminal state. Truncated and cut episodes keep it, because their final observation is recorded.

Dimension letters: R steps of E episodes, B rows of a minibatch, K width of `action_dist_inputs`, S sampled actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.errors import Problem, RunFailure
from runner.config.offline_evaluation import FittedQConfig as FittedQConfig
from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.fast.flat_adam import FlatAdam
from runner.interrupts import end_overdue_evaluation
from runner.modules.action_distribution import ActionDistribution
from runner.modules.flat_parameters import FlatParameters
from runner.modules.layers import MLP, LayerOptions
from runner.modules.observation_encoder import ObservationEncoder
from runner.pipelines.advantages import suffix_sums

Space = gym.Space[Any]
IntArray = npt.NDArray[np.int64]

_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class Transitions:
    """R recorded steps and the target policy's distributions, as tensors on one device.

    Attributes:
        obs: (R + E, ...), nested as the space: observations of each episode, including the final one.
        dist_inputs: (R + E, K) the target policy's `action_dist_inputs` for these observations.
        actions: (R, ...) recorded actions, nested as the space.
        rewards: (R,) float32.
        is_terminal: (R,) bool, whether the step ended in a terminal state.
        lengths: (E,) int64 array, steps per episode.
    """

    obs: Any
    dist_inputs: Tensor
    actions: Any
    rewards: Tensor
    is_terminal: Tensor
    lengths: IntArray

    @property
    def obs_rows(self) -> IntArray:
        """(R,) row in `obs` of each step's observation; the next row is the next observation."""
        return np.arange(len(self.rewards)) + np.repeat(np.arange(len(self.lengths)), self.lengths)

    def rewards_to_go(self, gamma: float) -> Tensor:
        """Return (R,) discounted rewards from each step to the end of the recorded episode."""
        is_last = np.zeros(len(self.rewards), np.bool_)
        is_last[np.cumsum(self.lengths) - 1] = True
        factors = gamma * (~torch.from_numpy(is_last)).float().to(self.rewards.device)
        return suffix_sums(self.rewards, factors, int(self.lengths.max()))


class DiscreteQ(nn.Module):
    """Values of A discrete actions from an observation; expectations are exact.

    Args:
        observation_space: any space that `ObservationEncoder` supports.
        action_space: space of the A actions.
        dist: the target policy's distribution.
        network: widths, filters, activations.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: gym.spaces.Discrete,
        dist: ActionDistribution,
        network: ModuleConfig,
    ) -> None:
        super().__init__()
        self._dist = dist
        self._start, self._num_actions = int(action_space.start), int(action_space.n)
        self.encoder = ObservationEncoder(observation_space, network)
        self.head = MLP(self.encoder.num_outputs, [], LayerOptions("linear"), self._num_actions)

    def q_values(self, obs: Any, actions: Any) -> Tensor:
        """Return Q(s, a), shape (B,)."""
        index = (actions.long() - self._start).unsqueeze(-1)
        return self._all_values(obs).gather(-1, index).squeeze(-1)

    def values(self, obs: Any, dist_inputs: Tensor) -> Tensor:
        """Return the sum over a of pi(a|s) Q(s, a), shape (B,)."""
        num_rows = len(dist_inputs)
        every_action = torch.arange(self._num_actions, device=dist_inputs.device) + self._start
        inputs = dist_inputs.unsqueeze(1).expand(-1, self._num_actions, -1)  # (B, A, K)
        log_probs = self._dist.log_prob(inputs, every_action.expand(num_rows, -1))
        return (log_probs.exp() * self._all_values(obs)).sum(-1)

    def _all_values(self, obs: Any) -> Tensor:
        """Return the values (B, A) of all actions."""
        return self.head.forward(self.encoder.forward(obs))


class SampledQ(nn.Module):
    """Value of an observation and an action, for any spaces; expectations are means over sampled actions.

    Args:
        observation_space, action_space: any spaces that `ObservationEncoder` supports.
        dist: the target policy's distribution.
        network: widths, filters, activations.
        num_samples: number S of sampled actions per expectation.
        stream: draws the samples.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        dist: ActionDistribution,
        network: ModuleConfig,
        num_samples: int,
        stream: np.random.Generator,
    ) -> None:
        super().__init__()
        self._dist, self._num_samples, self._stream = dist, num_samples, stream
        self.encoder = ObservationEncoder(gym.spaces.Tuple((observation_space, action_space)), network)
        self.head = MLP(self.encoder.num_outputs, [], LayerOptions("linear"), 1)

    def q_values(self, obs: Any, actions: Any) -> Tensor:
        """Return Q(s, a), shape (B,)."""
        return self.head.forward(self.encoder.forward((obs, actions))).squeeze(-1)

    def values(self, obs: Any, dist_inputs: Tensor) -> Tensor:
        """Return means of Q(s, a) over S sampled actions, shape (B,)."""
        leading = (self._num_samples, len(dist_inputs))
        noise = torch.from_numpy(self._dist.draw_noise(self._stream, leading)).to(dist_inputs.device)
        actions = self._dist.sample(dist_inputs.expand(self._num_samples, *dist_inputs.shape), noise)
        repeated = nested.map_leaves(lambda leaf: leaf.expand(self._num_samples, *leaf.shape), obs)
        return self.q_values(repeated, actions).reshape(leading).mean(0)


class ScaledQ:
    """Rescale a network's values by `scale` and `offset`, so that its targets are close to 0 for any rewards."""

    def __init__(self, network: DiscreteQ | SampledQ, offset: float, scale: float) -> None:
        self.network, self.offset, self.scale = network, offset, scale

    def q_values(self, obs: Any, actions: Any) -> Tensor:
        """Return Q(s, a), shape (B,)."""
        return self.offset + self.scale * self.network.q_values(obs, actions)

    def values(self, obs: Any, dist_inputs: Tensor) -> Tensor:
        """Return V(s), shape (B,)."""
        return self.offset + self.scale * self.network.values(obs, dist_inputs)


def fit_q(
    transitions: Transitions,
    observation_space: Space,
    action_space: Space,
    dist: ActionDistribution,
    gamma: float,
    config: FittedQConfig,
    stream: np.random.Generator,
    rows: IntArray | None = None,
) -> ScaledQ:
    """Fit the target policy's action values with algorithm 3 of Le et al., 2019, keeping one network throughout.

    `target_update_period` gradient steps approximate each Q_{k+1}. The network starts at the mean of the recorded
    rewards to go. The result averages the weights over the second half of all steps, which removes minibatch noise
    (Polyak and Juditsky, 1992).

    Args:
        transitions: the recorded data.
        observation_space, action_space: spaces of `transitions.obs` and `.actions`.
        dist: distribution with the inputs `transitions.dist_inputs`.
        gamma: discount factor.
        config: updates, minibatches, network.
        stream: draws initial weights, minibatches and sampled actions.
        rows: (M,) steps to learn from, or None for all R.

    Raises:
        RunFailure: the values are not finite.
    """
    rows = np.arange(len(transitions.rewards)) if rows is None else rows
    device = transitions.rewards.device

    def make_network() -> DiscreteQ | SampledQ:
        if isinstance(action_space, gym.spaces.Discrete):
            return DiscreteQ(observation_space, action_space, dist, config.network).to(device)
        samples = config.num_action_samples
        return SampledQ(observation_space, action_space, dist, config.network, samples, stream).to(device)

    online, target = _make_two(make_network, stream)
    offset, scale = _offset_and_scale(transitions.rewards_to_go(gamma)[torch.from_numpy(rows).to(device)])
    q_function, frozen = ScaledQ(online, offset, scale), ScaledQ(target, offset, scale)
    weights, frozen_weights = FlatParameters(online), FlatParameters(target)
    optimizer, average = FlatAdam(weights.parameter), weights.parameter.data.clone()
    obs_rows = transitions.obs_rows
    for update in range(config.num_updates):
        end_overdue_evaluation()
        if update % config.target_update_period == 0:
            frozen_weights.parameter.data.copy_(weights.parameter.data)
        step_rows = rows[stream.integers(len(rows), size=config.batch_size)]
        loss = _squared_error(q_function, frozen, transitions, step_rows, obs_rows[step_rows], gamma)
        weights.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(config.lr * (1 - update / config.num_updates))
        num_averaged = update - config.num_updates // 2
        if num_averaged >= 0:
            average.lerp_(weights.parameter.data, 1 / (num_averaged + 1))
    weights.parameter.data.copy_(average)
    _check_finite(average, config)
    return q_function


def _squared_error(
    q_function: ScaledQ, frozen: ScaledQ, data: Transitions, step_rows: IntArray, obs_rows: IntArray, gamma: float
) -> Tensor:
    """Return the mean squared Bellman error of a minibatch, in units of the scale."""
    steps, at = (torch.from_numpy(rows).to(data.rewards.device) for rows in (step_rows, obs_rows))
    with torch.no_grad():
        next_values = frozen.values(take_rows(data.obs, at + 1), data.dist_inputs[at + 1])
        targets = data.rewards[steps] + gamma * torch.where(data.is_terminal[steps], 0.0, next_values)
    predictions = q_function.q_values(take_rows(data.obs, at), take_rows(data.actions, steps))
    return ((predictions - targets) / q_function.scale).square().mean()


def take_rows(columns: Any, rows: Tensor) -> Any:
    """Return the given rows of (nested) tensors."""
    return nested.map_leaves(lambda leaf: leaf.index_select(0, rows), columns)


def _make_two(
    make_network: Callable[[], DiscreteQ | SampledQ], stream: np.random.Generator
) -> tuple[DiscreteQ | SampledQ, DiscreteQ | SampledQ]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream.integers(2**31)))
        return make_network(), make_network()


def _offset_and_scale(rewards_to_go: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation; for constant values, their magnitude replaces the deviation."""
    mean, std = float(rewards_to_go.mean()), float(rewards_to_go.std(correction=0))
    return mean, std if std > _SMALLEST_SCALE * max(1.0, abs(mean)) else max(1.0, abs(mean))


def _check_finite(parameters: Tensor, config: FittedQConfig) -> None:
    if not bool(torch.isfinite(parameters).all()):
        problem = Problem(
            "the fitted action values are not finite",
            where="off-policy evaluation, methods dm, dr and wdr",
            got=f"lr {config.lr:g}, {config.num_updates:,} updates",
            fix="lower lr, or scale the observations (for example with a MeanStdFilter)",
        )
        raise RunFailure(problem)
