"""TD3 without delayed policy updates, from scratch: its module, options, metrics and loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from runner.config.algorithms import LossMetrics, TargetNetworksConfig
from runner.config.fields import option
from runner.learners.loss import Loss
from runner.modules import RLModule, SquashedGaussian, target_of


def mlp(num_inputs: int, hiddens: Sequence[int], num_outputs: int) -> nn.Sequential:
    """Return linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for width in hiddens:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


class PolicyAndQ(RLModule):
    """A deterministic policy and two Q functions, with targets of all three."""

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.action_dist = SquashedGaussian(action_space)  # scales tanh of the policy's output to the bounds
        num_obs, num_actions = observation_space.shape[0], action_space.shape[0]
        self.pi = mlp(num_obs, config.fcnet_hiddens, num_actions)
        self.q = nn.ModuleList(mlp(num_obs + num_actions, config.fcnet_hiddens, 1) for _ in range(2))
        self.target_pi, self.target_q = target_of(self.pi), target_of(self.q)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each optimiser; targets belong to none."""
        return {"actor": list(self.pi.parameters()), "critic": list(self.q.parameters())}

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return each target with the network that it follows."""
        return [(self.target_pi, self.pi), (self.target_q, self.q)]

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the action distribution (B, 2 A), also for acting."""
        return {"action_dist_inputs": self.dist_inputs(self.pi, batch["obs"])}

    def dist_inputs(self, pi: nn.Module, obs: Tensor) -> Tensor:
        """Return means and log standard deviations (B, 2 A); the deviations are close to 0."""
        mean = pi(obs)
        return torch.cat((mean, torch.full_like(mean, -20.0)), -1)

    def q_values(self, q: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values (2, B) of both Q functions."""
        inputs = torch.cat((obs, actions), -1)
        return torch.stack([one(inputs).squeeze(-1) for one in q])


@dataclass(frozen=True)
class MyTD3Metrics(LossMetrics):
    """Metrics of a gradient step in addition to `total_loss`."""

    actor_loss: Any
    critic_loss: Any
    q_mean: Any


@dataclass(frozen=True)
class MyTD3Config(TargetNetworksConfig):
    """Fields of the block `algorithm`. `tau`, of `TargetNetworksConfig`, is the speed of the targets."""

    actor_lr: float = option(1e-3, "learning rate of the policy", above=0)
    critic_lr: float = option(1e-3, "learning rate of the Q functions", above=0)
    train_batch_size_per_learner: int = option(256, "rows per update", unit="env steps", minimum=1)
    replay_capacity: int = option(50_000, "capacity of the replay buffer", unit="env steps", minimum=2)
    learning_starts: int = option(500, "steps with random actions before the first update", unit="env steps", minimum=0)
    exploration_noise: float = option(0.1, "standard deviation of the noise on actions", minimum=0)
    target_noise: float = option(0.2, "standard deviation of the noise on the target's actions", minimum=0)

    metrics: ClassVar[type[LossMetrics]] = MyTD3Metrics
    optimizers: ClassVar[Mapping[str, str]] = {"actor": "actor_lr", "critic": "critic_lr"}


class MyTD3Loss(Loss):
    """L_Q = sum_i E[(Q_i(s, a) - y)^2] and L_pi = -E[Q_1(s, pi(s))].

    y = r + gamma min_i Q_target,i(s', a'), a' = pi_target(s') + noise; the second term is 0 if the step is terminal.
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds")
    needs = ("pi", "q", "target_pi", "target_q")

    def __init__(self, config: MyTD3Config) -> None:
        self._config = config
        self._stream = np.random.default_rng(0)

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw the noise from this stream."""
        self._stream = stream

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return further columns: the noise (B, A) on the target's actions."""
        noise = self._config.target_noise * self._stream.standard_normal(tuple(columns["actions"].shape), np.float32)
        return {"target_noise": torch.from_numpy(noise.clip(-0.5, 0.5)).to(columns["actions"].device)}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> MyTD3Metrics:
        """Compute the losses of B rows."""
        obs, new_obs = batch["obs"], batch["new_obs"]
        with torch.no_grad():
            theta = module.dist_inputs(module.target_pi, new_obs)
            next_actions = module.action_dist.mode_with_noise(theta, batch["target_noise"])
            next_q = module.q_values(module.target_q, new_obs, next_actions).amin(0)
            y = batch["rewards"] + self._config.gamma * next_q.masked_fill(batch["terminateds"], 0.0)
        q = module.q_values(module.q, obs, batch["actions"])  # (2, B)
        critic_loss = (q - y).square().mean(-1).sum()
        actions = module.action_dist.mode(module.dist_inputs(module.pi, obs))
        actor_loss = -module.q_values(module.q, obs, actions)[0].mean()
        losses = {"actor": actor_loss, "critic": critic_loss}  # each trains the parameters of its group only
        return MyTD3Metrics(None, actor_loss, critic_loss, q.mean(), losses=losses)
