"""Distributions of returns, which a network may return instead of Q(s, a): their means and TD losses.

Dimension letters: B batch rows, A actions, N atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from runner.config.schemas import ModuleConfig

_Sums = tuple[Tensor, Tensor, Tensor]


class ValueDistribution:
    """Base class of distributions parametrised by a module's outputs `qf_dist_inputs` (..., N)."""

    def mean(self, dist_inputs: Tensor) -> Tensor:
        """Return (...) means of (..., N)."""
        raise NotImplementedError

    def td_loss(
        self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return (B,) the distance from the distribution of R + gamma^n Z'.

        Args:
            dist_inputs: (B, N) for s and a.
            next_inputs: (B, N) of the target for s' and a', without gradient.
            rewards: (B,) R.
            discounts: (B,) gamma^n, 0 if the step is terminal.
            noise: noise with which `dist_inputs` were computed, or None.
        """
        raise NotImplementedError


class CategoricalReturns(ValueDistribution):
    """Logits of the probabilities of N returns, evenly spaced from `v_min` to `v_max`: C51.

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

        A return outside the bounds is clipped. The probability of a return between two atoms is divided between them,
        with more for the nearer atom (algorithm 1).
        """
        atoms = self._atoms(probabilities)
        returns = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), atoms)  # (B, N)
        places = ((returns - self._v_min) / self._spacing).clamp(0.0, self._num_atoms - 1)
        below = places.floor().clamp(max=self._num_atoms - 2)
        to_above = probabilities * (places - below)
        numbers = below.long()
        shared = torch.zeros_like(probabilities).scatter_add(-1, numbers, probabilities - to_above)
        return shared.scatter_add(-1, numbers + 1, to_above)

    def td_loss(
        self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return (B,) KL(projected || predicted): the paper's cross entropy minus a constant (Hessel et al., 2018).

        See `ValueDistribution.td_loss`.
        """
        projected = self.projected(next_inputs.softmax(-1), rewards, discounts)
        return kl_div(dist_inputs.log_softmax(-1), projected, reduction="none").sum(-1)


class QuantileReturns(ValueDistribution):
    """N quantiles of the return, at (i + 1/2) / N: QR-DQN (Dabney et al., 2018, https://arxiv.org/abs/1710.10044)."""

    def mean(self, dist_inputs: Tensor) -> Tensor:
        """Return (...) means of quantiles (..., N)."""
        return dist_inputs.mean(-1)

    def td_loss(
        self, dist_inputs: Tensor, next_inputs: Tensor, rewards: Tensor, discounts: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return (B,) sum_i E_j |tau_i - 1{u < 0}| Huber(u) with u = R + gamma^n theta'_j - theta_i: eq. 10, kappa 1.

        See `ValueDistribution.td_loss`.
        """
        returns = torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), next_inputs)  # (B, N)
        return quantile_huber_loss(dist_inputs, self._taus(dist_inputs, noise), returns).sum(-1)

    def _taus(self, dist_inputs: Tensor, noise: Tensor | None) -> Tensor:
        return quantile_midpoints(dist_inputs)


class ImplicitQuantiles(QuantileReturns):
    """N quantiles of the return at random fractions, the noise of the module: `ImplicitQuantileHead`."""

    def _taus(self, dist_inputs: Tensor, noise: Tensor | None) -> Tensor:
        return quantile_midpoints(dist_inputs) if noise is None else noise


def quantile_midpoints(quantiles: Tensor) -> Tensor:
    """Return (N,) tau_i = (i + 1/2) / N for quantiles (..., N)."""
    num_quantiles = quantiles.shape[-1]
    return (torch.arange(num_quantiles, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / num_quantiles


def quantile_huber_loss(quantiles: Tensor, taus: Tensor, returns: Tensor) -> Tensor:
    """Return (B, N) E_j |tau_i - 1{u < 0}| Huber(u), u = returns_j - quantiles_i, kappa 1, for each quantile.

    In sorted returns, those more than 1 below a quantile, up to 1 below, up to 1 above and more than 1 above it form
    ranges, and sums over a range are differences of running sums. So the cost per quantile is log J instead of J.
    Computing the loss of all pairs takes four times as long for 125 quantiles and 115 returns.

    Args:
        quantiles: (B, N) float32.
        taus: (N,), or (B, N), in (0, 1).
        returns: (B, J) float32, without gradient.
    """
    with torch.no_grad():
        returns = returns.sort(-1).values
        center = returns.mean(-1, keepdim=True)  # smaller numbers make running sums more exact
        returns, theta = returns - center, quantiles - center
        first = returns.new_zeros(len(returns), 1)
        sums, squares = (torch.cat((first, values.cumsum(-1)), -1) for values in (returns, returns.square()))
        numbers = torch.searchsorted(returns, torch.cat((theta - 1.0, theta, theta + 1.0), -1)).chunk(3, -1)
        # For the returns below each of these bounds: their number, sum, and sum of squares; (B, N).
        low, middle, high = ((n.to(theta.dtype), sums.gather(-1, n), squares.gather(-1, n)) for n in numbers)
        slope_below, loss_below = _quadratic(theta, low, middle)
        slope_above, loss_above = _quadratic(theta, middle, high)
        num_above, sum_above = returns.shape[-1] - high[0], sums[:, -1:] - high[1]
        slope_below, loss_below = slope_below - low[0], loss_below + (theta - 0.5) * low[0] - low[1]
        slope_above, loss_above = slope_above + num_above, loss_above + sum_above - (theta + 0.5) * num_above
        slope = taus * slope_above + (1.0 - taus) * slope_below  # of the sum over j with respect to u
        loss = taus * loss_above + (1.0 - taus) * loss_below
    return (loss - (quantiles - quantiles.detach()) * slope) / returns.shape[-1]


def _quadratic(theta: Tensor, low: _Sums, high: _Sums) -> tuple[Tensor, Tensor]:
    """Return (B, N) sums of u and of u^2 / 2, u = return - theta, over returns between two positions."""
    n, s, q = (above - below for below, above in zip(low, high, strict=True))
    return s - theta * n, 0.5 * (q - 2.0 * theta * s + theta.square() * n)


def value_distribution_for(config: ModuleConfig) -> ValueDistribution | None:
    """Return the distribution of `module.q_distribution`, or None if Q is a number.

    Raises:
        ValueError: options contradict each other.
    """
    if config.q_distribution == "none":
        return None
    if config.q_distribution == "quantile":
        return QuantileReturns()
    if config.q_distribution == "implicit_quantile":
        return ImplicitQuantiles()
    if config.v_min is None or config.v_max is None or config.v_min >= config.v_max:
        raise ValueError(
            f"a categorical distribution needs v_min < v_max: got v_min {config.v_min}, v_max {config.v_max}"
        )
    return CategoricalReturns(config.num_atoms, config.v_min, config.v_max)


def per_action(outputs: Tensor, num_atoms: int) -> Tensor:
    """Reshape outputs (..., A * N) of a network to (..., A, N)."""
    return outputs.reshape(*outputs.shape[:-1], -1, num_atoms)


def of_actions(values: Tensor, actions: Tensor) -> Tensor:
    """Return (B, ...) the values of actions (B,), given as indices, from values (B, A, ...)."""
    if values.ndim == 2:
        return values.gather(1, actions.unsqueeze(1)).squeeze(1)
    index = actions.reshape(-1, *[1] * (values.ndim - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)
