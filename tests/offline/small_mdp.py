"""An MDP whose values are known in closed form, and episodes of it.

Letters: X states, A actions, E episodes, R steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import ColumnBlock
from runner.offline.evaluation.estimators import ModelValues, RecordedSteps

Array = npt.NDArray[Any]

GAMMA = 0.9


@dataclass(frozen=True, eq=False)
class SmallMDP:
    """X states and a terminal one, number X.

    Attributes:
        start: (X,) probabilities of the first state.
        moves: (X, A, X + 1) probabilities of the next one.
        rewards: (X, A, X + 1) of a move, before noise.
        noise: standard deviation of the rewards.
    """

    start: Array
    moves: Array
    rewards: Array
    noise: float = 0.0

    def policy_values(self, policy: Array, gamma: float = GAMMA) -> Array:
        """(X,) V solves V = r_pi + gamma P_pi V; `policy` (X, A) are probabilities."""
        expected_rewards = (self.moves * self.rewards).sum(-1)  # (X, A)
        p_pi = np.einsum("xa,xay->xy", policy, self.moves)[:, :-1]
        r_pi = (policy * expected_rewards).sum(-1)
        return np.linalg.solve(np.eye(len(p_pi)) - gamma * p_pi, r_pi)

    def q_values(self, policy: Array, gamma: float = GAMMA) -> Array:
        """(X, A)."""
        next_values = np.append(self.policy_values(policy, gamma), 0.0)
        return (self.moves * (self.rewards + gamma * next_values)).sum(-1)

    def value(self, policy: Array, gamma: float = GAMMA) -> float:
        """The expected discounted return from the first state on."""
        return float(self.start @ self.policy_values(policy, gamma))

    def value_within(self, policy: Array, num_steps: int, gamma: float = GAMMA) -> float:
        """The same of the first `num_steps` steps only, by dynamic programming."""
        values = np.zeros(len(self.start) + 1)
        for _ in range(num_steps):
            q = (self.moves * (self.rewards + gamma * values)).sum(-1)
            values = np.append((policy * q).sum(-1), 0.0)
        return float(self.start @ values[:-1])

    def sample(
        self, policy: Array, num_episodes: int, stream: np.random.Generator, max_steps: int | None = None
    ) -> Episodes:
        """Episodes of a policy (X, A), truncated after `max_steps`."""
        state = _draw(np.tile(self.start, (num_episodes, 1)), stream)
        states, actions, rewards, running = [state], [], [], []
        is_running = np.ones(num_episodes, np.bool_)
        while is_running.any() and (max_steps is None or len(actions) < max_steps):
            rows = np.where(is_running, state, 0)
            action = _draw(policy[rows], stream)
            state = np.where(is_running, _draw(self.moves[rows, action], stream), len(self.start))
            reward = self.rewards[rows, action, state] + self.noise * stream.normal(size=num_episodes)
            for column, values in ((states, state), (actions, action), (rewards, reward), (running, is_running)):
                column.append(values)
            is_running = state < len(self.start)
        is_step = np.stack(running, 1)  # (E, T)
        is_obs = np.concatenate((np.ones((num_episodes, 1), np.bool_), is_step), 1)
        taken = np.stack(states[:-1], 1)[is_step], np.stack(actions, 1)[is_step]
        return Episodes(
            states=np.stack(states, 1)[is_obs],
            actions=taken[1],
            rewards=np.stack(rewards, 1)[is_step],
            logp=np.log(policy[taken]),
            lengths=is_step.sum(1),
            is_terminated=~is_running,
        )


@dataclass(frozen=True, eq=False)
class Episodes:
    """`states` (R + E,) with each episode's final one, `actions`, `rewards`, `logp` (R,), `lengths` (E,)."""

    states: Array
    actions: Array
    rewards: Array
    logp: Array
    lengths: Array
    is_terminated: Array

    @property
    def obs_rows(self) -> Array:
        """(R,) row of `states` that each step was taken in."""
        return np.arange(len(self.actions)) + np.repeat(np.arange(len(self.lengths)), self.lengths)

    def steps(self, target: Array) -> RecordedSteps:
        """What estimators read, for a target policy (X, A)."""
        states = self.states[self.obs_rows]
        with np.errstate(divide="ignore"):
            log_ratios = np.log(target[states, self.actions]) - self.logp
        return RecordedSteps(self.lengths, self.rewards, log_ratios)

    def model(self, q_values: Array, target: Array) -> ModelValues:
        """The values of a table Q (X, A); it is no model of the terminal state."""
        values = np.append((target * q_values).sum(-1), np.nan)
        at, following = self.states[self.obs_rows], self.states[self.obs_rows + 1]
        is_terminal = following == len(q_values)
        next_values = np.where(is_terminal, 0.0, values[np.where(is_terminal, 0, following)])
        return ModelValues(q_values[at, self.actions], values[at], next_values)

    def split(self, size: int) -> Iterator[Episodes]:
        """Data sets of so many episodes each."""
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        for first in range(0, len(self.lengths), size):
            own = slice(first, first + size)
            start, end = int(ends[first]), int(ends[first + size])
            yield Episodes(
                self.states[start + first : end + first + size],
                self.actions[start:end],
                self.rewards[start:end],
                self.logp[start:end],
                self.lengths[own],
                self.is_terminated[own],
            )

    def block(self, num_states: int) -> ColumnBlock:
        """A column block with one-hot observations; the terminal state is all 0."""
        one_hot = np.eye(num_states + 1, num_states, dtype=np.float32)
        return ColumnBlock(
            columns={
                "obs": one_hot[self.states],
                "actions": self.actions.astype(np.int64),
                "rewards": self.rewards.astype(np.float32),
                "action_logp": self.logp.astype(np.float32),
            },
            lengths=self.lengths,
            is_terminated=self.is_terminated,
            is_truncated=~self.is_terminated,
            t_started=np.zeros(len(self.lengths), np.int64),
            episode_ids=[f"episode-{number}" for number in range(len(self.lengths))],
        )


def _draw(probabilities: Array, stream: np.random.Generator) -> Array:
    """A choice for each row of probabilities (E, n)."""
    return (
        (probabilities.cumsum(-1) < stream.random((len(probabilities), 1))).sum(-1).clip(max=probabilities.shape[1] - 1)
    )


# A chain of three states: action 1 mostly goes on and costs, the end pays; action 0 mostly stays or gives up.
CHAIN = SmallMDP(
    start=np.array([0.7, 0.3, 0.0]),
    moves=np.array(
        [
            [[0.5, 0.1, 0.0, 0.4], [0.1, 0.7, 0.1, 0.1]],
            [[0.3, 0.3, 0.0, 0.4], [0.1, 0.1, 0.7, 0.1]],
            [[0.0, 0.4, 0.3, 0.3], [0.1, 0.0, 0.2, 0.7]],
        ]
    ),
    rewards=np.array(
        [
            [[0.0, 0.0, 0.0, 0.5], [-0.2, -0.2, 1.0, 0.0]],
            [[0.1, 0.0, 0.0, 0.2], [-0.3, -0.3, -0.3, 0.0]],
            [[0.0, 0.2, 0.1, 1.0], [0.0, 0.0, -0.2, 3.0]],
        ]
    ),
    noise=0.3,
)
BEHAVIOUR = np.array([[0.6, 0.4], [0.5, 0.5], [0.4, 0.6]])
TARGET = np.array([[0.3, 0.7], [0.25, 0.75], [0.3, 0.7]])
