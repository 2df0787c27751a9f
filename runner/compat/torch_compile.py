"""Private parts of torch's compiler: settings, errors, the C++ compiler, and compiled code."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from runner.compat.libraries import Library

TORCH = Library("torch", ">=2.11,<2.14")

with TORCH.expected():
    import torch._dynamo
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException, TorchRuntimeError
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

# A pass over the graph of a function before code is generated; `torch.compiler` does not have a public base class.
GraphPass = CustomGraphPass
# `torch.compiler` does not have public errors.
COMPILE_ERRORS = (TorchDynamoException, FailOnRecompileLimitHit, CppCompileError)

_TALKATIVE = ("torch._dynamo.convert_frame", "torch._dynamo.backends.common", "torch._subclasses.fake_tensor")
# Advice for GPUs that does not apply to users of runner: float32 is not rounded, and torch chooses the kernels.
_ADVICE = (r"TensorFloat32 tensor cores .* available but not enabled", r"\s*Online softmax is disabled on the fly")


def can_trace_gradients() -> bool:
    """Return whether torch can trace `torch.autograd.grad` in a compiled function.

    A public option of `torch.compile` would replace the setting.
    """
    return hasattr(torch._dynamo.config, "trace_autograd_ops")


def allow_tracing(most_functions: int) -> None:
    """Allow torch to trace gradients, and to compile one code `most_functions` times, in the current thread.

    A public option of `torch.compile` would replace the settings.
    """
    config = torch._dynamo.config
    if not config.trace_autograd_ops:
        config.trace_autograd_ops = True
    if config.recompile_limit < most_functions:
        config.recompile_limit = most_functions


def silence() -> None:
    """Suppress log messages and warnings of torch during compilation; errors contain the same text."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    for message in _ADVICE:
        warnings.filterwarnings("ignore", message)


def mark_static_address(tensor: torch.Tensor) -> None:
    """Mark the address of a tensor as constant, which CUDA graphs need; there is no public equivalent."""
    torch._dynamo.mark_static_address(tensor)


def onednn_linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return inputs (M, K) times the transposed weight (N, K) plus the bias (N,), by oneDNN.

    The public functions of torch use MKL for float32.
    """
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product


def digest_of_files(*paths: str) -> bytes:
    """Return the digest of files that torch's own passes use as identity in its cache of compiled code."""
    digest: bytes = get_hash_for_files(paths)
    return digest


def cpp_compiler() -> str | None:
    """Return the C++ compiler that torch finds, or None; there is no public equivalent."""
    try:
        return str(get_cpp_compiler())
    except InvalidCxxCompiler:
        return None


def reason_of(error: Exception) -> tuple[str, Any | None]:
    """Return the reason why a function cannot be compiled, and the innermost frame of the user's code if torch names
    one."""
    frames = list(getattr(error, "real_stack", None) or ())
    error = getattr(error, "inner_exception", error)
    text = str(error) or type(error).__name__
    if isinstance(error, TorchRuntimeError) and ": got " in text:
        text = text.split(": got ")[1]
    return text.splitlines()[0], frames[-1] if frames else None


def is_recompile_limit(error: Exception) -> bool:
    """Return whether the error is that a function was compiled too often."""
    return isinstance(getattr(error, "inner_exception", error), FailOnRecompileLimitHit)


class DirectCall:
    """Compiled code of a function, with the checks that torch generated for it.

    The result of `torch.compile` searches for the code at each call, which takes longer than all arithmetic of a small
    network. The code itself is a plain function, and its checks are one call into C++ that takes a tenth of the search.
    A public way to call compiled code without the search would replace this class.

    Args:
        function: the compiled function.
        entry: entry of torch's cache.
    """

    def __init__(self, function: Callable[..., Any], entry: Any) -> None:
        self._code = FunctionType(entry.code, function.__globals__, closure=function.__closure__)
        self._checks = entry.guard_manager
        self._names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> DirectCall | None:
        """Return the code that torch uses for these arguments, or None.

        Args:
            function: a function that was compiled by a single `torch.compile`.
            arguments: arguments of an earlier call.
        """
        found = (cls(function, entry) for entry in _debug_get_cache_entry_list(function.__code__))
        return next((one for one in found if one.takes(*arguments)), None)

    def takes(self, *arguments: Any) -> bool:
        """Return whether torch still keeps the code, and the values it was compiled for are unchanged."""
        checks = self._checks
        return checks.cache_entry is not None and checks.check(dict(zip(self._names, arguments, strict=True)))

    def __call__(self, *arguments: Any) -> Any:
        """Run the code; call `takes` first."""
        return self._code(*arguments)
