"""Connectors that change the rewards for learning. The episodes keep the raw rewards, which metrics count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.episodes.columns import ColumnBlock
from runner.pipelines.advantages import suffix_sums
from runner.pipelines.connector import LOSS_MASK, REWARDS, Batch
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.mean_std_filter import Moments
from runner.pipelines.requirements import Requirements

_SMALLEST_VARIANCE = 1e-16
# Unfinished episodes that are never continued (their runner crashed) are dropped after this number of newer ones.
_MAX_OPEN_EPISODES = 65536


class _RewardConnector(LearnerConnector):
    """Base class: calls `change` with the rewards, anywhere between AddColumns... and the advantages."""

    requires = Requirements(reads=(REWARDS,), writes=(REWARDS,))

    def __call__(
        self, *, batch: Batch, episodes: ColumnBlock, metrics: CustomMetrics | None = None, **kwargs: Any
    ) -> Batch:
        """Change column `rewards` (rows,), an array or tensor, also if grouped by module; never in place."""
        columns = batch if REWARDS in batch else batch.get(episodes.module_id, {})
        rewards = columns.get(REWARDS)
        if not isinstance(rewards, (np.ndarray, torch.Tensor)):
            raise TypeError(
                f"{type(self).__name__} needs column 'rewards' as an array or tensor, got {type(rewards).__name__}; "
                "place it after AddColumnsFromEpisodesToTrainBatch, and after BatchIndividualItems if a custom "
                "connector adds rewards item by item"
            )
        columns[REWARDS] = self.change(rewards, columns.get(LOSS_MASK), episodes, metrics)
        return batch

    def change(self, rewards: Any, mask: Any, episodes: ColumnBlock, metrics: CustomMetrics | None) -> Any:
        """Return new rewards (rows,) of the same type; `mask` is false at bootstrap rows, None if there are none."""
        raise NotImplementedError


class ClipRewards(_RewardConnector):
    """Clips `rewards` (rows,) to [low, high]. A learner connector; place it before `GeneralAdvantageEstimation`.

    Args:
        low, high: the bounds.
        sign: replace rewards by their signs first.
    """

    reports = {  # noqa: RUF012
        "rewards_clipped_fraction": ("mean", "fraction of the rewards of env steps outside the bounds"),
    }

    def __init__(self, low: float = -1.0, high: float = 1.0, sign: bool = False) -> None:
        if not low <= high:
            raise ValueError(f"ClipRewards: low must not be above high, got low={low}, high={high}")
        self._low = low
        self._high = high
        self._sign = sign

    def change(self, rewards: Any, mask: Any, episodes: ColumnBlock, metrics: CustomMetrics | None) -> Any:
        """Return clipped rewards; 0 at bootstrap rows."""
        if self._sign:
            rewards = torch.sign(rewards) if isinstance(rewards, torch.Tensor) else np.sign(rewards)
        clipped = rewards.clip(self._low, self._high)
        if metrics is not None:
            is_clipped = clipped != rewards if mask is None else (clipped != rewards) & mask
            metrics.report("rewards_clipped_fraction", is_clipped.sum() / episodes.num_rows, episodes.num_rows)
        return clipped if mask is None or self._low <= 0 <= self._high else clipped * mask


class ScaleRewards(_RewardConnector):
    """Scales `rewards` (rows,). A learner connector; place it before `GeneralAdvantageEstimation`.

    The scale is a fixed factor, or the standard deviation of the discounted returns so far, G[t] = r[t] + gamma
    G[t - 1]. The latter scales returns to a size of about 1 without shifting the mean reward (Engstrom et al., 2020,
    https://arxiv.org/abs/2005.12729, as in VecNormalize and NormalizeReward). G continues over the chunks of an episode
    if they come in order and once each, so do not use it with a replay buffer.

    Args:
        factor: fixed factor, or None for the running scale.
        gamma: discount factor of G.
        clip: maximum absolute value of rewards after the running scale, or None for no limit.
    """

    def __init__(self, factor: float | None = None, gamma: float = 0.99, clip: float | None = 10.0) -> None:
        if clip is not None and clip <= 0:
            raise ValueError(f"ScaleRewards: clip must be positive, got {clip}")
        self._factor = factor
        needs_all_rows = factor is None  # needs the returns of complete episodes, in order
        self.requires = replace(self.requires, needs_all_rows=needs_all_rows)
        self._gamma = gamma
        self._clip = clip
        self._merged = self._since_merge = Moments.of_nothing(())
        self._open: dict[str, tuple[int, float]] = {}  # id of an unfinished episode -> time step, discounted return

    def change(self, rewards: Any, mask: Any, episodes: ColumnBlock, metrics: CustomMetrics | None) -> Any:
        """Return scaled rewards, after updating the running scale with them."""
        if self._factor is not None:
            return rewards * self._factor
        if self.is_training:
            self._learn(_step_rewards(rewards, mask), episodes)
        seen = self._merged.merged(self._since_merge)
        variance = float(seen.m2) / max(seen.count, 1.0)
        scaled = rewards * (variance**-0.5 if variance > _SMALLEST_VARIANCE else 1.0)
        return scaled if self._clip is None else scaled.clip(-self._clip, self._clip)

    def _learn(self, rewards: npt.NDArray[np.float64], block: ColumnBlock) -> None:
        discounts = np.full(len(rewards), self._gamma)
        discounts[block.offsets[:-1]] = 0.0
        returns = suffix_sums(rewards[::-1], discounts[::-1], int(block.lengths.max(initial=0)))[::-1]
        before = self._returns_before(returns[block.offsets[1:] - 1], block)
        if before.any():
            steps = np.arange(1, len(rewards) + 1) - np.repeat(block.offsets[:-1], block.lengths)
            returns = returns + np.repeat(before, block.lengths) * self._gamma**steps
        self._since_merge = self._since_merge.merged(Moments.of_rows(returns))

    def _returns_before(self, last: npt.NDArray[np.float64], block: ColumnBlock) -> npt.NDArray[np.float64]:
        """Return the discounted returns (E,) just before each chunk.

        `last`: returns at its last step if it had started with 0.
        """
        before = np.zeros(len(block))
        decay = self._gamma**block.lengths
        is_over = block.is_terminated | block.is_truncated
        ends = block.t_started + block.lengths
        for chunk in np.argsort(block.t_started, kind="stable").tolist():
            id_ = block.episode_ids[chunk]
            t, value = self._open.pop(id_, (0, 0.0))
            if t == block.t_started[chunk]:
                before[chunk] = value
            if not is_over[chunk]:
                self._open[id_] = (int(ends[chunk]), float(last[chunk] + before[chunk] * decay[chunk]))
        while len(self._open) > _MAX_OPEN_EPISODES:
            del self._open[next(iter(self._open))]
        return before

    def get_state(self) -> dict[str, Any]:
        """Return the moments at the last merge and since then, and the returns of unfinished episodes; empty for a
        fixed factor."""
        return {} if self._factor is not None else _state_of(self._merged, self._since_merge, self._open)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        if state:
            self._merged = Moments.from_state(state, "merged")
            self._since_merge = Moments.from_state(state, "own")
            self._open = _open_returns(state)

    def reset_state(self) -> None:
        """Forget all rewards."""
        self._merged = self._since_merge = Moments.of_nothing(())
        self._open = {}

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the moments of all learners' steps, counted once, and the newest return of each episode."""
        if self._factor is not None:
            return {}
        opened: dict[str, tuple[int, float]] = {}
        for state in states:
            for id_, value in _open_returns(state).items():
                opened[id_] = max(value, opened.get(id_, value))
        return _state_of(Moments.merged_of(states), Moments.of_nothing(()), opened)


def _state_of(merged: Moments, since_merge: Moments, opened: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    return {
        **merged.to_state("merged"),
        **since_merge.to_state("own"),
        "open_ids": list(opened),
        "open_t": np.array([t for t, _ in opened.values()], np.int64),
        "open_returns": np.array([value for _, value in opened.values()], np.float64),
    }


def _open_returns(state: Mapping[str, Any]) -> dict[str, tuple[int, float]]:
    rows = zip(state["open_ids"], state["open_t"], state["open_returns"], strict=True)
    return {id_: (int(t), float(value)) for id_, t, value in rows}


def _step_rewards(rewards: Any, mask: Any) -> npt.NDArray[np.float64]:
    """Return the rewards (R,) without bootstrap rows, on the host."""
    rows = rewards if mask is None else rewards[mask]
    host = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
    return np.asarray(host, np.float64)
