"""Process-wide settings of torch and numpy, which environments and callbacks may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def default_settings() -> Iterator[None]:
    """Compute with gradients, float32, the CPU as default device, and numpy's default floating-point error handling.

    Restores the previous settings at the end. Can also be used as a decorator.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    has_device = device.type != "cpu"
    numpy_errors = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
    with torch.inference_mode(False), torch.enable_grad(), numpy_errors:
        try:
            torch.set_default_dtype(torch.float32)
            if has_device:
                torch.set_default_device(None)
            yield
        finally:
            torch.set_default_dtype(dtype)
            if has_device:
                torch.set_default_device(device)


def is_default_dtype() -> bool:
    """Return whether new tensors are float32."""
    return torch.get_default_dtype() is torch.float32


def has_default_device() -> bool:
    """Return whether new tensors are on the CPU."""
    return torch.get_default_device().type == "cpu"
