"""Plain C51 and Rainbow loops with torch, gymnasium's CartPole and numpy.

Like `bare_dqn.py`, but with a distribution of returns. Rainbow adds dueling noisy heads, three-step targets, double
Q-learning, and priorities in a sum tree. Noise is drawn once per forward pass.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from bare_dqn import Loop, Ring
from dqn_cli import ALPHA, BETA, C51, HIDDEN, MAX_GRAD_NORM, N_STEP, NUM_ATOMS, SIGMA0, V_MAX, V_MIN, DQNSettings
from peer_cli import Iterate, iterations_of_loop, run
from torch import Tensor, nn
from torch.nn import functional as F

ATOMS = torch.linspace(V_MIN, V_MAX, NUM_ATOMS)
SPACING = (V_MAX - V_MIN) / (NUM_ATOMS - 1)


class NoisyLinear(nn.Module):
    """A layer with factorised noise, drawn in each forward pass (Fortunato et al., 2018)."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.mean = nn.Linear(num_inputs, num_outputs)
        self.sigma = nn.Linear(num_inputs, num_outputs)
        for parameter in self.sigma.parameters():
            nn.init.constant_(parameter, SIGMA0 / num_inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        noise_in, noise_out = (_scaled(torch.randn(size)) for size in self.mean.weight.shape[::-1])
        weight = self.mean.weight + self.sigma.weight * torch.outer(noise_out, noise_in)
        return F.linear(x, weight, self.mean.bias + self.sigma.bias * noise_out)


def _scaled(noise: Tensor) -> Tensor:
    return noise.sign() * noise.abs().sqrt()


class Network(nn.Module):
    """Log-probabilities (B, A, NUM_ATOMS) of returns; dueling and noisy for Rainbow."""

    def __init__(self, num_inputs: int, num_actions: int, is_rainbow: bool) -> None:
        super().__init__()
        layer = NoisyLinear if is_rainbow else nn.Linear
        self.encoder = nn.Linear(num_inputs, HIDDEN)
        self.advantages = layer(HIDDEN, num_actions * NUM_ATOMS)
        self.value = layer(HIDDEN, NUM_ATOMS) if is_rainbow else None

    def forward(self, obs: Tensor) -> Tensor:
        features = F.relu(self.encoder(obs))
        logits = self.advantages(features).unflatten(-1, (-1, NUM_ATOMS))
        if self.value is not None:
            logits = self.value(features).unsqueeze(-2) + logits - logits.mean(-2, keepdim=True)
        return logits.log_softmax(-1)


class SumTree:
    """Priorities as the leaves of a binary tree of sums."""

    def __init__(self, capacity: int) -> None:
        self._depth = max(1, (capacity - 1).bit_length())
        self._first = 2**self._depth
        self.sums = np.zeros(2 * self._first)

    def set(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        nodes = rows + self._first
        self.sums[nodes] = priorities
        for _ in range(self._depth):
            nodes = nodes // 2
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]

    def draw(self, num_rows: int, rng: np.random.Generator) -> np.ndarray:
        points = (np.arange(num_rows) + rng.random(num_rows)) * (self.sums[1] / num_rows)
        nodes = np.ones(num_rows, np.int64)
        for _ in range(self._depth):
            nodes = 2 * nodes
            left = self.sums[nodes]
            goes_right = points >= left
            points = points - np.where(goes_right, left, 0.0)
            nodes = nodes + goes_right
        return nodes - self._first

    def priorities(self, rows: np.ndarray) -> np.ndarray:
        return self.sums[rows + self._first]


class DistributionalLoop(Loop):
    """One environment, and a distribution of returns per action."""

    def __init__(self, cfg: DQNSettings) -> None:
        self._is_rainbow = cfg.algorithm != C51
        self._n_step = N_STEP if self._is_rainbow else 1
        super().__init__(cfg)
        self._tree, self._highest = SumTree(cfg.replay_capacity), 1.0
        self._recent: deque[tuple[np.ndarray, int, float]] = deque()
        self._ring.add_one, self._ring.add = self._ring.add, self._add  # type: ignore[attr-defined, method-assign]

    def _make_network(self, num_inputs: int) -> nn.Module:
        return Network(num_inputs, self._num_actions, self._is_rainbow)

    def _add(self, obs: np.ndarray, next_obs: np.ndarray, action: int, reward: float, terminated: bool) -> None:
        """Store transitions over n steps, and shorter ones at an episode's end."""
        self._recent.append((obs, action, reward))
        if len(self._recent) == self._n_step:
            self._write(next_obs, terminated)
        if terminated:
            while self._recent:
                self._write(next_obs, terminated)

    def _write(self, next_obs: np.ndarray, terminated: bool) -> None:
        ring: Ring = self._ring
        total = sum(self._cfg.gamma**k * reward for k, (_, _, reward) in enumerate(self._recent))
        obs, action, _ = self._recent.popleft()
        if self._is_rainbow:
            self._tree.set(np.array([ring.num_written % ring.capacity]), np.array([self._highest]))
        ring.add_one(obs, next_obs, action, total, terminated)  # type: ignore[attr-defined]

    def _act(self) -> int:
        if not self._is_rainbow and self._rng.random() < self._cfg.epsilon:
            return int(self._rng.integers(self._num_actions))
        with torch.no_grad():
            probs = self._q(torch.from_numpy(self._obs)[None]).exp()
            return int((probs @ ATOMS).argmax())

    def _draw(self, num_rows: int) -> tuple[np.ndarray, Tensor]:
        """Return rows of the ring and their importance weights."""
        num_held = min(self._ring.num_written, self._ring.capacity)
        if not self._is_rainbow:
            return self._rng.integers(num_held, size=num_rows), torch.ones(num_rows)
        rows = self._tree.draw(num_rows, self._rng)
        importance = (num_held * self._tree.priorities(rows) / self._tree.sums[1]) ** -BETA
        return rows, torch.from_numpy((importance / importance.max()).astype(np.float32))

    def _project(self, probs: Tensor, rewards: Tensor, terminated: Tensor) -> Tensor:
        """Project the returns onto the nearest atoms, and return the probabilities of the atoms."""
        returns = rewards[:, None] + (self._cfg.gamma**self._n_step * (1.0 - terminated))[:, None] * ATOMS
        place = (returns.clamp(V_MIN, V_MAX) - V_MIN) / SPACING
        low, high = place.floor().long(), place.ceil().long()
        projected = torch.zeros(len(rewards), NUM_ATOMS)
        projected.scatter_add_(1, low, probs * (high.float() - place + (low == high)))
        projected.scatter_add_(1, high, probs * (place - low.float()))
        return projected

    def _update(self) -> None:
        ring, size = self._ring, self._cfg.train_batch_size
        rows, weights = self._draw(size)
        columns = (ring._obs, ring._next_obs, ring._actions, ring._rewards, ring._terminated)
        obs, next_obs, actions, rewards, terminated = (torch.from_numpy(column[rows]) for column in columns)
        each = torch.arange(size)
        with torch.no_grad():
            target = self._target(next_obs).exp()
            judge = self._q(next_obs).exp() if self._is_rainbow else target
            next_probs = target[each, (judge @ ATOMS).argmax(-1)]
            projected = self._project(next_probs, rewards, terminated)
        losses = -(projected * self._q(obs)[each, actions]).sum(-1)
        loss = (weights * losses).mean()
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._q.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        if self._is_rainbow:
            priorities = (losses.detach().abs().numpy().astype(np.float64) + 1e-6) ** ALPHA
            self._highest = max(self._highest, float(priorities.max()))
            self._tree.set(rows, priorities)


def build(cfg: DQNSettings) -> Iterate:
    return iterations_of_loop(DistributionalLoop(cfg), cfg.steps_per_iteration)


if __name__ == "__main__":
    run("bare", __doc__, build, DQNSettings)
