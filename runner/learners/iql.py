"""Implicit Q-learning (Kostrikov et al., 2021, https://arxiv.org/abs/2110.06169)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runner.config.algorithms import IQLConfig, IQLMetrics
from runner.learners.loss import Loss

_LARGEST_WEIGHT = 100.0  # maximum weight of an action's log probability, as in the authors' code


class IQLLoss(Loss):
    """L_V = E[|tau - 1(u < 0)| u^2], u = min Q_target(s, a) - V(s); eq. 5
    L_Q = sum E[(r + gamma V(s') - Q(s, a))^2]; eq. 6
    L_pi = -E[min(exp(beta u), 100) log pi(a | s)]; eq. 7

    All actions are recorded actions, clipped to their bounds as in the authors' code. tau is `expectile`. V(s') is 0 if
    the episode has terminated. Each term affects one parameter group only: `value`, `critic`, `actor`.
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds")
    needs = ("clamped", "compute_q_values", "compute_target_q_values", "vf_preds")
    made_for = "module=iql"

    def __init__(self, config: IQLConfig) -> None:
        self._config = config

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> IQLMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `IQLModule`, with E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` (B,) float32, `terminateds` (B,) bool.
            is_reporting: has no effect.
        """
        cfg = self._config
        obs, actions = batch["obs"], module.clamped(batch["actions"])
        outputs = module.forward_train(batch)
        theta, values = outputs["action_dist_inputs"], outputs["vf_preds"]  # (B, K), (B,)
        with torch.no_grad():
            target_q = module.compute_target_q_values(obs, actions).amin(0)  # (B,)
            next_values = module.compute_values({"obs": batch["new_obs"]})
            y = batch["rewards"] + cfg.gamma * ~batch["terminateds"] * next_values

        u = target_q - values
        vf_loss = (torch.where(u < 0, 1 - cfg.expectile, cfg.expectile) * u.square()).mean()

        q = module.compute_q_values(obs, actions)  # (E, B)
        td = y - q  # (E, B)
        qf_loss = td.square().mean(-1).sum()

        weights = (cfg.beta * u.detach()).exp().clamp(max=_LARGEST_WEIGHT)
        policy_loss = -(weights * module.action_dist.log_prob(theta, actions)).mean()

        total_loss = policy_loss + qf_loss + vf_loss
        td_error = td.detach().abs().mean(0)
        return IQLMetrics(total_loss, policy_loss, qf_loss, vf_loss, q.mean(), values.mean(), weights.mean(), td_error)
