"""Advantage actor-critic from scratch: its options, metrics and loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.fields import option
from runner.learners.loss import Loss


@dataclass(frozen=True)
class MyA2CMetrics(LossMetrics):
    """Metrics of a gradient step in addition to `total_loss`; each field becomes a metric of the run."""

    policy_loss: Any
    vf_loss: Any
    entropy: Any


@dataclass(frozen=True)
class MyA2CConfig(AlgorithmConfig):
    """Fields of the block `algorithm` with their valid values; wrong values are reported before the run starts."""

    lr: float = option(1e-3, "learning rate", above=0)
    grad_clip: float | None = option(0.5, "largest norm of the gradient", above=0)
    lambda_: float = option(0.95, "GAE's lambda", minimum=0, maximum=1)
    vf_loss_coeff: float = option(0.5, "weight of the value loss", minimum=0)
    entropy_coeff: float = option(0.0, "weight of the entropy bonus", minimum=0)

    metrics: ClassVar[type[LossMetrics]] = MyA2CMetrics


class MyA2CLoss(Loss):
    """L = -E[log pi(a|s) A] + c1 E[(V - V_target)^2] - c2 E[H]."""

    reads = ("obs", "actions", "advantages", "value_targets")  # columns of the train batch
    needs = ("vf_preds",)  # outputs of the module

    def __init__(self, config: MyA2CConfig) -> None:
        self._config = config

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> MyA2CMetrics:
        """Compute the loss of B rows."""
        outputs = module.outputs_at_steps(batch)
        pi, theta = module.action_dist, outputs["action_dist_inputs"]  # (B, K)
        policy_loss = -(pi.log_prob(theta, batch["actions"]) * batch["advantages"]).mean()
        vf_loss = (outputs["vf_preds"] - batch["value_targets"]).square().mean()
        entropy = pi.entropy(theta).mean()
        total_loss = policy_loss + self._config.vf_loss_coeff * vf_loss - self._config.entropy_coeff * entropy
        return MyA2CMetrics(total_loss, policy_loss, vf_loss, entropy)
