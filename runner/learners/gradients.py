"""Gradients as records, which can be sent between processes, averaged and applied.

Dimension letters: P learned parameters, V env steps with a loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.pipelines.custom_metrics import ReducedMetrics, merged_metrics, metrics_from_state, metrics_to_state

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ModuleGradient:
    """The gradient of a loss for one module, before clipping.

    Attributes:
        vector: (P,) float32, the mean over its rows.
        metrics: metrics of the loss, averaged over its rows.
        rows: name -> (V, ...), values that the loss reports per row, in the order of the batch's rows.
        num_rows: V, the env steps that the mean is over; if it is 0, `vector` is 0.
    """

    vector: npt.NDArray[np.float32]
    metrics: Mapping[str, float]
    rows: Mapping[str, Array]
    num_rows: int


@dataclass(frozen=True)
class GroupGradients:
    """The gradients of several modules; can be pickled.

    Attributes:
        modules: module id -> its gradient; only for modules with rows.
        connector_s: seconds that learner pipelines took.
        connector_metrics: metric of the run -> values that connectors of these pipelines reported.
    """

    modules: Mapping[str, ModuleGradient] = field(default_factory=dict)
    connector_s: float = 0.0
    connector_metrics: ReducedMetrics = field(default_factory=dict)

    def get_state(self) -> dict[str, Any]:
        """Return the gradients as nested dicts of arrays and plain values; without `connector_s`."""
        modules = {module_id: asdict(one) for module_id, one in self.modules.items()}
        reported = metrics_to_state(self.connector_metrics)
        return {"modules": modules, "connector_metrics": reported}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GroupGradients:
        """Invert `get_state`."""
        modules = {module_id: ModuleGradient(**one) for module_id, one in state["modules"].items()}
        return cls(modules, connector_metrics=metrics_from_state(state["connector_metrics"]))


def average_gradients(parts: Sequence[GroupGradients]) -> GroupGradients:
    """Return the mean over all rows of several gradients: each is weighted by its number of rows.

    `ModuleGradient.rows` are concatenated in the order of `parts`; `connector_s` is the sum. Metrics of connectors are
    left out, because they were already counted with the parts.

    Raises:
        ValueError: there are no gradients to average.
    """
    if not parts:
        raise ValueError("no gradients to average")
    module_ids = dict.fromkeys(module_id for part in parts for module_id in part.modules)
    modules = {id_: _averaged([part.modules[id_] for part in parts if id_ in part.modules]) for id_ in module_ids}
    return GroupGradients(modules, sum(part.connector_s for part in parts))


def gradients_of_peers(parts: Sequence[GroupGradients]) -> GroupGradients:
    """Combine the results of synchronous learners: the same gradient, with the rows of all learners."""
    modules = {}
    for module_id, gradient in parts[0].modules.items():
        of_module = [part.modules[module_id] for part in parts]
        rows = {name: np.concatenate([one.rows[name] for one in of_module]) for name in gradient.rows}
        modules[module_id] = replace(gradient, rows=rows, num_rows=sum(one.num_rows for one in of_module))
    reported = merged_metrics(part.connector_metrics for part in parts)
    return GroupGradients(modules, max(part.connector_s for part in parts), reported)


def _averaged(parts: Sequence[ModuleGradient]) -> ModuleGradient:
    if len(parts) == 1:
        return parts[0]
    num_rows = sum(part.num_rows for part in parts)
    shares = np.array([part.num_rows / num_rows for part in parts], np.float32)
    vector = shares @ np.stack([part.vector for part in parts])
    metrics = weighted_means([(part.metrics, part.num_rows) for part in parts])
    names = dict.fromkeys(name for part in parts for name in part.rows)
    rows = {name: np.concatenate([part.rows[name] for part in parts]) for name in names}
    return ModuleGradient(vector, metrics, rows, num_rows)


def weighted_means(reported: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Return the mean of each metric over the (metrics, weight) pairs that contain it."""
    means: dict[str, float] = {}
    for name in dict.fromkeys(name for metrics, _ in reported for name in metrics):
        having = [(metrics[name], weight) for metrics, weight in reported if name in metrics]
        means[name] = sum(value * weight for value, weight in having) / sum(weight for _, weight in having)
    return means
