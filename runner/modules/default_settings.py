"""Process-wide settings of torch and numpy, which environments and callbacks may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

_UNCHANGED = nullcontext()

_NUMPY_ERRORS: dict[str, Any] = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


@contextmanager
def default_settings() -> Iterator[None]:
    """Compute with gradients, float32, the CPU as default device, and numpy's default floating-point error handling.

    Restores the previous settings at the end. Can also be used as a decorator.
    """
    made = torch.empty(0)  # asking torch for its default device takes four times as long
    dtype, device = made.dtype, made.device
    has_device = device.type != "cpu"
    numpy_errors = np.seterr(**_NUMPY_ERRORS)
    with torch.inference_mode(False) if made.is_inference() else _UNCHANGED, torch.enable_grad():
        try:
            if dtype is not torch.float32:
                torch.set_default_dtype(torch.float32)
            if has_device:
                torch.set_default_device(None)
            yield
        finally:
            if torch.get_default_dtype() is not dtype:
                torch.set_default_dtype(dtype)
            if has_device:
                torch.set_default_device(device)
            np.seterr(**numpy_errors)


def is_default_dtype() -> bool:
    """Return whether new tensors are float32."""
    return torch.get_default_dtype() is torch.float32


def has_default_device() -> bool:
    """Return whether new tensors are on the CPU."""
    return torch.empty(0).device.type == "cpu"
