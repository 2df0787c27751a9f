"""Proximal policy optimisation (Schulman et al., 2017, https://arxiv.org/abs/1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.algorithms import PPOConfig, PPOMetrics
from runner.config.schedules import scheduled_value
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import LOSS_MASK


class PPOLoss(Loss):
    """L = -E[min(r A, clip(r, 1 - eps, 1 + eps) A)] + c1 E[(V - V_target)^2] - c2 E[H] + beta E[KL]; eqs. 7 to 9.

    r is the ratio of action probabilities under the updated and the sampling policy. Means are over the minibatch's
    rows, all of which are env steps. The squared value error is capped at `vf_clip_param`, as in RLlib.
    """

    reads = ("obs", "actions", "action_logp", "action_dist_inputs", "advantages", "value_targets")
    needs: tuple[str, ...] = ("vf_preds",)
    varying = ("kl_coeff", "entropy_coeff")
    state = ("kl_coeff",)

    def __init__(self, config: PPOConfig) -> None:
        self._config = config
        self.limits = {} if config.target_kl is None else {"mean_kl_loss": 1.5 * config.target_kl}
        self.kl_coeff = config.kl_coeff
        self.entropy_coeff = scheduled_value(config.entropy_coeff, 0)

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> PPOMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: its `outputs_at_steps` returns `action_dist_inputs` (B, K) and `vf_preds` (B,).
            batch: the module's inputs, `actions` (B, ...), `action_logp`, `advantages`, `value_targets` (B,) float32
                and the sampling policy's `action_dist_inputs` (B, K); every row is an env step.
            is_reporting: whether to report entropy and KL.
        """
        cfg = self._config
        pi = module.action_dist
        outputs = module.outputs_at_steps(batch)
        theta, values = outputs["action_dist_inputs"], outputs["vf_preds"]  # (B, K), (B,)

        log_ratio = pi.log_prob(theta, batch["actions"]) - batch["action_logp"]
        ratio = log_ratio.exp()  # r_t(theta), (B,)
        advantages = batch["advantages"]
        clipped_ratio = ratio.clamp(1 - cfg.clip_param, 1 + cfg.clip_param)
        policy_loss = -(ratio * advantages).minimum(clipped_ratio * advantages).mean()

        vf_error = (module.normalize_values(values) - module.normalize_values(batch["value_targets"])).square()
        if cfg.vf_clip_param is not None:
            vf_error = vf_error.clamp(max=cfg.vf_clip_param)
        vf_loss = vf_error.mean()

        total_loss = policy_loss + cfg.vf_loss_coeff * vf_loss
        if cfg.entropy_coeff:
            total_loss = total_loss - self.entropy_coeff * pi.entropy(theta).mean()
        if cfg.use_kl_loss and cfg.kl_coeff:
            total_loss = total_loss + self.kl_coeff * pi.kl(batch["action_dist_inputs"], theta).mean()
        if not (is_reporting or self.limits):
            return PPOMetrics(total_loss, policy_loss, vf_loss, None, None)
        theta = theta.detach()
        entropy, mean_kl = pi.entropy(theta).mean(), pi.kl(batch["action_dist_inputs"], theta).mean()
        return PPOMetrics(total_loss, policy_loss, vf_loss, entropy, mean_kl)

    def before_update(self, num_env_steps: int) -> None:
        """Set scheduled coefficients for an update after `num_env_steps` env steps."""
        self.entropy_coeff = scheduled_value(self._config.entropy_coeff, num_env_steps)

    def before_epochs(self, module: RLModule, batch: Mapping[str, Any]) -> None:
        """Update the scale of the values with the targets of the train batch."""
        targets = batch["value_targets"]
        module.update_value_scale(targets[batch[LOSS_MASK]] if LOSS_MASK in batch else targets)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients of this update for reporting."""
        kl_coeff = self.kl_coeff if self._config.use_kl_loss else 0.0
        return {"curr_kl_coeff": kl_coeff, "curr_entropy_coeff": self.entropy_coeff}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Adapt the KL coefficient to the mean KL of the last epoch (section 4 of the paper, RLlib's factors)."""
        if not self._config.use_kl_loss:
            return
        if metrics["mean_kl_loss"] > 2.0 * self._config.kl_target:
            self.kl_coeff *= 1.5
        elif metrics["mean_kl_loss"] < 0.5 * self._config.kl_target:
            self.kl_coeff *= 0.5

    @property
    def adapts(self) -> bool:
        """Whether there is a KL penalty with an adaptive coefficient."""
        return self._config.use_kl_loss
