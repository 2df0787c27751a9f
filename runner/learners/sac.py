"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905), with REDQ and DroQ as options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runner.config.algorithms import CQLConfig, LossMetrics, SACConfig, SACMetrics, SoftActorCriticConfig
from runner.learners.delayed_policy import DelayedPolicyLoss
from runner.modules.layers import ALL, Members
from runner.modules.q_function_modules import Seen
from runner.modules.q_functions import through_actions

# Columns of noise for the policy's actions in s and s'.
POLICY_NOISE, NEXT_NOISE = "policy_noise", "next_policy_noise"
# Indices (M,) of the Q functions in the target, and dropout factors (E or M, B, hidden) of hidden layers.
TARGET_MEMBERS, Q_SCALES, TARGET_SCALES, POLICY_SCALES = "target_members", "q_scales", "target_scales", "policy_scales"


class SACLoss(DelayedPolicyLoss):
    """SAC for real-valued actions, with an ensemble of Q functions and an adaptive temperature.

    L_Q = sum E[w (y - Q(s, a))^2], y = R + gamma^n (min Q_target(s', a') - alpha log pi(a' | s'))
    L_pi = E[alpha log pi(a_pi | s) - min Q(s, a_pi)]
    L_alpha = -E[log alpha (log pi(a_pi | s) + target entropy)]

    R is the sum of the rewards of n steps, s' is the observation after them, and w are the importance weights of
    replay. The second term of y is 0 if the step is terminal. Each term affects one parameter group: `critic`,
    `actor` or `alpha`.

    With `num_target_critics` the minimum in y is over that number of Q functions, drawn for each gradient step. With
    `policy_q: mean` the policy learns from the mean (REDQ: Chen et al., 2021, https://arxiv.org/abs/2101.05982). A
    module with `critic_dropout` draws new dropout in each pass (DroQ: Hiraoka et al., 2022,
    https://arxiv.org/abs/2110.02034).
    """

    reads: tuple[str, ...] = ("obs", "actions", "rewards", "new_obs", "terminateds", "n_step", "weights")
    sequences: tuple[str, ...] = ("new_obs", "new_state_in")
    needs: tuple[str, ...] = (
        "squashed",
        "seen",
        "dist_inputs",
        "clamped",
        "critic",
        "compute_q_values",
        "compute_target_q_values",
        "draw_dropout",
        "log_alpha",
    )
    made_for = "module=sac"
    delayed = ("actor", "alpha")

    def __init__(self, config: SoftActorCriticConfig | CQLConfig) -> None:
        options = config if isinstance(config, SoftActorCriticConfig) else SACConfig()
        super().__init__(options.policy_delay)
        self._config: Any = config
        self._num_target_critics = options.num_target_critics if isinstance(options, SACConfig) else None
        self._learns_from_mean = options.policy_q == "mean"

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the noise (B, ...) of the policy's actions in s and s', and the random numbers of the Q functions."""
        rewards = columns["rewards"]
        noise = {**self._action_noise(module, len(rewards)), **self._critic_noise(module, len(rewards))}
        return {name: torch.from_numpy(values).to(rewards.device) for name, values in noise.items()}

    def _action_noise(self, module: Any, num_rows: int) -> dict[str, Any]:
        return {name: module.squashed.draw_noise(self._stream, (num_rows,)) for name in (POLICY_NOISE, NEXT_NOISE)}

    def _critic_noise(self, module: Any, num_rows: int) -> dict[str, Any]:
        num_critics = module.critic.num_members
        num_of_pass = {Q_SCALES: num_critics, TARGET_SCALES: num_critics, POLICY_SCALES: num_critics}
        noise: dict[str, Any] = {}
        if self._num_target_critics is not None:
            noise[TARGET_MEMBERS] = self._stream.permutation(num_critics)[: self._num_target_critics]
            num_of_pass[TARGET_SCALES] = self._num_target_critics
        for name, num_members in num_of_pass.items():
            if (scales := module.draw_dropout(self._stream, num_members, num_rows)) is not None:
                noise[name] = scales
        return noise

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `SACModule`, with E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` and `weights` (B,) float32, `terminateds` (B,) bool,
                `n_step` (B,) int64, and the columns of `draw_noise`; for stateful modules see `RecallingModule.seen`.
            is_reporting: has no effect.
        """
        seen, log_alpha = module.seen(batch), self._log_alpha(module)
        alpha = log_alpha.detach().exp()
        total_loss = policy_loss = alpha_loss = logp_mean = None
        if not self.frozen_groups:
            theta = module.dist_inputs(seen.obs)  # (B, K)
            pi_actions, pi_logp = module.squashed.sample_with_log_prob(theta, batch[POLICY_NOISE])
            alpha_loss = self._alpha_loss(module, log_alpha, pi_logp)
            policy_loss = self._policy_loss(module, batch, seen.obs, pi_actions, alpha * pi_logp)
            logp_mean, total_loss = pi_logp.mean(), policy_loss + alpha_loss
        qf_loss, qf_mean, td_error = self._q_losses(module, batch, seen, alpha)
        total_loss = qf_loss if total_loss is None else total_loss + qf_loss
        return SACMetrics(total_loss, policy_loss, qf_loss, alpha_loss, alpha, qf_mean, logp_mean, td_error)

    def _q_losses(
        self, module: Any, batch: Mapping[str, Any], seen: Seen, alpha: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of the Q functions, their mean, and |TD error| (B,)."""
        with torch.no_grad():
            next_theta = module.dist_inputs(seen.new_obs)
            next_q, next_logp = self._next_q(module, batch, seen, next_theta)
            y = self._returns(batch, next_q - alpha * next_logp)
        q = module.compute_q_values(seen.obs, module.clamped(batch["actions"]), ALL, batch.get(Q_SCALES))  # (E, B)
        td = y - q  # (E, B)
        return (batch["weights"] * td.square()).mean(-1).sum(), q.mean(), td.detach().abs().mean(0)

    def _returns(self, batch: Mapping[str, Any], next_values: Tensor) -> Tensor:
        """Return R + gamma^n times the values (B, ...) of s', which are 0 if the step is terminal."""
        rewards, discounts, are_last = batch["rewards"], self._config.gamma ** batch["n_step"], batch["terminateds"]
        if next_values.ndim > 1:
            rewards, discounts, are_last = (column.unsqueeze(-1) for column in (rewards, discounts, are_last))
        return torch.addcmul(rewards, discounts, next_values.masked_fill(are_last, 0.0))

    def _log_alpha(self, module: Any) -> Tensor:
        log_alpha: Tensor = module.log_alpha + math.log(self._config.initial_alpha)
        return log_alpha

    def _alpha_loss(self, module: Any, log_alpha: Tensor, pi_logp: Tensor) -> Tensor:
        given = self._config.target_entropy
        target_entropy = self._auto_target_entropy(module) if given == "auto" else float(given)
        return -(log_alpha * (pi_logp.detach() + target_entropy)).mean()

    def _auto_target_entropy(self, module: Any) -> float:
        return -float(module.squashed.num_noise)

    def _policy_loss(
        self, module: Any, batch: Mapping[str, Any], obs: Any, pi_actions: Any, entropy_cost: Tensor
    ) -> Tensor:
        scales = batch.get(POLICY_SCALES)
        q = module.compute_q_values(module.without_gradient(obs), pi_actions, ALL, scales)  # (E, B)
        return (entropy_cost - through_actions(self._policy_q(q), pi_actions)).mean()

    def _policy_q(self, q: Tensor) -> Tensor:
        """Return the value (B, ...) that the policy maximises, from Q (E, B, ...)."""
        return q.mean(0) if self._learns_from_mean else q.amin(0)

    def _next_q(self, module: Any, batch: Mapping[str, Any], seen: Seen, next_theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return min Q_target (B,) of the policy's actions in s', and their log densities (B,)."""
        next_actions, next_logp = module.squashed.sample_with_log_prob(next_theta, batch[NEXT_NOISE])
        members, scales = target_members(batch), batch.get(TARGET_SCALES)
        return module.compute_target_q_values(seen.target_obs, next_actions, members, scales).amin(0), next_logp


def target_members(batch: Mapping[str, Any]) -> Members:
    """Return the Q functions in the target."""
    members: Members = batch.get(TARGET_MEMBERS, ALL)
    return members
