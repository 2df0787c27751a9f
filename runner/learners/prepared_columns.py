"""The part of a train batch that aggregators have made before it reaches a learner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

# Module id -> what `LearnerConnectorPipeline.begin` makes of its rows.
PreparedColumns = dict[str, Any]


def fetch_columns(references: Sequence[Any]) -> PreparedColumns | None:
    """Return the columns of all parts as new arrays, or None where there are none, or a node that had some is gone.

    Args:
        references: of Ray, to the columns of each part of the rows, in their order.
    """
    if not references:
        return None
    import ray

    try:
        return _joined(ray.get(list(references)))  # type: ignore[no-any-return]
    except ray.exceptions.ObjectLostError as lost:
        _log.warning("columns of aggregators are lost, the learner makes them itself: %s", type(lost).__name__)
        return None


def _joined(parts: Sequence[Any]) -> Any:
    """Return the rows of all parts; a module without rows in some of them has the rows of the others."""
    first = parts[0]
    if isinstance(first, dict):
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: _joined([part[name] for part in parts if name in part]) for name in names}
    if isinstance(first, tuple):
        return tuple(_joined(branches) for branches in zip(*parts, strict=True))
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return np.concatenate(parts)  # a copy: arrays of Ray's object store are read-only
