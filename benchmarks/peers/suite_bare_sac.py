"""The plain SAC loop of `bare_sac.py` with a task of `benchmarks/suites.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium
import torch
from bare_sac import Loop
from sac_cli import HIDDENS, SACSettings
from suite_cli import EVALUATION_SEED, Task, run


def settings_of(task: Task) -> SACSettings:
    given = task.settings
    if tuple(task.hiddens) != HIDDENS or task.num_envs != 1:
        raise SystemExit(f"the bare SAC loop has hidden layers of {HIDDENS} and steps a single environment")
    return SACSettings(
        seed=task.seed,
        env=task.env,
        lr=given["critic_lr"],
        gamma=given["gamma"],
        tau=given["tau"],
        train_batch_size=given["train_batch_size_per_learner"],
        learning_starts=given["num_steps_sampled_before_learning_starts"],
        random_steps=given["num_steps_sampled_before_learning_starts"],
        replay_capacity=given["replay_capacity"],
    )


def evaluate(loop: Loop, task: Task) -> list[float]:
    """Return the returns of greedy episodes."""
    env, returns, episode_return = gymnasium.make(task.env), [], 0.0
    obs, _ = env.reset(seed=EVALUATION_SEED + task.seed)
    while len(returns) < task.num_episodes:
        obs, reward, terminated, truncated, _ = env.step(loop.best_action(obs))
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()
    return returns


def build(task: Task) -> tuple[Callable[[], int], Callable[[], Sequence[float]]]:
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    loop = Loop(settings_of(task))

    def train() -> int:
        while loop.env_steps < task.num_env_steps:
            loop.step()
        return loop.env_steps

    return train, lambda: evaluate(loop, task)


if __name__ == "__main__":
    run(__doc__, build)
