"""Parallelised Q-network, PQN (Gallici et al., 2024, https://arxiv.org/abs/2407.04811)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn.functional import mse_loss

from runner.config.algorithms import PQNConfig, PQNMetrics
from runner.learners.loss import Loss


class PQNLoss(Loss):
    """L = 1/2 E[(Q(s, a) - G)^2] with the lambda-return G; algorithm 1 of the paper.

    G[t] = r[t] + gamma ((1 - lambda) max_a Q(s[t + 1], a) + lambda G[t + 1]) is computed before the update and is a
    constant of the batch. With the value max_a Q(s, a) of a state, it is the value target of
    `GeneralAdvantageEstimation`. Layer normalisation keeps learning stable without a target network.
    """

    reads = ("obs", "actions", "value_targets")
    needs = ("qf_preds", "q_of")
    made_for = "module=pqn"

    def __init__(self, config: PQNConfig) -> None:
        pass

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> PQNMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `QModule`, with A actions.
            batch: the module's inputs, `actions` (B,) integers and `value_targets` (B,) float32; every row is an env
                step.
            is_reporting: has no effect.
        """
        q = module.q_of(module.outputs_at_steps(batch)["qf_preds"], batch["actions"])  # (B,)
        qf_loss = 0.5 * mse_loss(q, batch["value_targets"])
        return PQNMetrics(qf_loss, qf_loss, q.detach().mean())
