"""Running episodes for tests of single connectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from runner.episodes import nested
from runner.rows.lock_step_rows import LockStepRows


def running(obs: Any, num_lookback: int = 0) -> LockStepRows:
    """Episodes that have just begun with these observations (N, ...)."""
    num_envs = nested.row_count(obs)
    blank = nested.map_leaves(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), obs)
    rows = LockStepRows(num_envs, blank, np.int64(0), "x", num_lookback)
    rows.add_reset(obs, {})
    return rows
