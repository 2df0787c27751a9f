"""The metrics of one pipeline: which of its pieces report, and what they have reported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from runner.config.errors import Problem
from runner.config.piece_reports import REPORTS_FORM, Reports, find_report_fault
from runner.config.user_code import place_of
from runner.pipelines.piece import Batch, ConnectorPiece
from runner.pipelines.piece_list import PieceList, PipelineError
from runner.pipelines.piece_metrics import ConnectorMetrics, PieceMetrics, ReducedValue

Call = Callable[..., Batch]


class PipelineMetrics:
    """What the pieces of a pipeline have reported since the last `take`; nested pipelines keep their own.

    Args:
        pieces: of the pipeline.
        pipeline: its name.

    Raises:
        PipelineError: a piece declares what cannot be, or two pieces declare one metric differently.
    """

    def __init__(self, pieces: Sequence[ConnectorPiece], pipeline: str) -> None:
        self._pipeline = pipeline
        self._reports = joined_reports(
            (piece for piece in pieces if not isinstance(piece, PieceList)), f"connectors.{pipeline}"
        )
        self._reduced: ConnectorMetrics = {}
        self.take()

    def call_of(self, piece: ConnectorPiece) -> Call:
        """Return the piece as it is called: with its `metrics` if it reports, else as it is."""
        if isinstance(piece, PieceList) or not (piece.reports or _asks_for_metrics(piece)):
            return piece
        where = f"connectors.{self._pipeline}"
        return partial(piece, metrics=PieceMetrics(type(piece).__name__, where, piece.reports, self._reduced))

    def take(self) -> ConnectorMetrics:
        """Return metric -> what was reported since the last call; all declared metrics, also without a value."""
        taken = dict(self._reduced)
        for name, (reduction, _) in self._reports.items():
            self._reduced[name] = ReducedValue(reduction)
        return taken


class DeclaresMetrics(Protocol):
    """A piece, a callback or an operator: an object that declares metrics."""

    @property
    def reports(self) -> Reports:
        """Metric -> its reduction and its meaning."""


def joined_reports(owners: Iterable[DeclaresMetrics], where: str) -> Reports:
    """Return the metrics that pieces of a pipeline, callbacks or operators declare together.

    Args:
        owners: in order.
        where: their place in the configuration, for messages.

    Raises:
        PipelineError: a declaration is malformed, or two declare one metric differently.
    """
    joined: dict[str, tuple[str, str]] = {}
    for owner in owners:
        fault = find_report_fault(owner.reports)
        for metric, report in {} if fault else owner.reports.items():
            if joined.setdefault(metric, report) != report:
                what = f"reports[{metric!r}] is {report}, but one before it declares {joined[metric]}"
                fault = Problem(what, allowed=REPORTS_FORM)
        if fault is not None:
            name, place = type(owner).__name__, place_of(type(owner))
            raise PipelineError([replace(fault, what=f"{name}.{fault.what}", where=f"{where}, {place}")])
    return joined


def _asks_for_metrics(piece: ConnectorPiece) -> bool:
    """Return whether the piece's call names the argument, so that it may report what it does not declare."""
    return "metrics" in inspect.signature(type(piece).__call__).parameters
