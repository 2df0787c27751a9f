"""Draw a plan as a tree of its operators, with their items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.operators import OPERATORS, BranchesConfig, options_of
from runner.config.plans.flow import check_items
from runner.config.plans.steps import Items, Plan, PlanStep, steps_of

_LAST = "StandardMetricsReporting"


def draw_plan(plan: Plan) -> str:
    """Draw a checked plan with one line per operator and the options that differ from their defaults."""
    full = completed(plan)
    lines = list(_draw(full, "", check_items(full)[0]))
    width = max(len(left) for left, _ in lines)
    needs = ", ".join(dict.fromkeys(need for step in steps_of(plan) for need in step.needs))
    title = f"plan (uses {needs})" if needs else "plan"
    return "\n".join([title, *(f"{left:<{width}}  {right}".rstrip() for left, right in lines)])


def completed(plan: Plan) -> Plan:
    """Return a plan with the operator that runner appends to every plan."""
    if plan[-1].name == _LAST:
        return plan
    schema = OPERATORS[_LAST]
    return (*plan, PlanStep(_LAST, "", schema(), {}, schema.takes, schema.gives, schema.needs))


def _draw(plan: Plan, indent: str, given: Mapping[str, Items]) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(plan, start=1):
        is_last = number == len(plan)
        yield f"{indent}{'└─ ' if is_last else '├─ '}{_head(step)}", _items(step, given)
        inner = indent + ("   " if is_last else "│  ")
        for index, branch in enumerate(step.plans):
            is_last_branch = index == len(step.plans) - 1
            selected = {None: "", True: ", selected", False: ", not selected"}[is_returned(step, index)]
            yield f"{inner}{'└─ ' if is_last_branch else '├─ '}plan {index}{selected}", ""
            yield from _draw(branch, inner + ("   " if is_last_branch else "│  "), given)


def _head(step: PlanStep) -> str:
    shown = ", ".join(f"{name}={text}" for name, text, is_default in shown_options(step) if not is_default)
    return f"{step.name}({shown})" if shown else step.name


def shown_options(step: PlanStep) -> list[tuple[str, str, bool]]:
    """Return name and value of each option except plans, and whether the value is the default."""
    if step.config is None:
        return [(name, _shown(value), False) for name, value in step.arguments.items()]
    defaults = options_of(type(step.config)())
    return [(name, _shown(value), value == defaults[name]) for name, value in options_of(step.config).items()]


def _shown(value: Any) -> str:
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def is_returned(step: PlanStep, index: int) -> bool | None:
    """Return whether the items of one of several branches are returned; None: the items of all branches are."""
    assert isinstance(step.config, BranchesConfig)
    chosen = step.config.output_indexes
    return None if chosen is None else index in chosen


def items_text(step: PlanStep, given: Mapping[str, Items]) -> str:
    """Return the types of a step's items; empty if unknown."""
    items = None if step.is_function else given[step.key]
    return "" if items is None else " or ".join(items)


def _items(step: PlanStep, given: Mapping[str, Items]) -> str:
    if step.is_function:
        return "makes the complete plan"
    text = items_text(step, given)
    return f"-> {text}" if text else ""
