"""A plain DQN loop for MinAtar with torch and a ring of numpy arrays, in one file and without a library.

Several environments are stepped one after the other, and act together. Targets sum the rewards of n steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from suite_cli import Task, evaluation_returns, run_loop
from suite_minatar import MinAtar
from torch import Tensor, nn
from torch.nn import functional as F

Step = tuple[np.ndarray, int, float]  # observation, action, reward


def make_network(shape: Sequence[int], num_actions: int, width: int) -> nn.Sequential:
    height, columns, channels = shape
    num_features = 16 * (height - 2) * (columns - 2)
    layers = (nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(num_features, width), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(width, num_actions))


def as_inputs(images: np.ndarray) -> Tensor:
    """Return (B, C, H, W) between 0 and 1 from images (B, H, W, C)."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().mul_(1 / 255)


class Ring:
    """The newest transitions over up to n steps, stored by column."""

    def __init__(self, capacity: int, shape: Sequence[int], rng: np.random.Generator) -> None:
        self._capacity, self._num_written, self._rng = capacity, 0, rng
        self._obs, self._next_obs = (np.zeros((capacity, *shape), np.uint8) for _ in range(2))
        self._actions, self._returns = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self._discounts = np.zeros(capacity, np.float32)  # of the value of `next_obs`; 0 if it is terminal

    def add(self, obs: np.ndarray, action: int, n_step_return: float, next_obs: np.ndarray, discount: float) -> None:
        at = self._num_written % self._capacity
        self._obs[at], self._next_obs[at], self._actions[at] = obs, next_obs, action
        self._returns[at], self._discounts[at] = n_step_return, discount
        self._num_written += 1

    def sample(self, num_rows: int) -> tuple[Tensor, ...]:
        rows = self._rng.integers(min(self._num_written, self._capacity), size=num_rows)
        columns = (self._actions, self._returns, self._discounts)
        images = (as_inputs(self._obs[rows]), as_inputs(self._next_obs[rows]))
        return (*images, *(torch.from_numpy(column[rows]) for column in columns))


class NSteps:
    """Joins the newest steps of one environment to transitions over up to n steps."""

    def __init__(self, ring: Ring, n: int, gamma: float) -> None:
        self._ring, self._n, self._gamma = ring, n, gamma
        self._steps: deque[Step] = deque()

    def add(self, step: Step, next_obs: np.ndarray, terminated: bool, is_over: bool) -> None:
        self._steps.append(step)
        if len(self._steps) == self._n:
            self._store_oldest(next_obs, terminated)
        while is_over and self._steps:
            self._store_oldest(next_obs, terminated)

    def _store_oldest(self, next_obs: np.ndarray, terminated: bool) -> None:
        n_step_return = sum(self._gamma**k * reward for k, (_, _, reward) in enumerate(self._steps))
        discount = 0.0 if terminated else self._gamma ** len(self._steps)
        obs, action, _ = self._steps.popleft()
        self._ring.add(obs, action, n_step_return, next_obs, discount)


class Loop:
    """The environments, the network that acts in them, and the target network."""

    def __init__(self, task: Task) -> None:
        given = task.settings
        self._task, self._rng = task, np.random.default_rng(task.seed)
        self._envs = [MinAtar(task.env) for _ in range(task.num_envs)]
        self._obs = np.stack([env.reset(seed=task.seed + index)[0] for index, env in enumerate(self._envs)])
        shape, self._num_actions = self._obs.shape[1:], int(self._envs[0].action_space.n)
        [width] = task.hiddens
        self._q, self._target = (make_network(shape, self._num_actions, width) for _ in range(2))
        self._target.load_state_dict(self._q.state_dict())
        self._optimizer = torch.optim.Adam(self._q.parameters(), lr=given["lr"])
        self._ring = Ring(given["replay_capacity"], shape, self._rng)
        self._n_steps = [NSteps(self._ring, given["n_step"], given["gamma"]) for _ in self._envs]
        rows_per_update = given["train_batch_size_per_learner"]
        self._num_updates = int(task.num_envs * given["training_intensity"] / rows_per_update)
        self.env_steps = 0

    def train(self) -> int:
        given = self._task.settings
        while self.env_steps < self._task.num_env_steps:
            self._step()
            if self.env_steps > given["num_steps_sampled_before_learning_starts"]:
                for _ in range(self._num_updates):
                    self._update()
                if self.env_steps % given["target_network_update_freq"] < len(self._envs):
                    self._target.load_state_dict(self._q.state_dict())
        return self.env_steps

    def _step(self) -> None:
        for index, (env, action) in enumerate(zip(self._envs, self._act(), strict=True)):
            obs, reward, terminated, truncated, _ = env.step(action)
            step = (self._obs[index].copy(), int(action), reward)
            self._n_steps[index].add(step, obs, terminated, terminated or truncated)
            self._obs[index] = env.reset()[0] if terminated or truncated else obs
        self.env_steps += len(self._envs)

    @torch.no_grad()
    def _act(self) -> np.ndarray:
        best = self._q(as_inputs(self._obs)).argmax(-1).numpy()
        explores = self._rng.random(len(best)) < self._task.scheduled("epsilon", self.env_steps)
        return np.where(explores, self._rng.integers(self._num_actions, size=len(best)), best)

    def _update(self) -> None:
        given = self._task.settings
        obs, next_obs, actions, returns, discounts = self._ring.sample(given["train_batch_size_per_learner"])
        with torch.no_grad():
            y = returns + discounts * self._target(next_obs).max(-1).values
        loss = F.huber_loss(self._q(obs).gather(1, actions[:, None]).squeeze(-1), y)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._q.parameters(), given["grad_clip"])
        self._optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> list[float]:
        """Return the returns of greedy episodes."""
        env = MinAtar(self._task.env)
        return evaluation_returns(self._task, env, lambda obs: int(self._q(as_inputs(obs[None])).argmax()))


if __name__ == "__main__":
    run_loop(__doc__, Loop)
