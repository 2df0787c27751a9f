"""Column blocks from arrays that no env runner sampled, for example imagined rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import numpy as np

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, DEFAULT_MODULE_ID, OBS, REWARDS, Array, Column, ColumnBlock

NEW_OBS = "new_obs"
MADE = "made/"  # ids of rollouts begin with it
_NUMBERS = count()  # of rollouts; each is complete, so no id is needed after a resume


def make_block(
    columns: Mapping[str, Column],
    terminateds: Array,
    lengths: Array | None = None,
    module_id: str = DEFAULT_MODULE_ID,
) -> ColumnBlock:
    """Return a block of rollouts, or of single steps; see `Experiences.from_columns`.

    Raises:
        ValueError: a column is missing, or the numbers of rows do not match.
    """
    expected = (OBS, ACTIONS, REWARDS, *((NEW_OBS,) if lengths is None else ()))
    missing = [name for name in expected if name not in columns]
    if missing:
        hint = "" if lengths is not None else "; to pass rollouts of several steps, give lengths"
        raise ValueError(f"the columns {', '.join(missing)} are missing: got {', '.join(columns)}{hint}")
    ends = np.asarray(terminateds, np.bool_)
    steps = np.ones(len(ends), np.int64) if lengths is None else np.asarray(lengths, np.int64)
    if ends.shape != steps.shape or ends.ndim != 1 or (steps < 1).any():
        raise ValueError(
            "terminateds needs one value for each rollout, and each rollout one step or more: got terminateds of shape "
            f"{ends.shape}, lengths {steps.tolist()}"
        )
    made = {name: nested.map_leaves(np.asarray, column) for name, column in columns.items() if name != NEW_OBS}
    made[REWARDS] = made[REWARDS].astype(np.float32)
    num_rows = int(steps.sum())
    if lengths is None:
        new_obs = nested.map_leaves(np.asarray, columns[NEW_OBS])
        _check_rows({**made, NEW_OBS: new_obs}, num_rows, num_rows)
        made[OBS] = nested.map_leaves(_alternating, made[OBS], new_obs)
    else:
        _check_rows(made, num_rows, num_rows + len(steps))
    return ColumnBlock(
        columns=made,
        lengths=steps,
        is_terminated=ends,
        is_truncated=~ends,
        t_started=np.zeros(len(steps), np.int64),
        episode_ids=[f"{MADE}{next(_NUMBERS)}" for _ in steps],
        module_id=module_id,
    )


def _check_rows(columns: Mapping[str, Column], num_rows: int, num_obs: int) -> None:
    for name, column in columns.items():
        expected = num_obs if name == OBS else num_rows
        counts = {len(leaf) for leaf in nested.leaves(column)}
        if counts != {expected}:
            raise ValueError(f"column {name}: got {' and '.join(map(str, sorted(counts)))} rows, expected {expected}")


def _alternating(first: Array, second: Array) -> Array:
    """Return the rows (2 R, ...) first[0], second[0], first[1], second[1], and so on."""
    return np.stack((first, second), 1).reshape(-1, *first.shape[1:])
