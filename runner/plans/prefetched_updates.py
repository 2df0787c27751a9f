"""Updates of remote learners during which the plan prepares the next train batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from runner.config.errors import Problem, RunFailure
from runner.episodes.columns import Rollout
from runner.learners.remote_learner_group import RemoteLearnerGroup
from runner.learners.update_results import UpdateResult
from runner.plans.context import NotReady, PlanContext
from runner.plans.items import Experiences, TrainResult
from runner.plans.operator import WORKED, Branch, Node, Operator, Pending, PlanEnded
from runner.plans.updates import finish_update, naming_rows


class UpdatesWithPrefetch(Node):
    """Updates of remote learners, during which the plan prepares the next item and sends it to them.

    A result is returned, and env runners get the weights, only after the next item has been sent. The next update
    begins at the next step of the plan.

    Args:
        operator: operator of the plan that the updates belong to.
        source: node with the items to train on.
        select: returns the experiences of an item to train on.
    """

    def __init__(self, operator: Operator, source: Node, select: Callable[[Experiences], Experiences]) -> None:
        super().__init__(operator.context, operator.key)
        self._operator, self._select = operator, select
        self._source = source if isinstance(source, Branch) else Branch(source, [], operator.key)
        self._ahead: PrefetchedUpdate | None = None
        self._restored: Mapping[str, Any] = {}  # state of the first item in a checkpoint

    def step(self) -> Any:
        """Begin the prefetched update, step the source of the next item, and end the update once that is sent."""
        if self._ahead is not None:
            self._ahead.begin()
        try:
            item = self._source.step()
        except PlanEnded:
            if self._ahead is None:
                raise
            last, self._ahead = self._ahead, None
            return self._result(last)
        if item is WORKED or isinstance(item, NotReady):
            return item
        if not isinstance(item, Experiences):
            what = "learners.prefetch supports sampled experiences only"
            raise RunFailure(Problem(what, "learners.prefetch", type(item).__name__, fix="learners.prefetch=false"))
        before, self._ahead = self._ahead, self._update(item)
        return WORKED if before is None else self._result(before)

    def _update(self, item: Experiences) -> PrefetchedUpdate:
        restored, self._restored = self._restored, {}
        num_env_steps = restored.get("num_env_steps", self.context.metrics.num_env_steps_sampled_lifetime)
        rollout = self._select(item).rollout
        return PrefetchedUpdate(self.context, item, rollout, num_env_steps, restored.get("is_announced", False))

    def _result(self, ahead: PrefetchedUpdate) -> TrainResult:
        update = ahead.end()
        (result,) = self._operator.counted([finish_update(self.context, ahead.item, ahead.lags, update)])
        return result  # type: ignore[no-any-return]

    def pending(self) -> dict[str, list[Any]]:
        """Return the items of the source; the first one is the prefetched item."""
        pending = self._source.pending()
        if self._ahead is not None:
            pending[self._source.key] = [self._ahead.item, *pending.get(self._source.key, ())]
        return pending

    def set_pending(self, pending: Pending) -> None:
        """Replace the items of the source; the first one is sent again."""
        self._ahead = None
        self._source.set_pending(pending)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the prefetched update without its item, which is one of the pending items."""
        ahead = self._ahead
        return {} if ahead is None else {"num_env_steps": ahead.num_env_steps, "is_announced": ahead.is_announced}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._restored = dict(state)


class PrefetchedUpdate:
    """An item that is sent to the learners immediately; they update on it once the previous update has ended.

    Args:
        context: context of the plan; the calling process continues while remote learners work.
        item: item to update on.
        rollout: experiences of the item to send to the learners.
        num_env_steps: env steps that had been sampled when the item reached `TrainOneStep`.
        is_announced: whether `on_update_start` was already called before the checkpoint.

    Attributes:
        lags: see `TrainResult`; known once the update has begun.
    """

    lags: Sequence[tuple[int, int]] = ()

    def __init__(
        self, context: PlanContext, item: Experiences, rollout: Rollout, num_env_steps: int, is_announced: bool
    ) -> None:
        self.item, self.num_env_steps, self.is_announced = item, num_env_steps, is_announced
        self._context = context
        self._learners = cast(RemoteLearnerGroup, context.learners)  # `learners.prefetch` requires remote learners
        self._sent = self._learners.send(rollout)
        self._end: Callable[[], UpdateResult] | None = None  # None until the update begins

    def begin(self) -> Callable[[], UpdateResult]:
        """Begin the update, unless it has already begun, and return the function that waits for its end."""
        if self._end is None:
            if not self.is_announced:
                self._context.callbacks.call("on_update_start")
                self.is_announced = True
            self.lags = self._context.lags_of(self.item.origins)
            self._end = self._learners.begin_update(self._sent, self.num_env_steps)
        return self._end

    def end(self) -> UpdateResult:
        """Wait for the end of the update.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        with naming_rows(self.item):
            return self.begin()()
