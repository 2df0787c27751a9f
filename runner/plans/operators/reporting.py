"""Operators that print or report."""

from __future__ import annotations

from typing import Any

from runner.config.operators import DebugPrintConfig, StandardMetricsReportingConfig
from runner.plans.items import Item, IterationEnd
from runner.plans.operator import Operator


class DebugPrint(Operator):
    """Print each item, and pass it through."""

    options: DebugPrintConfig

    def transform(self, item: Any) -> list[Any]:
        """Print the item."""
        print(self.options.prefix, item, flush=True)
        return [item]


class StandardMetricsReporting(Operator):
    """End an iteration with an item once it has enough sampled env steps."""

    options: StandardMetricsReportingConfig

    def transform(self, item: Any) -> list[IterationEnd]:
        """Return the end of the iteration if it ends with this item."""
        metrics, least = self.context.metrics, self.options.min_env_steps
        if least is None:
            least = self.context.config.algorithm.min_sample_timesteps_per_iteration
        ends = item.ends_iteration if isinstance(item, Item) else True
        return [IterationEnd()] if ends and metrics.num_env_steps_sampled >= least else []
