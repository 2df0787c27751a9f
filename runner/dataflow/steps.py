"""The steps of dataflows: generators that take an iterator and do one thing with each item."""

from __future__ import annotations

from collections.abc import Iterator

from runner.dataflow.loss_failure import with_rollout
from runner.dataflow.run_metrics import Result, RunMetrics
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.episodes.columns import Rollout, concat_rollouts
from runner.learners.learner_group import UpdateResult
from runner.learners.loss_failure import LossNotFinite
from runner.learners.remote_learner_group import Learners


def parallel_rollouts(
    env_runners: EnvRunnerGroup, num_env_steps: int, explore: bool, metrics: RunMetrics
) -> Iterator[Rollout]:
    """Let all runners sample at once and wait for all of them (bulk synchronous); one rollout a round."""
    while True:
        with metrics.timed("env_runner_sampling"):
            samples = env_runners.sample(num_env_steps, explore)
            rollout = concat_rollouts([sample.rollout for sample in samples])
        metrics.add_sampled(rollout.num_env_steps)
        for sample in samples:
            metrics.add_episodes(sample.finished)
        yield rollout


def concat_batches(rollouts: Iterator[Rollout], min_env_steps: int) -> Iterator[Rollout]:
    """Join rollouts until they hold at least `min_env_steps` env steps."""
    while True:
        batch = [next(rollouts)]
        while sum(rollout.num_env_steps for rollout in batch) < min_env_steps:
            batch.append(next(rollouts))
        yield concat_rollouts(batch)


def train_one_step(
    batches: Iterator[Rollout], learners: Learners, env_runners: EnvRunnerGroup, metrics: RunMetrics
) -> Iterator[Rollout]:
    """Update on each batch and give the env runners the new weights."""
    for batch in batches:
        with metrics.timed("learner_update"):
            update = _updated(learners, batch, metrics.num_env_steps_sampled_lifetime)
        metrics.add_update(update.metrics, update.connector_s, batch.num_env_steps)
        with metrics.timed("synch_weights"):
            env_runners.set_weights(learners.get_weights())
        yield batch


def _updated(learners: Learners, batch: Rollout, num_env_steps: int) -> UpdateResult:
    try:
        return learners.update(batch, num_env_steps)
    except LossNotFinite as failure:
        raise with_rollout(failure, batch) from failure


def report_metrics(updates: Iterator[Rollout], env_runners: EnvRunnerGroup, metrics: RunMetrics) -> Iterator[Result]:
    """Yield the metrics of the iteration that each update ends."""
    for _ in updates:
        workers = {
            "fault_tolerance/num_healthy_workers": env_runners.num_runners,
            "fault_tolerance/num_remote_worker_restarts": env_runners.num_restarts,
        }
        yield metrics.end_iteration(workers | env_runners.counts)
