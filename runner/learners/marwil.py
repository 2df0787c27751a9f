"""Monotonic advantage re-weighted imitation learning, MARWIL (Wang et al., NeurIPS 2018, "Exponentially weighted
imitation learning for batched historical data").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config.algorithms import MARWILConfig, MARWILMetrics
from runner.learners.bc import cloning_objective
from runner.learners.loss import Loss
from runner.modules.rl_module import RLModule

_LARGEST_EXPONENT = 20.0  # of a weight; the squares of much larger weights would be infinite in Adam's second moments


class MARWILLoss(Loss):
    """L = -E[exp(beta A / c) log pi(a | s)] + vf_coeff / 2 E[A^2], A = R - V(s); algorithm 1.

    R is `value_targets`: with lambda 1 the return to the end of the chunk, plus V if the episode continues. c^2 is a
    moving average of A^2 over updates. With beta 0 this is behaviour cloning that also trains a value function.
    """

    reads = ("obs", "actions", "value_targets")
    needs = ("vf_preds",)
    varying = ("c_squared",)
    state = ("c_squared",)

    def __init__(self, config: MARWILConfig) -> None:
        self._config = config
        self.c_squared = config.moving_average_sqd_adv_norm_start

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> MARWILMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: its `outputs_at_steps` returns `action_dist_inputs` (B, K) and `vf_preds` (B,).
            batch: the module's inputs, `actions` (B, ...) and `value_targets` (B,) float32; every row is an env step.
            is_reporting: has no effect.
        """
        cfg = self._config
        outputs = module.outputs_at_steps(batch)
        theta, values = outputs["action_dist_inputs"], outputs["vf_preds"]  # (B, K), (B,)

        advantages = batch["value_targets"] - values
        squared_advantages = advantages.square().mean()
        weights = (cfg.beta / self.c_squared**0.5 * advantages.detach()).clamp(max=_LARGEST_EXPONENT).exp()
        cloning = cloning_objective(module.action_dist, theta, batch["actions"], cfg.bc_logstd_coeff)
        policy_loss = -(weights * cloning).mean()
        vf_loss = 0.5 * squared_advantages

        total_loss = policy_loss + cfg.vf_coeff * vf_loss
        return MARWILMetrics(total_loss, policy_loss, vf_loss, squared_advantages, weights.mean())

    def coefficients(self) -> dict[str, float]:
        """Return c^2 in this update."""
        return {"moving_average_sqd_adv_norm": self.c_squared}

    def after_update(self, metrics: Mapping[str, float]) -> None:
        """Update c^2 with the squared advantages of this update."""
        rate = self._config.moving_average_sqd_adv_norm_update_rate
        self.c_squared += rate * (metrics["squared_advantages"] - self.c_squared)
