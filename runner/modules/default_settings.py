"""Process-wide settings of torch and numpy, which environments and callbacks may change."""

from __future__ import annotations

from contextlib import ContextDecorator

import numpy as np
import torch


class default_settings(ContextDecorator):  # noqa: N801 - a context manager, like `torch.no_grad`
    """Compute with gradients, float32, the CPU as default device, and numpy's default floating-point error handling.

    Restores the previous settings at the end. Can also be used as a decorator. Each `with` needs a new instance.
    """

    def __enter__(self) -> None:
        made = torch.empty(0)  # asking torch for its default device takes four times as long
        self._dtype, self._device = made.dtype, made.device
        self._inference = torch.inference_mode(False) if made.is_inference() else None
        if self._inference is not None:
            self._inference.__enter__()
        self._has_gradients = torch.is_grad_enabled()
        if not self._has_gradients:
            torch.set_grad_enabled(True)
        self._numpy_errors = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
        self._numpy_errors.__enter__()
        if self._dtype is not torch.float32:
            torch.set_default_dtype(torch.float32)
        if self._device.type != "cpu":
            torch.set_default_device(None)

    def __exit__(self, *error: object) -> None:
        if torch.get_default_dtype() is not self._dtype:
            torch.set_default_dtype(self._dtype)
        if self._device.type != "cpu":
            torch.set_default_device(self._device)
        self._numpy_errors.__exit__(None, None, None)
        if torch.is_grad_enabled() is not self._has_gradients:
            torch.set_grad_enabled(self._has_gradients)
        if self._inference is not None:
            self._inference.__exit__(None, None, None)

    def _recreate_cm(self) -> default_settings:
        """Return an instance for one call of a decorated function; called by `ContextDecorator`."""
        return default_settings()


def is_default_dtype() -> bool:
    """Return whether new tensors are float32."""
    return torch.get_default_dtype() is torch.float32


def has_default_device() -> bool:
    """Return whether new tensors are on the CPU."""
    return torch.empty(0).device.type == "cpu"
