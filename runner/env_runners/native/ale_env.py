"""ALE's vector environment of Atari games, which steps in threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.native.action_log import NUM_STEPS_OF_SEED, ActionLog, Array, Bools
from runner.env_runners.native.observations import ChannelsLast, numbers_of
from runner.streams import integer_seed


class AleVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """`ale_py.vector_env.AtariVectorEnv`, with images (H, W, C) and a state.

    Args:
        game: name of the ROM, in lower case with underscores.
        num_envs: N.
        **options: options of that class.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, game: str, num_envs: int, **options: Any) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self._ale = AtariVectorEnv(game, num_envs, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP, **options)
        self._channels_last = ChannelsLast(self._ale.single_observation_space)
        self.num_envs = num_envs
        self.single_observation_space = self._channels_last.space
        self.single_action_space = self._ale.single_action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Array]]:
        """Begin new episodes everywhere, with seeds derived from `seed`; return images (N, H, W, C) as bytes."""
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**31))
        self._num_seeds = np.zeros(self.num_envs, np.int64)  # number of previous seeds of each sub-environment
        self._is_done = np.zeros(self.num_envs, np.bool_)
        self._log = ActionLog(self.num_envs)
        return self._reset_seeded(np.ones(self.num_envs, np.bool_))

    def _reset_seeded(self, are_chosen: Bools) -> tuple[Array, dict[str, Array]]:
        """Reset the chosen sub-environments; return the newest observations and infos of all."""
        names = [(n, int(self._num_seeds[n])) for n in np.flatnonzero(are_chosen).tolist()]
        seeds = np.array([integer_seed(self._seed, "sub-environment", *name) for name in names])
        obs, infos = self._ale.reset(seed=seeds, options=None if are_chosen.all() else {"reset_mask": are_chosen})
        return self._channels_last(obs), numbers_of(infos, self.num_envs)

    def step(self, actions: Array) -> tuple[Array, Array, Bools, Bools, dict[str, Array]]:
        """Take a vector step; if an episode is over, reset the game instead."""
        are_seeded = self._is_done & (self._log.num_steps >= NUM_STEPS_OF_SEED)
        obs, rewards, terminateds, truncateds, infos = self._ale.step(actions)
        self._log.append(actions)
        if are_seeded.any():  # a second reset, because the library itself resets without a seed
            self._num_seeds += are_seeded
            self._log.begin(are_seeded)
            obs, infos = self._reset_seeded(are_seeded)
        else:
            obs, infos = self._channels_last(obs), numbers_of(infos, self.num_envs)
        self._is_done = terminateds | truncateds
        return obs, rewards.astype(np.float64), terminateds, truncateds, infos

    def get_state(self) -> dict[str, Any]:
        """Return the seeds and all later actions."""
        return {
            "seed": self._seed,
            "num_seeds": self._num_seeds.copy(),
            "is_done": self._is_done.copy(),
            "log": self._log.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replay the actions of a state of `get_state`."""
        self._seed = int(state["seed"])
        self._num_seeds = np.array(state["num_seeds"], np.int64)
        self._log = ActionLog(self.num_envs)
        self._log.set_state(state["log"])
        self._reset_seeded(np.ones(self.num_envs, np.bool_))  # the first reset must include all sub-environments
        self._log.replay(self._reset_seeded, lambda actions, _: self._ale.step(actions))
        self._is_done = np.array(state["is_done"], np.bool_)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        del self._ale
