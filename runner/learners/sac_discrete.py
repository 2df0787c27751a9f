"""Soft actor-critic for discrete actions (Christodoulou, 2019, https://arxiv.org/abs/1910.07207)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runner.config.algorithms import SACMetrics
from runner.learners.sac import Q_SCALES, TARGET_SCALES, SACLoss, target_members
from runner.modules.layers import ALL


class DiscreteSACLoss(SACLoss):
    """SAC with a sum over all actions instead of a sampled action.

    L_Q = sum E[w (y - Q(s, a))^2], y = R + gamma^n sum_a' pi(a' | s') (min Q_target(s', a') - alpha log pi(a' | s'))
    L_pi = E[sum_a pi(a | s) (alpha log pi(a | s) - min Q(s, a))]
    L_alpha = E[log alpha (entropy of pi(. | s) - target entropy)]

    The automatic target entropy is half of the maximum, log A / 2. The paper's 0.98 log A keeps the policy close to
    uniform.
    """

    needs = (
        "seen",
        "dist_inputs",
        "critic",
        "compute_q_values",
        "compute_target_q_values",
        "draw_dropout",
        "q_of",
        "log_alpha",
    )
    made_for = "module=sac_discrete"

    def _action_noise(self, module: Any, num_rows: int) -> dict[str, Any]:
        return {}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> SACMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `DiscreteSACModule`, with E Q functions and A actions.
            batch: columns as for `SACLoss`, with `actions` (B,) integers.
            is_reporting: has no effect.
        """
        seen, log_alpha = module.seen(batch), self._log_alpha(module)
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_p, next_logp = _probabilities(module, seen.new_obs)  # (B, A)
            members, scales = target_members(batch), batch.get(TARGET_SCALES)
            next_q = module.compute_target_q_values(seen.target_obs, members, scales).amin(0)  # (B, A)
            y = self._returns(batch, (next_p * (next_q - alpha * next_logp)).sum(-1))
        q = module.compute_q_values(seen.obs, ALL, batch.get(Q_SCALES))  # (E, B, A)
        td = y - module.q_of(q, batch["actions"])  # (E, B)
        total_loss = qf_loss = (batch["weights"] * td.square()).mean(-1).sum()
        policy_loss = alpha_loss = logp_mean = None
        if not self.frozen_groups:
            p, logp = _probabilities(module, seen.obs)
            pi_logp = (p * logp).sum(-1)  # minus the entropy
            alpha_loss = self._alpha_loss(module, log_alpha, pi_logp)
            policy_loss = (alpha * pi_logp - (p * self._policy_q(q.detach())).sum(-1)).mean()
            logp_mean, total_loss = pi_logp.mean(), policy_loss + alpha_loss + qf_loss
        td_error = td.detach().abs().mean(0)
        return SACMetrics(total_loss, policy_loss, qf_loss, alpha_loss, alpha, q.mean(), logp_mean, td_error)

    def _auto_target_entropy(self, module: Any) -> float:
        return 0.5 * math.log(module.num_actions)


def _probabilities(module: Any, obs: Any) -> tuple[Tensor, Tensor]:
    """Return the probabilities of all actions (B, A) and their logarithms."""
    logp = module.dist_inputs(obs).log_softmax(-1)
    return logp.exp(), logp
