"""Private functions and attributes of torch that avoid overhead, or lack a public equivalent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from runner.compat.libraries import Library

TORCH = Library("torch", ">=2.4,<2.14")


def backward(loss: Tensor, gradient: Tensor) -> None:
    """Add the gradient of a 0-d loss to the parameters' `grad`, like `loss.backward()`.

    The public `loss.backward()` spends 40 us more on checks and hooks around torch's engine, which is a tenth of an
    update of a small network. It is called if torch uses a different engine.

    Args:
        loss: a 0-d tensor.
        gradient: 1.0 on the loss's device.
    """
    if _run_backward is None:
        loss.backward(gradient)  # type: ignore[no-untyped-call]
    else:
        _run_backward((loss,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def fused_adam_kernel() -> Callable[..., None]:
    """Return the kernel of `torch.optim.Adam(fused=True)`.

    A public functional Adam (`torch.optim.adam.adam` costs as much as the optimiser class) would replace it.

    Raises:
        LibraryChangedError: this version of torch does not have it.
    """
    with TORCH.expected():
        return torch._fused_adam_


def lerp_each(targets: Sequence[Tensor], ends: Sequence[Tensor], weight: float) -> None:
    """Move each target towards its end, in place, in one call.

    A public `torch.foreach_lerp_` would replace it. Without the private function, the tensors are moved one by one. It
    rejects empty lists.
    """
    if _foreach_lerp is None or not targets:
        for target, end in zip(targets, ends, strict=True):
            target.lerp_(end, weight)
    else:
        _foreach_lerp(targets, ends, weight)


def submodules(module: nn.Module) -> dict[str, Any]:
    """Return the children of a module by name, as a dict that the module itself reads.

    `named_children` and `module[0]` are public, but take longer than a small layer.
    """
    return module._modules


def detach_parameters(module: nn.Module) -> list[tuple[Any, str, Any]]:
    """Replace the parameters of a module, but not of its children, by detached ones.

    The public `torch.func.functional_call` calls only `forward`, but the module may have other methods.

    Returns:
        Dict, name and earlier value of each replaced item, to restore it.
    """
    parameters: dict[str, Any] = module._parameters
    kept = [(parameters, name, parameter) for name, parameter in parameters.items() if parameter is not None]
    for _, name, parameter in kept:
        parameters[name] = parameter.detach()
    if isinstance(module, nn.RNNBase):  # stores its parameters in a second place
        kept.append((vars(module), "_flat_weights", module._flat_weights))
        module._flat_weights = [parameters.get(name) for name in module._flat_weights_names]
    return kept


_run_backward: Any = getattr(getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None)
_foreach_lerp: Any = getattr(torch, "_foreach_lerp_", None)
