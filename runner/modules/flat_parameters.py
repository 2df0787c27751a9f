"""All parameters of a module in one contiguous buffer.

One optimiser kernel, one gradient norm, one copy to send the weights, one all-reduce for several learners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


class FlatParameters:
    """Makes the parameters and float buffers of `module` views of one vector, and their gradients of another.

    Attributes:
        parameter: (P,) leaf that an optimiser steps; its `grad` is filled by `backward` on any loss of the module.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        tensors: list[Tensor] = [*parameters, *buffers]
        device = tensors[0].device
        self._num_parameters = sum(parameter.numel() for parameter in parameters)
        self._values = torch.empty(sum(tensor.numel() for tensor in tensors), device=device)
        gradient = torch.zeros(self._num_parameters, device=device)
        start = 0
        for tensor in tensors:
            rows = slice(start, start + tensor.numel())
            self._values[rows] = tensor.detach().reshape(-1)
            tensor.data = self._values[rows].view_as(tensor)
            if isinstance(tensor, nn.Parameter):
                tensor.grad = gradient[rows].view_as(tensor)
            start = rows.stop
        self.parameter = nn.Parameter(self._values[: self._num_parameters])
        self.parameter.grad = gradient

    @property
    def gradient(self) -> Tensor:
        """(P,) the gradient that `backward` adds to."""
        assert self.parameter.grad is not None  # set in __init__, never taken away
        return self.parameter.grad

    def to_numpy(self) -> npt.NDArray[np.float32]:
        """A copy of parameters and buffers on the host."""
        return self._values.detach().cpu().numpy().copy()

    @torch.no_grad()
    def load(self, values: npt.NDArray[Any]) -> None:
        """Take over the values of `to_numpy` of a module of the same shape.

        Raises:
            ValueError: another number of values.
        """
        if values.shape != tuple(self._values.shape):
            raise ValueError(f"weights have {values.size} values, this module has {self._values.numel()}")
        self._values.copy_(torch.from_numpy(np.require(values, requirements="W")))
