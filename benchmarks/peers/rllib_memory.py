"""RLlib's PPO with an LSTM on CartPole without velocities, with the settings of `peer_cli.Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv, CartPoleVectorEnv
from peer_cli import parse_settings, report
from rllib import RLlibSettings, ppo_config, run

STATELESS = "StatelessCartPole-v1"
SEEN = [0, 2]  # cart position and pole angle
MEMORY = {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 20}


@dataclass(frozen=True)
class MemorySettings(RLlibSettings):
    num_envs: int = 16


def seen_space(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(space.low[SEEN], space.high[SEEN], dtype=np.float32)


class StatelessCartPoleVector(CartPoleVectorEnv):
    """gymnasium's vector CartPole without velocities, with the same work as `runner.environments.StatelessCartPole`."""

    def __init__(self, num_envs: int = 1, max_episode_steps: int = 500, **kwargs: Any) -> None:
        super().__init__(num_envs=num_envs, max_episode_steps=max_episode_steps, **kwargs)
        self.single_observation_space = seen_space(self.single_observation_space)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = super().reset(**kwargs)
        return np.ascontiguousarray(obs[:, SEEN]), infos

    def step(self, action: np.ndarray) -> Any:
        obs, *rest = super().step(action)
        return np.ascontiguousarray(obs[:, SEEN]), *rest


class StatelessCartPole(CartPoleEnv):
    """The same environment, stepped one by one, for `--vectorize-mode sync`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = seen_space(self.observation_space)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return obs[SEEN], info

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs[SEEN], *rest


gymnasium.register(
    STATELESS, entry_point=StatelessCartPole, vector_entry_point=StatelessCartPoleVector, max_episode_steps=500
)


def main() -> None:
    cfg = parse_settings(__doc__, MemorySettings, remote_runners=True)
    report(run(cfg, ppo_config(cfg, STATELESS, MEMORY)))


if __name__ == "__main__":
    main()
