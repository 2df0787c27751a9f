"""Checks of all rewards and observations of a fragment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.env_runners.observation_checks import ObservationChecks
from runner.episodes.columns import REWARDS, Column, ColumnBlock
from runner.rows.finished_episodes import NONE_OUTSIDE, OutsideObservations


def check_fragment(block: ColumnBlock, raw_obs: Column, checks: ObservationChecks) -> OutsideObservations:
    """Check all rewards and observations of a fragment.

    Args:
        block: the fragment.
        raw_obs: its observations (R + E, ...) as the environment returned them.
        checks: checks of their space.

    Returns:
        The observations to be counted, each in the fragment in which it comes first.

    Raises:
        RunFailure: a reward is not finite, or an observation is invalid.
    """
    is_finite = np.isfinite(block.columns[REWARDS])
    if np.count_nonzero(is_finite) < len(is_finite):
        row = int(np.flatnonzero(~is_finite)[0])
        where = place_of_row(block, block.offsets[:-1], row)
        got = f"{block.columns[REWARDS][row]}"
        raise RunFailure(Problem("the environment's reward is not finite", where=where, got=got))
    misfit = checks.find_misfit(raw_obs)
    if misfit is None:
        return NONE_OUTSIDE
    problem = replace(misfit.problem, where=place_of_row(block, block.first_obs_rows, misfit.row))
    if misfit.is_error:
        raise RunFailure(problem)
    seen_before = block.first_obs_rows[block.t_started > 0]  # counted as the last observations of earlier fragments
    count = len(np.setdiff1d(misfit.rows, seen_before, assume_unique=True))
    return OutsideObservations(count, problem) if count else NONE_OUTSIDE


def place_of_row(block: ColumnBlock, first_rows: npt.NDArray[Any], row: int) -> str:
    """Return episode and time step of a row, if chunk e begins with row `first_rows[e]`."""
    chunk = int(np.searchsorted(first_rows, row, side="right")) - 1
    time_step = int(block.t_started[chunk]) + row - int(first_rows[chunk])
    return f"episode {block.episode_ids[chunk]}, time step {time_step}"
