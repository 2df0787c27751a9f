"""Checks of the queues between plans that run concurrently."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.errors import Problem, nearest_match
from runner.config.operators import DequeueConfig, EnqueueConfig
from runner.config.plans.steps import Plan, Where, steps_of


def find_queue_problems(plan: Plan, where: Where) -> Iterator[Problem]:
    """Find queues that no other plan fills, and queues that no plan empties."""
    chains = list(_chains(plan))
    filled = [(step, chain) for chain in chains for step in chain if isinstance(step.config, EnqueueConfig)]
    emptied = [step for step in steps_of(plan) if isinstance(step.config, DequeueConfig)]
    names = [step.config.queue for step, _ in filled if isinstance(step.config, EnqueueConfig)]
    for step in emptied:
        queue = step.config.queue  # type: ignore[union-attr]
        if not any(name == queue and chain[0] is not step for name, (_, chain) in zip(names, filled, strict=True)):
            what = f"{step.key}: no other plan fills the queue {queue}, so Dequeue would never give an item"
            allowed = f"{{Enqueue: {{queue: {queue}}}}} in a plan that Concurrently runs beside it"
            others = [name for name in names if name != queue]
            yield Problem(what, where(step.key), queue, allowed, nearest_match(queue, others))
    read = [step.config.queue for step in emptied]  # type: ignore[union-attr]
    for name, (step, _) in zip(names, filled, strict=True):
        if name not in read:
            what = f"{step.key}: no plan empties the queue {name}, so Enqueue would wait for ever once it is full"
            allowed = f"{{Dequeue: {{queue: {name}}}}} at the beginning of a plan"
            yield Problem(what, where(step.key), name, allowed, nearest_match(name, read))


def _chains(plan: Plan) -> Iterator[Plan]:
    """Yield this plan and all plans within it, each as a chain of its own steps."""
    if plan:
        yield plan
    for step in plan:
        for nested_plan in step.plans:
            yield from _chains(nested_plan)
