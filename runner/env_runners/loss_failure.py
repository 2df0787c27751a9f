"""The failure of a loss, told with the episodes that its batch was made of."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from runner.env_runners.fragment_checks import place_of_row
from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.learners.loss_failure import LossNotFinite, with_advice, with_batch

# Ids of episodes as env runners and RLlink's servers make them.
_OF_ENV_RUNNER = re.compile(r"\d+-env_runner-(?P<runner>\d+)(\.(?P<generation>\d+))?-(?P<env>\d+)-\d+(-.*)?", re.DOTALL)
_OF_CLIENT = re.compile(r"(?P<client>\d+-[0-9a-f]{6}-\d+)-\d+(-.*)?", re.DOTALL)


def with_rollout(failure: LossNotFinite, rollout: Rollout) -> LossNotFinite:
    """Add to a failure the column, episode and source of wrong values in a rollout, and how to go on without them."""
    for block in rollout.blocks.values():
        failure = with_batch(failure, block.columns, partial(_place, block))
    if rollout.skip_journal_records:
        names = ",".join(rollout.skip_journal_records)
        advice = f"`resume` with rllink.skip_journal_records=[{names}] goes on without the messages of this batch"
        failure = with_advice(failure, advice)
    return failure


def _place(block: ColumnBlock, name: str, row: int) -> str:
    first_rows = block.first_obs_rows if name == OBS else block.offsets[:-1]
    source = source_of(block.episode_ids[int(np.searchsorted(first_rows, row, side="right")) - 1])
    return ", ".join(filter(None, (source, place_of_row(block, first_rows, row))))


def runner_of(episode_id: str) -> tuple[int, int] | None:
    """Return index and generation of the env runner of an episode; None where its id does not say."""
    match = _OF_ENV_RUNNER.fullmatch(episode_id)
    return None if match is None else (int(match["runner"]), int(match["generation"] or 0))


def source_of(episode_id: str) -> str | None:
    """Return the runner and sub-environment, or the client, of an episode; None where its id does not say."""
    if match := _OF_ENV_RUNNER.fullmatch(episode_id):
        return f"env runner {match['runner']}, sub-environment {match['env']}"
    match = _OF_CLIENT.fullmatch(episode_id)
    return f"client {match['client']}" if match else None
