"""Deep Q-learning, DQN (Mnih et al., 2015, https://doi.org/10.1038/nature14236), with its usual extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.functional import huber_loss, mse_loss

from runner.config.algorithms import DQNConfig, DQNMetrics
from runner.learners.loss import Loss


class DQNLoss(Loss):
    """L = E[w l(Q(s, a) - y)] with y = R + gamma^n Q_target(s', a'), the second term 0 after a terminal step.

    R sums the rewards of n steps and s' is the observation after them (Hessel et al., 2018,
    https://arxiv.org/abs/1710.02298). a' is best by Q (double Q-learning, van Hasselt et al., 2016,
    https://arxiv.org/abs/1509.06461) or by Q_target, l Huber's loss or the square, w the importance weights of replay.
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds", "n_step", "weights")
    needs = ("qf_preds", "forward_target", "q_of")
    sequences = ("new_obs", "new_state_in")
    made_for = "module=double_q"

    def __init__(self, config: DQNConfig) -> None:
        self._config = config
        self._td_loss = huber_loss if config.td_error_loss_fn == "huber" else mse_loss

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> DQNMetrics:
        """The loss of one minibatch.

        Args:
            module: a `DoubleQModule` or the like, A actions.
            batch: `obs`, `new_obs` (B, ...), `actions` (B,) integers, `rewards` and `weights` (B,) float32,
                `terminateds` (B,) bool, `n_step` (B,) int64. For a module with memory `obs` and `new_obs` are sequences
                (S, L, ...) with B env steps in all, and `state_in` and `new_state_in` the states before each.
            is_reporting: makes no difference.
        """
        cfg, new_batch = self._config, {"obs": batch["new_obs"]}
        if module.is_stateful:
            new_batch = {**batch, **new_batch, "state_in": batch["new_state_in"]}
        with torch.no_grad():
            target_q = module.at_steps(module.forward_target(new_batch), new_batch)["qf_preds"]  # (B, A)
            if cfg.double_q:
                best = module.outputs_at_steps(new_batch)["qf_preds"].argmax(-1, keepdim=True)
                next_q = target_q.gather(-1, best).squeeze(-1)  # (B,)
            else:
                next_q = target_q.amax(-1)
            bootstrap = next_q.masked_fill(batch["terminateds"], 0.0)
            y = torch.addcmul(batch["rewards"], cfg.gamma ** batch["n_step"], bootstrap)

        q = module.q_of(module.outputs_at_steps(batch)["qf_preds"], batch["actions"])  # (B,)
        qf_loss = (batch["weights"] * self._td_loss(q, y, reduction="none")).mean()
        known_q = q.detach()
        td_error = (known_q - y).abs()
        return DQNMetrics(qf_loss, qf_loss, known_q.mean(), td_error.mean(), td_error)
