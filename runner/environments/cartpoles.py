"""Variants of CartPole with partial or nested observations, several agents or action masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv

from runner.environments.several_agents import SeparateAgents

_CARTPOLE = "CartPole-v1"
Observation = npt.NDArray[np.float32]


def _make_cartpole(render_mode: str | None = None) -> gym.Env[Observation, Any]:
    return gym.make(_CARTPOLE, disable_env_checker=True, render_mode=render_mode)


class StatelessCartPole(CartPoleVectorEnv):
    """CartPole without velocities: an observation is cart position and pole angle, (2,) float32.

    Args:
        num_envs: number of sub-environments.
        max_episode_steps: number of steps after which an episode is truncated.
        render_mode: `rgb_array`, for images.
    """

    _SEEN = (0, 2)

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500, render_mode: str | None = None) -> None:
        super().__init__(num_envs=num_envs, max_episode_steps=max_episode_steps, render_mode=render_mode)
        box = self.single_observation_space
        assert isinstance(box, gym.spaces.Box)
        seen = list(self._SEEN)
        self.single_observation_space = gym.spaces.Box(box.low[seen], box.high[seen], dtype=np.float32)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> tuple[Observation, dict[str, Any]]:
        """Start all episodes; return observations (N, 2) and no infos."""
        obs, infos = super().reset(**kwargs)
        return np.ascontiguousarray(obs[:, self._SEEN]), infos

    def step(self, action: npt.NDArray[np.integer[Any]]) -> Any:
        """Take one vector step."""
        obs, *rest = super().step(action)
        return np.ascontiguousarray(obs[:, self._SEEN]), *rest


class _AroundCartPole(gym.Env[dict[str, Any], Any]):
    """CartPole with other observations or actions.

    Args:
        render_mode: gymnasium's render mode.
    """

    metadata: dict[str, Any] = CartPoleEnv.metadata

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._env = _make_cartpole(render_mode)

    def render(self) -> Any:
        """Return an image of CartPole, or show a window, depending on `render_mode`."""
        return self._env.render()

    def close(self) -> None:
        """Close the window."""
        self._env.close()


class DictCartPole(_AroundCartPole):
    """CartPole with nested observations.

    An observation is `{"cart": (2,), "pole": (angle (1,), left of upright (Discrete 2), velocity (1,))}`.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.action_space = self._env.action_space
        low, high = CartPoleEnv().observation_space.low, CartPoleEnv().observation_space.high  # type: ignore[attr-defined]
        angle, velocity = (gym.spaces.Box(low[i : i + 1], high[i : i + 1]) for i in (2, 3))
        self.observation_space = gym.spaces.Dict(
            cart=gym.spaces.Box(low[:2], high[:2]), pole=gym.spaces.Tuple((angle, gym.spaces.Discrete(2), velocity))
        )

    @staticmethod
    def _nested(obs: Observation) -> dict[str, Any]:
        return {"cart": obs[:2], "pole": (obs[2:3], int(obs[2] < 0), obs[3:4])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Start an episode."""
        obs, info = self._env.reset(seed=seed, options=options)
        return self._nested(obs), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return self._nested(obs), float(reward), terminated, truncated, info


class MaskedCartPole(_AroundCartPole):
    """CartPole with two buttons per side, only one of which works in each step, as the mask shows.

    Actions 0 and 1 push left, 2 and 3 right. The observation is `{"observations": (4,), "action_mask": (4,) int8}`.

    Raises:
        ValueError: (from `step`) the mask forbids the action.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self._mask = np.zeros(4, np.int8)
        self.action_space = gym.spaces.Discrete(4)
        self.observation_space = gym.spaces.Dict(
            observations=self._env.observation_space, action_mask=gym.spaces.MultiBinary(4)
        )

    def _masked(self, obs: Observation) -> dict[str, Any]:
        self._mask = np.zeros(4, np.int8)
        self._mask[self.np_random.integers(2, size=2) + np.array([0, 2])] = 1
        return {"observations": obs, "action_mask": self._mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        """Start an episode."""
        super().reset(seed=seed)
        obs, info = self._env.reset(seed=seed, options=options)
        return self._masked(obs), info

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one step."""
        if not self._mask[action]:
            raise ValueError(f"action {action} is forbidden by the mask {self._mask.tolist()}")
        obs, reward, terminated, truncated, info = self._env.step(int(action) // 2)
        return self._masked(obs), float(reward), terminated, truncated, info


class MultiAgentCartPole(SeparateAgents):
    """Each agent balances a separate pole; the episode ends when the last agent has ended.

    Args:
        num_agents: number of agents `agent_0`, `agent_1`, ...
        render_mode: gymnasium's render mode of each pole.
    """

    def __init__(self, num_agents: int = 2, render_mode: str | None = None) -> None:
        super().__init__([_make_cartpole(render_mode) for _ in range(num_agents)])
