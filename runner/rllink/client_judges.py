"""Checks clients by the batches that they send, and removes the steps of quarantined clients."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.config.metrics import QUARANTINED
from runner.config.schemas import ExperimentConfig
from runner.episodes import nested
from runner.episodes.columns import REWARDS, ColumnBlock, lookback_rows, row_ranges
from runner.episodes.rollout_parts import take_chunks
from runner.rllink.judgement import ClientJudge, RewardBound
from runner.rllink.message_queue import Batch
from runner.rllink.received_episodes import OpenEpisode, ReceivedChunks, SampledChunks, count_env_steps
from runner.state import DeclaredState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Chunk:
    """One chunk of a batch.

    Attributes:
        num_steps, return_, largest: number of steps, sum of rewards, and largest absolute reward.
        is_done: whether the episode ends with this chunk.
    """

    episode: OpenEpisode
    num_steps: int
    return_: float
    largest: float
    is_done: bool


class ClientJudges(DeclaredState):
    """Learns about clients from their batches, and quarantines outliers.

    Args:
        config: configuration of the run.

    Attributes:
        bound: largest absolute reward that is accepted.
    """

    state = ("bound", "_judge")

    def __init__(self, config: ExperimentConfig) -> None:
        self.bound = RewardBound.make(config.rllink.max_abs_reward, _reward_threshold(config.env.env))
        self._judge = ClientJudge(config.rllink.trusted_clients)

    @property
    def quarantined(self) -> Collection[str]:
        """Return the names of the quarantined clients."""
        return self._judge.quarantined

    def judge(self, batch: Batch) -> list[str]:
        """Check the clients by the episodes that end in a batch; return the newly quarantined clients."""
        totals: dict[int, float] = {}
        returns: list[tuple[str, float]] = []
        for chunk in _chunks_of(batch):
            episode = chunk.episode
            total = totals[id(episode)] = totals.get(id(episode), episode.return_) + chunk.return_
            is_end = chunk.is_done and episode.is_complete
            if is_end:
                returns.append((episode.client, total))
            self.bound.note(episode.client, chunk.largest, int(is_end))
        found = self._judge.judge(returns)
        for name in found:
            _log.warning(
                "RLlink: client %s is quarantined, because its returns differ too much from other clients. It stays "
                "connected, and its episodes are not used. To trust it, resume with 'rllink.trusted_clients=[%s]'",
                name,
                name,
            )
        return found

    def without_quarantined(self, batch: Batch) -> Batch:
        """Return the batch without the steps of quarantined clients."""
        names = self.quarantined
        left_out = [chunk for chunk in _chunks_of(batch) if chunk.episode.client in names] if names else []
        if not left_out:
            return batch
        received = [part for part in batch.received if part.episodes[0].client not in names]
        served = [kept for one in batch.served if (kept := _without(one, names)) is not None]
        in_served = {id(episode) for one in batch.served for episode in one.episodes}
        steps = [(chunk.episode, chunk.num_steps) for chunk in left_out]
        num_received = count_env_steps(one for one in steps if id(one[0]) not in in_served)
        return replace(
            batch,
            received=received,
            served=served,
            num_env_steps=batch.num_env_steps - num_received,
            num_left_out=batch.num_left_out + count_env_steps(steps),
        )

    def counts(self, connected: Collection[str]) -> dict[str, int]:
        """Return the metrics of clients.

        Args:
            connected: names of the clients that are connected.
        """
        counted = {
            "rllink/num_clients_with_episodes": len(self._judge.recent_clients.intersection(connected)),
            "rllink/num_clients_quarantined": len(self._judge.quarantined.intersection(connected)),
        }
        return counted | {f"{QUARANTINED}{name}": 1 for name in sorted(self.quarantined)}


def _reward_threshold(env: str | None) -> float | None:
    """Return the return at which gymnasium considers an environment solved, or None if it is not known."""
    import gymnasium

    spec = None if env is None else gymnasium.registry.get(env.rpartition(":")[2])
    return None if spec is None else spec.reward_threshold


def _chunks_of(batch: Batch) -> Iterator[_Chunk]:
    for part in batch.received:
        yield from _chunks(part, part.episodes)
    for one in batch.served:
        yield from _chunks(one.block, one.episodes)


def _chunks(rows: ReceivedChunks | ColumnBlock, episodes: Sequence[OpenEpisode]) -> Iterator[_Chunk]:
    rewards = rows.columns[REWARDS].astype(np.float64)
    if len(episodes) == 1:  # often, and then faster
        is_done = bool(rows.is_terminated[0] or rows.is_truncated[0])
        yield _Chunk(episodes[0], len(rewards), float(rewards.sum()), float(np.abs(rewards).max()), is_done)
        return
    starts = np.cumsum(rows.lengths) - rows.lengths
    columns = (
        rows.lengths,
        np.add.reduceat(rewards, starts),
        np.maximum.reduceat(np.abs(rewards), starts),
        rows.is_terminated | rows.is_truncated,
    )
    for episode, *values in zip(episodes, *(column.tolist() for column in columns), strict=True):
        yield _Chunk(episode, *values)


def _without(sampled: SampledChunks, names: Collection[str]) -> SampledChunks | None:
    """Return the chunks of other clients, or None if there are none."""
    kept = [chunk for chunk, episode in enumerate(sampled.episodes) if episode.client not in names]
    if len(kept) == len(sampled.episodes) or not kept:
        return sampled if kept else None
    block = sampled.block
    obs_rows = row_ranges(block.first_obs_rows[kept], block.lengths[kept] + 1)
    chosen = take_chunks(block, kept)
    if (past := block.lookback) is not None:
        before = {n: past.columns_before(chunk) for n, chunk in enumerate(kept) if past.num_before[chunk]}
        chosen = replace(chosen, lookback=lookback_rows(before, len(kept)))
    return SampledChunks(chosen, [sampled.episodes[chunk] for chunk in kept], nested.take(sampled.raw_obs, obs_rows))
