"""A plan as a tree of its operators, with the items that each gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.operators import OPERATORS, BranchesConfig, options_of
from runner.config.plans.item_checks import items_after
from runner.config.plans.steps import Items, Plan, Step, steps_of

_LAST = "StandardMetricsReporting"


def draw_plan(plan: Plan) -> str:
    """Draw a plan that has been checked, one line an operator; options that are at their defaults are left out."""
    whole = _completed(plan)
    lines = list(_draw(whole, "", items_after(whole)))
    width = max(len(left) for left, _ in lines)
    needs = ", ".join(dict.fromkeys(need for step in steps_of(plan) for need in step.needs))
    title = f"plan (works with {needs})" if needs else "plan"
    return "\n".join([title, *(f"{left:<{width}}  {right}".rstrip() for left, right in lines)])


def _completed(plan: Plan) -> Plan:
    """Add the operator that ends every plan by itself."""
    if plan[-1].name == _LAST:
        return plan
    schema = OPERATORS[_LAST]
    return (*plan, Step(_LAST, "", schema(), {}, schema.takes, schema.gives, schema.needs))


def _draw(plan: Plan, indent: str, given: Mapping[str, Items]) -> Iterator[tuple[str, str]]:
    for number, step in enumerate(plan, start=1):
        is_last = number == len(plan)
        yield f"{indent}{'└─ ' if is_last else '├─ '}{_head(step)}", _items(step, given)
        inner = indent + ("   " if is_last else "│  ")
        for index, branch in enumerate(step.plans):
            is_last_branch = index == len(step.plans) - 1
            yield f"{inner}{'└─ ' if is_last_branch else '├─ '}plan {index}{_is_given_on(step, index)}", ""
            yield from _draw(branch, inner + ("   " if is_last_branch else "│  "), given)


def _head(step: Step) -> str:
    options = step.arguments
    if step.config is not None:
        defaults = options_of(type(step.config)())
        options = {name: value for name, value in options_of(step.config).items() if value != defaults[name]}
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in options.items())
    return f"{step.name}({shown})" if shown else step.name


def _shown(value: Any) -> str:
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)


def _is_given_on(step: Step, index: int) -> str:
    assert isinstance(step.config, BranchesConfig)
    chosen = step.config.output_indexes
    return "" if chosen is None else (", given on" if index in chosen else ", not given on")


def _items(step: Step, given: Mapping[str, Items]) -> str:
    if step.is_function:
        return "makes the whole plan"
    items = given[step.key]
    return "" if items is None else f"-> {' or '.join(items)}"
