"""One config dataclass an algorithm, and the record of metrics its loss returns. The order is that of the YAML file.

An algorithm is three neighbours: its loss (`runner/learners/ppo.py`), its dataclass here, and
`conf/algorithm/ppo.yaml`, which names its loss, its connector pieces and its dataflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from runner.config.fields import option

Schedule = float | list[list[float]]


@dataclass(frozen=True)
class LossMetrics:
    """Base of the record that a loss returns: each field is a metric (0-d tensor), `total_loss` is minimised."""

    total_loss: Any


@dataclass(frozen=True)
class PPOMetrics(LossMetrics):
    """What one PPO minibatch reports; means over the minibatch's valid rows."""

    policy_loss: Any
    vf_loss: Any
    entropy: Any
    mean_kl_loss: Any


@dataclass(frozen=True)
class AlgorithmConfig:
    """What every algorithm has."""

    schema: str = option("runner.config.algorithms.PPOConfig", "dotted path of the dataclass of this block")
    loss: str = option("runner.learners.ppo.PPOLoss", "dotted path of the loss class")
    dataflow: str = option("runner.dataflow.on_policy", "dotted path of the training dataflow")
    learner_pipeline: list[dict[str, Any]] = option([], "edits of the default learner pipeline for this algorithm")
    lr: Schedule = option(5e-5, "learning rate of Adam", minimum=0, is_schedule=True)
    gamma: float = option(0.99, "discount factor", minimum=0, maximum=1)
    grad_clip: float | None = option(None, "largest global norm of the gradient; null: no clipping", above=0)
    train_batch_size_per_learner: int = option(4000, "rows of one update", unit="env steps", minimum=1)
    num_epochs: int = option(1, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(None, "most rows of one gradient step; null: the whole batch", minimum=1)

    metrics: ClassVar[type[LossMetrics]] = LossMetrics


@dataclass(frozen=True)
class PPOConfig(AlgorithmConfig):
    """PPO (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) with RLlib's names and defaults.

    Where `use_kl_loss`, the KL penalty's coefficient adapts to `kl_target` (section 4 of the paper).
    """

    num_epochs: int = option(30, "passes over the batch in one update", minimum=1)
    minibatch_size: int | None = option(128, "most rows of one gradient step; null: the whole batch", minimum=1)
    lambda_: float = option(1.0, "GAE's lambda", minimum=0, maximum=1)
    clip_param: float = option(0.3, "epsilon of the clipped surrogate", above=0)
    vf_loss_coeff: float = option(1.0, "weight of the value loss", minimum=0)
    vf_clip_param: float | None = option(10.0, "squared value error is capped at this; null: no cap", above=0)
    entropy_coeff: Schedule = option(0.0, "weight of the entropy bonus", minimum=0, is_schedule=True)
    use_kl_loss: bool = option(True, "add the adaptive KL penalty")
    kl_coeff: float = option(0.2, "initial weight of the KL penalty", minimum=0)
    kl_target: float = option(0.01, "KL to the sampling policy that the coefficient is adapted to", above=0)

    metrics: ClassVar[type[LossMetrics]] = PPOMetrics
