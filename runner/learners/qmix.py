"""QMIX (Rashid et al., 2018, https://arxiv.org/abs/1803.11485): Q-learning on a mix of the agents' Q functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from runner.learners.dqn import DQNLoss


class QMIXLoss(DQNLoss):
    """L = E[w l(Q_tot(s, a) - y)] with y = R + gamma^n Q_tot,target(s', a'), a' the best action of each agent (eq. 6).

    DQN's loss, with Q replaced by Q_tot, a mix of the Q of each agent's action. Actions in `batch` are (B, A).
    """

    needs = ("qf_preds", "forward_target", "mix", "mix_target")
    made_for = "module=qmix"

    def q_of(self, module: Any, outputs: Mapping[str, Any], actions: Tensor) -> Tensor:
        """Return Q_tot (B,) of actions (B, A)."""
        total: Tensor = module.mix(outputs, actions)
        return total

    def target_q_of(self, module: Any, outputs: Mapping[str, Any], best: Tensor) -> Tensor:
        """Return the target's Q_tot (B,) of the best actions (B, A)."""
        total: Tensor = module.mix_target(outputs, best)
        return total
