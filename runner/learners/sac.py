"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.algorithms import CQLConfig, LossMetrics, SACConfig, SACMetrics
from runner.learners.loss import Loss
from runner.modules.q_functions import through_actions
from runner.streams import restore_stream, stream_state

# Columns of noise for actions: of the policy in s and in s'.
POLICY_NOISE, NEXT_NOISE = "policy_noise", "next_policy_noise"


class SACLoss(Loss):
    """SAC for real-valued actions; two Q functions (or one), a temperature that adapts.

    L_Q = sum E[w (y - Q(s, a))^2], y = R + gamma^n (min Q_target(s', a') - alpha log pi(a' | s'))
    L_pi = E[alpha log pi(a_pi | s) - min Q(s, a_pi)]
    L_alpha = -E[log alpha (log pi(a_pi | s) + target entropy)]

    R sums the rewards of n steps, s' is the observation after them, w are the importance weights of replay; the second
    term of y is 0 after a terminal step. Each term reaches one parameter group: `critic`, `actor` or `alpha`.
    """

    reads: tuple[str, ...] = ("obs", "actions", "rewards", "new_obs", "terminateds", "n_step", "weights")
    needs: tuple[str, ...] = (
        "squashed",
        "clamped",
        "critic",
        "compute_q_values",
        "compute_target_q_values",
        "log_alpha",
    )
    made_for = "module=sac"

    def __init__(self, config: SACConfig | CQLConfig) -> None:
        self._config: Any = config
        self._stream = np.random.default_rng(0)

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw the noise of sampled actions from `stream`."""
        self._stream = stream

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the noise (B, ...) of the policy's actions in s and s'."""
        rewards = columns["rewards"]
        noise = self._noise(module.squashed, len(rewards))
        return {name: torch.from_numpy(values).to(rewards.device) for name, values in noise.items()}

    def _noise(self, pi: Any, num_rows: int) -> dict[str, Any]:
        return {name: pi.draw_noise(self._stream, (num_rows,)) for name in (POLICY_NOISE, NEXT_NOISE)}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """The loss of one minibatch.

        Args:
            module: a `SACModule` or the like, E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` and `weights` (B,) float32, `terminateds` (B,) bool,
                `n_step` (B,) int64, and what `draw_noise` gives.
            is_reporting: makes no difference.
        """
        log_alpha = self._log_alpha(module)
        alpha = log_alpha.detach().exp()
        theta = module.forward_train(batch)["action_dist_inputs"]  # (B, K)
        pi_actions, pi_logp = module.squashed.sample_with_log_prob(theta, batch[POLICY_NOISE])
        alpha_loss = self._alpha_loss(module, log_alpha, pi_logp)
        policy_loss = self._policy_loss(module, batch["obs"], pi_actions, alpha * pi_logp)

        with torch.no_grad():
            next_theta = module.forward_train({"obs": batch["new_obs"]})["action_dist_inputs"]
            next_q, next_logp = self._next_q(module, batch, next_theta)
            next_values = (next_q - alpha * next_logp).masked_fill(batch["terminateds"], 0.0)
            y = torch.addcmul(batch["rewards"], self._config.gamma ** batch["n_step"], next_values)  # (B,)
        q = module.compute_q_values(batch["obs"], module.clamped(batch["actions"]))  # (E, B)
        td = y - q  # (E, B)
        qf_loss = (batch["weights"] * td.square()).mean(-1).sum()
        return SACMetrics(
            policy_loss + alpha_loss + qf_loss,
            policy_loss,
            qf_loss,
            alpha_loss,
            alpha,
            q.mean(),
            pi_logp.mean(),
            td.detach().abs().mean(0),
        )

    def _log_alpha(self, module: Any) -> Tensor:
        log_alpha: Tensor = module.log_alpha + math.log(self._config.initial_alpha)
        return log_alpha

    def _alpha_loss(self, module: Any, log_alpha: Tensor, pi_logp: Tensor) -> Tensor:
        given = self._config.target_entropy
        target_entropy = -float(module.squashed.num_noise) if given == "auto" else float(given)
        return -(log_alpha * (pi_logp.detach() + target_entropy)).mean()

    def _policy_loss(self, module: Any, obs: Any, pi_actions: Any, entropy_cost: Tensor) -> Tensor:
        pi_q = through_actions(module.compute_q_values(obs, pi_actions).amin(0), pi_actions)  # (B,)
        return (entropy_cost - pi_q).mean()

    def _next_q(self, module: Any, batch: Mapping[str, Any], next_theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return min Q_target (B,) of the policy's actions in s', and their log densities (B,)."""
        next_actions, next_logp = module.squashed.sample_with_log_prob(next_theta, batch[NEXT_NOISE])
        return module.compute_target_q_values(batch["new_obs"], next_actions).amin(0), next_logp

    def get_state(self) -> dict[str, Any]:
        """Return the random stream."""
        return {"stream": stream_state(self._stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        restore_stream(self._stream, state["stream"])
