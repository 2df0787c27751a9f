"""Checks of the queues between plans that run concurrently."""

from __future__ import annotations

from collections.abc import Iterator

from runner.config.errors import Problem, nearest_match
from runner.config.operators import BranchesConfig, DequeueConfig, DuplicateConfig, EnqueueConfig
from runner.config.plans.steps import Plan, Where, steps_of


def find_queue_problems(plan: Plan, where: Where) -> Iterator[Problem]:
    """Find queues that no other plan fills, queues that no plan empties, and queues of several capacities."""
    yield from _find_unfit_ends(plan, where)
    yield from _find_capacity_problems(plan, where)


def _find_unfit_ends(plan: Plan, where: Where) -> Iterator[Problem]:
    chains = list(_chains(plan))
    filled = [(step, chain) for chain in chains for step in chain if isinstance(step.config, EnqueueConfig)]
    emptied = [step for step in steps_of(plan) if isinstance(step.config, DequeueConfig)]
    names = [step.config.queue for step, _ in filled if isinstance(step.config, EnqueueConfig)]
    reached = _queues_with_items(plan)
    for step in emptied:
        queue = step.config.queue  # type: ignore[union-attr]
        if not any(name == queue and chain[0] is not step for name, (_, chain) in zip(names, filled, strict=True)):
            what = f"{step.key}: no other plan fills the queue {queue}, so Dequeue would never give an item"
            allowed = f"{{Enqueue: {{queue: {queue}}}}} in a plan that Concurrently runs beside it"
            others = [name for name in names if name != queue]
            yield Problem(what, where(step.key), queue, allowed, nearest_match(queue, others))
        elif queue not in reached:
            what = f"{step.key}: the queue {queue} is filled from queues that wait for it, so no item ever comes"
            allowed = f"{{Enqueue: {{queue: {queue}}}}} in a plan that samples or reads recorded data"
            yield Problem(what, where(step.key), queue, allowed)
    read = [step.config.queue for step in emptied]  # type: ignore[union-attr]
    for name, (step, _) in zip(names, filled, strict=True):
        if name not in read:
            what = f"{step.key}: no plan empties the queue {name}, so Enqueue would wait for ever once it is full"
            allowed = f"{{Dequeue: {{queue: {name}}}}} at the beginning of a plan"
            yield Problem(what, where(step.key), name, allowed, nearest_match(name, read))


def _find_capacity_problems(plan: Plan, where: Where) -> Iterator[Problem]:
    """Find queues that are filled in several places, with different capacities."""
    first: dict[str, tuple[str, int]] = {}
    for step in steps_of(plan):
        if isinstance(step.config, EnqueueConfig):
            name, capacity = step.config.queue, step.config.capacity
            key, other = first.setdefault(name, (step.key, capacity))
            if capacity != other:
                what = f"{step.key}: the queue {name} has another capacity in {key}"
                yield Problem(what, where(step.key), f"{capacity}, and {other} there", "one capacity")


def _queues_with_items(plan: Plan) -> set[str]:
    """Return the names of queues that items reach, directly or through other queues."""
    reached: set[str] = set()
    num_before = -1
    while num_before < len(reached):
        num_before = len(reached)
        _gives_items(plan, reached)
    return reached


def _gives_items(plan: Plan, reached: set[str], gives: bool | None = None) -> bool:
    """Return whether a plan can give an item, and add the queues that it can fill to `reached`.

    Args:
        plan: of the configuration, or of an operator that runs several.
        reached: names of queues that can have items.
        gives: whether items come into the plan; None: it begins by itself.
    """
    for step in plan:
        if isinstance(step.config, DequeueConfig):
            gives = step.config.queue in reached
        elif isinstance(step.config, EnqueueConfig):
            reached |= {step.config.queue} if gives else set()
        elif isinstance(step.config, BranchesConfig):
            into = gives if isinstance(step.config, DuplicateConfig) else None
            given = [_gives_items(one, reached, into) for one in step.plans]
            chosen = step.config.output_indexes
            gives = any(one for index, one in enumerate(given) if chosen is None or index in chosen)
        elif gives is None:
            gives = True
    return bool(gives)


def _chains(plan: Plan) -> Iterator[Plan]:
    """Yield this plan and all plans within it, each as a chain of its own steps."""
    if plan:
        yield plan
    for step in plan:
        for nested_plan in step.plans:
            yield from _chains(nested_plan)
