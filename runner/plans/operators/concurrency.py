"""Operators that run several branches, and pass items between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import ASYNC, AUTO, ConcurrentlyConfig, DequeueConfig, EnqueueConfig
from runner.plans.context import NotReady, PlanContext
from runner.plans.items import Item
from runner.plans.operator import WORKED, Node, Operator, Pending, Source


class Concurrently(Source):
    """Run several branches in turn, and return the items of some of them.

    A turn lasts until the branch produces an item, or cannot produce one now.

    Args:
        branches: nodes with the same context.
        options: options of `ConcurrentlyConfig`, without plans.
    """

    state = ("_turn", "_num_given", "_is_running", "_before", "_intensity")
    options: ConcurrentlyConfig

    def __init__(self, branches: Sequence[Node], **options: Any) -> None:
        super().__init__(branches[0].context, **options)
        self._branches = list(branches)
        numbers = range(len(branches))
        self._outputs = set(numbers if self.options.output_indexes is None else self.options.output_indexes)
        if not self._outputs or not self._outputs <= set(numbers):
            problem = Problem(
                "output_indexes of Concurrently names branches that do not exist",
                got=str(self.options.output_indexes),
                expected=f"indexes from 0 to {len(branches) - 1}",
            )
            raise ConfigError([problem])
        given = self.options.round_robin_weights
        self._weights = given if isinstance(given, list) else [1] * len(branches)
        self._intensity: float | None = self.context.config.algorithm.training_intensity
        self._turn = 0  # number of the branch whose turn it is
        self._num_given = 0  # items that it has produced in this turn
        self._is_running = False  # with training_intensity, whether the branch keeps its turn until it produces an item
        # Env steps that were sampled and trained on before the ratio applies, or None before the first turn.
        self._before: tuple[int, int] | None = None
        self._num_idle = 0  # consecutive turns without an item
        self._waits = NotReady.FOR_QUEUE  # reason why they produced none

    def poll(self) -> Any:
        """Step the branch whose turn it is, and return its item if that branch is selected."""
        if self.options.mode == ASYNC:
            return self._whichever_is_ready()
        if self.options.round_robin_weights != AUTO or self._intensity is None:
            return self._in_turn()
        return self._in_proportion(self._intensity)

    def _in_turn(self) -> Any:
        """Take the number of items given by its weight from each branch; with '*', all items until it waits.

        A branch that waits for env runners keeps its turn, so that the ratio of turns stays the same. A branch that
        waits for a queue passes its turn on.
        """
        weight = self._weights[self._turn]
        if weight != "*" and self._num_given >= weight:  # type: ignore[operator]
            return self._next_turn(self._num_given == 0)
        found = self._branches[self._turn].step()
        if isinstance(found, NotReady):
            if found is NotReady.FOR_RUNNERS and weight != "*":
                return found
            self._note_wait(found)
            return self._next_turn(self._num_given == 0)
        if found is WORKED:
            return WORKED
        self._num_given += 1
        return found if self._turn in self._outputs else WORKED

    def _whichever_is_ready(self) -> Any:
        found, turn = self._branches[self._turn].step(), self._turn
        if found is WORKED:
            return WORKED
        if isinstance(found, NotReady):
            self._note_wait(found)
            return self._next_turn(is_idle=True)
        self._next_turn(is_idle=False)
        self._waits = NotReady.FOR_QUEUE
        return found if turn in self._outputs else WORKED

    def _in_proportion(self, intensity: float) -> Any:
        """Take from the second branch until it has trained on `intensity` env steps for each sampled one.

        Env steps do not count if they were sampled while the branch waited for a queue or a replay buffer, or before a
        resumed run changed the intensity.
        """
        metrics = self.context.metrics
        counts = metrics.num_env_steps_sampled_lifetime, metrics.num_env_steps_trained_lifetime
        if not self._is_running:
            self._before = before = self._before or counts
            num_sampled, num_trained = counts[0] - before[0], counts[1] - before[1]
            self._turn, self._is_running = 1 if num_trained < intensity * num_sampled else 0, True
        found = self._branches[self._turn].step()
        if found is WORKED:
            return WORKED
        self._is_running = False
        if self._turn == 1 and found is NotReady.FOR_QUEUE:
            self._before = counts
            return WORKED
        return found if isinstance(found, NotReady) or self._turn in self._outputs else WORKED

    def _note_wait(self, found: NotReady) -> None:
        if found is NotReady.FOR_RUNNERS:
            self._waits = found

    def _next_turn(self, is_idle: bool) -> Any:
        """Pass the turn to the next branch; after a round without an item, return the reason why all branches wait."""
        self._turn, self._num_given = (self._turn + 1) % len(self._branches), 0
        self._num_idle = self._num_idle + 1 if is_idle else 0
        if self._num_idle < len(self._branches):
            return WORKED
        waits, self._num_idle, self._waits = self._waits, 0, NotReady.FOR_QUEUE
        return waits

    def pending(self) -> dict[str, list[Any]]:
        """Return the items that wait in the branches."""
        return {name: items for branch in self._branches for name, items in branch.pending().items()}

    def set_pending(self, pending: Pending) -> None:
        """Replace the items that wait in the branches."""
        for branch in self._branches:
            branch.set_pending(pending)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._turn, self._num_given = int(state["turn"]), int(state["num_given"])
        self._is_running = bool(state["is_running"])
        if state["before"] is not None and state["intensity"] == self._intensity:
            num_sampled, num_trained = state["before"]
            self._before = int(num_sampled), int(num_trained)


class Duplicate(Operator):
    """Pass each item of a node to several branches, which begin with the nodes in `copies`.

    The next item is taken once all copies have taken this one, so a faster branch waits for the slower ones.

    Args:
        source: node with the items.
        num_copies: number of copies.
    """

    def __init__(self, source: Node, num_copies: int) -> None:
        self.context, self.options = source.context, None
        self.key = source.context.register(self)
        self._source = source
        self._kept: list[deque[Any]] = [deque() for _ in range(num_copies)]
        self.copies = [_Copy(self, number) for number in range(num_copies)]

    def step(self, number: int) -> Any:
        """Step the source for a copy."""
        kept = self._kept[number]
        if kept:
            return kept.popleft()
        if any(self._kept):
            return NotReady.FOR_QUEUE
        found = self._source.step()
        if found is WORKED or isinstance(found, NotReady):
            return found
        for each in self._kept:
            each.append(found)
        return WORKED

    def pending(self) -> dict[str, list[Any]]:
        """Return the items that some copies have taken but others have not."""
        kept = {f"{self.key}.{number}": list(items) for number, items in enumerate(self._kept) if items}
        return self._source.pending() | kept

    def set_pending(self, pending: Pending) -> None:
        """Replace these items."""
        self._source.set_pending(pending)
        self._kept = [deque(pending.get(f"{self.key}.{number}", ())) for number in range(len(self._kept))]


class _Copy(Node):
    def __init__(self, duplicate: Duplicate, number: int) -> None:
        super().__init__(duplicate.context, f"{duplicate.key}.{number}.input")
        self._duplicate, self._number = duplicate, number

    def step(self) -> Any:
        return self._duplicate.step(self._number)

    def pending(self) -> dict[str, list[Any]]:
        return self._duplicate.pending()

    def set_pending(self, pending: Pending) -> None:
        self._duplicate.set_pending(pending)


class Enqueue(Operator):
    """Put items into a queue and pass them through; wait while the queue is full."""

    options: EnqueueConfig

    def __init__(self, context: PlanContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._queue = context.queue(self.options.queue, self.options.capacity)

    def accepts(self, item: Any) -> bool:
        """Return whether the queue has capacity for another item."""
        return len(self._queue.items) < self._queue.capacity

    def transform(self, item: Item) -> Iterable[Item]:
        """Put the item into the queue."""
        self._queue.items.append(item)
        return [item]


class Dequeue(Source):
    """Take items out of a queue that another branch fills."""

    options: DequeueConfig

    def poll(self) -> Any:
        """Return the next item of the queue."""
        items = self.context.queue(self.options.queue).items
        return items.popleft() if items else NotReady.FOR_QUEUE
