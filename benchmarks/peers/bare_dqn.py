"""A plain DQN loop with torch, gymnasium's CartPole and a ring of numpy arrays.

This is how an engineer would write DQN on CartPole without a library: one environment, one env step, one batch
from the ring, one step of Adam. There is no overhead for logging, checkpoints or configuration.
"""

from __future__ import annotations

from collections import deque

import gymnasium
import numpy as np
import torch
from dqn_cli import HIDDEN, MAX_GRAD_NORM, UNIFORM, DQNSettings
from peer_cli import RETURN_WINDOW, Iterate, iterations_of_loop, run
from torch import Tensor, nn
from torch.nn import functional as F


class Ring:
    """The newest transitions, stored by column."""

    def __init__(self, capacity: int, num_inputs: int, rng: np.random.Generator) -> None:
        self.capacity, self.num_written, self._rng = capacity, 0, rng
        self._obs = np.zeros((capacity, num_inputs), np.float32)
        self._next_obs = np.zeros((capacity, num_inputs), np.float32)
        self._actions = np.zeros(capacity, np.int64)
        self._rewards = np.zeros(capacity, np.float32)
        self._terminated = np.zeros(capacity, np.float32)

    def add(self, obs: np.ndarray, next_obs: np.ndarray, action: int, reward: float, terminated: bool) -> None:
        at = self.num_written % self.capacity
        self._obs[at], self._next_obs[at] = obs, next_obs
        self._actions[at], self._rewards[at], self._terminated[at] = action, reward, terminated
        self.num_written += 1

    def sample(self, num_rows: int) -> tuple[Tensor, ...]:
        rows = self._rng.integers(min(self.num_written, self.capacity), size=num_rows)
        columns = (self._obs, self._next_obs, self._actions, self._rewards, self._terminated)
        return tuple(torch.from_numpy(column[rows]) for column in columns)


def make_network(num_inputs: int, num_actions: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_actions))


class Loop:
    """One environment, the network that acts in it, and the target network."""

    def __init__(self, cfg: DQNSettings) -> None:
        self._cfg, self._rng = cfg, np.random.default_rng(cfg.seed)
        self._env = gymnasium.make("CartPole-v1")
        self._obs, _ = self._env.reset(seed=cfg.seed)
        self._num_actions = int(self._env.action_space.n)
        self._q, self._target = (self._make_network(len(self._obs)) for _ in range(2))
        self._target.load_state_dict(self._q.state_dict())
        self._optimizer = torch.optim.Adam(self._q.parameters(), lr=cfg.lr)
        self._ring = Ring(cfg.replay_capacity, len(self._obs), self._rng)
        self._return = 0.0
        self.env_steps = 0
        self.returns: deque[float] = deque(maxlen=RETURN_WINDOW)

    def _make_network(self, num_inputs: int) -> nn.Module:
        return make_network(num_inputs, self._num_actions)

    def step(self) -> None:
        """Take one env step, and make one update once there are enough steps."""
        cfg = self._cfg
        action = self._act()
        next_obs, reward, terminated, truncated, _ = self._env.step(action)
        self._ring.add(self._obs, next_obs, action, float(reward), terminated)
        self._obs, self._return = next_obs, self._return + float(reward)
        if terminated or truncated:
            self.returns.append(self._return)
            self._return = 0.0
            self._obs, _ = self._env.reset()
        self.env_steps += 1
        if self.env_steps > cfg.learning_starts:
            self._update()
            if self.env_steps % cfg.target_network_update_freq == 0:
                self._target.load_state_dict(self._q.state_dict())

    def _act(self) -> int:
        if self._rng.random() < self._cfg.epsilon:
            return int(self._rng.integers(self._num_actions))
        with torch.no_grad():
            return int(self._q(torch.from_numpy(self._obs)).argmax())

    def _update(self) -> None:
        obs, next_obs, actions, rewards, terminated = self._ring.sample(self._cfg.train_batch_size)
        with torch.no_grad():
            best = self._target(next_obs).max(-1).values
            y = rewards + self._cfg.gamma * (1.0 - terminated) * best
        q = self._q(obs).gather(1, actions[:, None]).squeeze(-1)
        loss = F.huber_loss(q, y)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._q.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()


def build(cfg: DQNSettings) -> Iterate:
    if cfg.replay != UNIFORM:
        raise SystemExit("the bare loop only supports uniform replay")
    return iterations_of_loop(Loop(cfg), cfg.steps_per_iteration)


if __name__ == "__main__":
    run("bare", __doc__, build, DQNSettings)
