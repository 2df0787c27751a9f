"""V-trace (Espeholt et al., 2018, https://arxiv.org/abs/1802.01561): targets from samples of older policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.advantages import in_passes, moments_of, on_rows, standardised, suffix_sums
from runner.pipelines.piece import (
    ACTION_LOGP,
    ACTIONS,
    ADVANTAGES,
    LOSS_MASK,
    OBS,
    REWARDS,
    TERMINATEDS,
    VALUE_TARGETS,
    VF_PREDS,
    Batch,
)
from runner.pipelines.piece_kinds import LearnerPiece
from runner.pipelines.piece_metrics import PieceMetrics

_RATIOS = "ratios"
_ROWS = (REWARDS, TERMINATEDS, LOSS_MASK, _RATIOS)


@dataclass(frozen=True)
class VTraceSettings:
    """What targets are made with; the paper's symbols.

    Attributes:
        gamma: discount factor.
        lambda_: factor of each trace (remark 2); 1 in the experiments of the paper.
        rho: largest ratio of a temporal difference (rho bar): which value function the targets are of.
        c: largest ratio of a trace (c bar): how far a difference reaches back.
        pg_rho: largest ratio of an advantage.
    """

    gamma: float
    lambda_: float = 1.0
    rho: float = 1.0
    c: float = 1.0
    pg_rho: float = 1.0


def compute_vtrace(
    rewards: Tensor,
    values: Tensor,
    ratios: Tensor,
    terminateds: Tensor,
    is_step: Tensor,
    settings: VTraceSettings,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Compute v[t] - V(s[t]) = delta[t] + gamma c[t] (v[t + 1] - V(s[t + 1])), remark 1, and the advantages.

    delta[t] = rho[t] (r[t] + gamma V(s[t + 1]) - V(s[t])), and A[t] = rho_pg[t] (r[t] + gamma v[t + 1] - V(s[t])),
    section 4.2. Rows are chunks one after the other, each followed by one bootstrap row (`is_step` false) that holds
    the value of its last observation. A terminated chunk ends with v = V = 0 there, a truncated or cut one with V.

    Args:
        rewards, values: (B,) float32. terminateds, is_step: (B,) bool.
        ratios: (B,) float32, pi(a | s) / mu(a | s) of the policy that learns and the one that acted.
        settings: discount, and bounds of the ratios.
        longest: env steps of the longest chunk.

    Returns:
        Targets v and advantages A (B,) float32; V and 0 at bootstrap rows.
    """
    discounts = settings.gamma * (is_step & ~terminateds).to(values.dtype)
    next_values = torch.cat((values[1:], values[-1:]))
    deltas = ratios.clamp(max=settings.rho) * (rewards + discounts * next_values - values) * is_step
    corrections = suffix_sums(deltas, discounts * settings.lambda_ * ratios.clamp(max=settings.c), longest)
    targets = values + corrections
    next_targets = torch.cat((targets[1:], targets[-1:]))
    advantages = ratios.clamp(max=settings.pg_rho) * (rewards + discounts * next_targets - values) * is_step
    return targets, advantages


class VTrace(LearnerPiece):
    """Adds `vf_preds`, `value_targets` (v) and `advantages` (A), float32 each, corrected for an older policy.

    They have a row for each of the batch's (B,), or the shape (S, L) of its sequences. Ratios are of the module as it
    is when the piece is called to the policy that acted, whose `action_logp` the batch has.

    Args:
        gamma, lambda_, clip_rho_threshold, clip_c_threshold, clip_pg_rho_threshold: see `VTraceSettings`.
        standardize: scale the advantages to mean 0 and standard deviation 1 over the env steps.
        max_rows_per_pass: rows in one pass of the module, which bounds its memory.
    """

    reads = (OBS, ACTIONS, ACTION_LOGP, REWARDS, TERMINATEDS, LOSS_MASK)
    writes = (VF_PREDS, ADVANTAGES, VALUE_TARGETS)
    reads_module = True
    needs_trajectories = True
    reports = {  # noqa: RUF012
        "importance_ratio_mean": ("mean", "mean ratio of the policy that learns to the one that acted, not clipped"),
        "share_of_clipped_ratios": ("mean", "share of env steps whose ratio is above clip_rho_threshold"),
    }

    def __init__(
        self,
        gamma: float,
        lambda_: float = 1.0,
        clip_rho_threshold: float = 1.0,
        clip_c_threshold: float = 1.0,
        clip_pg_rho_threshold: float = 1.0,
        standardize: bool = False,
        max_rows_per_pass: int = 65536,
    ) -> None:
        self._settings = VTraceSettings(gamma, lambda_, clip_rho_threshold, clip_c_threshold, clip_pg_rho_threshold)
        self._standardizes = standardize
        self._max_rows = max_rows_per_pass

    def __call__(
        self,
        *,
        rl_module: Mapping[str, RLModule],
        batch: Batch,
        episodes: ColumnBlock,
        metrics: PieceMetrics | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the columns to the batch of each module."""
        longest = int(episodes.lengths.max())
        for module_id, columns in batch.items():
            values, ratios = _values_and_ratios(rl_module[module_id], columns, self._max_rows)
            if metrics is not None:
                self._report(metrics, ratios, columns[LOSS_MASK])
            columns |= on_rows(self._targets, {**columns, _RATIOS: ratios}, values, longest, _ROWS)
        return batch

    def _report(self, metrics: PieceMetrics, ratios: Tensor, is_step: Tensor) -> None:
        mean, _, count = moments_of(ratios, is_step)
        metrics.report("importance_ratio_mean", mean, count)
        clipped, _, _ = moments_of((ratios > self._settings.rho).float(), is_step)
        metrics.report("share_of_clipped_ratios", clipped, count)

    def _targets(self, columns: Batch, values: Tensor, longest: int) -> Batch:
        is_step = columns[LOSS_MASK]
        targets, advantages = compute_vtrace(
            columns[REWARDS],
            values,
            columns[_RATIOS],
            columns[TERMINATEDS],
            is_step,
            self._settings,
            longest,
        )
        if self._standardizes:
            advantages = standardised(advantages, is_step)
        return {VF_PREDS: values, VALUE_TARGETS: targets, ADVANTAGES: advantages}


@torch.no_grad()
def _values_and_ratios(module: RLModule, columns: Batch, max_rows_per_pass: int) -> tuple[Tensor, Tensor]:
    """Return values and ratios (B,) of rows, or (S, L) of sequences; the ratio is 1 where no env step is."""
    names = (*module.inputs, ACTIONS, ACTION_LOGP, LOSS_MASK)
    rows = {name: columns[name] for name in names}
    found = [_of_pass(module, part) for part in in_passes(rows, columns[LOSS_MASK], max_rows_per_pass)]
    values, ratios = zip(*found, strict=True)
    return torch.cat(values), torch.cat(ratios)


def _of_pass(module: RLModule, rows: Batch) -> tuple[Tensor, Tensor]:
    outputs = module.forward_train({name: rows[name] for name in module.inputs})
    theta, values = outputs["action_dist_inputs"], outputs[VF_PREDS]
    last_axis = values.ndim - 1  # 0 of rows, 1 of sequences
    actions = nested.map_leaves(lambda leaf: leaf.flatten(0, last_axis), rows[ACTIONS])
    log_probs = module.action_dist.log_prob(theta.flatten(0, last_axis), actions).reshape(values.shape)
    ratios = (log_probs - rows[ACTION_LOGP]).exp()
    return values, ratios.where(rows[LOSS_MASK], 1.0)
