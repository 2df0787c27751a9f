"""Conservative Q-learning on double Q-learning (Kumar et al., 2020, https://arxiv.org/abs/2006.04779)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runner.config.algorithms import DiscreteCQLConfig, DiscreteCQLMetrics
from runner.learners.loss import Loss


class DiscreteCQLLoss(Loss):
    """L = E[(y - Q(s, a))^2] + w E[T log sum_a' exp(Q(s, a') / T) - Q(s, a)]; eq. 4

    y = r + gamma Q_target(s', argmax_a' Q(s', a')); the second term is 0 if the episode has terminated (van Hasselt et
    al., 2016, https://arxiv.org/abs/1509.06461).
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds")
    needs = ("qf_preds", "forward_target", "q_of")
    made_for = "module=double_q"

    def __init__(self, config: DiscreteCQLConfig) -> None:
        self._config = config

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> DiscreteCQLMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `DoubleQModule`, with A actions.
            batch: `obs`, `new_obs` (B, ...), `actions` (B,) integers, `rewards` (B,) float32, `terminateds` (B,) bool.
            is_reporting: has no effect.
        """
        cfg, new_batch = self._config, {"obs": batch["new_obs"]}
        with torch.no_grad():
            best = module.forward_train(new_batch)["qf_preds"].argmax(-1, keepdim=True)  # (B, 1)
            next_q = module.forward_target(new_batch)["qf_preds"].gather(-1, best).squeeze(-1)
            y = batch["rewards"] + cfg.gamma * ~batch["terminateds"] * next_q

        q = module.forward_train(batch)["qf_preds"]  # (B, A)
        recorded_q = module.q_of(q, batch["actions"])  # (B,)
        td = y - recorded_q
        qf_loss = td.square().mean()
        cql_loss = (cfg.temperature * (q / cfg.temperature).logsumexp(-1) - recorded_q).mean()

        total_loss = qf_loss + cfg.min_q_weight * cql_loss
        return DiscreteCQLMetrics(total_loss, qf_loss, cql_loss, recorded_q.mean(), td.detach().abs())
