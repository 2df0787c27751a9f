"""A plain SAC loop with torch, a Gymnasium environment and a ring of numpy arrays.

This is how an engineer would write SAC without a library: one environment, one env step, one batch
from the ring, and one step of Adam each for the Q functions, the policy and the temperature.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from bare_dqn import Ring
from peer_cli import RETURN_WINDOW, Iterate, iterations_of_loop, run
from sac_cli import HIDDENS, SAC, SACSettings
from torch import Tensor, nn
from torch.nn import functional as F

LOWEST_LOG_STD, HIGHEST_LOG_STD = -20.0, 2.0


def mlp(num_inputs: int, num_outputs: int) -> nn.Sequential:
    widths, layers = (num_inputs, *HIDDENS), []
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


class RealRing(Ring):
    """Transitions with continuous actions."""

    def __init__(self, capacity: int, num_inputs: int, num_actions: int, rng: np.random.Generator) -> None:
        super().__init__(capacity, num_inputs, rng)
        self._actions = np.zeros((capacity, num_actions), np.float32)


class Loop:
    """One environment, the networks, and the targets of the Q functions."""

    def __init__(self, cfg: SACSettings) -> None:
        self._cfg, self._rng = cfg, np.random.default_rng(cfg.seed)
        self._env = gymnasium.make(cfg.env)
        self._obs = self._reset(cfg.seed)
        space = self._env.action_space
        self._high, self._num_actions = space.high, space.shape[0]
        num_obs = len(self._obs)
        self._pi = mlp(num_obs, 2 * self._num_actions)
        self._q = nn.ModuleList(mlp(num_obs + self._num_actions, 1) for _ in range(2))
        self._target = nn.ModuleList(mlp(num_obs + self._num_actions, 1) for _ in range(2)).requires_grad_(False)
        self._target.load_state_dict(self._q.state_dict())
        self._log_alpha = torch.zeros((), requires_grad=True)
        self._of_q, self._of_pi, self._of_alpha = (
            torch.optim.Adam(parameters, lr=cfg.lr)
            for parameters in (self._q.parameters(), self._pi.parameters(), [self._log_alpha])
        )
        self._ring = RealRing(cfg.replay_capacity, num_obs, self._num_actions, self._rng)
        self._return = 0.0
        self.env_steps = 0
        self.returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    def step(self) -> None:
        """Take one env step, and make one update once there are enough steps."""
        action = self._act()
        next_obs, reward, terminated, truncated, _ = self._env.step(action * self._high)
        next_obs = next_obs.astype(np.float32, copy=False)
        self._ring.add(self._obs, next_obs, action, float(reward), terminated)
        self._obs, self._return = next_obs, self._return + float(reward)
        if terminated or truncated:
            self.returns.append(self._return)
            self._return = 0.0
            self._obs = self._reset()
        self.env_steps += 1
        if self.env_steps > self._cfg.learning_starts:
            self._update()

    def _reset(self, seed: int | None = None) -> np.ndarray:
        return self._env.reset(seed=seed)[0].astype(np.float32, copy=False)

    def _act(self) -> np.ndarray:
        """Return an action in [-1, 1]: random at first, then of the policy."""
        if self.env_steps < self._cfg.random_steps:
            return self._rng.uniform(-1.0, 1.0, self._num_actions).astype(np.float32)
        with torch.no_grad():
            action, _ = self._sample(torch.from_numpy(self._obs)[None])
        return action[0].numpy()

    @torch.no_grad()
    def best_action(self, obs: np.ndarray) -> np.ndarray:
        """Return the action of the deterministic policy, in the units of the environment."""
        mean, _ = self._pi(torch.from_numpy(obs.astype(np.float32, copy=False))).chunk(2, -1)
        return mean.tanh().numpy() * self._high

    def _sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log densities."""
        mean, log_std = self._pi(obs).chunk(2, -1)
        log_std = log_std.clamp(LOWEST_LOG_STD, HIGHEST_LOG_STD)
        noise = torch.randn_like(mean)
        before = mean + log_std.exp() * noise
        logp = -0.5 * noise.square() - log_std - 0.5 * np.log(2 * np.pi)
        logp = logp - 2 * (np.log(2) - before - F.softplus(-2 * before))
        return before.tanh(), logp.sum(-1)

    def _update(self) -> None:
        cfg = self._cfg
        obs, next_obs, actions, rewards, terminated = self._ring.sample(cfg.train_batch_size)
        alpha = self._log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_logp = self._sample(next_obs)
            features = torch.cat((next_obs, next_actions), -1)
            next_q = torch.minimum(*(q(features) for q in self._target)).squeeze(-1)
            y = rewards + cfg.gamma * (1.0 - terminated) * (next_q - alpha * next_logp)
        features = torch.cat((obs, actions), -1)
        q_loss = sum(F.mse_loss(q(features).squeeze(-1), y) for q in self._q)
        _step(self._of_q, q_loss)
        pi_actions, logp = self._sample(obs)
        _step(self._of_alpha, -(self._log_alpha * (logp.detach() - self._num_actions)).mean())
        self._q.requires_grad_(False)
        features = torch.cat((obs, pi_actions), -1)
        _step(self._of_pi, (alpha * logp - torch.minimum(*(q(features) for q in self._q)).squeeze(-1)).mean())
        self._q.requires_grad_(True)
        with torch.no_grad():
            torch._foreach_lerp_(list(self._target.parameters()), list(self._q.parameters()), cfg.tau)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def build(cfg: SACSettings) -> Iterate:
    if cfg.algorithm != SAC:
        raise SystemExit("the bare loop only supports SAC")
    return iterations_of_loop(Loop(cfg), cfg.steps_per_iteration)


if __name__ == "__main__":
    run("bare", __doc__, build, SACSettings)
