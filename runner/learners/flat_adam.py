"""Adam on one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class FlatAdam:
    """Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980) with torch's fused kernel, called directly.

    `torch.optim.Adam(fused=True)` ends in the same kernel, but its bookkeeping for lists of parameters costs more
    than the kernel when a network is small. A test holds the two equal.

    Args:
        parameter: (P,) float32 vector that is changed in place; its `grad` is read.
        betas: decay rates of the moments.
        eps: added to the root of the second moment.
    """

    def __init__(self, parameter: Tensor, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self._parameter = parameter.detach()
        assert parameter.grad is not None  # FlatParameters makes it
        self._gradient = parameter.grad
        self._betas = betas
        self._eps = eps
        self._state = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(self._parameter),
            "exp_avg_sq": torch.zeros_like(self._parameter),
        }

    def step(self, lr: float) -> None:
        """One step along the gradient with learning rate `lr`."""
        state = self._state
        state["step"] += 1
        torch._fused_adam_(
            [self._parameter],
            [self._gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def get_state(self) -> dict[str, Tensor]:
        """Step count and moments, copied."""
        return {name: value.clone() for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        for name, value in self._state.items():
            value.copy_(torch.as_tensor(state[name]))
