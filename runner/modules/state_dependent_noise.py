"""Generalised state-dependent exploration, gSDE (Raffin et al., 2022, https://arxiv.org/abs/2005.05719)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_EPSILON = 1e-6  # of the variance


class StateDependentNoise(nn.Module):
    """Noise of actions that is a random linear function of the features: a = mean + W phi, W_ij ~ N(0, sigma_ij^2).

    While W is kept, equal features get equal noise, so that exploration is smooth. Over draws of W, the noise is normal
    with the variance sum_j sigma_ij^2 phi_j^2, from which log probabilities are computed. The features do not get a
    gradient of this variance, as in Stable-Baselines3.

    Args:
        num_features: F.
        num_actions: A.
        initial_log_std: initial log sigma_ij.

    Attributes:
        num_noise: F * A, the numbers in a row of noise.
    """

    def __init__(self, num_features: int, num_actions: int, initial_log_std: float) -> None:
        super().__init__()
        self.num_noise = num_features * num_actions
        self.log_std = nn.Parameter(torch.full((num_features, num_actions), initial_log_std))

    def log_std_of(self, features: Tensor) -> Tensor:
        """Return the log standard deviations (..., A) for features (..., F)."""
        variance = features.detach().square() @ (2.0 * self.log_std).exp()
        return 0.5 * (variance + _EPSILON).log()

    def forward(self, features: Tensor, noise: Tensor) -> Tensor:
        """Return the noise W phi (N, A), or (N, 1, A), in units of its standard deviation.

        Args:
            features: (N, F), or (N, 1, F) of a recurrent layer.
            noise: standard normal numbers (N, F * A), which W is made of.
        """
        weights = self.log_std.exp() * noise.reshape(len(noise), *self.log_std.shape)
        explored = (features.reshape(len(noise), 1, -1) @ weights).reshape(*features.shape[:-1], -1)
        return explored * (-self.log_std_of(features)).exp()
