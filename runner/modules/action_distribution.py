"""Base class of action distributions, and their shared functions.

Letters: B stands for any number of leading dimensions, also (S, L); K and M are the widths of `dist_inputs` and of the
noise.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

T = TypeVar("T")

# Logit of a forbidden action. Its probability is exactly 0 in float32, and entropy and KL stay finite.
MASKED_LOGIT = -1e9


class ActionDistribution:
    """Base class: a distribution as functions of `dist_inputs`, the module's `action_dist_inputs` (B, K) float32.

    Noise is an argument, because distributions draw no random numbers. Actions are a tensor, or a dict or tuple of
    tensors like the action space, with the space's dtypes.

    Attributes:
        num_inputs: K.
        num_noise: M.
        log_std_inputs: columns of `dist_inputs` that are log standard deviations.
    """

    num_inputs: int
    num_noise: int
    log_std_inputs: tuple[int, ...] = ()

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw the noise for `sample`, `(*leading, M)`."""
        raise NotImplementedError

    def sample(self, dist_inputs: Tensor, noise: Tensor) -> Any:
        """Return actions (B, ...) as a function of the noise (B, M)."""
        raise NotImplementedError

    def mode(self, dist_inputs: Tensor) -> Any:
        """Return the most likely actions (B, ...)."""
        raise NotImplementedError

    def log_prob(self, dist_inputs: Tensor, actions: Any) -> Tensor:
        """Return (B,) log probabilities (densities) of actions."""
        raise NotImplementedError

    def entropy(self, dist_inputs: Tensor) -> Tensor:
        """Return (B,) entropies in nats."""
        raise NotImplementedError

    def kl(self, dist_inputs: Tensor, other_inputs: Tensor) -> Tensor:
        """Return (B,) KL divergence from the first distribution to the second, in nats."""
        raise NotImplementedError

    def masked(self, dist_inputs: Tensor, mask: Any) -> Tensor:
        """Return (B, K) inputs for which forbidden actions have probability 0.

        Args:
            dist_inputs: (B, K).
            mask: of any dtype; 0 forbids. Discrete(n): (B, n). MultiDiscrete: (B, sum(nvec)), or a tuple of (B, n_i).
                MultiBinary: `(B, *shape)`, 0 forbids the 1. Dict, Tuple: a dict or tuple with the masks of the entries;
                see `check_mask_space`.

        Raises:
            TypeError: the actions belong to a Box, whose masks `check_mask_space` rejects.
        """
        raise TypeError("the actions of a Box cannot be masked")

    def first_fully_forbidden(self, mask: Any) -> int | None:
        """Return the first row of a mask (numpy arrays (B, ...), one B) that forbids all actions of some choice.

        By default None, for actions that always have an allowed choice.
        """
        return None


def forbid(dist_inputs: Tensor, mask: Tensor) -> Tensor:
    """Return logits (B, K) with `MASKED_LOGIT` where the mask (B, K) is 0."""
    return dist_inputs.masked_fill(mask == 0, MASKED_LOGIT)


def first_false(is_possible: npt.NDArray[np.bool_]) -> int | None:
    """Return the first row of (B, ...) with a false value."""
    if is_possible.all():
        return None
    return int(is_possible.reshape(len(is_possible), -1).all(-1).argmin())


def tables_on(tables: dict[torch.device, T], device: torch.device) -> T:
    """Return the tables on a device, a dataclass of tensors; they are copied from the CPU's at the first call.

    Args:
        tables: device -> the tables on it.
        device: device of the inputs.
    """
    found = tables.get(device)
    if found is None:
        on_cpu: Any = tables[torch.device("cpu")]
        with torch.inference_mode(False):  # tensors made in inference mode cannot be used for gradients
            copies = [getattr(on_cpu, field.name).to(device) for field in fields(on_cpu)]
            found = tables[device] = type(on_cpu)(*copies)
    return found


def torch_dtype(dtype: np.dtype[Any] | None, default: torch.dtype) -> torch.dtype:
    """Return the torch dtype of a numpy dtype, or `default` if torch does not have it."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return default
