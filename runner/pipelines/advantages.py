"""Generalised advantage estimation (Schulman et al., 2016, https://arxiv.org/abs/1506.02438)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import (
    ADVANTAGES,
    LOSS_MASK,
    OBS,
    RETURNS,
    REWARDS,
    SEQ_LENS,
    TERMINATEDS,
    VALUE_TARGETS,
    VF_PREDS,
    Batch,
)
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements

_SMALLEST_STD = 1e-4

A = TypeVar("A", npt.NDArray[Any], Tensor)


def suffix_sums(terms: A, factors: A, longest: int) -> A:
    """Return x with x[i] = terms[i] + factors[i] * x[i + 1], x[B] = 0, in log2(longest) vectorised passes.

    Args:
        terms: (B,) float, an array or a tensor.
        factors: (B,) float, of the same type; a 0 ends a sequence.
        longest: maximum number of consecutive rows without a 0 in `factors`.
    """
    sums, reach = terms * 1, factors * 1  # copies
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

    Rows are consecutive chunks, each followed by one bootstrap row (`is_step` false) with the value of its last
    observation. A terminated chunk ends with V = 0 and A = 0 there, a truncated or cut one with this value.

    Args:
        rewards, values: (B,) float32. terminateds, is_step: (B,) bool.
        gamma, lambda_: discount factor and lambda.
        longest: number of env steps in the longest chunk.

    Returns:
        (B,) float32, 0 at bootstrap rows.
    """
    columns = rewards, values, terminateds, is_step
    if not values.is_cpu:
        on_device: Tensor = gae_of_rows(torch, *columns, gamma, lambda_, longest)
        return on_device
    # Both give the same numbers; for a few rows numpy takes a third of torch's time.
    r, v, ends, steps = (column.numpy() for column in columns)
    return torch.from_numpy(gae_of_rows(np, r, v, ends, steps, gamma, lambda_, longest))


def gae_of_rows(
    namespace: Any,
    rewards: Any,
    values: Any,
    terminateds: Any,
    is_step: Any,
    gamma: float,
    lambda_: float,
    longest: int,
) -> Any:
    """Compute `compute_gae` with the functions of numpy or torch; the last row is a bootstrap row."""
    not_terminated = namespace.asarray(is_step & ~terminateds, dtype=values.dtype)
    next_values = namespace.concatenate((values[1:], values[-1:]))
    delta = (rewards + gamma * not_terminated * next_values - values) * is_step
    return suffix_sums(delta, gamma * lambda_ * not_terminated, longest)


