"""Display of a plan: as a text tree, and in notebooks as boxes with arrows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.config.plans.drawing import completed, draw_plan, is_returned, items_text, shown_options
from runner.config.plans.flow import check_items
from runner.config.plans.steps import Items, Plan, PlanStep
from runner.drawings import Box, BoxStack, Line, draw


@dataclass(frozen=True)
class ShownPlan:
    """The execution plan of an algorithm.

    Attributes:
        steps: its operators, in order.
    """

    steps: Plan

    def __str__(self) -> str:
        return draw_plan(self.steps)

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        """Return an SVG image for notebooks: operators with their options and their context."""
        full = completed(self.steps)
        return draw(_flow(full, check_items(full)[0]), str(self))


def _flow(plan: Plan, given: Mapping[str, Items], title: str = "", has_end: bool = True) -> BoxStack:
    boxes = [_box(step, given) for step in plan]
    gives: list[str | None] = [items_text(step, given) for step in plan]
    if not has_end:
        gives[-1] = None
    return BoxStack(boxes, gives, title)


def _box(step: PlanStep, given: Mapping[str, Items]) -> Box:
    options = [Line(name, text, is_default) for name, text, is_default in shown_options(step)]
    needs = [Line("works with", ", ".join(step.needs))] if step.needs else []
    flows = []
    for index, plan in enumerate(step.plans):
        chosen = is_returned(step, index)
        text = {None: "", True: ", selected", False: ", not selected"}[chosen]
        flows.append(_flow(plan, given, f"plan {index}{text}", chosen is not False))
    return Box(step.name, [*options, *needs], flows)
