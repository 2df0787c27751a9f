"""A plain PPO loop for MuJoCo with torch and gymnasium's wrappers, in one file and without a library.

One environment; observations and rewards are normalised by gymnasium's wrappers, as is usual for PPO on MuJoCo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from suite_cli import CLIP, EVALUATION_SEED, Task, run_loop
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F


def orthogonal(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(widths: Sequence[int], num_outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        layers += [orthogonal(width, next_width, math.sqrt(2)), nn.Tanh()]
    return nn.Sequential(*layers, orthogonal(widths[-1], num_outputs, gain))


class ActorCritic(nn.Module):
    """A policy with a deviation that does not depend on the observation, and a value function."""

    def __init__(self, num_inputs: int, hiddens: Sequence[int], num_actions: int) -> None:
        super().__init__()
        self.mean = mlp((num_inputs, *hiddens), num_actions, 0.01)
        self.value = mlp((num_inputs, *hiddens), 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_actions))

    def policy(self, obs: Tensor) -> Normal:
        return Normal(self.mean(obs), self.log_std.exp(), validate_args=False)


def make_env(task: Task) -> tuple[gymnasium.Env, wrappers.NormalizeObservation]:
    """Return the environment, and the wrapper with the statistics of observations."""
    gamma = task.settings["gamma"]
    counted = wrappers.RecordEpisodeStatistics(gymnasium.make(task.env))  # raw returns
    normalised = wrappers.NormalizeObservation(wrappers.ClipAction(counted))
    env = wrappers.TransformObservation(normalised, lambda obs: np.clip(obs, -CLIP, CLIP), None)
    env = wrappers.NormalizeReward(env, gamma=gamma)
    return wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -CLIP, CLIP))), normalised


class Loop:
    """The environment, the network, and the steps of one rollout."""

    def __init__(self, task: Task) -> None:
        given = task.settings
        if task.num_envs != 1:
            raise SystemExit("the bare PPO loop steps a single environment")
        self._task, self._steps = task, int(given["train_batch_size_per_learner"])
        self._env, self._statistics = make_env(task)
        obs, _ = self._env.reset(seed=task.seed)
        self._obs = obs.astype(np.float32)
        num_inputs, num_actions = len(obs), self._env.action_space.shape[0]
        self._model = ActorCritic(num_inputs, task.hiddens, num_actions)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=task.scheduled("lr", 0))
        self._all_obs = np.zeros((self._steps, num_inputs), np.float32)
        self._actions = np.zeros((self._steps, num_actions), np.float32)
        # Values have another row, after the last step.
        self._logp, self._rewards = np.zeros(self._steps, np.float32), np.zeros(self._steps, np.float32)
        self._values, self._dones = np.zeros(self._steps + 1, np.float32), np.zeros(self._steps, np.bool_)
        self.env_steps = 0

    def train(self) -> int:
        while self.env_steps < self._task.num_env_steps:
            for group in self._optimizer.param_groups:
                group["lr"] = self._task.scheduled("lr", self.env_steps)
            self._sample()
            self._update()
        return self.env_steps

    @torch.no_grad()
    def _sample(self) -> None:
        for t in range(self._steps):
            self._all_obs[t] = self._obs
            obs = torch.from_numpy(self._obs)
            policy = self._model.policy(obs)
            action = policy.sample()
            self._actions[t] = action.numpy()
            self._logp[t] = float(policy.log_prob(action).sum())
            self._values[t] = float(self._model.value(obs))
            next_obs, reward, terminated, truncated, _ = self._env.step(self._actions[t])
            if truncated and not terminated:  # the episode would continue
                reward += self._task.settings["gamma"] * self._value(next_obs)
            self._rewards[t], self._dones[t] = reward, terminated or truncated
            if terminated or truncated:
                next_obs, _ = self._env.reset()
            self._obs = next_obs.astype(np.float32)
        self._values[-1] = self._value(self._obs)
        self.env_steps += self._steps

    def _value(self, obs: np.ndarray) -> float:
        return float(self._model.value(torch.from_numpy(obs.astype(np.float32))))

    def _advantages(self) -> np.ndarray:
        """Compute GAE."""
        gamma, lambda_ = self._task.settings["gamma"], self._task.settings["lambda_"]
        continues = (~self._dones).astype(np.float32)
        delta = self._rewards + gamma * self._values[1:] * continues - self._values[:-1]
        advantages, running = np.empty_like(delta), 0.0
        for t in reversed(range(self._steps)):
            running = delta[t] + gamma * lambda_ * continues[t] * running
            advantages[t] = running
        return advantages

    def _update(self) -> None:
        given, advantages = self._task.settings, self._advantages()
        columns = (self._all_obs, self._actions, self._logp, advantages, advantages + self._values[:-1])
        data = [torch.from_numpy(column) for column in columns]
        for _ in range(given["num_epochs"]):
            for rows in torch.randperm(self._steps).split(given["minibatch_size"]):
                loss = self._loss(*(column[rows] for column in data))
                self._optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self._model.parameters(), given["grad_clip"])
                self._optimizer.step()

    def _loss(self, obs: Tensor, actions: Tensor, old_logp: Tensor, advantages: Tensor, targets: Tensor) -> Tensor:
        given, policy = self._task.settings, self._model.policy(obs)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (policy.log_prob(actions).sum(-1) - old_logp).exp()
        clipped = ratio.clamp(1 - given["clip_param"], 1 + given["clip_param"])
        policy_loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        value_loss = F.mse_loss(self._model.value(obs).squeeze(-1), targets)
        return policy_loss + given["vf_loss_coeff"] * value_loss

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """Return the raw returns of greedy episodes, with the statistics of training unchanged."""
        env, statistics = make_env(self._task)
        statistics.obs_rms, statistics.update_running_mean = self._statistics.obs_rms, False
        returns: list[float] = []
        obs, _ = env.reset(seed=EVALUATION_SEED + self._task.seed)
        while len(returns) < self._task.num_episodes:
            action = self._model.mean(torch.from_numpy(obs.astype(np.float32))).numpy()
            obs, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                returns.append(float(info["episode"]["r"]))
                obs, _ = env.reset()
        return returns


if __name__ == "__main__":
    run_loop(__doc__, Loop)
