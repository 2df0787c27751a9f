"""An update of remote learners beside which the plan makes the next train batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from runner.env_runners.loss_failure import with_rollout
from runner.learners.learner_group import UpdateResult
from runner.learners.loss_failure import LossNotFinite
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.items import Experiences

if TYPE_CHECKING:
    from runner.plans.resources import Resources


class UpdateAhead:
    """Sends an item to the learners at once, and lets them update on it once the update before has ended.

    Args:
        resources: of the run; its learners update meanwhile if they are remote.
        item: to update on.
        num_env_steps: env steps that had been sampled when the item reached `TrainOneStep`.
        is_announced: whether callbacks have been told of the beginning, before a checkpoint.

    Attributes:
        lags: see `TrainResult`; known from the beginning on.
    """

    lags: Sequence[tuple[int, int]] = ()

    def __init__(self, resources: Resources, item: Experiences, num_env_steps: int, is_announced: bool = False) -> None:
        self.item, self._num_env_steps = item, num_env_steps
        self._resources, self._is_announced = resources, is_announced
        self._sent: Any = resources.learners.send(item.rollout)
        self._end: Callable[[], UpdateResult] | None = None  # None: it has not begun

    def begin(self) -> None:
        """Let the learners begin, unless they have."""
        if self._end is None:
            if not self._is_announced:
                self._resources.callbacks.call("on_update_start")
                self._is_announced = True
            self.lags = self._resources.lags_of(self.item.origins)
            self._end = self._resources.learners.begin_update(self._sent, self._num_env_steps)

    def end(self) -> UpdateResult:
        """Wait for the end of the update.

        Raises:
            LossNotFinite: a loss is not finite.
        """
        self.begin()
        with naming_rows_of(self.item):
            return cast(Callable[[], UpdateResult], self._end)()

    def get_state(self) -> dict[str, Any]:
        """Return what another one is made from, which goes with the learners' state before the update."""
        state = {"num_env_steps": self._num_env_steps, "is_announced": self._is_announced}
        return {"item": item_to_state(self.item), **state}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], resources: Resources) -> UpdateAhead:
        """Make the update of a state of `get_state`."""
        item = cast(Experiences, item_from_state(state["item"], resources))
        return cls(resources, item, int(state["num_env_steps"]), bool(state["is_announced"]))


@contextmanager
def naming_rows_of(item: Experiences) -> Iterator[None]:
    """Say on which rows of an item a loss is not finite."""
    try:
        yield
    except LossNotFinite as failure:
        raise with_rollout(failure, item.rollout) from failure
