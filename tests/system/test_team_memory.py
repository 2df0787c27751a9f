"""Agents whose Q functions are mixed learn with memories what agents without cannot."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner import fit
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.experiment.trainer import Trainer

AGENTS, NUM_WAITS = ("left", "right"), 2
RETURN = "evaluation/env_runners/episode_return_mean"


class RememberedBits(MultiAgentEnv):
    """Each agent sees a bit once, then nothing; in the end 1 is paid if each acts as its bit says, else 0.

    The best return is 1; agents that do not remember have 1/4.
    """

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(-1, 1, (2,), np.float32))
    action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(2))

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t, self._bits = 0, dict(zip(AGENTS, self._rng.integers(2, size=2).tolist(), strict=True))
        return self._observe(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        is_over = self._t == NUM_WAITS + 1
        payoff = float(is_over and all(int(actions[agent]) == bit for agent, bit in self._bits.items()))
        return self._observe(), dict.fromkeys(AGENTS, payoff / 2), {"__all__": is_over}, {"__all__": False}, {}

    def _observe(self) -> dict[str, Any]:
        signs = {agent: 2 * bit - 1 if self._t == 0 else 0 for agent, bit in self._bits.items()}
        return {agent: np.array([sign, self._t == NUM_WAITS], np.float32) for agent, sign in signs.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "least", "most"),
    [
        ("{use_gru: true, lstm_cell_size: 16, fcnet_hiddens: [16]}", 1.0, 1.0),
        ("{fcnet_hiddens: [16]}", 0.0, 0.5),
    ],
    ids=["gru", "none"],
)
def test_agents_that_remember_solve_a_game_of_bits(memory: str, least: float, most: float) -> None:
    with Trainer.from_experiment(
        "qmix_two_step_game",
        [
            *(f"env._target_={__name__}.RememberedBits", f"module={memory}", "seed=100", "tracking=none"),
            "algorithm={lr: 3e-3, gamma: 0.9, train_batch_size_per_learner: 128, replay_capacity: 2000}",
            "algorithm.epsilon=[[0, 1.0], [2000, 0.1]]",
            "algorithm.replay_buffers.replay.batch_length_T=4",
            "evaluation={evaluation_interval: 2, evaluation_duration: 40}",
            f"stop={{{RETURN}: 1, num_env_steps_sampled_lifetime: 4000}}",
        ],
    ) as trainer:
        fit(trainer)
        value = trainer.last_result[RETURN]
    assert value is not None
    assert least <= value <= most
