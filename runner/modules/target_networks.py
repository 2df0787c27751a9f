"""Networks that no gradient reaches: targets, which follow another, and networks frozen for one term of a loss."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def target_of(network: M) -> M:
    """Return a copy whose parameters have no gradient; it is in checkpoints, and no optimiser steps it."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module, tau: float) -> None:
    """Average by Polyak: target <- target + tau (network - target); 1 copies."""
    torch._foreach_lerp_(list(target.parameters()), list(network.parameters()), tau)


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Let gradients pass within through the network to its inputs without reaching its parameters."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
