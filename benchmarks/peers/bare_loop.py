"""A plain PPO loop with torch and gymnasium's vector CartPole.

This is how an engineer would write PPO on CartPole without a library: eager torch, numpy buffers of shape [T, N],
GAE in a backward loop, epochs of shuffled minibatches. There is no overhead for logging, checkpoints or configuration.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from peer_cli import HIDDEN, MAX_GRAD_NORM, RETURN_WINDOW, Iterate, Progress, Settings, run
from torch import Tensor, nn
from torch.nn import functional as F


class ActorCritic(nn.Module):
    """One tanh layer, shared by the policy head and the value head."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.hidden = orthogonal(nn.Linear(num_inputs, HIDDEN), math.sqrt(2))
        self.policy = orthogonal(nn.Linear(HIDDEN, num_actions), 0.01)
        self.value = orthogonal(nn.Linear(HIDDEN, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.hidden(obs))
        return F.log_softmax(self.policy(hidden), dim=-1), self.value(hidden).squeeze(-1)


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


@dataclass
class Rollout:
    """T steps of N sub-environments; `valid` is false where an environment only resets."""

    obs: np.ndarray
    actions: np.ndarray
    logp: np.ndarray
    values: np.ndarray  # [T + 1, N]: the last row bootstraps
    rewards: np.ndarray
    terminated: np.ndarray
    done: np.ndarray
    valid: np.ndarray

    @classmethod
    def empty(cls, steps: int, envs: int, num_inputs: int) -> Rollout:
        shape = (steps, envs)
        return cls(
            obs=np.zeros((*shape, num_inputs), np.float32),
            actions=np.zeros(shape, np.int64),
            logp=np.zeros(shape, np.float32),
            values=np.zeros((steps + 1, envs), np.float32),
            rewards=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            done=np.zeros(shape, np.bool_),
            valid=np.zeros(shape, np.bool_),
        )


class Sampler:
    """Steps the vector environment and keeps the state between rollouts."""

    def __init__(self, settings: Settings) -> None:
        n = settings.num_envs
        self.env = gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")
        self.obs, _ = self.env.reset(seed=settings.seed)
        self.rollout = Rollout.empty(settings.rollout_length, n, self.obs.shape[1])
        self.done = np.zeros(n, np.bool_)
        self.returns = np.zeros(n)
        self.finished: deque[float] = deque(maxlen=RETURN_WINDOW)

    @torch.inference_mode()
    def sample(self, model: ActorCritic) -> Rollout:
        buf = self.rollout
        for t in range(len(buf.obs)):
            log_probs, value = model(torch.from_numpy(self.obs))
            noise = torch.empty_like(log_probs).exponential_().log_()
            action = (log_probs - noise).argmax(-1, keepdim=True)  # Gumbel-max: a categorical sample
            buf.obs[t] = self.obs
            buf.valid[t] = ~self.done  # an environment that was done resets now and ignores its action
            buf.actions[t] = action.numpy()[:, 0]
            buf.logp[t] = log_probs.gather(1, action).numpy()[:, 0]
            buf.values[t] = value.numpy()
            self.obs, reward, terminated, truncated, _ = self.env.step(buf.actions[t])
            self.done = terminated | truncated
            buf.rewards[t] = reward
            buf.terminated[t] = terminated
            buf.done[t] = self.done
            self._count_returns(reward)
        buf.values[-1] = model(torch.from_numpy(self.obs))[1].numpy()
        return buf

    def _count_returns(self, reward: np.ndarray) -> None:
        self.returns += reward
        if self.done.any():
            self.finished.extend(self.returns[self.done])
            self.returns[self.done] = 0.0

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.finished)) if self.finished else math.nan


def advantages_of(buf: Rollout, gamma: float, lambda_: float) -> np.ndarray:
    """Compute GAE. The observation after a done step is the episode's last one (the env
    resets a step later), so the next row's value is the right bootstrap for a
    truncated episode too."""
    delta = buf.rewards + gamma * buf.values[1:] * ~buf.terminated - buf.values[:-1]
    decay = (gamma * lambda_ * ~buf.done).astype(np.float32)
    advantages = np.empty_like(delta)
    running = np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        running = delta[t] + decay[t] * running
        advantages[t] = running
    return advantages


def update(model: ActorCritic, optimizer: torch.optim.Adam, buf: Rollout, cfg: Settings) -> int:
    """Run all epochs over one rollout and return its number of env steps."""
    valid = torch.from_numpy(buf.valid.reshape(-1))
    advantages = advantages_of(buf, cfg.gamma, cfg.lambda_)
    columns = (buf.obs, buf.actions, buf.logp, advantages, advantages + buf.values[:-1])
    obs, actions, logp, adv, targets = (torch.from_numpy(x).flatten(0, 1)[valid] for x in columns)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)  # over the complete batch, like RLlib
    data = (obs, actions, logp, adv, targets)
    steps = len(obs)
    for _ in range(cfg.num_epochs):
        for rows in torch.randperm(steps).split(cfg.minibatch_size):
            loss = ppo_loss(model, *(x[rows] for x in data), cfg)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
    return steps


def ppo_loss(
    model: ActorCritic,
    obs: Tensor,
    actions: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    targets: Tensor,
    cfg: Settings,
) -> Tensor:
    log_probs, values = model(obs)
    ratio = (log_probs.gather(1, actions[:, None])[:, 0] - old_logp).exp()
    clipped = ratio.clamp(1 - cfg.clip_param, 1 + cfg.clip_param)
    loss = -torch.min(advantages * ratio, advantages * clipped).mean()
    loss = loss + cfg.vf_loss_coeff * F.mse_loss(values, targets)
    if cfg.entropy_coeff:
        loss = loss + cfg.entropy_coeff * (log_probs.exp() * log_probs).sum(-1).mean()
    return loss


def build(cfg: Settings) -> Iterate:
    sampler = Sampler(cfg)
    model = ActorCritic(sampler.obs.shape[1], int(sampler.env.single_action_space.n))
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    env_steps = 0

    def iterate() -> Progress:
        nonlocal env_steps
        env_steps += update(model, optimizer, sampler.sample(model), cfg)
        return Progress(env_steps, sampler.return_mean)

    return iterate


if __name__ == "__main__":
    run("bare", __doc__, build)
