"""Networks that are not trained: target networks, and frozen networks that pass gradients to their inputs."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from runner.compat.torch_functions import detach_parameters, lerp_each
from runner.modules.layers import DirectLayers


class Frozen:
    """Return type of `frozen`: a context manager, and a function that calls the network within it."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._kept: list[list[tuple[Any, str, Any]]] = []

    def __enter__(self) -> nn.Module:
        kept: list[tuple[Any, str, Any]] = []
        for part in self._network.modules():
            kept += detach_parameters(part)
            if isinstance(part, DirectLayers):
                kept += _detach_tuples(part)
        self._kept.append(kept)
        return self._network

    def __exit__(self, *_: object) -> None:
        for holder, name, value in self._kept.pop():
            holder[name] = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self as network:
            return network(*args, **kwargs)


def _detach_tuples(layers: DirectLayers) -> list[tuple[Any, str, Any]]:
    """Replace the parameters in a network's tuples; see `detach_parameters`."""
    kept = [(vars(layers), name, getattr(layers, name)) for name in layers.parameter_tuples]
    for _, name, value in kept:
        setattr(layers, name, _detached(value))
    return kept


def _detached(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_detached, value))
    return value.detach() if isinstance(value, Tensor) else value


def frozen(network: nn.Module) -> Frozen:
    """Stop gradients to the parameters of a network; they still reach its inputs.

    In a loss with several optimisers, use it where one network is trained through another, for example a policy through
    the Q function of its actions. It also works in compiled losses::

        q = frozen(module.critic)(obs, actions)  # calls the network
        with frozen(module.critic):              # for methods of the module that use the network
            q = module.compute_q_values(obs, actions)

    Args:
        network: any module; submodules are included.

    Returns:
        A context manager within which the parameters are frozen. Calling it calls the network in this context and
        returns the network's result.

    Raises:
        TypeError: `network` is not a `torch.nn.Module`.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"frozen takes a torch.nn.Module, got {type(network).__name__}")
    return Frozen(network)


M = TypeVar("M", bound=nn.Module)


def target_of(network: M) -> M:
    """Return a frozen copy; checkpoints contain it, but optimisers ignore it."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module, tau: float) -> None:
    """Apply Polyak averaging: target <- target + tau (network - target); tau = 1 copies the network."""
    lerp_each(list(target.parameters()), list(network.parameters()), tau)
