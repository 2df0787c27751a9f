"""Environments that tests share.

The coded ones tell in every observation, reward and info where it comes from: row `(n, t, k)` is what sub-environment
n shows after t steps of its episode k (both count from 0). So a lost, doubled or shifted row cannot go unseen.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

NUM_CODED_ACTIONS = 5
_CODED_SPACE = gym.spaces.Box(0.0, 1e6, (3,), np.float32)


def coded_length(lengths: Sequence[int], n: int, k: int) -> int:
    """Steps of episode k of sub-environment n."""
    return lengths[(3 * n + k) % len(lengths)]


def coded_ends(n: int, k: int) -> tuple[bool, bool]:
    """How episode k of sub-environment n ends: (terminated, truncated), now and then both."""
    return [(True, False), (False, True), (True, True), (False, True)][(n + 2 * k) % 4]


def coded_reward(n: int, t: int, k: int) -> float:
    """The reward of the step that leads to observation (n, t, k); exact in float32."""
    return float(10000 * n + 100 * k + t)


def coded_info(n: int, t: int, k: int) -> dict[str, Any]:
    """The info of observation (n, t, k): empty for every third."""
    return {} if (t + k) % 3 == 2 else {"code": int(coded_reward(n, t, k))}


class CodedEnv(gym.Env[Any, Any]):
    """Sub-environment `n`; `log` holds (n, t, k, action) of every step, as the environment saw it."""

    observation_space = _CODED_SPACE
    action_space = gym.spaces.Discrete(NUM_CODED_ACTIONS)

    def __init__(self, n: int, lengths: Sequence[int], log: list[tuple[int, int, int, int]] | None = None) -> None:
        self.n, self.k, self.t = n, -1, 0
        self._lengths = tuple(lengths)
        self.log = [] if log is None else log

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.k, self.t = self.k + 1, 0
        return self._obs(), coded_info(self.n, self.t, self.k)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.log.append((self.n, self.t, self.k, int(action)))
        self.t += 1
        is_last = self.t == coded_length(self._lengths, self.n, self.k)
        terminated, truncated = coded_ends(self.n, self.k) if is_last else (False, False)
        info = coded_info(self.n, self.t, self.k)
        return self._obs(), coded_reward(self.n, self.t, self.k), terminated, truncated, info

    def _obs(self) -> Any:
        return np.array([self.n, self.t, self.k], np.float32)


class CodedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """N coded sub-environments behind gymnasium's vector interface, reset in the next step."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, lengths: Sequence[int]) -> None:
        self.num_envs = num_envs
        self.single_observation_space = CodedEnv.observation_space
        self.single_action_space = CodedEnv.action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.log: list[tuple[int, int, int, int]] = []
        self._envs = [CodedEnv(n, lengths, self.log) for n in range(num_envs)]
        self._is_done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._is_done[:] = False
        results = [env.reset() for env in self._envs]
        return np.stack([obs for obs, _ in results]), self._vector_infos([info for _, info in results])

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        results = [
            (*env.reset(), 0.0, False, False) if is_done else _reordered(env.step(action))
            for env, action, is_done in zip(self._envs, actions, self._is_done, strict=True)
        ]
        obs, infos, rewards, terminateds, truncateds = zip(*results, strict=True)
        self._is_done = np.logical_or(terminateds, truncateds)
        return np.stack(obs), np.array(rewards), np.array(terminateds), np.array(truncateds), self._vector_infos(infos)

    def _vector_infos(self, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        vector_infos: dict[str, Any] = {}
        for n, info in enumerate(infos):
            vector_infos = self._add_info(vector_infos, info, n)
        return vector_infos


def _reordered(result: tuple[Any, float, bool, bool, dict[str, Any]]) -> tuple[Any, dict[str, Any], float, bool, bool]:
    obs, reward, terminated, truncated, info = result
    return obs, info, reward, terminated, truncated


class MatchDiscrete(gym.Env[int, int]):
    """The observation is the right action: reward 1 for it. Episodes last 1 to 10 steps; optimum: 1 per step."""

    def __init__(self, num_actions: int = 4) -> None:
        self.observation_space = gym.spaces.Discrete(num_actions)
        self.action_space = gym.spaces.Discrete(num_actions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps_left = int(self.np_random.integers(1, 11))
        return self._observe(), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._obs)
        self._steps_left -= 1
        return self._observe(), reward, self._steps_left == 0, False, {}

    def _observe(self) -> int:
        self._obs = int(self.np_random.integers(self.observation_space.n))
        return self._obs


class MatchContinuous(gym.Env[np.ndarray, np.ndarray]):
    """The observation is the right action: reward 1 - |difference|. Episodes last 1 to 10 steps."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps_left = int(self.np_random.integers(1, 11))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 1.0 - float(np.abs(action - self._obs)[0])
        self._steps_left -= 1
        return self._observe(), reward, self._steps_left == 0, False, {}

    def _observe(self) -> np.ndarray:
        self._obs = self.np_random.uniform(-0.8, 0.8, 1).astype(np.float32)
        return self._obs


class Leaving(gym.Env[np.ndarray, int]):
    """Episodes of four steps; the last observation is `beyond` the upper bound of the Box, which is 1."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, beyond: float = 0.001) -> None:
        self._beyond = beyond

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        second = 1.0 + self._beyond if self._t == 4 else 0.1 * self._t
        return np.array([0.0, second], np.float32), 1.0, self._t == 4, False, {}


class Faulty(gym.Env[np.ndarray, int]):
    """Observes [steps so far, a seeded number] and has one fault, at one step of one sub-environment.

    Args:
        fault: none, raise_in_init, raise_in_step, raise_in_reset, leave_space, nan_obs, nan_reward, huge_reward,
            kill, exit, sleep, raise_in_close.
        fault_step: env step since construction at which it happens (resets: the episode's number).
        fault_seed: only where this was the seed of the first reset; None: everywhere.
        episode_len: steps of an episode.
        once_file: the fault happens only where this file is not there yet, and makes it.
    """

    observation_space = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    num_closed: ClassVar[int] = 0  # environments of this process

    def __init__(
        self,
        fault: str = "none",
        fault_step: int = 50,
        fault_seed: int | None = None,
        episode_len: int = 8,
        once_file: str | None = None,
    ) -> None:
        self._once_file = once_file
        self._fault, self._fault_step, self._fault_seed, self._episode_len = fault, fault_step, fault_seed, episode_len
        self._first_seed: int | None = None
        self._num_steps = self._num_resets = 0
        if fault == "raise_in_init":
            raise RuntimeError("no display to draw on")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self._first_seed is None:
            self._first_seed = seed
        self._num_resets += 1
        self._t = 0
        self._number = float(self.np_random.uniform(-5, 5))
        if self._fault == "raise_in_reset" and self._is_due(self._num_resets):
            raise OSError("the simulator's licence has expired")
        return np.array([0.0, self._number], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        self._t += 1
        obs, reward = np.array([self._t, self._number], np.float32), 1.0
        if self._is_due(self._num_steps):
            if self._fault == "raise_in_step":
                raise ValueError("the arm has left its rail")
            if self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self._fault == "exit":
                sys.exit(0)
            if self._fault == "sleep":
                time.sleep(3600)
            if self._fault == "leave_space":
                obs[1] = 1234.5
            if self._fault == "nan_obs":
                obs[0] = np.nan
            if self._fault == "nan_reward":
                reward = float("nan")
            if self._fault == "huge_reward":
                reward = 3e38
        return obs, reward, self._t == self._episode_len, False, {}

    def close(self) -> None:
        Faulty.num_closed += 1
        if self._fault == "raise_in_close" and self._num_steps:
            raise OSError("the simulator does not answer")

    def _is_due(self, count: int) -> bool:
        is_due = count == self._fault_step and self._fault_seed in (None, self._first_seed)
        if not is_due or self._once_file is None:
            return is_due
        if Path(self._once_file).exists():
            return False
        Path(self._once_file).touch()
        return True


class Recall(gym.Env[np.ndarray, int]):
    """Shows a bit, then nothing for `num_blank` steps, then asks for it: the right action is worth 1, the other -1.

    Observation (3,) float32: the bit as -1 or 1, whether it is asked for, and 1. It cannot be solved without memory.
    """

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, num_blank: int = 2) -> None:
        self._num_blank = num_blank

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._bit, self._t = int(self.np_random.integers(2)), 0
        return np.array([2 * self._bit - 1, 0, 1], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_asked = self._t == self._num_blank
        reward = float(2 * (int(action) == self._bit) - 1) if is_asked else 0.0
        self._t += 1
        return np.array([0, self._t == self._num_blank, 1], np.float32), reward, is_asked, False, {}


class RecallReal(Recall):
    """`Recall` whose answer is a number: worth 1 at the bit's side of [-1, 1], -1 at the other, and linear between."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_asked = self._t == self._num_blank
        obs, _, *others = super().step(0)
        reward = float(action[0]) * (2 * self._bit - 1) if is_asked else 0.0
        return obs, reward, *others  # type: ignore[return-value]


class UnevenSteps(gym.Wrapper[Any, Any, Any, Any]):
    """Now and then a step of the environment takes 20 ms, at other times in each run."""

    def step(self, action: Any) -> Any:
        """Step, sometimes slowly."""
        if os.urandom(1)[0] < 16:
            time.sleep(0.02)
        return self.env.step(action)


class SlowSteps(gym.Wrapper[Any, Any, Any, Any]):
    """Each step of the environment waits.

    Args:
        env: the environment.
        step_s: seconds to wait.
    """

    def __init__(self, env: gym.Env[Any, Any], step_s: float = 0.005) -> None:
        super().__init__(env)
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        """Wait, and step."""
        time.sleep(self._step_s)
        return self.env.step(action)


class FailsAt(gym.Wrapper[Any, Any, Any, Any]):
    """Fails in episodes whose resets have these seeds.

    Args:
        env: the environment.
        fault: raise, sleep (for an hour) or exit (of the process).
        steps: seed of an episode, as text -> the step that fails, from 1; 0: its reset.
    """

    def __init__(self, env: gym.Env[Any, Any], fault: str, steps: Mapping[str, int]) -> None:
        super().__init__(env)
        self._fault, self._steps = fault, dict(steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._t, self._fails_at = 0, self._steps.get(str(seed))
        self._fail_if_due()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._t += 1
        self._fail_if_due()
        return self.env.step(action)

    def _fail_if_due(self) -> None:
        if self._t != self._fails_at:
            return
        if self._fault == "sleep":
            time.sleep(3600)
        if self._fault == "exit":
            os._exit(3)
        raise ValueError("the arm has left its rail")
