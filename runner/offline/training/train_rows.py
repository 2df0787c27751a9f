"""Rows of a train batch as flat columns, which is what Ray Data carries, and back.

A nested column is one flat column a leaf: `obs/position` for a dict's key, `obs/#0` for a tuple's place. What
connectors have reported for these rows goes with them, in a column `#<reduction>#<metric>` of bytes for each metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.pipelines.custom_metrics import ReducedMetrics, ReducedValue, merge_metrics

Rows = dict[str, npt.NDArray[Any]]
_METRIC = "#"


def flat_columns(columns: Mapping[str, Any]) -> Rows:
    """Return one array (B, ...) a leaf.

    Raises:
        ValueError: a key has a slash or begins with #, so that its name could not be read back.
    """
    flat: Rows = {}
    for name, column in columns.items():
        _flatten(name, column, flat)
    return flat


def _flatten(name: str, column: Any, flat: Rows) -> None:
    if isinstance(column, Mapping):
        for key, part in column.items():
            if "/" in key or key.startswith("#"):
                raise ValueError(f"the key {key!r} of column {name} has a slash or begins with #")
            _flatten(f"{name}/{key}", part, flat)
    elif isinstance(column, tuple):
        for place, part in enumerate(column):
            _flatten(f"{name}/#{place}", part, flat)
    else:
        flat[name] = np.ascontiguousarray(column)


def nested_columns(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Invert `flat_columns`, for leaves of any type."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *path, last = name.split("/")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return {name: _with_tuples(column) for name, column in tree.items()}


def _with_tuples(column: Any) -> Any:
    if not isinstance(column, dict):
        return column
    parts = {key: _with_tuples(part) for key, part in column.items()}
    if all(key.startswith("#") for key in parts):
        return tuple(parts[f"#{place}"] for place in range(len(parts)))
    return parts


def metric_columns(metrics: ReducedMetrics, num_rows: int) -> Rows:
    """Return reports as columns (B,): value, weight and kept values, float64 as bytes in the first row."""
    columns: Rows = {}
    for name, reduced in metrics.items():
        column = columns[f"{_METRIC}{reduced.reduction}{_METRIC}{name}"] = np.full(num_rows, b"", object)
        if num_rows:
            column[0] = np.array([reduced.value, reduced.weight, *reduced.values]).tobytes()
    return columns


def without_metrics(rows: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, npt.NDArray[Any]], ReducedMetrics]:
    """Return the other columns, and what was reported for these rows, in their order."""
    metrics: ReducedMetrics = {}
    others = {}
    for key, column in rows.items():
        if not key.startswith(_METRIC):
            others[key] = column
            continue
        _, reduction, name = key.split(_METRIC, 2)
        metrics[name] = ReducedValue(reduction)
        for value, weight, *values in (np.frombuffer(one).tolist() for one in column if one):
            merge_metrics(metrics, {name: ReducedValue(reduction, value, weight, values)})
    return others, metrics
