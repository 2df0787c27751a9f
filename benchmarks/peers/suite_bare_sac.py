"""The plain SAC loop of `bare_sac.py` with a task of `benchmarks/suites.py`."""

from __future__ import annotations

import gymnasium
from bare_sac import Loop
from sac_cli import HIDDENS, SACSettings
from suite_cli import Task, evaluation_returns, run_loop


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


class SuiteLoop(Loop):
    """The loop with the settings of a task."""

    def __init__(self, task: Task) -> None:
        super().__init__(settings_of(task))
        self._task = task

    def train(self) -> int:
        while self.env_steps < self._task.num_env_steps:
            self.step()
        return self.env_steps

    def evaluate(self) -> list[float]:
        """Return the returns of greedy episodes."""
        return evaluation_returns(self._task, gymnasium.make(self._task.env), self.best_action)


if __name__ == "__main__":
    run_loop(__doc__, SuiteLoop)
