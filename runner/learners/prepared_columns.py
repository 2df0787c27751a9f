"""The part of a train batch that aggregators have made before it reaches a learner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.pipelines.piece_metrics import ConnectorMetrics, merged_metrics

_log = logging.getLogger(__name__)


class Prepared(NamedTuple):
    """What an aggregator has made of the rows of a sample.

    Attributes:
        columns: module id -> what `LearnerConnectorPipeline.begin` makes of its rows.
        reported: metric of the run -> what pieces have reported meanwhile.
    """

    columns: dict[str, Any]
    reported: ConnectorMetrics


def fetch_prepared(references: Sequence[Any]) -> Prepared | None:
    """Return the columns of all parts as new arrays, or None where there are none, or a node that had some is gone.

    Args:
        references: of Ray, to what was made of each part of the rows, in their order.

    Raises:
        RunFailure: a module has columns in some parts only.
    """
    if not references:
        return None
    import ray

    try:
        parts: list[Prepared] = ray.get(list(references))
    except ray.exceptions.ObjectLostError as lost:
        _log.warning("columns of aggregators are lost, the learner makes them itself: %s", type(lost).__name__)
        return None
    module_ids = dict.fromkeys(module_id for part in parts for module_id in part.columns)
    of_modules = {
        module_id: [part.columns[module_id] for part in parts if module_id in part.columns] for module_id in module_ids
    }
    columns = {module_id: _joined(of_parts, module_id) for module_id, of_parts in of_modules.items()}
    return Prepared(columns, merged_metrics(part.reported for part in parts))


def _joined(parts: Sequence[Any], place: str) -> Any:
    """Return the rows of all parts."""
    first = parts[0]
    if isinstance(first, dict):
        for part in parts:
            if part.keys() != first.keys():
                what = f"pieces in aggregators give some samples columns that others lack, in {place}"
                only = ", ".join(sorted(map(str, part.keys() ^ first.keys())))
                raise RunFailure(Problem(what, "connectors.learner", only, "the same columns for each sample"))
        return {name: _joined([part[name] for part in parts], f"{place}, {name}") for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(branches, place) for branches in zip(*parts, strict=True))
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return np.concatenate(parts)  # a copy: arrays of Ray's object store are read-only
