"""Asynchronous proximal policy optimisation as in IMPACT (Luo et al., 2020, https://arxiv.org/abs/1912.00167)."""

from __future__ import annotations

from runner.learners.ppo import PPOLoss


class APPOLoss(PPOLoss):
    """PPO's loss with r = pi(a | s) / max(pi_target(a | s), mu(a | s) / rho); section 3.2 of the paper.

    mu is the policy that sampled the steps, some updates ago, and pi_target an older policy that follows the updates
    slowly. The connector `TargetVTrace` replaces `action_logp` by the logarithm of the denominator, and
    `action_dist_inputs` by the distribution of pi_target, which the KL penalty refers to.
    """

    needs = ("vf_preds", "target")
    made_for = "module=appo"
