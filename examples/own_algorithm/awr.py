"""On-policy advantage-weighted regression: imitate sampled actions, weighted by their advantages (arXiv:1910.00177)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from runner.config.algorithms import AlgorithmConfig, LossMetrics
from runner.config.fields import option
from runner.learners.loss import Loss


@dataclass(frozen=True)
class AWRMetrics(LossMetrics):
    policy_loss: Any
    vf_loss: Any
    mean_weight: Any


@dataclass(frozen=True)
class AWRConfig(AlgorithmConfig):
    lr: float = option(1e-3, "learning rate", above=0)
    lambda_: float = option(0.95, "GAE's lambda", minimum=0, maximum=1)
    beta: float = option(0.5, "temperature of the weights exp(A / beta)", above=0)
    max_weight: float = option(20.0, "largest weight", above=0)

    metrics: ClassVar[type[LossMetrics]] = AWRMetrics


class AWRLoss(Loss):
    reads = ("obs", "actions", "advantages", "value_targets")
    needs = ("vf_preds",)

    def __init__(self, config: AWRConfig) -> None:
        self._config = config

    def __call__(self, module: Any, batch: Any, is_reporting: bool = True) -> AWRMetrics:
        outputs = module.outputs_at_steps(batch)
        weights = (batch["advantages"] / self._config.beta).exp().clamp(max=self._config.max_weight)  # (B,)
        policy_loss = -(weights * module.action_dist.log_prob(outputs["action_dist_inputs"], batch["actions"])).mean()
        vf_loss = (outputs["vf_preds"] - batch["value_targets"]).square().mean()
        return AWRMetrics(policy_loss + 0.5 * vf_loss, policy_loss, vf_loss, weights.mean())
