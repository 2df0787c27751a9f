"""`runner` with a task of `benchmarks/suites.py`: the experiment with its default settings."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial

from suite_cli import Task, run

from runner import Trainer

ENV_STEPS, RETURN = "num_env_steps_sampled_lifetime", "evaluation/env_runners/episode_return_mean"


def overrides_of(task: Task, run_dir: str) -> list[str]:
    return [
        f"seed={task.seed}",
        f"stop={{{ENV_STEPS}: {task.num_env_steps}}}",
        "evaluation.evaluation_interval=null",
        "learners.compile=auto",
        "tracking=none",
        f"hydra.run.dir={run_dir}",
        *task.overrides,
    ]


def build(task: Task, run_dir: str) -> tuple[Callable[[], int], Callable[[], Sequence[float]]]:
    trainer = Trainer.from_experiment(task.experiment, overrides_of(task, run_dir))

    def train() -> int:
        while (env_steps := int(trainer.train()[ENV_STEPS] or 0)) < task.num_env_steps:
            pass
        return env_steps

    def evaluate() -> Sequence[float]:
        mean = trainer.evaluate(task.num_episodes)[RETURN]
        trainer.close()
        return [float(mean or 0.0)]

    return train, evaluate


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-ours-") as run_dir:
        run(__doc__, partial(build, run_dir=run_dir))
