"""Twin delayed deep deterministic policy gradient (Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runner.config.algorithms import LossMetrics, TD3Config, TD3Metrics
from runner.learners.delayed_policy import DelayedPolicyLoss
from runner.modules.q_functions import through_actions

TARGET_NOISE = "target_noise"


class TD3Loss(DelayedPolicyLoss):
    """TD3: two Q functions (or one) with smoothed targets, and a policy updated in every `policy_delay`-th step.

    L_Q = sum E[w (y - Q(s, a))^2], y = R + gamma^n min Q_target(s', pi_target(s') + clip(noise))
    L_pi = -E[Q_1(s, pi(s))]

    R is the sum of the rewards of n steps, s' is the observation after them, and w are the importance weights of
    replay. The second term of y is 0 if the step is terminal. With one Q function, no delay and no noise this is DDPG
    (Lillicrap et al., 2016).
    """

    reads: tuple[str, ...] = ("obs", "actions", "rewards", "new_obs", "terminateds", "n_step", "weights")
    sequences = ("new_obs", "new_state_in")
    needs: tuple[str, ...] = (
        "squashed",
        "seen",
        "dist_inputs",
        "clamped",
        "critic",
        "compute_q_values",
        "compute_target_q_values",
        "compute_target_dist_inputs",
    )
    made_for = "module=td3"

    def __init__(self, config: TD3Config) -> None:
        super().__init__(config.policy_delay)
        self._config = config

    def draw_noise(self, module: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Draw the noise (B, A) of the target policy's actions."""
        rewards, config = columns["rewards"], self._config
        noise = self._stream.standard_normal((len(rewards), module.squashed.num_noise), np.float32)
        clipped = (config.target_noise * noise).clip(-config.target_noise_clip, config.target_noise_clip)
        return {TARGET_NOISE: torch.from_numpy(clipped.astype(np.float32)).to(rewards.device)}

    def __call__(self, module: Any, batch: Mapping[str, Any], is_reporting: bool = True) -> LossMetrics:
        """Compute the loss of one minibatch.

        Args:
            module: a module like `TD3Module`, with E Q functions.
            batch: `obs`, `new_obs`, `actions` (B, ...), `rewards` and `weights` (B,) float32, `terminateds` (B,) bool,
                `n_step` (B,) int64, and the columns of `draw_noise`; for stateful modules see `RecallingModule.seen`.
            is_reporting: has no effect.
        """
        seen = module.seen(batch)
        with torch.no_grad():
            next_theta = module.compute_target_dist_inputs(seen.target_obs)
            next_actions = module.squashed.mode_with_noise(next_theta, batch[TARGET_NOISE])
            next_q = module.compute_target_q_values(seen.target_obs, next_actions).amin(0)
            next_values = next_q.masked_fill(batch["terminateds"], 0.0)
            y = torch.addcmul(batch["rewards"], self._config.gamma ** batch["n_step"], next_values)  # (B,)
        q = module.compute_q_values(seen.obs, module.clamped(batch["actions"]))  # (E, B)
        td = y - q  # (E, B)
        total_loss = qf_loss = (batch["weights"] * td.square()).mean(-1).sum()
        policy_loss = None
        if not self.frozen_groups:
            pi_actions = module.squashed.mode(module.dist_inputs(seen.obs))
            pi_q = module.compute_q_values(module.without_gradient(seen.obs), pi_actions, slice(1)).squeeze(0)  # (B,)
            policy_loss = -through_actions(pi_q, pi_actions).mean()
            total_loss = qf_loss + policy_loss
        return TD3Metrics(total_loss, policy_loss, qf_loss, q.mean(), td.detach().abs().mean(0))
