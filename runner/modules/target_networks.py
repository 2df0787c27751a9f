"""Target networks, which follow another and get no gradient."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from runner.compat.torch_functions import lerp_each

M = TypeVar("M", bound=nn.Module)


def target_of(network: M) -> M:
    """Return a copy whose parameters have no gradient; it is in checkpoints, and no optimiser steps it."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, network: nn.Module, tau: float) -> None:
    """Average by Polyak: target <- target + tau (network - target); 1 copies."""
    lerp_each(list(target.parameters()), list(network.parameters()), tau)
