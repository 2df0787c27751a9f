"""Add the episodes of its batch to the failure of a loss."""

from __future__ import annotations

from functools import partial

import numpy as np

from runner.env_runners.episode_ids import source_of
from runner.env_runners.fragment_checks import place_of_row
from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.learners.loss_failure import LossNotFinite, with_advice, with_batch


def with_rollout(failure: LossNotFinite, rollout: Rollout) -> LossNotFinite:
    """Add to a failure the column, episode and source of wrong values in a rollout, and how to avoid them."""
    for block in rollout.blocks.values():
        failure = with_batch(failure, block.columns, partial(_place, block))
    if rollout.skip_journal_records:
        names = ",".join(rollout.skip_journal_records)
        advice = f"`resume` with rllink.skip_journal_records=[{names}] continues without the messages of this batch"
        failure = with_advice(failure, advice)
    return failure


def _place(block: ColumnBlock, name: str, row: int) -> str:
    first_rows = block.first_obs_rows if name == OBS else block.offsets[:-1]
    source = source_of(block.episode_ids[int(np.searchsorted(first_rows, row, side="right")) - 1])
    return ", ".join(filter(None, (source, place_of_row(block, first_rows, row))))
