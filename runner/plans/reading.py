"""Build a plan from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.metrics import check_metric_names
from runner.config.operators import BranchesConfig, DuplicateConfig, options_of
from runner.config.plans.steps import KEY, PlanStep, read_plan
from runner.config.plans.steps import Plan as Steps
from runner.config.user_code import place_of
from runner.plans.context import PlanContext
from runner.plans.operator import IteratorSource, Node, Operator, Source
from runner.plans.operators.concurrency import Concurrently, Duplicate
from runner.plans.operators.reporting import StandardMetricsReporting
from runner.plans.plan import Plan


def make_plan(context: PlanContext) -> Plan:
    """Make the operators of `algorithm.plan`.

    Raises:
        ConfigError: a custom operator or function cannot be created, or does not return items; or `stop` or another key
            names a metric that no operator reports. Metrics of custom generators are not checked, since these make
            their operators later.
    """
    steps = read_plan(context.config.algorithm.plan)
    node = _node_of_function(steps[0], context) if steps[0].is_function else _node_of(steps, None, context)
    if context.operators:
        check_metric_names(context.config, context.reported_metrics, of_plan=True)
    ends = [isinstance(operator, StandardMetricsReporting) for operator in context.operators.values()]
    return Plan(node if any(ends) else StandardMetricsReporting(context)(node), context)


def _node_of(steps: Steps, node: Node | None, context: PlanContext) -> Node:
    """Return the node of the last step; `node` is the source of the first one."""
    for step in steps:
        node = _after(step, node, context)
    assert node is not None, "a plan has at least one operator"
    return node


def _after(step: PlanStep, node: Node | None, context: PlanContext) -> Node:
    if isinstance(step.config, BranchesConfig):
        return _branches(step, step.config, node, context)
    operator = _made(step, context)
    if node is None:
        if isinstance(operator, Source):
            return operator
        what = f"{step.name} takes items, but no operator comes before it"
        fix = "begin the plan with a source, for example ParallelRollouts"
        raise ConfigError([Problem(what, step.key, step.name, fix=fix)])
    return operator(node)


def _made(step: PlanStep, context: PlanContext) -> Operator:
    if step.config is not None:
        operator: Operator = import_target(f"runner.plans.{step.name}", step.key)(context, **options_of(step.config))
        return operator
    operator_class = import_target(step.name, step.key, Operator)
    try:
        operator = operator_class(context, **with_callables(dict(step.arguments), step.key))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem(f"{step.name} cannot be created: {error}", step.key, str(step.arguments))]
        ) from error
    if not hasattr(operator, "key"):
        what, fix = f"{step.name}.__init__ does not call Operator.__init__", "call super().__init__(context)"
        raise ConfigError([Problem(what, f"{step.key}, {place_of(operator_class, '__init__')}", fix=fix)])
    return operator


def _branches(step: PlanStep, config: BranchesConfig, node: Node | None, context: PlanContext) -> Node:
    incoming: list[Node | None] = [None] * len(step.plans)
    if isinstance(config, DuplicateConfig):
        assert node is not None
        incoming = [*Duplicate(node, len(step.plans)).copies]
    branches = [_node_of(steps, into, context) for steps, into in zip(step.plans, incoming, strict=True)]
    return Concurrently(branches, **options_of(config))


def _node_of_function(step: PlanStep, context: PlanContext) -> Node:
    make: Any = import_target(step.name, KEY)
    try:
        items = make(context, **with_callables(dict(step.arguments), KEY))
    except TypeError as error:
        raise ConfigError([Problem(f"{step.name} cannot be called: {error}", KEY, str(step.arguments))]) from error
    if not isinstance(items, Iterator):
        expected = "an iterator of items: the node that an operator returns, or a generator"
        raise ConfigError(
            [Problem(f"{step.name} does not return an iterator of items", KEY, type(items).__name__, expected)]
        )
    return items if isinstance(items, Node) else IteratorSource(context, items)
