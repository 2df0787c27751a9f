"""REINFORCE, the policy gradient on complete episodes (Williams, 1992, https://doi.org/10.1007/BF00992696)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.algorithms import PGConfig, PGMetrics
from runner.config.schedules import scheduled_value
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule


class PGLoss(Loss):
    """L = -E[log pi(a | s) (G - b(s))] + c1 E[(b - G)^2] - c2 E[H]; G is the discounted return from the step on.

    Without a baseline, b is 0 and the second term is omitted. Means are over the minibatch's rows, all of which are env
    steps. The policy's term does not affect the baseline.
    """

    reads = ("obs", "actions", "returns")
    varying = ("entropy_coeff",)
    needs = ("vf_preds",)

    def __init__(self, config: PGConfig) -> None:
        self._config = config
        self.entropy_coeff = scheduled_value(config.entropy_coeff, 0)

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> PGMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: its `outputs_at_steps` returns `action_dist_inputs` (B, K) and `vf_preds` (B,).
            batch: the module's inputs, `actions` (B, ...), `returns` (B,) float32; every row is an env step.
            is_reporting: whether to report the entropy even if it is not part of the loss.
        """
        cfg = self._config
        pi = module.action_dist
        outputs = module.outputs_at_steps(batch)
        theta, returns = outputs["action_dist_inputs"], batch["returns"]  # (B, K), (B,)

        advantages, vf_loss = returns, returns.new_zeros(())
        if cfg.use_baseline:
            advantages = returns - outputs["vf_preds"]
            vf_loss = advantages.square().mean()
        policy_loss = -(pi.log_prob(theta, batch["actions"]) * advantages.detach()).mean()
        total_loss = policy_loss + cfg.vf_loss_coeff * vf_loss
        if not self._config.entropy_coeff:
            entropy = pi.entropy(theta.detach()).mean() if is_reporting else None
            return PGMetrics(total_loss, policy_loss, vf_loss, entropy)
        entropy = pi.entropy(theta).mean()
        return PGMetrics(total_loss - self.entropy_coeff * entropy, policy_loss, vf_loss, entropy)

    def before_update(self, num_env_steps: int) -> None:
        """Set scheduled coefficients for an update after `num_env_steps` env steps."""
        self.entropy_coeff = scheduled_value(self._config.entropy_coeff, num_env_steps)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of this update for reporting."""
        return {"curr_entropy_coeff": self.entropy_coeff}
