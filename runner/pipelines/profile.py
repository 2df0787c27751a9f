"""What each connector of a pipeline costs per call."""

from __future__ import annotations

import statistics
import time
from typing import Any

from runner.pipelines.connector import Batch, Connector
from runner.pipelines.pipeline import ConnectorPipeline
from runner.pipelines.requirements import Requirements


class TimedConnector(Connector):
    """A connector that keeps the seconds of each of its calls."""

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
        """Let the connector add its columns; not timed."""
        self.connector.complete_fragment(columns, rl_module)

    @property
    def microseconds(self) -> float:
        """The median call, in us."""
        return statistics.median(self.seconds) * 1e6


def time_connectors(pipeline: ConnectorPipeline) -> list[TimedConnector]:
    """Time every connector of the pipeline from now on; the list has one entry for each, in order."""
    timed = [TimedConnector(connector) for connector in pipeline]
    pipeline.substitute_connectors(timed)
    return timed
