"""Generalised advantage estimation (Schulman et al., 2016, https://arxiv.org/abs/1506.02438)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from runner.episodes import nested
from runner.pipelines.piece import (
    ADVANTAGES,
    LOSS_MASK,
    OBS,
    REWARDS,
    SEQ_LENS,
    TERMINATEDS,
    VALUE_TARGETS,
    VF_PREDS,
    Batch,
    ConnectorPiece,
)

_SMALLEST_STD = 1e-4


def suffix_sums(terms: Tensor, factors: Tensor, longest: int) -> Tensor:
    """Return x with x[i] = terms[i] + factors[i] * x[i + 1], x[B] = 0, in log2(longest) vectorised passes.

    Args:
        terms: (B,) float.
        factors: (B,) float; a 0 ends a sequence.
        longest: most consecutive rows without a 0 in `factors`.
    """
    sums, reach = terms.clone(), factors.clone()
    shift = 1
    while shift <= longest:
        sums[:-shift] = sums[:-shift] + reach[:-shift] * sums[shift:]
        reach[:-shift] = reach[:-shift] * reach[shift:]
        shift *= 2
    return sums


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    is_step: Tensor,
    gamma: float,
    lambda_: float,
    longest: int,
) -> Tensor:
    """Compute A[t] = delta[t] + gamma lambda A[t + 1], delta[t] = r[t] + gamma V(s[t + 1]) - V(s[t]) (eq. 16).

    Rows are chunks one after the other, each followed by one bootstrap row (`is_step` false) that holds the value of
    its last observation. A terminated chunk ends with V = 0 and A = 0 there, a truncated or cut one with this value.

    Args:
        rewards, values: (B,) float32. terminateds, is_step: (B,) bool.
        gamma, lambda_: discount and lambda.
        longest: env steps of the longest chunk.

    Returns:
        (B,) float32, 0 at bootstrap rows.
    """
    not_terminated = torch.logical_and(is_step, ~terminateds).float()
    next_values = torch.cat((values[1:], values.new_zeros(1)))
    delta = (rewards + gamma * not_terminated * next_values - values) * is_step
    return suffix_sums(delta, gamma * lambda_ * not_terminated, longest)


class GeneralAdvantageEstimation(ConnectorPiece):
    """Adds `vf_preds`, `value_targets` (A + V) and `advantages` (A, standardised over env steps), float32 each.

    They have a row for each of the batch's (B,), or the shape (S, L) of its sequences; standardisation and estimates
    never see a padded row.

    Args:
        gamma: discount factor.
        lambda_: GAE's lambda; 1 gives Monte-Carlo returns with bootstrap, 0 TD(0).
        max_rows_per_pass: rows in one pass of the value function, which bounds its memory.
    """

    reads = (OBS, REWARDS, TERMINATEDS, LOSS_MASK)
    writes = (VF_PREDS, ADVANTAGES, VALUE_TARGETS)
    reads_module = True
    needs_trajectories = True
    belongs_in = ("learner",)

    def __init__(self, gamma: float, lambda_: float, max_rows_per_pass: int = 65536) -> None:
        self._gamma = gamma
        self._lambda = lambda_
        self._max_rows = max_rows_per_pass

    def __call__(self, *, rl_module: Any, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Add the columns to the batch of each module."""
        longest = int(episodes.lengths.max())
        for module_id, columns in batch.items():
            values = self._values(rl_module[module_id], columns)
            if values.ndim == 1:
                columns |= self._advantages(columns, values, longest)
            else:
                columns |= self._advantages_of_sequences(columns, values, longest)
        return batch

    @torch.no_grad()
    def _values(self, module: Any, columns: Batch) -> Tensor:
        """Return (B,) values of all rows, or (S, L) of all sequences."""
        inputs = {name: columns[name] for name in module.inputs}
        mask = columns[LOSS_MASK]
        num_rows, rows_per_pass = len(mask), max(1, self._max_rows * len(mask) // mask.numel())
        if num_rows <= rows_per_pass:
            return cast(Tensor, module.compute_values(inputs))
        passes = [slice(first, first + rows_per_pass) for first in range(0, num_rows, rows_per_pass)]
        return torch.cat([module.compute_values(nested.take(inputs, rows)) for rows in passes])

    def _advantages(self, columns: Batch, values: Tensor, longest: int) -> Batch:
        is_step = columns[LOSS_MASK]
        advantages = compute_gae(
            columns[REWARDS], values, columns[TERMINATEDS], is_step, self._gamma, self._lambda, longest
        )
        return {
            VF_PREDS: values,
            VALUE_TARGETS: advantages + values,
            ADVANTAGES: standardised(advantages, is_step),
        }

    def _advantages_of_sequences(self, columns: Batch, values: Tensor, longest: int) -> Batch:
        """Return the same on the rows without the padding between them; 0 in the padding."""
        is_row = torch.arange(values.shape[1], device=values.device) < columns[SEQ_LENS][:, None]
        rows = {name: columns[name][is_row] for name in (REWARDS, TERMINATEDS, LOSS_MASK)}
        flat = self._advantages(rows, values[is_row], longest)
        return {name: torch.zeros_like(values).masked_scatter(is_row, column) for name, column in flat.items()}


def standardised(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return values (B,) with mean 0 and standard deviation 1 over the valid rows (the deviation: at least 1e-4)."""
    count = is_valid.sum()
    mean = torch.where(is_valid, values, 0.0).sum() / count
    variance = torch.where(is_valid, (values - mean).square(), 0.0).sum() / count
    return (values - mean) / variance.sqrt().clamp(min=_SMALLEST_STD)
