"""Add the episodes of its batch to the failure of a loss."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from runner.env_runners.fragment_checks import place_of_row
from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.learners.loss_failure import LossNotFinite, with_advice, with_batch

# Ids of episodes from env runners and from RLlink's servers.
_OF_ENV_RUNNER = re.compile(r"\d+-env_runner-(?P<runner>\d+)(\.(?P<generation>\d+))?-(?P<env>\d+)-\d+(-.*)?", re.DOTALL)
_OF_CLIENT = re.compile(r"(?P<client>\d+-[0-9a-f]{6}-\d+)-\d+(-.*)?", re.DOTALL)


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


def runner_of(episode_id: str) -> tuple[int, int] | None:
    """Return index and generation of the env runner of an episode, or None if its id does not contain them."""
    match = _OF_ENV_RUNNER.fullmatch(episode_id)
    return None if match is None else (int(match["runner"]), int(match["generation"] or 0))


def source_of(episode_id: str) -> str | None:
    """Return the runner and sub-environment, or the client, of an episode; None if its id does not contain them."""
    if match := _OF_ENV_RUNNER.fullmatch(episode_id):
        return f"env runner {match['runner']}, sub-environment {match['env']}"
    match = _OF_CLIENT.fullmatch(episode_id)
    return f"client {match['client']}" if match else None
