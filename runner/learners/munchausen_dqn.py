"""Munchausen-DQN (Vieillard et al., 2020, https://arxiv.org/abs/2007.14430): DQN with a log-policy in the reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.config.algorithms import MunchausenDQNConfig
from runner.learners.dqn import TARGET_NOISE, DQNLoss

_LOWEST_LOG_POLICY = -1.0  # of tau log pi(a | s), l_0 in the paper


class MunchausenDQNLoss(DQNLoss):
    """DQN's loss with y = R + alpha [tau log pi(a | s)] + gamma^n tau log sum_a' exp(Q_target(s', a') / tau).

    pi = softmax(Q_target / tau). The first bracket is clipped to [-1, 0]. The last term, which is 0 if the step is
    terminal, is the value of pi in s' with its entropy: sum_a' pi(a' | s') (Q_target(s', a') - tau log pi(a' | s')).
    """

    _config: MunchausenDQNConfig

    def targets_of(
        self, module: Any, batch: Mapping[str, Any], target: Mapping[str, Any], best: Tensor, discounts: Tensor
    ) -> Tensor:
        """Return y (B,); the best actions are not used."""
        alpha, tau = self._config.munchausen_alpha, self._config.munchausen_tau
        same_noise = {**batch, "noise": batch[TARGET_NOISE]} if module.num_noise else batch
        q = module.at_steps(module.forward_target(same_noise), same_noise)["qf_preds"]  # (B, A), in s
        log_pi = module.q_of((q / tau).log_softmax(-1), batch["actions"])
        next_value = tau * (target["qf_preds"] / tau).logsumexp(-1)
        y: Tensor = batch["rewards"] + alpha * (tau * log_pi).clamp(_LOWEST_LOG_POLICY, 0.0) + discounts * next_value
        return y