class GeneralAdvantageEstimation(LearnerConnector):
    """Adds `vf_preds`, `value_targets` (A + V) and `advantages` (A), float32 each.

    Columns have the shape (B,) of the batch's rows, or (S, L) of its sequences. Padding is ignored by the
    standardisation and the estimates.

    Args:
        gamma: discount factor.
        lambda_: GAE's lambda; 1 gives Monte-Carlo returns with bootstrap, 0 gives TD(0).
        standardize: standardise the advantages to mean 0 and standard deviation 1 over the env steps.
        max_rows_per_pass: maximum rows in one pass of the value function, which limits its memory.
    """

    requires = Requirements(
        reads=(OBS, REWARDS, TERMINATEDS, LOSS_MASK),
        writes=(VF_PREDS, ADVANTAGES, VALUE_TARGETS),
        needs=("compute_values",),
        reads_module=True,
        needs_trajectories=True,
    )
    reports = {  # noqa: RUF012
        "advantages_mean": ("mean", "mean of the advantages of env steps before standardisation"),
        "advantages_std": ("mean", "standard deviation of the advantages before standardisation"),
    }

    def __init__(self, gamma: float, lambda_: float, standardize: bool = True, max_rows_per_pass: int = 65536) -> None:
        self._gamma = gamma
        self._lambda = lambda_
        self._standardizes = standardize
        self._max_rows = max_rows_per_pass

    def __call__(
        self,
        *,
        rl_module: Mapping[str, RLModule],
        batch: Batch,
        episodes: ColumnBlock,
        metrics: CustomMetrics | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the columns to the batch of each module."""
        longest = int(episodes.lengths.max())
        for module_id, columns in batch.items():
            check_bootstrap_rows(self, columns, episodes)
            values = values_of(rl_module[module_id], columns, self._max_rows)
            columns |= on_rows(partial(self._advantages, metrics), columns, values, longest)
        return batch

    def _advantages(self, metrics: CustomMetrics | None, columns: Batch, values: Tensor, longest: int) -> Batch:
        is_step = columns[LOSS_MASK]
        advantages = compute_gae(
            columns[REWARDS], values, columns[TERMINATEDS], is_step, self._gamma, self._lambda, longest
        )
        mean, std, count = moments_of(advantages, is_step)
        if metrics is not None:
            metrics.report("advantages_mean", mean, count)
            metrics.report("advantages_std", std, count)
        return {
            VF_PREDS: values,
            VALUE_TARGETS: advantages + values,
            ADVANTAGES: _standardised(advantages, mean, std) if self._standardizes else advantages,
        }


class MonteCarloReturns(LearnerConnector):
    """Adds `returns` float32: G[t] = r[t] + gamma G[t + 1] to the end of the chunk, 0 at bootstrap rows.

    Without a baseline, G is 0 after the last step. With a baseline it is the value of the last observation, or 0 in a
    terminal state. Rows are the same as for `GeneralAdvantageEstimation`.

    Args:
        gamma: discount factor.
        use_baseline: whether the module's value function is used as a baseline.
        max_rows_per_pass: maximum rows in one pass of the value function, which limits its memory.
    """

    requires = Requirements(writes=(RETURNS,), needs_trajectories=True, needs_all_rows=True)

    def __init__(self, gamma: float, use_baseline: bool, max_rows_per_pass: int = 65536) -> None:
        self._gamma = gamma
        self._max_rows = max_rows_per_pass
        self._uses_baseline = use_baseline
        self.requires = replace(
            self.requires,
            reads=(*([OBS] if use_baseline else []), REWARDS, TERMINATEDS, LOSS_MASK),
            needs=("compute_values",) if use_baseline else (),
            reads_module=use_baseline,
        )

    def __call__(self, *, rl_module: Any, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Add the column to the batch of each module."""
        longest = int(episodes.lengths.max())
        for module_id, columns in batch.items():
            check_bootstrap_rows(self, columns, episodes)
            values = torch.zeros_like(columns[REWARDS])
            if self._uses_baseline:
                values = values_of(rl_module[module_id], columns, self._max_rows)
            columns |= on_rows(self._returns, columns, values, longest)
        return batch

    def _returns(self, columns: Batch, values: Tensor, longest: int) -> Batch:
        is_step = columns[LOSS_MASK]
        last_values = values.masked_fill(is_step, 0.0)  # so that the sums of GAE reduce to returns
        return {
            RETURNS: compute_gae(
                columns[REWARDS], last_values, columns[TERMINATEDS], is_step, self._gamma, 1.0, longest
            )
        }


def check_bootstrap_rows(connector: LearnerConnector, columns: Batch, block: ColumnBlock) -> None:
    """Check that the batch has a bootstrap row for each chunk; sequences also have a `loss_mask` without them.

    Raises:
        RuntimeError: all rows are env steps.
    """
    num_rows = int(columns[SEQ_LENS].sum()) if SEQ_LENS in columns else len(columns[LOSS_MASK])
    if num_rows == block.num_rows:
        raise RuntimeError(
            f"{type(connector).__name__}: the last observation of each chunk is missing; prepend "
            "AddOneTsToEpisodesAndTruncate"
        )


@torch.no_grad()
def values_of(module: Any, columns: Batch, max_rows_per_pass: int) -> Tensor:
    """Return the values (B,) of all rows, or (S, L) of all sequences."""
    inputs = {name: columns[name] for name in module.learner_inputs}
    values: list[Tensor] = [
        module.compute_values(rows) for rows in in_passes(inputs, columns[LOSS_MASK], max_rows_per_pass)
    ]
    return values[0] if len(values) == 1 else torch.cat(values)


def in_passes(columns: Batch, mask: Tensor, max_rows_per_pass: int) -> list[Batch]:
    """Split the columns into blocks of at most `max_rows_per_pass` rows; sequences (S, L) of `mask` are not split."""
    num_rows, rows_per_pass = len(mask), max(1, max_rows_per_pass * len(mask) // mask.numel())
    if num_rows <= rows_per_pass:
        return [columns]
    firsts = range(0, num_rows, rows_per_pass)
    return [nested.take(columns, slice(first, first + rows_per_pass)) for first in firsts]


def on_rows(
    compute: Callable[[Batch, Tensor, int], Batch],
    columns: Batch,
    values: Tensor,
    longest: int,
    names: Sequence[str] = (REWARDS, TERMINATEDS, LOSS_MASK),
) -> Batch:
    """Return the columns that `compute(columns, values, longest)` makes from rows (B,).

    For sequences (S, L), `compute` gets the rows of these columns without padding. Its outputs are converted to (S, L)
    with 0 in the padding. Recorded rewards of another dtype are converted to the dtype of the values.
    """
    if columns[REWARDS].dtype != values.dtype:
        columns = {**columns, REWARDS: columns[REWARDS].to(values.dtype)}
    if values.ndim == 1:
        return compute(columns, values, longest)
    is_row = torch.arange(values.shape[1], device=values.device) < columns[SEQ_LENS][:, None]
    rows = {name: columns[name][is_row] for name in names}
    flat = compute(rows, values[is_row], longest)
    return {name: torch.zeros_like(values).masked_scatter(is_row, column) for name, column in flat.items()}


def standardised(values: Tensor, is_valid: Tensor) -> Tensor:
    """Return values (B,) with mean 0 and standard deviation 1 over the valid rows (the deviation is at least 1e-4)."""
    mean, std, _ = moments_of(values, is_valid)
    return _standardised(values, mean, std)


def moments_of(values: Tensor, is_valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, standard deviation and number of the valid rows of values (B,)."""
    count = is_valid.sum()
    mean = torch.where(is_valid, values, 0.0).sum() / count
    variance = torch.where(is_valid, (values - mean).square(), 0.0).sum() / count
    return mean, variance.sqrt(), count


def _standardised(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return (values - mean) / std.clamp(min=_SMALLEST_STD)
