"""Learning from recorded data: read a train batch, update, report every so many updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.config.schemas import ExperimentConfig
from runner.dataflow.run_metrics import Result, RunMetrics
from runner.learners.learner_group import LearnerGroup

if TYPE_CHECKING:
    from runner.offline.offline_data import OfflineData, TrainBatch


def offline(
    config: ExperimentConfig, data: OfflineData, learners: LearnerGroup, metrics: RunMetrics
) -> Iterator[Result]:
    """One update on each batch of the recorded data, pass after pass.

    Args:
        config: of the run; an iteration has `offline.dataset_num_iters_per_learner` updates, or one pass over the data.
        data: gives the train batches.
        learners: update on them.
        metrics: counters and timers of the run.

    Yields:
        The metrics of one iteration.
    """
    batches = recorded_batches(data, metrics)
    updates = train_on_batches(batches, data, learners, config.offline.prelearner_module_synch_period, metrics)
    return report_every(updates, config.offline.dataset_num_iters_per_learner, metrics)


def recorded_batches(data: OfflineData, metrics: RunMetrics) -> Iterator[TrainBatch]:
    """The train batches; the time spent waiting for them is `timers/offline_sampling`."""
    batches = data.batches()
    while True:
        with metrics.timed("offline_sampling"):
            batch = next(batches)
        metrics.add_sampled(batch.num_env_steps)
        yield batch


def train_on_batches(
    batches: Iterator[TrainBatch], data: OfflineData, learners: LearnerGroup, synch_period: int, metrics: RunMetrics
) -> Iterator[TrainBatch]:
    """Update on each batch; every `synch_period` updates the pre-learners get the module's weights."""
    for number, batch in enumerate(batches, start=1):
        with metrics.timed("learner_update"):
            update = learners.update_on(batch.columns, metrics.num_env_steps_sampled_lifetime)
        metrics.add_update(update.metrics, update.connector_s, batch.num_env_steps)
        if data.follows_module and number % synch_period == 0:
            with metrics.timed("synch_weights"):
                data.set_weights(learners.get_weights())
        yield batch


def report_every(updates: Iterator[TrainBatch], num_updates: int | None, metrics: RunMetrics) -> Iterator[Result]:
    """Yield the metrics of each `num_updates` updates; of each pass over the data if that is None."""
    since_report = 0
    for batch in updates:
        since_report += 1
        if since_report == num_updates or (num_updates is None and batch.ends_pass):
            since_report = 0
            yield metrics.end_iteration()
