"""Time of each connector of a pipeline per call."""

from __future__ import annotations

import statistics
import time
from typing import Any

from runner.pipelines.connector import Batch, Connector
from runner.pipelines.pipeline import ConnectorPipeline
from runner.pipelines.requirements import Requirements


class TimedConnector(Connector):
    """A connector that records the seconds of each call."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.seconds: list[float] = []
        self.requires = Requirements.of(connector)

    def __call__(self, **kwargs: Any) -> Batch:
        """Call the connector."""
        started = time.perf_counter()
        batch = self.connector(**kwargs)
        self.seconds.append(time.perf_counter() - started)
        return batch

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Call `complete_fragment` of the connector; not timed."""
        self.connector.complete_fragment(columns, rl_module)

    @property
    def microseconds(self) -> float:
        """The median time of a call, in us."""
        return statistics.median(self.seconds) * 1e6


def time_connectors(pipeline: ConnectorPipeline) -> list[TimedConnector]:
    """Start timing every connector of the pipeline; returns one entry for each, in order."""
    timed = [TimedConnector(connector) for connector in pipeline]
    pipeline.substitute_connectors(timed)
    return timed
