"""Episodes of BipedalWalker follow from their seeds and actions, whatever was played before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from runner.environments import NewWorld


def episode(env: gym.Env[Any, Any], seed: int) -> np.ndarray:
    """Return the observations of an episode with random actions of this seed."""
    stream = np.random.default_rng(seed)
    seen, is_over = [env.reset(seed=seed)[0]], False
    while not is_over and len(seen) < 300:
        obs, _, is_terminated, is_truncated, _ = env.step(stream.uniform(-1, 1, 4).astype(np.float32))
        seen.append(obs)
        is_over = is_terminated or is_truncated
    return np.stack(seen)


def differing(make: Callable[[], gym.Env[Any, Any]]) -> list[int]:
    """Return the seeds whose episode is another one in an environment that has had earlier episodes."""
    used = make()
    return [seed for seed in range(25) if not np.array_equal(episode(used, seed), episode(make(), seed))]


def test_earlier_episodes_change_nothing() -> None:
    assert differing(lambda: gym.make("BipedalWalker-v3")), "gymnasium's own needs the wrapper no more"
    assert differing(lambda: NewWorld(gym.make("BipedalWalker-v3"))) == []
