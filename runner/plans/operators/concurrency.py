"""Operators that run several plans, and pass items between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runner.config.errors import ConfigError, Problem
from runner.config.operators import ASYNC, AUTO, ConcurrentlyConfig, DequeueConfig, EnqueueConfig
from runner.plans.flow import Flow, Operator, Source, Waiting
from runner.plans.item_state import item_from_state, item_to_state
from runner.plans.resources import Resources

_END = object()


class Concurrently(Source):
    """Run several flows in turn, and give the items of some of them.

    Args:
        flows: of the same resources.
        options: of `ConcurrentlyConfig`, without plans.
    """

    options: ConcurrentlyConfig

    def __init__(self, flows: Sequence[Flow], **options: Any) -> None:
        self._flows = [flow.items for flow in flows]
        super().__init__(flows[0].resources, **options)
        numbers = range(len(flows))
        self._outputs = set(numbers if self.options.output_indexes is None else self.options.output_indexes)
        if not self._outputs or not self._outputs <= set(numbers):
            problem = Problem(
                "output_indexes of Concurrently name no flow of its own",
                got=str(self.options.output_indexes),
                allowed=f"indexes from 0 to {len(flows) - 1}",
            )
            raise ConfigError([problem])
        self._turn = 0  # number of the flow whose turn it is
        self._num_given = 0  # items that it has given in this turn
        self._is_held = False  # whether this flow keeps its turn for the resumed run
        # Env steps that were sampled and trained on before the share counts; None: it has not begun.
        self._before: tuple[int, int] | None = None

    def make_items(self) -> Iterator[Any]:
        """Yield the items of the flows that are given on."""
        if self.options.mode == ASYNC:
            return self._whichever_is_ready()
        if self.options.round_robin_weights != AUTO or self._intensity is None:
            return self._in_turn()
        return self._in_proportion(self._intensity)

    @property
    def _intensity(self) -> float | None:
        intensity: float | None = self.resources.config.algorithm.training_intensity
        return intensity

    def _in_proportion(self, intensity: float) -> Iterator[Any]:
        """Take from the second flow while it has trained on fewer than `intensity` env steps for each one sampled.

        Nothing is owed for env steps that were sampled while it waited for a queue or a replay buffer, or before a
        resumed run was given another intensity. A flow that stops in the middle of its turn keeps the turn: the env
        steps of its item are counted already, and say that the other flow is next.
        """
        metrics = self.resources.metrics
        while True:
            counts = metrics.num_env_steps_sampled_lifetime, metrics.num_env_steps_trained_lifetime
            self._before = before = self._before or counts
            num_sampled, num_trained = counts[0] - before[0], counts[1] - before[1]
            if not self._is_held:
                self._turn = 1 if num_trained < intensity * num_sampled else 0
            turn = self._turn
            item = next(self._flows[turn], _END)
            if item is _END:
                return
            self._is_held = item is Waiting.FOR_END
            if turn == 1 and item is Waiting.FOR_QUEUE:
                self._before = counts
            elif isinstance(item, Waiting) or turn in self._outputs:
                yield item

    def _in_turn(self) -> Iterator[Any]:
        """Take from each flow as many items as its weight says; '*': until it waits.

        A flow that waits for env runners holds its turn, so that shares are kept; one that waits for a queue loses it.
        """
        given = self.options.round_robin_weights
        weights = given if isinstance(given, list) else [1] * len(self._flows)
        num_idle = 0  # turns in a row without an item
        waits = Waiting.FOR_QUEUE
        while True:
            turn, weight = self._turn, weights[self._turn]
            is_idle = self._num_given == 0
            while weight == "*" or self._num_given < weight:  # type: ignore[operator]
                item = next(self._flows[turn], _END)
                if item is _END:
                    return
                if item is Waiting.FOR_END or (item is Waiting.FOR_RUNNERS and weight != "*"):
                    yield item
                elif isinstance(item, Waiting):
                    waits = item if item is Waiting.FOR_RUNNERS else waits
                    break
                else:
                    self._num_given, is_idle = self._num_given + 1, False
                    if turn in self._outputs:
                        yield item
            self._turn, self._num_given = (turn + 1) % len(self._flows), 0
            num_idle = num_idle + 1 if is_idle else 0
            if num_idle >= len(self._flows):
                yield waits
                num_idle, waits = 0, Waiting.FOR_QUEUE

    def _whichever_is_ready(self) -> Iterator[Any]:
        """Take an item of each flow that has one."""
        num_waiting, waits = 0, Waiting.FOR_QUEUE
        while True:
            turn = self._turn
            item = next(self._flows[turn], _END)
            if item is _END:
                return
            if item is Waiting.FOR_END:
                yield item
                continue
            self._turn = (turn + 1) % len(self._flows)
            if isinstance(item, Waiting):
                num_waiting, waits = num_waiting + 1, item if item is Waiting.FOR_RUNNERS else waits
            else:
                num_waiting, waits = 0, Waiting.FOR_QUEUE
                if turn in self._outputs:
                    yield item
            if num_waiting >= len(self._flows):
                yield waits
                num_waiting, waits = 0, Waiting.FOR_QUEUE

    def get_state(self) -> dict[str, Any]:
        """Return whose turn it is."""
        return {
            "turn": self._turn,
            "num_given": self._num_given,
            "is_held": self._is_held,
            "before": None if self._before is None else list(self._before),
            "intensity": self._intensity,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._turn, self._num_given = int(state["turn"]), int(state["num_given"])
        self._is_held = bool(state["is_held"])
        if state["before"] is not None and state["intensity"] == self._intensity:
            num_sampled, num_trained = state["before"]
            self._before = int(num_sampled), int(num_trained)


class Duplicate(Operator):
    """Give each item of a flow to several flows; `copies` are these flows.

    The next item is taken once all of them have taken this one: one that is ahead waits for the others.

    Args:
        flow: of the items.
        num_copies: number of flows.
    """

    def __init__(self, flow: Flow, num_copies: int) -> None:
        self.resources, self.options, self.rest = flow.resources, None, deque()
        flow.resources.add_operator(self)
        self._items = flow.items
        self._kept: list[deque[Any]] = [deque() for _ in range(num_copies)]
        self.copies = [Flow(self._copy(kept), flow.resources) for kept in self._kept]

    def _copy(self, kept: deque[Any]) -> Iterator[Any]:
        while True:
            if kept:
                yield kept.popleft()
            elif any(self._kept):
                yield Waiting.FOR_QUEUE
            else:
                item = next(self._items, _END)
                if item is _END:
                    return
                if isinstance(item, Waiting):
                    yield item
                    continue
                for each in self._kept:
                    each.append(item)

    def get_state(self) -> dict[str, Any]:
        """Return the items that some flows have taken and others have not."""
        return {"kept": [[item_to_state(item) for item in kept] for kept in self._kept]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        for kept, items in zip(self._kept, state["kept"], strict=True):
            kept.extend(item_from_state(item, self.resources) for item in items)


class Enqueue(Operator):
    """Put items into a queue, and give them on; wait while it is full."""

    options: EnqueueConfig

    def __init__(self, resources: Resources, **options: Any) -> None:
        super().__init__(resources, **options)
        self._queue = resources.queue(self.options.queue, self.options.capacity)
        self._held: list[Any] = []  # an item that found the queue full

    def flow(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items that are in the queue, and `Waiting` while it is full."""
        source = iter(items)
        while True:
            if not self._held:
                item = next(source, _END)
                if item is _END:
                    return
                if isinstance(item, Waiting):
                    yield item
                    continue
                self._held.append(item)
            if len(self._queue.items) >= self._queue.capacity:
                yield Waiting.FOR_QUEUE
                continue
            self._queue.items.append(self._held[0])
            yield self._held.pop()

    def get_state(self) -> dict[str, Any]:
        """Return the item that waits."""
        return {"held": [item_to_state(item) for item in self._held]} if self._held else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self._held = [item_from_state(item, self.resources) for item in state["held"]]


class Dequeue(Source):
    """Take items out of a queue that another plan fills."""

    options: DequeueConfig

    def make_items(self) -> Iterator[Any]:
        """Yield items, and `Waiting` while the queue is empty."""
        queue = self.resources.queue(self.options.queue)
        while True:
            yield queue.items.popleft() if queue.items else Waiting.FOR_QUEUE
