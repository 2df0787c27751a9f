"""Metrics of one pipeline: which connectors report, and the values they have reported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from runner.config.declared_metrics import REPORTS_FORM, Reports, find_report_fault
from runner.config.errors import Problem
from runner.config.user_code import place_of
from runner.pipelines.connector import Batch, Connector
from runner.pipelines.connector_list import ConnectorList, PipelineError
from runner.pipelines.custom_metrics import CustomMetrics, ReducedMetrics, ReducedValue

Call = Callable[..., Batch]


class PipelineMetrics:
    """The values that connectors of a pipeline have reported since the last `take`; nested pipelines keep theirs.

    Args:
        connectors: connectors of the pipeline.
        pipeline: name of the pipeline.

    Raises:
        PipelineError: a declaration is invalid, or two connectors declare one metric differently.
    """

    def __init__(self, connectors: Sequence[Connector], pipeline: str) -> None:
        self._pipeline = pipeline
        self._reports = joined_reports(
            (connector for connector in connectors if not isinstance(connector, ConnectorList)),
            f"connectors.{pipeline}",
        )
        self._reduced: ReducedMetrics = {}
        self.take()

    def call_of(self, connector: Connector) -> Call:
        """Return the callable of the connector: bound to its `metrics` if it reports, otherwise the connector."""
        if isinstance(connector, ConnectorList) or not (connector.reports or _asks_for_metrics(connector)):
            return connector
        where = f"connectors.{self._pipeline}"
        return partial(
            connector, metrics=CustomMetrics(type(connector).__name__, where, connector.reports, self._reduced)
        )

    def take(self) -> ReducedMetrics:
        """Return metric -> values reported since the last call, for all declared metrics, also those without values."""
        taken = dict(self._reduced)
        for name, (reduction, _) in self._reports.items():
            self._reduced[name] = ReducedValue(reduction)
        return taken


class DeclaresMetrics(Protocol):
    """An object that declares metrics: a connector, a callback or an operator."""

    @property
    def reports(self) -> Reports:
        """Metric -> its reduction and its meaning."""


def joined_reports(owners: Iterable[DeclaresMetrics], where: str) -> Reports:
    """Return the metrics that connectors of a pipeline, callbacks or operators declare together.

    Args:
        owners: objects that declare metrics, in order.
        where: their location in the configuration, for messages.

    Raises:
        PipelineError: a declaration is malformed, or two objects declare one metric differently.
    """
    joined: dict[str, tuple[str, str]] = {}
    for owner in owners:
        fault = find_report_fault(owner.reports)
        for metric, report in {} if fault else owner.reports.items():
            if joined.setdefault(metric, report) != report:
                what = f"reports[{metric!r}] is {report}, but an earlier declaration is {joined[metric]}"
                fault = Problem(what, expected=REPORTS_FORM)
        if fault is not None:
            name, place = type(owner).__name__, place_of(type(owner))
            raise PipelineError([replace(fault, what=f"{name}.{fault.what}", where=f"{where}, {place}")])
    return joined


def _asks_for_metrics(connector: Connector) -> bool:
    """Return whether the connector's call has the argument `metrics`; it may then report undeclared metrics."""
    return "metrics" in inspect.signature(type(connector).__call__).parameters
