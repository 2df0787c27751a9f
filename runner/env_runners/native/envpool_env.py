"""EnvPool's environments, written in C++ and stepped in threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.native.action_log import NUM_STEPS_OF_SEED, ActionLog, Array, Bools
from runner.env_runners.native.observations import ChannelsLast, numbers_of
from runner.episodes import nested
from runner.streams import integer_seed

# Observations, rewards, terminateds, truncateds and infos of some sub-environments, by name.
Rows = dict[str, Any]


class EnvPoolVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """N sub-environments of a task of EnvPool.

    A pool is seeded only when it is made. So every `NUM_STEPS_OF_SEED` vector steps another pool with new seeds is
    made, to which each sub-environment moves when its episode is over.

    A step that ends an episode and is its last possible one counts as truncated, because EnvPool does not report more.

    Args:
        task: id of the task.
        num_envs: N.
        **options: options of the task.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, task: str, num_envs: int, **options: Any) -> None:
        import envpool

        self._task, self._options = task, options
        self._pools: dict[int, Any] = {}  # by the number of their seeds
        with _without_warnings():
            spec: Any = envpool.make_spec(task, **options)
            self._channels_last = ChannelsLast(spec.observation_space)
            self.single_action_space = spec.action_space
        self.num_envs = num_envs
        self.single_observation_space = self._channels_last.space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Array]]:
        """Begin new episodes everywhere, with seeds derived from `seed`."""
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**31))
        self._pools = {0: self._make_pool(0)}
        self._newest = 0
        self._pool_of = np.zeros(self.num_envs, np.int64)  # number of each sub-environment's pool
        self._age = 0  # vector steps since the newest pool was made
        self._is_done = np.zeros(self.num_envs, np.bool_)
        self._log = ActionLog(self.num_envs)
        rows = self._joined(self._reset_seeded(np.ones(self.num_envs, np.bool_)))
        return rows["obs"], rows["infos"]

    def _make_pool(self, number: int) -> Any:
        import envpool

        seeds = [integer_seed(self._seed, "sub-environment", n, number) for n in range(self.num_envs)]
        pool: Any = envpool.make_gymnasium(self._task, num_envs=self.num_envs, seed=seeds, **self._options)
        with _without_warnings():
            pool.observation_space  # noqa: B018  cached at its first use
        return pool

    def step(self, actions: Array) -> tuple[Any, Array, Bools, Bools, dict[str, Array]]:
        """Take a vector step; if an episode is over, reset the sub-environment instead."""
        if self._age >= NUM_STEPS_OF_SEED and len(self._pools) == 1:
            self._newest, self._age = self._newest + 1, 0
            self._pools[self._newest] = self._make_pool(self._newest)
        are_moved = self._is_done & (self._pool_of < self._newest)
        parts = self._step_some(actions, ~are_moved)
        self._log.append(actions)
        self._age += 1
        if are_moved.any():
            self._pool_of[are_moved] = self._newest
            self._log.begin(are_moved)
            parts += self._reset_seeded(are_moved)
            self._pools = {number: self._pools[number] for number in {self._newest, *self._pool_of.tolist()}}
        rows = self._joined(parts)
        self._is_done = rows["terminateds"] | rows["truncateds"]
        return rows["obs"], rows["rewards"], rows["terminateds"], rows["truncateds"], rows["infos"]

    def _step_some(self, actions: Array, are_stepped: Bools) -> list[tuple[Array, Rows]]:
        """Step these sub-environments, each in its pool; return their rows, and the index of each row."""
        parts: list[tuple[Array, Rows]] = []
        for numbers, pool in self._by_pool(are_stepped):
            obs, rewards, terminateds, truncateds, infos = pool.step(actions[numbers], numbers)
            rewards = np.asarray(rewards, np.float64)
            parts.append((numbers, self._rows(obs, rewards, terminateds, truncateds, infos)))
        return parts

    def _reset_seeded(self, are_reset: Bools) -> list[tuple[Array, Rows]]:
        """Reset these sub-environments, each for the first time in its pool."""
        parts: list[tuple[Array, Rows]] = []
        for numbers, pool in self._by_pool(are_reset):
            obs, infos = pool.reset(numbers)
            is_end = np.zeros(len(numbers), np.bool_)
            parts.append((numbers, self._rows(obs, np.zeros(len(numbers)), is_end, is_end.copy(), infos)))
        return parts

    def _by_pool(self, are_chosen: Bools) -> list[tuple[Array, Any]]:
        chosen = [(np.flatnonzero(are_chosen & (self._pool_of == n)), pool) for n, pool in self._pools.items()]
        return [(numbers.astype(np.int32), pool) for numbers, pool in chosen if len(numbers)]

    def _rows(self, obs: Any, rewards: Array, terminateds: Array, truncateds: Array, infos: Mapping[str, Any]) -> Rows:
        return {
            "obs": self._channels_last(obs),
            "rewards": rewards,
            "terminateds": terminateds,
            "truncateds": truncateds,
            "infos": numbers_of(infos, len(rewards)),
        }

    def _joined(self, parts: list[tuple[Array, Rows]]) -> Rows:
        """Return the rows of all sub-environments in order."""
        if len(parts) == 1:
            return parts[0][1]
        order = np.argsort(np.concatenate([numbers for numbers, _ in parts]))
        first, *others = (rows for _, rows in parts)
        joined: Rows = nested.map_leaves(lambda *leaves: np.concatenate(leaves)[order], first, *others)
        return joined

    def get_state(self) -> dict[str, Any]:
        """Return the seeds and all later actions."""
        return {
            "seed": self._seed,
            "newest": self._newest,
            "age": self._age,
            "pool_of": self._pool_of.copy(),
            "is_done": self._is_done.copy(),
            "log": self._log.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replay the actions of a state of `get_state`."""
        self._seed, self._newest, self._age = (int(state[name]) for name in ("seed", "newest", "age"))
        self._pool_of = np.array(state["pool_of"], np.int64)
        self._is_done = np.array(state["is_done"], np.bool_)
        self._pools = {number: self._make_pool(number) for number in {self._newest, *self._pool_of.tolist()}}
        self._log = ActionLog(self.num_envs)
        self._log.set_state(state["log"])
        self._log.replay(self._reset_seeded, self._step_some)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads of the pools."""
        self._pools = {}


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress gymnasium's warnings about bounds that EnvPool has in float64 for spaces of float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
