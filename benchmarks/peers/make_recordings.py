"""Write CartPole episodes of a hand-written controller, or Pendulum episodes of random torques, in three formats.

In CartPole, three of ten actions are also random. `arrays.npz` is for systems that cannot read Parquet.
"""

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
        action = act(env, obs, generator)
        obs, reward, terminated, truncated, _ = env.step(action)
        done = terminated or truncated
        observations.append(obs)
        actions.append(action)
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


def act(env: gymnasium.Env, obs: np.ndarray, generator: np.random.Generator) -> np.int64 | np.ndarray:
    if isinstance(env.action_space, gymnasium.spaces.Box):
        return generator.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
    action = obs[2] + 0.5 * obs[3] + 0.02 * obs[0] + 0.05 * obs[1] > 0
    return np.int64(generator.integers(2) if generator.random() < RANDOM else action)


def main(folder: str, num_steps: int, env_id: str = "CartPole-v1") -> None:
    env, generator = gymnasium.make(env_id), np.random.default_rng(0)
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
        writer = EpisodeWriter(config, spaces, env_id, "bench")
        for start in range(0, len(episodes), 50):
            writer.add(block_from_episodes(episodes[start : start + 50]))
        writer.close()
    ends = np.cumsum([len(episode) for episode in episodes]) - 1
    columns = {
        "observations": np.concatenate([episode.get_observations(slice(0, len(episode))) for episode in episodes]),
        "actions": np.concatenate([episode.get_actions() for episode in episodes]),
        "rewards": np.concatenate([episode.get_rewards() for episode in episodes]).astype(np.float32),
    }
    for name in ("terminals", "timeouts"):
        columns[name] = np.zeros(steps, np.float32)
    columns["terminals"][ends] = [episode.is_terminated for episode in episodes]
    columns["timeouts"][ends] = [episode.is_truncated for episode in episodes]
    np.savez(f"{folder}/arrays.npz", **columns)
    print(f"{len(episodes)} episodes, {steps} steps")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
