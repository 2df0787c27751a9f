"""Functions that provide data: an endless stream of episodes, the steps in a database, a custom Ray data set."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

import gymnasium as gym

from runner.episodes import SingleAgentEpisode

if TYPE_CHECKING:
    from ray.data import Dataset


def balanced(seed: int = 0) -> Iterator[SingleAgentEpisode]:
    """Yield an endless stream of CartPole-v1 episodes, in which a simple rule pushes towards the falling pole.

    A second call yields the same episodes with the same ids, which is required to resume a run.
    """
    env = gym.make("CartPole-v1")
    for number in itertools.count():
        observation, _ = env.reset(seed=seed + number)
        episode, is_over = SingleAgentEpisode(id_=f"{number}"), False
        episode.add_env_reset(observation)
        while not is_over:
            _, velocity, angle, falling = observation
            action = int(angle + 0.5 * falling + 0.05 * velocity > 0)
            observation, reward, terminated, truncated, _ = env.step(action)
            episode.add_env_step(observation, action, reward, terminated=terminated, truncated=truncated)
            is_over = terminated or truncated
        yield episode


def connect(path: str) -> sqlite3.Connection:
    """Open the database for `ray.data.read_sql`."""
    return sqlite3.connect(path)


def first_episodes(folder: str, num_episodes: int) -> Dataset:
    """Return the first episodes that `runner record` has written to a folder."""
    import ray.data

    return ray.data.read_parquet(folder).limit(num_episodes)


def main() -> None:
    """Fill the database that the experiment reads."""
    with connect("steps.db") as database:
        database.execute(
            "CREATE TABLE steps (episode_id TEXT, t INT, obs TEXT, action INT, reward REAL, truncated INT)"
        )
        for episode in itertools.islice(balanced(), 20):
            last, observations = len(episode) - 1, episode.get_observations()
            steps = zip(observations, episode.get_actions(), episode.get_rewards(), strict=False)
            for t, (observation, action, reward) in enumerate(steps):
                values = (episode.id_, t, json.dumps(observation.tolist()), action, reward, t == last)
                database.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", values)


if __name__ == "__main__":
    main()
