"""Operators that say what happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runner.config.operators import DebugPrintConfig, StandardMetricsReportingConfig
from runner.plans.flow import Operator
from runner.plans.items import Item
from runner.plans.run_metrics import Result


class DebugPrint(Operator):
    """Print each item, and give it on."""

    options: DebugPrintConfig

    def transform(self, item: Any) -> Iterator[Any]:
        """Print the item."""
        print(self.options.prefix, item, flush=True)
        yield item


class StandardMetricsReporting(Operator):
    """End an iteration with an item, once enough env steps were sampled in it, and give its metrics."""

    options: StandardMetricsReportingConfig

    def transform(self, item: Any) -> Iterator[Result]:
        """Give the metrics of the iteration if it ends."""
        metrics, least = self.resources.metrics, self.options.min_env_steps
        if least is None:
            least = self.resources.config.algorithm.min_sample_timesteps_per_iteration
        ends = item.ends_iteration if isinstance(item, Item) else True
        if ends and metrics.num_env_steps_sampled >= least:
            yield metrics.end_iteration(self.resources.end_iteration())
