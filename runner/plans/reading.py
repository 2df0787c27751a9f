"""From the plan of a configuration to the flow of its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.metrics import check_operator_metrics
from runner.config.operators import BranchesConfig, DuplicateConfig, options_of
from runner.config.plans import KEY, Plan, PlanStep, read_plan
from runner.config.user_code import place_of
from runner.plans.flow import Flow, Operator
from runner.plans.operators.concurrency import Concurrently, Duplicate
from runner.plans.operators.reporting import StandardMetricsReporting
from runner.plans.resources import Resources
from runner.plans.run_metrics import Result


def make_plan(resources: Resources) -> Iterator[Result]:
    """Make the operators of `algorithm.plan`, and return the results of its iterations.

    Raises:
        ConfigError: an operator or function of one's own cannot be made, or gives no items; or no operator reports a
            metric that is named. A generator of one's own makes operators later; their metrics are not checked.
    """
    plan = read_plan(resources.config.algorithm.plan)
    flow = _flow_of_function(plan[0], resources) if plan[0].is_function else _flow_of(plan, None, resources)
    if resources.operators:
        check_operator_metrics(resources.config, resources.reported_metrics)
    ends = [isinstance(operator, StandardMetricsReporting) for operator in resources.operators.values()]
    return flow if any(ends) else StandardMetricsReporting(resources)(flow)


def _flow_of(plan: Plan, flow: Flow | None, resources: Resources) -> Flow:
    """Return the flow of a plan's last operator; `flow` comes into the plan."""
    for step in plan:
        flow = _after(step, flow, resources)
    assert flow is not None, "a plan has at least one operator"
    return flow


def _after(step: PlanStep, flow: Flow | None, resources: Resources) -> Flow:
    if isinstance(step.config, BranchesConfig):
        return _branches(step, step.config, flow, resources)
    operator = _made(step, resources)
    if flow is None:
        if isinstance(operator, Flow):
            return operator
        what = f"{step.name} takes items, and no operator before it gives any"
        raise ConfigError([Problem(what, step.key, step.name, "a plan that begins with ParallelRollouts, for example")])
    return operator(flow)


def _made(step: PlanStep, resources: Resources) -> Operator:
    if step.config is not None:
        operator: Operator = import_target(f"runner.plans.{step.name}", step.key)(resources, **options_of(step.config))
        return operator
    operator_class = import_target(step.name, step.key, Operator)
    try:
        operator = operator_class(resources, **with_callables(dict(step.arguments), step.key))
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"{step.name} cannot be made: {error}", step.key, str(step.arguments))]) from error
    if not hasattr(operator, "resources"):
        what, allowed = f"the __init__ of {step.name} does not call Operator's", "super().__init__(resources)"
        raise ConfigError([Problem(what, f"{step.key}, {place_of(operator_class, '__init__')}", allowed=allowed)])
    return operator


def _branches(step: PlanStep, config: BranchesConfig, flow: Flow | None, resources: Resources) -> Flow:
    incoming: list[Flow | None] = [None] * len(step.plans)
    if isinstance(config, DuplicateConfig):
        assert flow is not None
        incoming = [*Duplicate(flow, len(step.plans)).copies]
    flows = [_flow_of(plan, into, resources) for plan, into in zip(step.plans, incoming, strict=True)]
    return Concurrently(flows, **options_of(config))


def _flow_of_function(step: PlanStep, resources: Resources) -> Flow:
    """Call a function of one's own that makes a whole plan."""
    make: Any = import_target(step.name, KEY)
    try:
        flow = make(resources, **with_callables(dict(step.arguments), KEY))
    except TypeError as error:
        raise ConfigError([Problem(f"{step.name} cannot be called: {error}", KEY, str(step.arguments))]) from error
    if not isinstance(flow, Iterator):
        allowed = "an iterator of items: what an operator gives, or a generator"
        raise ConfigError([Problem(f"{step.name} returns no flow of items", KEY, type(flow).__name__, allowed)])
    return flow if isinstance(flow, Flow) else Flow(flow, resources)
