"""Behaviour cloning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.config.algorithms import BCConfig, BCMetrics
from runner.learners.loss import Loss
from runner.modules.action_distribution import ActionDistribution
from runner.modules.rl_module import RLModule


class BCLoss(Loss):
    """L = -E[log pi(a | s)] over recorded observations s and actions a."""

    reads = ("obs", "actions")

    def __init__(self, config: BCConfig) -> None:
        self._config = config

    def __call__(self, module: RLModule, batch: Mapping[str, Any], is_reporting: bool = True) -> BCMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: its `outputs_at_steps` returns `action_dist_inputs` (B, K).
            batch: the module's inputs, and `actions` (B, ...); every row is an env step.
            is_reporting: has no effect.
        """
        theta = module.outputs_at_steps(batch)["action_dist_inputs"]
        cloning = cloning_objective(module.action_dist, theta, batch["actions"], self._config.bc_logstd_coeff)
        policy_loss = -cloning.mean()
        return BCMetrics(policy_loss, policy_loss)


def cloning_objective(pi: ActionDistribution, theta: Tensor, actions: Any, bc_logstd_coeff: float) -> Tensor:
    """Return (B,) log pi(a | s) + bc_logstd_coeff * mean log std; the second term only if pi has a log std."""
    log_prob = pi.log_prob(theta, actions)
    if not bc_logstd_coeff or not pi.log_std_inputs:
        return log_prob
    return log_prob + bc_logstd_coeff * theta[..., pi.log_std_inputs].mean(-1)
