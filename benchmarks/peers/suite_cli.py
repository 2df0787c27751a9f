"""Shared code of the systems of `benchmarks/suites.py`: the task, the clock and the JSON line.

It uses only the standard library, because each system runs in a separate environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Inherited by every process that a system starts; the system itself calls torch.set_num_threads(1).
os.environ.setdefault("OMP_NUM_THREADS", "1")

EVALUATION_SEED = 10_000  # differs from the seeds of training
PPO, SAC, DQN = "ppo", "sac", "dqn"
CLIP = 10.0  # largest absolute value of normalised observations and rewards
ADAM_EPSILON = 1e-8  # torch's default, which runner uses


@dataclass(frozen=True)
class Task:
    """An experiment for one system and one seed.

    Attributes:
        env: id of a Gymnasium environment, or the name of a MinAtar game.
        num_env_steps: env steps of training; systems complete their last batch.
        num_episodes: episodes of the evaluation at the end.
        settings: names and values of the experiment's `algorithm` block.
        hiddens: widths of the fully connected layers of policy and value function, or of the Q functions.
        overrides: overrides of the experiment, for runner.
    """

    experiment: str
    algorithm: str
    env: str
    seed: int
    num_env_steps: int
    num_episodes: int
    num_envs: int
    settings: Mapping[str, Any]
    hiddens: Sequence[int]
    overrides: Sequence[str]

    def scheduled(self, name: str, env_steps: float) -> float:
        """Return the value of a setting after a number of env steps."""
        return scheduled(self.settings[name], env_steps)

    def at_progress(self, name: str) -> Callable[[float], float]:
        """Return Stable-Baselines3's form of a schedule: a function of the remaining share of the env steps."""
        return lambda remaining: self.scheduled(name, (1.0 - remaining) * self.num_env_steps)


def scheduled(schedule: float | Sequence[Sequence[float]], env_steps: float) -> float:
    """Return the value of a number, or of [[env steps, value], ...] with straight lines between the points."""
    if not isinstance(schedule, Sequence):
        return float(schedule)
    (start, value), *rest = schedule
    for end, next_value in rest:
        if env_steps < end:
            return value + (next_value - value) * max(0.0, env_steps - start) / (end - start)
        start, value = end, next_value
    return float(value)


# Makes the system for a task. Returns a function that trains and returns the number of env steps, and one that returns
# the returns of evaluation episodes.
Build = Callable[[Task], tuple[Callable[[], int], Callable[[], Sequence[float]]]]


def run(description: str | None, build: Build) -> None:
    """Train and evaluate on the task of the command line, and print the result as the last line of stdout."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", required=True, type=json.loads, help="the fields of `suite_cli.Task` as JSON")
    task = Task(**parser.parse_args().task)
    start = time.perf_counter()
    train, evaluate = build(task)
    built, cpu_built = time.perf_counter(), time.process_time()
    env_steps = train()
    trained, cpu_trained = time.perf_counter(), time.process_time()
    returns = [float(value) for value in evaluate()]
    result = {
        "env_steps": env_steps,
        "setup_s": built - start,
        "train_s": trained - built,
        "cpu_s": cpu_trained - cpu_built,  # of training; depends less on other processes of the machine
        "steps_per_s": env_steps / (trained - built),
        "episode_return_mean": sum(returns) / len(returns),
    }
    print(json.dumps(result, allow_nan=False), flush=True)


def run_loop(description: str | None, make_loop: Callable[[Task], Any]) -> None:
    """Like `run`, on one thread of torch, with a loop that has the methods `train` and `evaluate`."""
    import torch  # the rest of this module needs only the standard library

    def build(task: Task) -> tuple[Callable[[], int], Callable[[], Sequence[float]]]:
        torch.set_num_threads(1)
        torch.manual_seed(task.seed)
        loop = make_loop(task)
        return loop.train, loop.evaluate

    run(description, build)


def evaluation_returns(task: Task, env: Any, act: Callable[[Any], Any]) -> list[float]:
    """Return the returns of evaluation episodes in an environment; `act` returns the action for an observation."""
    returns: list[float] = []
    episode_return = 0.0
    obs, _ = env.reset(seed=EVALUATION_SEED + task.seed)
    while len(returns) < task.num_episodes:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()
    return returns
