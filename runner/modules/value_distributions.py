"""Distributions of returns: what a network gives for Q(s, a) instead of one number, its mean, and its TD loss.

Dimension letters: B batch rows, A actions, N atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, kl_div

from runner.config.schemas import ModuleConfig


class ValueDistribution:
    """Base of the distributions that a module's outputs `qf_dist_inputs` (..., N) parametrise."""

    def mean(self, dist_inputs: Tensor) -> Tensor:
        """Return (...) means of (..., N)."""
        raise NotImplementedError

    def td_loss(self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return (B,) how far the distribution is from the one of R + gamma^n Z'.

        Args:
            dist_inputs: (B, N) of s and a.
            next_inputs: (B, N) of the target, of s' and a'; no gradient reaches them.
            rewards: (B,) R.
            discounts: (B,) gamma^n, 0 after a terminal step.
        """
        raise NotImplementedError


class CategoricalReturns(ValueDistribution):
    """Probabilities of N returns, evenly spaced from `v_min` to `v_max`, by their logits: C51.

    Bellemare et al., 2017, https://arxiv.org/abs/1707.06887.
    """

    def __init__(self, num_atoms: int, v_min: float, v_max: float) -> None:
        self._v_min, self._v_max = v_min, v_max
        self._spacing = (v_max - v_min) / (num_atoms - 1)
        self._num_atoms = num_atoms

    def _atoms(self, like: Tensor) -> Tensor:
        return torch.linspace(self._v_min, self._v_max, self._num_atoms, dtype=like.dtype, device=like.device)

    def mean(self, dist_inputs: Tensor) -> Tensor:
        """Return (...) means of logits (..., N)."""
        return dist_inputs.softmax(-1) @ self._atoms(dist_inputs)

    def projected(self, probabilities: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return (B, N) the distribution of R + gamma^n Z on the atoms, from the probabilities (B, N) of Z.

        A return beyond the bounds counts as the bound; one between two atoms is shared by them, the nearer one gets
        more (algorithm 1).
        """
        atoms = self._atoms(probabilities)
        returns = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), atoms)  # (B, N)
        places = ((returns - self._v_min) / self._spacing).clamp(0.0, self._num_atoms - 1)
        below = places.floor().clamp(max=self._num_atoms - 2)
        to_above = probabilities * (places - below)
        numbers = below.long()
        shared = torch.zeros_like(probabilities).scatter_add(-1, numbers, probabilities - to_above)
        return shared.scatter_add(-1, numbers + 1, to_above)

    def td_loss(self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return (B,) KL(projected || predicted): the cross entropy of the paper less a constant (Hessel et al., 2018).

        See `ValueDistribution.td_loss`.
        """
        projected = self.projected(next_inputs.softmax(-1), rewards, discounts)
        return kl_div(dist_inputs.log_softmax(-1), projected, reduction="none").sum(-1)


class QuantileReturns(ValueDistribution):
    """N quantiles of the return, at (i + 1/2) / N: QR-DQN (Dabney et al., 2018, https://arxiv.org/abs/1710.10044)."""

    def __init__(self, num_atoms: int) -> None:
        self._num_atoms = num_atoms

    def mean(self, dist_inputs: Tensor) -> Tensor:
        """Return (...) means of quantiles (..., N)."""
        return dist_inputs.mean(-1)

    def td_loss(self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Return (B,) sum_i E_j |tau_i - 1{u < 0}| Huber(u) with u = R + gamma^n theta'_j - theta_i: eq. 10, kappa 1.

        See `ValueDistribution.td_loss`.
        """
        returns = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), next_inputs)  # (B, N)
        num_atoms = self._num_atoms
        quantiles = dist_inputs.unsqueeze(-1).expand(-1, -1, num_atoms)  # (B, N, N)
        returns = returns.unsqueeze(-2).expand(-1, num_atoms, -1)
        steps = torch.arange(num_atoms, dtype=dist_inputs.dtype, device=dist_inputs.device)
        taus = (steps + 0.5).unsqueeze(-1) / num_atoms  # (N, 1)
        weights = (taus - (returns < quantiles.detach()).to(taus.dtype)).abs()
        losses: Tensor = weights * huber_loss(quantiles, returns, reduction="none")
        return losses.mean(-1).sum(-1)


def value_distribution_for(config: ModuleConfig) -> ValueDistribution | None:
    """Return the distribution of `module.q_distribution`; None: Q is a number.

    Raises:
        ValueError: options that contradict each other.
    """
    if config.q_distribution == "none":
        return None
    if config.q_distribution == "quantile":
        return QuantileReturns(config.num_atoms)
    if config.v_min is None or config.v_max is None or config.v_min >= config.v_max:
        raise ValueError(
            f"a categorical distribution needs v_min < v_max: got v_min {config.v_min}, v_max {config.v_max}"
        )
    return CategoricalReturns(config.num_atoms, config.v_min, config.v_max)


def per_action(outputs: Tensor, num_atoms: int) -> Tensor:
    """Return (..., A, N) of outputs (..., A * N) of a network."""
    return outputs.reshape(*outputs.shape[:-1], -1, num_atoms)


def of_actions(values: Tensor, actions: Tensor) -> Tensor:
    """Return (B, ...) the values of actions (B,), numbered from 0, of (B, A, ...)."""
    index = actions.reshape(-1, *[1] * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)
