"""Truncated quantile critics (Kuznetsov et al., 2020, https://arxiv.org/abs/2005.04269)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runner.config.algorithms import TQCConfig
from runner.learners.sac import NEXT_NOISE, Q_SCALES, TARGET_SCALES, SACLoss, target_members
from runner.modules.layers import ALL
from runner.modules.q_function_modules import Seen
from runner.modules.value_distributions import quantile_huber_loss, quantile_midpoints


class TQCLoss(SACLoss):
    """SAC whose Q functions are quantiles of the return; the highest quantiles are left out of the target.

    L_Q = sum E[w mean_ij |tau_i - 1{u < 0}| Huber(u)], u = y_j - theta_i(s, a)
    y_j = R + gamma^n (z_j(s', a') - alpha log pi(a' | s')) for all but the highest d E of the target's quantiles z

    E Q functions return the quantiles theta_i, and d is `top_quantiles_to_drop_per_net`. The policy learns from the
    mean of all quantiles, or with `policy_q: min` from the Q function with the lowest mean. The rest is as in SAC.
    """

    needs = (*SACLoss.needs, "compute_quantiles", "compute_target_quantiles")
    made_for = "module=tqc"

    def __init__(self, config: TQCConfig) -> None:
        super().__init__(config)
        self._num_dropped = config.top_quantiles_to_drop_per_net

    def _q_losses(
        self, module: Any, batch: Mapping[str, Any], seen: Seen, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of the quantiles, their mean, and the loss (B,) of each row."""
        with torch.no_grad():
            next_theta = module.dist_inputs(seen.new_obs)
            next_actions, next_logp = module.squashed.sample_with_log_prob(next_theta, batch[NEXT_NOISE])
            members, scales = target_members(batch), batch.get(TARGET_SCALES)
            z = module.compute_target_quantiles(seen.target_obs, next_actions, members, scales)  # (M, B, N)
            num_kept = len(z) * (z.shape[-1] - self._num_dropped)
            kept = z.transpose(0, 1).flatten(1).sort(-1).values[:, :num_kept]  # (B, J)
            y = self._returns(batch, kept - alpha * next_logp.unsqueeze(-1))
        actions = module.clamped(batch["actions"])
        theta = module.compute_quantiles(seen.obs, actions, ALL, batch.get(Q_SCALES))  # (E, B, N)
        num_critics, _, num_quantiles = theta.shape
        taus = quantile_midpoints(theta).repeat(num_critics)
        losses = quantile_huber_loss(theta.transpose(0, 1).flatten(1), taus, y).sum(-1) / num_quantiles  # (B,)
        return (batch["weights"] * losses).mean(), theta.detach().mean(), losses.detach()
