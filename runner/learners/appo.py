"""Asynchronous proximal policy optimisation, as IMPACT has it (Luo et al., 2020, https://arxiv.org/abs/1912.00167)."""

from __future__ import annotations

from runner.learners.ppo import PPOLoss


class APPOLoss(PPOLoss):
    """PPO's loss with r = pi(a | s) / max(pi_target(a | s), mu(a | s) / rho); section 3.2 of the paper.

    mu is the policy that acted, some updates ago, and pi_target an older policy that follows the updates slowly. The
    connector `TargetVTrace` puts the logarithm of the denominator in the place of `action_logp`, and pi_target's
    distribution in the place of `action_dist_inputs`, from which the KL penalty is measured.
    """

    needs = ("vf_preds", "target")
    made_for = "module=appo"
