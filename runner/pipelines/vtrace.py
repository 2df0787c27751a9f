"""V-trace (Espeholt et al., 2018, https://arxiv.org/abs/1802.01561): targets from samples of older policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.modules.rl_module import RLModule
from runner.pipelines.advantages import (
    check_bootstrap_rows,
    in_passes,
    moments_of,
    on_rows,
    standardised,
    suffix_sums,
)
from runner.pipelines.connector import (
    ACTION_DIST_INPUTS,
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
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements

_RATIOS = "ratios"
_ROWS = (REWARDS, TERMINATEDS, LOSS_MASK, _RATIOS)


@dataclass(frozen=True)
class VTraceSettings:
    """Settings of the targets, with the paper's symbols.

    Attributes:
        gamma: discount factor.
        lambda_: factor of each trace (remark 2); 1 in the experiments of the paper.
        rho: maximum ratio of a temporal difference (rho bar); it determines the value function of the targets.
        c: maximum ratio of a trace (c bar); it determines how far differences propagate back.
        pg_rho: maximum ratio of an advantage.
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
    section 4.2. Rows are consecutive chunks, each followed by one bootstrap row (`is_step` false) with the value of its
    last observation. A terminated chunk ends with v = V = 0 there, a truncated or cut one with V.

    Args:
        rewards, values: (B,) float32. terminateds, is_step: (B,) bool.
        ratios: (B,) float32, pi(a | s) / mu(a | s), of the learning policy to the sampling policy.
        settings: discount factor, and limits of the ratios.
        longest: number of env steps in the longest chunk.

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


class VTrace(LearnerConnector):
    """Adds `vf_preds`, `value_targets` (v) and `advantages` (A), float32 each, corrected for an older policy.

    Columns have the shape (B,) of the batch's rows, or (S, L) of its sequences. Ratios compare the module at the time
    of the call with the sampling policy, using `action_logp` of the batch.

    Args:
        gamma, lambda_, clip_rho_threshold, clip_c_threshold, clip_pg_rho_threshold: see `VTraceSettings`.
        standardize: standardise the advantages to mean 0 and standard deviation 1 over the env steps.
        max_rows_per_pass: maximum rows in one pass of the module, which limits its memory.
    """

    requires = Requirements(
        reads=(OBS, ACTIONS, ACTION_LOGP, REWARDS, TERMINATEDS, LOSS_MASK),
        writes=(VF_PREDS, ADVANTAGES, VALUE_TARGETS),
        needs=(ACTION_DIST_INPUTS, VF_PREDS),
        reads_module=True,
        needs_trajectories=True,
    )
    reports = {  # noqa: RUF012
        "importance_ratio_mean": (
            "mean",
            "mean unclipped probability ratio of the learning policy to the sampling policy",
        ),
        "share_of_clipped_ratios": ("mean", "fraction of env steps whose ratio is above clip_rho_threshold"),
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
        metrics: CustomMetrics | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the columns to the batch of each module."""
        longest, written = int(episodes.lengths.max()), Requirements.of(self).writes
        for module_id, columns in batch.items():
            check_bootstrap_rows(self, columns, episodes)
            found = self._in_passes(rl_module[module_id], columns)
            if metrics is not None:
                self._report(metrics, found[_RATIOS], columns[LOSS_MASK])
            targets = on_rows(self._targets, {**columns, **found}, found[VF_PREDS], longest, _ROWS)
            columns |= {name: column for name, column in found.items() if name in written} | targets
        return batch

    @torch.no_grad()
    def _in_passes(self, module: RLModule, columns: Batch) -> Batch:
        """Return the results of `of_policy` for all rows (B, ...) or sequences (S, L, ...)."""
        rows = {name: columns[name] for name in (*module.learner_inputs, ACTIONS, ACTION_LOGP, LOSS_MASK)}
        passes = [self.of_policy(module, part) for part in in_passes(rows, columns[LOSS_MASK], self._max_rows)]
        return passes[0] if len(passes) == 1 else {name: torch.cat([one[name] for one in passes]) for name in passes[0]}

    def of_policy(self, module: RLModule, rows: Batch) -> Batch:
        """Return `vf_preds` and `ratios` of rows (B,) or sequences (S, L), and the columns that they replace in the
        batch.

        The ratio is 1 outside env steps.
        """
        outputs = module.forward_train({name: rows[name] for name in module.learner_inputs})
        log_ratios = _log_probs(module, outputs[ACTION_DIST_INPUTS], rows[ACTIONS]) - rows[ACTION_LOGP]
        return {VF_PREDS: outputs[VF_PREDS], _RATIOS: log_ratios.exp().where(rows[LOSS_MASK], 1.0)}

    def _report(self, metrics: CustomMetrics, ratios: Tensor, is_step: Tensor) -> None:
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


class TargetVTrace(VTrace):
    """V-trace for the module's target policy, to which the loss keeps the module close: IMPACT (Luo et al., 2020,
    https://arxiv.org/abs/1912.00167).

    Ratios compare the target policy with the sampling policy mu. `action_logp` is replaced by
    log max(pi_target(a | s), mu(a | s) / rho), and `action_dist_inputs` by the target's. Values are the module's.

    Args:
        target_worker_clipping: rho, maximum ratio mu / pi_target.
        arguments: arguments of `VTrace`.
    """

    requires = Requirements(
        writes=(*VTrace.requires.writes, ACTION_LOGP, ACTION_DIST_INPUTS),
        needs=(ACTION_DIST_INPUTS, "compute_values", "target"),
    )

    def __init__(self, gamma: float, target_worker_clipping: float = 2.0, **arguments: Any) -> None:
        super().__init__(gamma, **arguments)
        self._log_rho = math.log(target_worker_clipping)

    def of_policy(self, module: RLModule, rows: Batch) -> Batch:
        """Return `vf_preds`, `ratios`, and the target's `action_logp` and `action_dist_inputs`; see `VTrace`."""
        inputs = {name: rows[name] for name in module.learner_inputs}
        theta = module.target.forward_train(inputs)[ACTION_DIST_INPUTS]  # type: ignore[operator, union-attr]
        log_probs, acted = _log_probs(module, theta, rows[ACTIONS]), rows[ACTION_LOGP]
        return {
            VF_PREDS: module.compute_values(inputs),
            _RATIOS: (log_probs - acted).exp().where(rows[LOSS_MASK], 1.0),
            ACTION_LOGP: torch.maximum(log_probs, acted - self._log_rho),
            ACTION_DIST_INPUTS: theta,
        }


def _log_probs(module: RLModule, theta: Tensor, actions: Any) -> Tensor:
    """Return log pi(a | s) (B,) of rows, or (S, L) of sequences."""
    leading = theta.shape[:-1]
    last_axis = len(leading) - 1
    flat = nested.map_leaves(lambda leaf: leaf.flatten(0, last_axis), actions)
    return module.action_dist.log_prob(theta.flatten(0, last_axis), flat).reshape(leading)
