"""CartPole episodes of a hand-written controller, three of ten actions random; as episodes and as a table."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np

from runner.config.offline import OfflineConfig
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import block_from_episodes
from runner.offline.codecs.layout import Spaces
from runner.offline.writing.writer import EpisodeWriter

RANDOM = 0.3


def episode(env: gymnasium.Env, generator: np.random.Generator, seed: int) -> SingleAgentEpisode:
    obs, _ = env.reset(seed=seed)
    done = terminated = truncated = False
    observations, actions, rewards = [obs], [], []
    while not done:
        action = int(obs[2] + 0.5 * obs[3] + 0.02 * obs[0] + 0.05 * obs[1] > 0)
        if generator.random() < RANDOM:
            action = int(generator.integers(2))
        obs, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        observations.append(obs)
        actions.append(np.int64(action))
        rewards.append(float(reward))
    return SingleAgentEpisode(
        id_=f"episode-{seed:06}",
        observations=observations,
        actions=actions,
        rewards=rewards,
        observation_space=env.observation_space,
        action_space=env.action_space,
        terminated=terminated,
        truncated=truncated,
        len_lookback_buffer=0,
    ).to_numpy()


def main(folder: str, num_steps: int) -> None:
    env, generator = gymnasium.make("CartPole-v1"), np.random.default_rng(0)
    episodes, steps = [], 0
    while steps < num_steps:
        episodes.append(episode(env, generator, len(episodes)))
        steps += len(episodes[-1])
    spaces = Spaces(env.observation_space, env.action_space)
    for kind in ("episodes", "table"):
        config = OfflineConfig(
            output=f"{folder}/{kind}",
            output_write_episodes=kind == "episodes",
            output_max_rows_per_file=100 if kind == "episodes" else 20_000,
        )
        writer = EpisodeWriter(config, spaces, "CartPole-v1", "bench")
        for start in range(0, len(episodes), 50):
            writer.add(block_from_episodes(episodes[start : start + 50]))
        writer.close()
    print(f"{len(episodes)} episodes, {steps} steps")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
