"""The end of an update on sampled experiences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.env_runners.loss_failure import with_rollout
from runner.learners.loss_failure import LossNotFinite
from runner.learners.update_results import UpdateResult
from runner.plans.context import PlanContext
from runner.plans.items import Experiences, TrainResult


def finish_update(
    context: PlanContext, item: Experiences, lags: Sequence[tuple[int, int]], update: UpdateResult
) -> TrainResult:
    """Send the new weights to env runners, call `on_update_end`, and return the result of the update.

    Weights are not sent if only auxiliary modules were updated.

    Args:
        context: context of the plan.
        item: item that was trained on.
        lags: lags of its origins before the update.
        update: result of the learners.
    """
    updated = time.perf_counter()
    if not update.metrics or update.metrics.keys() - context.config.multi_agent.auxiliary_modules:
        context.broadcast_weights()
    timers = {
        "learner_update": update.update_s,
        "learner_connector": update.connector_s,
        "synch_weights": time.perf_counter() - updated,
    }
    if update.compile_s:
        timers["learner_compile"] = update.compile_s
    context.callbacks.call("on_update_end", updates=[update.metrics])
    return TrainResult(
        [update.metrics],
        item.num_env_steps,
        rows=update.rows,
        replay_rows=item.replay_rows,
        lags=lags,
        timers=timers,
        connector_metrics=update.connector_metrics,
    )


@contextmanager
def naming_rows(item: Experiences) -> Iterator[None]:
    """Add the rows of an item for which a loss is not finite to the error."""
    try:
        yield
    except LossNotFinite as error:
        raise with_rollout(error, item.rollout) from error
