"""Conservative Q-learning on soft actor-critic (Kumar et al., 2020, https://arxiv.org/abs/2006.04779)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.config.algorithms import CQLConfig, CQLMetrics
from runner.learners.loss import Loss
from runner.modules.q_functions import through_actions
from runner.streams import restore_stream, stream_state

# Columns of noise for actions: of the policy in s and in s', and for the log-sum-exp the same and uniform shares.
POLICY_NOISE, NEXT_NOISE = "policy_noise", "next_policy_noise"
UNIFORM_SHARES, SAMPLES_NOISE, NEXT_SAMPLES_NOISE = "uniform_shares", "samples_noise", "next_samples_noise"


class CQLLoss(Loss):
    """CQL(H) for real-valued actions; SAC is Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905.

    L_Q = sum E[(y - Q(s, a))^2] + alpha' (w E[T log sum_i exp((Q(s, a_i) - log mu(a_i)) / T) - Q(s, a)] - threshold)
    y = r + gamma (min Q_target(s', a') - alpha log pi(a' | s')), its second term unless `deterministic_backup`
    L_pi = E[alpha log pi(a_pi | s) - min Q(s, a_pi)], in the first `bc_iters` steps log pi(a | s) instead of min Q
    L_alpha = -E[log alpha (log pi(a_pi | s) + target entropy)]

    (s, a, r, s') is recorded. The a_i are `num_actions` each of a uniform density, of pi(. | s) and of pi(. | s'); mu
    is their density: the importance-sampled form of appendix F (as in the authors' code, the sum is not
    divided by their number). Without `lagrangian` alpha' is 1 and the threshold has no effect. Each term
    reaches one parameter group: `critic`, `actor` or `alpha`.
    """

    reads = ("obs", "actions", "rewards", "new_obs", "terminateds")
    needs = (
        "squashed",
        "clamped",
        "critic",
        "compute_q_values",
        "compute_target_q_values",
        "log_alpha",
        "log_alpha_prime",
    )
    made_for = "module=sac"

    def __init__(self, config: CQLConfig) -> None:
        self._config = config
        self._stream = np.random.default_rng(0)
        self.num_steps = 0
        self._clones = config.bc_iters > 0

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw the noise of sampled actions from `stream`."""
        self._stream = stream

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the noise of all sampled actions: (B, ...) of one for each state, (B, n, ...) of the log-sum-exp's."""
        pi, num_rows, n = module.squashed, len(columns["rewards"]), self._config.num_actions
        noise = {
            POLICY_NOISE: pi.draw_noise(self._stream, (num_rows,)),
            NEXT_NOISE: pi.draw_noise(self._stream, (num_rows,)),
            UNIFORM_SHARES: pi.draw_shares(self._stream, (num_rows, n)),
            SAMPLES_NOISE: pi.draw_noise(self._stream, (num_rows, n)),
            NEXT_SAMPLES_NOISE: pi.draw_noise(self._stream, (num_rows, n)),
        }
        return {name: torch.from_numpy(values).to(columns["rewards"].device) for name, values in noise.items()}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> CQLMetrics:
        """The loss of one minibatch.

        Args:
            module: a `SACModule` or the like, E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` (B,) float32, `terminateds` (B,) bool, and what
                `draw_noise` gives.
            is_reporting: makes no difference.
        """
        cfg, pi = self._config, module.squashed
        obs, new_obs = batch["obs"], batch["new_obs"]
        actions = module.clamped(batch["actions"])
        theta = module.forward_train(batch)["action_dist_inputs"]  # (B, K)
        with torch.no_grad():
            next_theta = module.forward_train({"obs": new_obs})["action_dist_inputs"]

        # Temperature.
        log_alpha = module.log_alpha + math.log(cfg.initial_alpha)
        alpha = log_alpha.detach().exp()
        pi_actions, pi_logp = pi.sample_with_log_prob(theta, batch[POLICY_NOISE])
        alpha_loss = -(log_alpha * (pi_logp.detach() + self._target_entropy(pi)).mean())

        # Policy.
        if self._clones:
            policy_loss = (alpha * pi_logp - pi.log_prob(theta, actions)).mean()
        else:
            pi_q = through_actions(module.compute_q_values(obs, pi_actions).amin(0), pi_actions)  # (B,)
            policy_loss = (alpha * pi_logp - pi_q).mean()

        # Q functions: TD error.
        with torch.no_grad():
            next_actions, next_logp = pi.sample_with_log_prob(next_theta, batch[NEXT_NOISE])
            next_q = module.compute_target_q_values(new_obs, next_actions).amin(0)  # (B,)
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
        """Return (B, n, ...) actions of each kind, with the log densities (B, n) of their draws."""
        n = self._config.num_actions
        uniform = pi.at_shares(batch[UNIFORM_SHARES])
        samples = [(uniform, torch.full((len(theta), n), -pi.log_volume, device=theta.device))]
        for dist_inputs, noise in ((theta.detach(), SAMPLES_NOISE), (next_theta, NEXT_SAMPLES_NOISE)):
            repeated = dist_inputs.unsqueeze(1).expand(-1, n, -1)
            samples.append(pi.sample_with_log_prob(repeated, batch[noise]))
        return samples

    def _target_entropy(self, pi: Any) -> float:
        auto = -float(pi.num_noise)
        return auto if self._config.target_entropy == "auto" else float(self._config.target_entropy)

    def after_step(self, module: Any, num_rows: int) -> None:
        """Count the step."""
        self.num_steps += 1
        self._clones = self.num_steps < self._config.bc_iters

    def coefficients(self) -> dict[str, float]:
        """Return how many gradient steps of behaviour cloning remain."""
        return {"curr_bc_iters_left": max(0, self._config.bc_iters - self.num_steps)}

    def get_state(self) -> dict[str, Any]:
        """Return gradient steps so far, and the random stream."""
        return {"num_steps": self.num_steps, "stream": stream_state(self._stream)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.num_steps = int(state["num_steps"])
        self._clones = self.num_steps < self._config.bc_iters
        restore_stream(self._stream, state["stream"])
