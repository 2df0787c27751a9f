"""The plan of a run: its root node, and the state of all operators and waiting items."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from runner.plans.context import PlanContext
from runner.plans.item_state import can_be_saved, item_from_state, item_to_state
from runner.plans.operator import Node


class Plan:
    """The plan of a run.

    Args:
        root: node that returns `IterationEnd` items; each `step` does one unit of work.
        context: context of the plan, with its operators.
    """

    def __init__(self, root: Node, context: PlanContext) -> None:
        self.root, self.context = root, context

    def __next__(self) -> Any:
        return next(self.root)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.root)

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration that the state depends on."""
        return {"plan": self.context.config.algorithm.plan, "operators": list(self.context.operators)}

    @property
    def can_be_saved(self) -> bool:
        """Whether a checkpoint can hold all waiting items."""
        queues = [queue.items for queue in self.context.queues.values()]
        return all(can_be_saved(item) for items in (*self.root.pending().values(), *queues) for item in items)

    def get_state(self) -> dict[str, Any]:
        """Return the states of operators, and all waiting items; first waits for pending calls of env runners."""
        operators = {key: operator.get_state() for key, operator in self.context.operators.items()}
        pending = {name: [item_to_state(item) for item in items] for name, items in self.root.pending().items()}
        queues = {name: [item_to_state(item) for item in queue.items] for name, queue in self.context.queues.items()}
        return {
            "operators": {key: state for key, state in operators.items() if state},
            "pending": pending,
            "queues": queues,
        }

    def set_state(self, state: Mapping[str, Any], reset: Collection[str] = ()) -> None:
        """Restore a state of `get_state`.

        Args:
            state: state of the same plan.
            reset: names of reset parts; operators that need env runners or recorded data among them are reset.
        """
        context = self.context
        for key, of_operator in state["operators"].items():
            operator = context.operators[key]
            if not set(operator.needed) & set(reset):
                operator.set_state(of_operator)
        self.root.set_pending(
            {name: [item_from_state(item, context) for item in items] for name, items in state["pending"].items()}
        )
        for name, items in state["queues"].items():
            context.queue(name).items = deque(item_from_state(item, context) for item in items)
