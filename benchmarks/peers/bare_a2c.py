"""A plain A2C loop with torch and gymnasium's vector CartPole. See `bare_loop.py`."""

from __future__ import annotations

import numpy as np
import torch
from a2c_cli import A2CSettings
from bare_loop import ActorCritic, Rollout, Sampler, advantages_of
from peer_cli import MAX_GRAD_NORM, Iterate, Progress, run
from torch import nn
from torch.nn import functional as F


class A2CSampler(Sampler):
    """Samples without the log-probabilities, which A2C does not need."""

    @torch.inference_mode()
    def sample(self, model: ActorCritic) -> Rollout:
        buf = self.rollout
        for t in range(len(buf.obs)):
            log_probs, value = model(torch.from_numpy(self.obs))
            noise = torch.empty_like(log_probs).exponential_().log_()
            buf.obs[t] = self.obs
            buf.valid[t] = ~self.done
            buf.actions[t] = (log_probs - noise).argmax(-1).numpy()
            buf.values[t] = value.numpy()
            self.obs, reward, terminated, truncated, _ = self.env.step(buf.actions[t])
            self.done = terminated | truncated
            buf.rewards[t] = reward
            buf.terminated[t] = terminated
            buf.done[t] = self.done
            self._count_returns(reward)
        buf.values[-1] = model(torch.from_numpy(self.obs))[1].numpy()
        return buf


def update(model: ActorCritic, optimizer: torch.optim.Adam, buf: Rollout, cfg: A2CSettings) -> int:
    """Take one gradient step on a rollout and return its number of env steps."""
    valid = buf.valid.reshape(-1)
    advantages = advantages_of(buf, cfg.gamma, cfg.lambda_)
    columns = (buf.obs, buf.actions, advantages, advantages + buf.values[:-1])
    obs, actions, adv, targets = (
        torch.from_numpy(np.ascontiguousarray(x.reshape(-1, *x.shape[2:])[valid])) for x in columns
    )
    log_probs, values = model(obs)
    policy_loss = -(log_probs.gather(1, actions[:, None])[:, 0] * adv).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = policy_loss + cfg.vf_loss_coeff * F.mse_loss(values, targets) - cfg.entropy_coeff * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    return len(obs)


def build(cfg: A2CSettings) -> Iterate:
    sampler = A2CSampler(cfg)
    model = ActorCritic(sampler.obs.shape[1], int(sampler.env.single_action_space.n))
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    env_steps = 0

    def iterate() -> Progress:
        nonlocal env_steps
        for _ in range(cfg.updates_per_iteration):
            env_steps += update(model, optimizer, sampler.sample(model), cfg)
        return Progress(env_steps, sampler.return_mean)

    return iterate


if __name__ == "__main__":
    run("bare", __doc__, build, A2CSettings)
