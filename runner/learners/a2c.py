"""Advantage actor-critic, A2C: the objective of A3C (Mnih et al., 2016, https://arxiv.org/abs/1602.01783)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn.functional import mse_loss

from runner.config.algorithms import A2CConfig, A2CMetrics
from runner.config.schedules import scheduled_value
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule


class A2CLoss(Loss):
    """L = -E[log pi(a | s) A] + c1 E[(V - V_target)^2] - c2 E[H]; section 4 of the paper.

    Means are over the minibatch's rows, all of which are env steps. A and V_target are constants of the batch: no
    gradient reaches the value function through the policy's term.
    """

    reads = ("obs", "actions", "advantages", "value_targets")
    needs = ("vf_preds",)
    varying = ("entropy_coeff",)

    def __init__(self, config: A2CConfig) -> None:
        self._config = config
        self.entropy_coeff = scheduled_value(config.entropy_coeff, 0)

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> A2CMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: its `outputs_at_steps` returns `action_dist_inputs` (B, K) and `vf_preds` (B,).
            batch: the module's inputs, `actions` (B, ...), `advantages` and `value_targets` (B,) float32; every row is
                an env step.
            is_reporting: whether to report the entropy even if it is not part of the loss.
        """
        cfg = self._config
        pi = module.action_dist
        outputs = module.outputs_at_steps(batch)
        theta, values = outputs["action_dist_inputs"], outputs["vf_preds"]  # (B, K), (B,)

        policy_loss = -(pi.log_prob(theta, batch["actions"]) * batch["advantages"]).mean()
        vf_loss = mse_loss(values, batch["value_targets"])
        total_loss = policy_loss + cfg.vf_loss_coeff * vf_loss
        if not cfg.entropy_coeff:
            entropy = pi.entropy(theta.detach()).mean() if is_reporting else None
            return A2CMetrics(total_loss, policy_loss, vf_loss, entropy)
        entropy = pi.entropy(theta).mean()
        return A2CMetrics(total_loss - self.entropy_coeff * entropy, policy_loss, vf_loss, entropy)

    def before_update(self, num_env_steps: int) -> None:
        """Set scheduled coefficients for an update after `num_env_steps` env steps."""
        self.entropy_coeff = scheduled_value(self._config.entropy_coeff, num_env_steps)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of this update for reporting."""
        return {"curr_entropy_coeff": self.entropy_coeff}
