"""Checks of the `callbacks` list, and metrics of callbacks, read from their source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.declared_metrics import declared_reports, meaning_of
from runner.config.errors import Problem, Where, show_value
from runner.config.schemas import ExperimentConfig
from runner.config.source_modules import UnknowableError
from runner.config.targets import CALLBACKS, find_target_block_problems

PREFIX, EVALUATION = "callbacks/", "evaluation/"


def callback_metric(name: str) -> str:
    """Return the name of a callback's metric in the run."""
    return PREFIX + name


def with_evaluation(names: Mapping[str, str], config: ExperimentConfig) -> dict[str, str]:
    """Return metric -> meaning, with copies under `evaluation/` if there are evaluations."""
    if config.evaluation.evaluation_interval is None:
        return dict(names)
    return dict(names) | {f"{EVALUATION}{name}": f"{meaning}, in evaluations" for name, meaning in names.items()}


def find_callback_problems(callbacks: list[dict[str, Any]], where: Where) -> Iterator[Problem]:
    """Yield problems of the paths and arguments of callbacks."""
    for index, block in enumerate(callbacks):
        key = f"callbacks.{index}"
        if not isinstance(block.get("_target_"), str):
            expected = "{_target_: package.module.Callback, argument: value, ...}"
            yield Problem(f"{key} must be a callback with a _target_", where(key), show_value(block), expected)
        else:
            yield from find_target_block_problems(key, block, where, CALLBACKS)


def callback_metrics(config: ExperimentConfig) -> dict[str, str]:
    """Return metric of the run -> meaning, without callbacks whose source cannot be analysed."""
    names: dict[str, str] = {}
    for block in config.callbacks:
        try:
            reports = declared_reports(str(block.get("_target_")), CALLBACKS.bases[0])
        except UnknowableError:
            continue
        names |= {callback_metric(name): meaning_of(reports, name) for name in reports}
    return with_evaluation(names, config)


def may_be_of_callback(name: str, config: ExperimentConfig) -> bool:
    """Return whether a metric may belong to a callback whose source cannot be analysed."""
    evaluated = EVALUATION if config.evaluation.evaluation_interval is not None else ""
    if not name.removeprefix(evaluated).startswith(PREFIX):
        return False
    for block in config.callbacks:
        try:
            declared_reports(str(block.get("_target_")), CALLBACKS.bases[0])
        except UnknowableError:
            return True
    return False
