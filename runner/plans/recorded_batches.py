"""Train batches of recorded data, which each learner reads in its own process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.plans.items import Item, TrainResult

if TYPE_CHECKING:
    from runner.learners.remote_learner_group import Learners
    from runner.offline.training.offline_data import OfflineData


@dataclass(frozen=True)
class RecordedBatches(Item):
    """The next train batches of recorded data.

    Attributes:
        data: recorded data that learners read.
        left: remaining updates of the iteration, or None for the rest of the pass over the data.
    """

    data: OfflineData
    left: int | None

    def train(self, learners: Learners, num_env_steps: int) -> TrainResult:
        """Update on these batches; stop earlier if a pass ends or the pre-learners need the newest weights.

        Args:
            learners: learners that read the batches.
            num_env_steps: env steps read before, for schedules.
        """
        done = learners.update_on_recorded(self.data.num_until_synch(self.left), num_env_steps)
        timers = {"offline_sampling": done.waiting_s, "learner_update": done.update_s}
        if done.compile_s:
            timers["learner_compile"] = done.compile_s
        if self.data.count(len(done.metrics), done.ends_pass):
            started = time.perf_counter()
            self.data.set_weights(learners.get_weights())
            timers["synch_weights"] = time.perf_counter() - started
        ends_iteration = done.ends_pass if self.left is None else len(done.metrics) == self.left
        return TrainResult(
            done.metrics,
            done.num_env_steps,
            done.num_env_steps,
            timers=timers,
            connector_metrics=done.connector_metrics,
            ends_iteration=ends_iteration,
        )

    def __str__(self) -> str:
        return f"RecordedBatches: {'all of this pass' if self.left is None else self.left}"
