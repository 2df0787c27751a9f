"""A custom environment and connectors outside the repository. `runner` finds them by their dotted paths."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.pipelines import Connector, Requirements


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right to the end of a corridor: -0.1 per step, +1 at the end; truncated after 100 steps."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gym.spaces.Box(0.0, float(length), (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._place = self._time = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        self._time += 1
        is_there = self._place >= self._length
        return self._observe(), 1.0 if is_there else -0.1, is_there, self._time >= 100, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._place], np.float32)


class NoveltyBonus(Connector):
    """Adds scale / sqrt(visits) to the reward of every step; visits are counted for the place after the step.

    Only the learner sees the bonus. Episodes, and therefore the reported returns, keep the environment's rewards.
    """

    requires = Requirements(reads=("rewards", "loss_mask"), writes=("rewards",))
    state = ("_visits",)  # saved in checkpoints

    def __init__(self, scale: float, num_places: int) -> None:
        self._scale = scale
        self._visits = np.zeros(num_places, np.int64)

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        """Add the bonus to all rows; `episodes` is a column block with the concatenated observations of its chunks."""
        obs = episodes.columns["obs"][:, 0]  # (R + E,), each chunk has one more observation than steps
        places = np.minimum(obs.astype(np.int64), len(self._visits) - 1)
        self._visits += np.bincount(places, minlength=len(self._visits))
        bonus = self._scale / np.sqrt(np.maximum(self._visits[places], 1))
        led_to = np.append(bonus[1:], 0.0)  # bonus of the place after each step; bootstrap rows do not have a step
        batch["rewards"] = batch["rewards"] + np.where(batch["loss_mask"], led_to, 0.0).astype(np.float32)
        return batch


class NoveltyBonusItemByItem(Connector):
    """`NoveltyBonus` with a loop over episodes: shorter code, but slower."""

    requires = Requirements(writes=("rewards",))

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._visits: dict[int, int] = {}

    def __call__(self, *, batch: dict[str, Any], episodes: Any, **kwargs: Any) -> dict[str, Any]:
        """Add the rewards one by one; `AddColumnsFromEpisodesToTrainBatch` keeps existing columns."""
        for episode in self.single_agent_episode_iterator(episodes):
            for obs, reward in zip(episode.get_observations()[1:], episode.get_rewards(), strict=True):
                place = int(obs[0])
                self._visits[place] = self._visits.get(place, 0) + 1
                bonus = self._scale / self._visits[place] ** 0.5
                self.add_batch_item(batch, "rewards", np.float32(reward + bonus), episode)
        return batch
