"""Check that action masks allow at least one action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.modules.rl_module import RLModule


def check_masks(
    module: RLModule,
    to_module: Mapping[str, Any],
    acts: npt.NDArray[np.bool_],
    place: Callable[[int], str],
) -> None:
    """Check the masks in the batch of the next forward pass, for a module that reads one.

    Args:
        module: its configuration names the mask's key.
        to_module: the batch; `obs` is a dict.
        acts: (N,) rows whose actions will be taken; others are at the end of their episodes.
        place: returns the place of a row, for messages.

    Raises:
        RunFailure: a mask forbids every action.
    """
    key = module.config.action_mask_key
    if key is None:
        return
    masks = nested.map_leaves(lambda leaf: _rows(leaf, module.is_stateful)[acts], to_module["obs"][key])
    bad = module.action_dist.first_fully_forbidden(masks)
    if bad is not None:
        row = int(np.flatnonzero(acts)[bad])
        raise RunFailure(
            Problem(
                f"the action mask {key!r} forbids every action",
                where=place(row),
                got=str(nested.map_leaves(lambda leaf: leaf[bad].tolist(), masks)),
                expected="at least one entry that is not 0",
            )
        )


def _rows(leaf: Any, has_time_axis: bool) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = leaf.detach().numpy()
    return rows[:, 0] if has_time_axis else rows
