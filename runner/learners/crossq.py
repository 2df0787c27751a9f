"""CrossQ (Bhatt et al., 2024, https://arxiv.org/abs/1902.05605): SAC without target networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runner.learners.sac import NEXT_NOISE, SACLoss
from runner.modules.q_function_modules import Seen


class CrossQLoss(SACLoss):
    """SAC's loss with y = R + gamma^n (min Q(s', a') - alpha log pi(a' | s')), without a target network of Q.

    One forward pass computes Q(s, a) and Q(s', a'), so that batch normalisation uses the statistics of both. No
    gradient flows through y. All other terms are SAC's.
    """

    needs = (*(name for name in SACLoss.needs if name != "compute_target_q_values"), "compute_joint_q_values")
    made_for = "module=crossq"
    sequences = ()

    def _q_losses(
        self, module: Any, batch: Mapping[str, Any], seen: Seen, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of the Q functions, their mean, and |TD error| (B,)."""
        with torch.no_grad():
            next_theta = module.dist_inputs(seen.new_obs)
            next_actions, next_logp = module.squashed.sample_with_log_prob(next_theta, batch[NEXT_NOISE])
        actions = module.clamped(batch["actions"])
        q, next_q = module.compute_joint_q_values(seen.obs, actions, seen.new_obs, next_actions)  # (E, B) each
        y = self._returns(batch, next_q.detach().amin(0) - alpha * next_logp)
        td = y - q  # (E, B)
        return (batch["weights"] * td.square()).mean(-1).sum(), q.mean(), td.detach().abs().mean(0)
