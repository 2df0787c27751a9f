"""Conservative Q-learning on soft actor-critic (Kumar et al., 2020, https://arxiv.org/abs/2006.04779)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runner.config.algorithms import CQLConfig, CQLMetrics
from runner.learners.sac import POLICY_NOISE, SACLoss

# Columns of noise for the actions in the log-sum-exp: uniform ones, the policy's in s, and the policy's in s'.
UNIFORM_SHARES, SAMPLES_NOISE, NEXT_SAMPLES_NOISE = "uniform_shares", "samples_noise", "next_samples_noise"


class CQLLoss(SACLoss):
    """CQL(H) for real-valued actions, on SAC.

    L_Q = sum E[(y - Q(s, a))^2] + alpha' (w E[T log sum_i exp((Q(s, a_i) - log mu(a_i)) / T) - Q(s, a)] - threshold)
    y = r + gamma (min Q_target(s', a') - alpha log pi(a' | s')); with `deterministic_backup` without the entropy term
    L_pi = E[alpha log pi(a_pi | s) - min Q(s, a_pi)]; in the first `bc_iters` steps log pi(a | s) instead of min Q

    (s, a, r, s') is recorded. The a_i are `num_actions` samples each of a uniform density, of pi(. | s) and of
    pi(. | s'), and mu is their density: the importance-sampled form of appendix F. As in the authors' code, the sum is
    not divided by the number of samples. Without `lagrangian`, alpha' is 1 and the threshold has no effect.
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds")
    sequences = ()  # recorded steps do not include the recurrent states of this module
    needs = (*SACLoss.needs, "log_alpha_prime")

    def __init__(self, config: CQLConfig) -> None:
        super().__init__(config)
        self._clones = config.bc_iters > 0

    def _action_noise(self, module: Any, num_rows: int) -> dict[str, Any]:
        pi, rows = module.squashed, (num_rows, self._config.num_actions)
        return super()._action_noise(module, num_rows) | {
            UNIFORM_SHARES: pi.draw_shares(self._stream, rows),
            SAMPLES_NOISE: pi.draw_noise(self._stream, rows),
            NEXT_SAMPLES_NOISE: pi.draw_noise(self._stream, rows),
        }

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> CQLMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `SACModule`, with E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` (B,) float32, `terminateds` (B,) bool, and the
                columns of `draw_noise`.
            is_reporting: has no effect.
        """
        cfg, pi = self._config, module.squashed
        seen = module.seen(batch)
        obs, actions = seen.obs, module.clamped(batch["actions"])
        log_alpha = self._log_alpha(module)
        alpha = log_alpha.detach().exp()
        theta = module.dist_inputs(obs)  # (B, K)
        pi_actions, pi_logp = pi.sample_with_log_prob(theta, batch[POLICY_NOISE])
        alpha_loss = self._alpha_loss(module, log_alpha, pi_logp)
        if self._clones:
            policy_loss = (alpha * pi_logp - pi.log_prob(theta, actions)).mean()
        else:
            policy_loss = self._policy_loss(module, batch, obs, pi_actions, alpha * pi_logp)

        # Q functions: TD error.
        with torch.no_grad():
            next_theta = module.dist_inputs(seen.new_obs)
            next_q, next_logp = self._next_q(module, batch, seen, next_theta)
            if not cfg.deterministic_backup:
                next_q = next_q - alpha * next_logp
            y = batch["rewards"] + cfg.gamma * ~batch["terminateds"] * next_q
            samples = self._actions_for_logsumexp(pi, theta, next_theta, batch)
        q = module.compute_q_values(obs, actions)  # (E, B)
        td = y - q  # (E, B)
        qf_loss = td.square().mean(-1).sum()

        # Q functions: conservative term.
        exponents = [
            module.compute_q_values(obs, some_actions).unflatten(-1, log_mu.shape) - log_mu  # (E, B, n)
            for some_actions, log_mu in samples
        ]
        logsumexp = cfg.temperature * (torch.cat(exponents, -1) / cfg.temperature).logsumexp(-1)  # (E, B)
        gaps = (logsumexp - q).mean(-1)  # (E,)
        cql_loss = gaps.sum()
        total_loss = policy_loss + alpha_loss + qf_loss
        alpha_prime = module.log_alpha_prime.exp()
        if cfg.lagrangian:
            excess = cfg.min_q_weight * gaps - cfg.lagrangian_thresh  # (E,)
            total_loss = total_loss + (alpha_prime.detach() * excess).sum() - (alpha_prime * excess.detach()).mean()
        else:
            total_loss = total_loss + cfg.min_q_weight * cql_loss
        return CQLMetrics(
            total_loss,
            policy_loss,
            qf_loss,
            cql_loss,
            alpha_loss,
            alpha,
            alpha_prime,
            q.mean(),
            pi_logp.mean(),
            td.detach().abs().mean(0),
        )

    def _actions_for_logsumexp(
        self, pi: Any, theta: Tensor, next_theta: Tensor, batch: Mapping[str, Any]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return (B, n, ...) actions of each kind, with the log densities (B, n) of the samples."""
        n = self._config.num_actions
        uniform = pi.at_shares(batch[UNIFORM_SHARES])
        samples = [(uniform, torch.full((len(theta), n), -pi.log_volume, device=theta.device))]
        for dist_inputs, noise in ((theta.detach(), SAMPLES_NOISE), (next_theta, NEXT_SAMPLES_NOISE)):
            repeated = dist_inputs.unsqueeze(1).expand(-1, n, -1)
            samples.append(pi.sample_with_log_prob(repeated, batch[noise]))
        return samples

    def after_step(self, module: Any, num_rows: int) -> None:
        """Count the step."""
        super().after_step(module, num_rows)
        self._clones = self.num_steps < self._config.bc_iters

    def coefficients(self) -> dict[str, float]:
        """Return the number of remaining gradient steps with behaviour cloning."""
        return {"curr_bc_iters_left": max(0, self._config.bc_iters - self.num_steps)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        super().set_state(state)
        self._clones = self.num_steps < self._config.bc_iters
