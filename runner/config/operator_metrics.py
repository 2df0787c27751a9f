"""Metrics of a run that operators of its plan report, as far as the configuration and the source of operators tell."""

from __future__ import annotations

from collections.abc import Container, Iterator

from runner.config.declared_metrics import Reports, declared_reports, meaning_of
from runner.config.plans import PlanStep, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.config.source_definitions import find_ancestors
from runner.config.source_modules import UnknowableError
from runner.config.targets import OPERATOR

PREFIX = "plan/"


def operator_metric(operator: str, name: str) -> str:
    """Return the name that a metric has in the run; of the second operator of a class, `Name#2`, it is `Name_2/...`."""
    return f"{PREFIX}{operator.replace('#', '_')}/{name}"


def free_name(class_name: str, taken: Container[str]) -> str:
    """Return the name of an operator beside others: its class, and `Class#2` for the second operator of a class."""
    name, number = class_name, 1
    while name in taken:
        number += 1
        name = f"{class_name}#{number}"
    return name


def operator_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Return metric of the run -> meaning; operators whose source does not tell are left out."""
    return {
        operator_metric(operator, name): meaning_of(reports, name)
        for operator, reports in _declared(config)
        if reports is not None
        for name in reports
    }


def may_be_of_operator(name: str, config: ExperimentConfig) -> bool:
    """Return whether a metric may be one of an operator whose source does not tell, or that a function makes."""
    if not name.startswith(PREFIX):
        return False
    if read_plan(config.algorithm.plan)[0].is_function:
        return True
    unknown = [operator_metric(operator, "") for operator, reports in _declared(config) if reports is None]
    return name.startswith(tuple(unknown))


def _declared(config: ExperimentConfig) -> Iterator[tuple[str, Reports | None]]:
    """Yield the name of each operator in the plan, and what it reports; None if its source does not tell."""
    names: list[str] = []
    for step in steps_of(read_plan(config.algorithm.plan)):
        names.append(free_name(_class_name(step), names))
        try:
            yield names[-1], declared_reports(step.name, OPERATOR) if step.config is None else {}
        except UnknowableError:
            yield names[-1], None


def _class_name(step: PlanStep) -> str:
    """Return the name of the class that a step names, also by another name under which it is imported."""
    return next(iter(find_ancestors(step.name)), step.name).rpartition(".")[2]
