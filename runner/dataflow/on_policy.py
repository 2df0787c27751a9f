"""The dataflow of synchronous on-policy algorithms such as PPO."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.schemas import ExperimentConfig
from runner.dataflow.run_metrics import Result, RunMetrics
from runner.dataflow.steps import concat_batches, parallel_rollouts, report_metrics, train_one_step
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.learners.remote_learner_group import Learners


def on_policy(
    config: ExperimentConfig, env_runners: EnvRunnerGroup, learners: Learners, metrics: RunMetrics
) -> Iterator[Result]:
    """Sample with the newest policy, update on the samples, and report, whenever the next result is asked for.

    Args:
        config: of the run.
        env_runners: sample the episodes.
        learners: updated on the episodes.
        metrics: counters, timers and running means of the run.

    Yields:
        The metrics of one iteration.
    """
    rollouts = parallel_rollouts(env_runners, env_steps_per_round(config), config.env_runners.explore, metrics)
    batches = concat_batches(rollouts, train_batch_size(config))
    updates = train_one_step(batches, learners, env_runners, metrics)
    return report_metrics(updates, env_runners, metrics)


def env_steps_per_round(config: ExperimentConfig) -> int:
    """Return the env steps that all runners make together before their samples are joined."""
    runners = config.env_runners
    if isinstance(runners.rollout_fragment_length, str):  # auto
        return train_batch_size(config)
    return runners.rollout_fragment_length * runners.num_envs_per_env_runner * max(1, runners.num_env_runners)


def train_batch_size(config: ExperimentConfig) -> int:
    """Return the env steps that all learners together learn from in an iteration."""
    return config.algorithm.train_batch_size_per_learner * max(1, config.learners.num_learners)
