"""Learning from recorded data: update on the next batches, report every so many updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.config.schemas import ExperimentConfig
from runner.dataflow.run_metrics import Result, RunMetrics
from runner.learners.learner_group import RecordedUpdates
from runner.learners.remote_learner_group import Learners

if TYPE_CHECKING:
    from runner.offline.offline_data import OfflineData


def offline(config: ExperimentConfig, data: OfflineData, learners: Learners, metrics: RunMetrics) -> Iterator[Result]:
    """Update on the recorded data, pass after pass, whenever the next result is asked for.

    Args:
        config: of the run; an iteration has `offline.dataset_num_iters_per_learner` updates, or one pass over the data.
        data: source of the train batches.
        learners: updated on the batches.
        metrics: counters and timers of the run.

    Yields:
        The metrics of one iteration.
    """
    num_updates = config.offline.dataset_num_iters_per_learner
    learners.read_from(lambda: data.readers(learners.num_learners))
    while True:
        left = num_updates
        while left != 0:
            done = train_on_next(data, learners, left, config.offline.prelearner_module_synch_period, metrics)
            if left is not None:
                left -= len(done.metrics)
            elif done.ends_pass:
                break
        yield metrics.end_iteration(data.progress())


def train_on_next(
    data: OfflineData, learners: Learners, most: int | None, synch_period: int, metrics: RunMetrics
) -> RecordedUpdates:
    """Do at most `most` updates, fewer where a pass ends or the pre-learners are due for the newest weights."""
    until_synch = synch_period - data.num_batches % synch_period
    if data.follows_module:
        most = until_synch if most is None else min(most, until_synch)
    done = learners.update_on_recorded(most, metrics.num_env_steps_sampled_lifetime)
    data.num_batches += len(done.metrics)
    metrics.add_recorded(done)
    if done.ends_pass:
        data.end_pass()
    if data.follows_module and len(done.metrics) == until_synch:
        with metrics.timed("synch_weights"):
            data.set_weights(learners.get_weights())
    return done
