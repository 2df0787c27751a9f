"""Comparison of a network with stored parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import nn

from runner.config.errors import ConfigError, Problem
from runner.modules.cnn import CNN

_FLAT_FIX = "module.image_layout=flat continues a checkpoint of a network that flattened these images"


def check_same_network(network: nn.Module, stored: Mapping[str, Any]) -> None:
    """Check that stored parameters have the names and shapes of a network's state.

    Raises:
        ConfigError: the parameters belong to another network.
    """
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    saved = {name: tuple(np.shape(value)) for name, value in stored.items()}
    if expected == saved:
        return
    differing = sorted(name for name in {*expected, *saved} if expected.get(name) != saved.get(name))
    here = "; ".join(f"{name} {expected.get(name, 'missing')}" for name in differing) + " in this configuration"
    fix = flat_images_fix(network, saved)
    problem = Problem(
        "the checkpoint's network is not the one that this configuration describes",
        where="module",
        got="; ".join(f"{name} {saved.get(name, 'missing')}" for name in differing) + " in the checkpoint",
        allowed=here if fix is None else f"{here}; {fix}",
    )
    raise ConfigError([problem])


def flat_images_fix(network: nn.Module, stored: Collection[str]) -> str | None:
    """Return the fix if a network reads images that the network of the stored parameters flattened, else None.

    Args:
        network: as the configuration describes it.
        stored: names of the stored parameters.
    """
    cnns = [name for name, module in network.named_modules() if isinstance(module, CNN)]
    if not cnns or any(parameter.startswith(f"{name}.") for name in cnns for parameter in stored):
        return None
    return _FLAT_FIX
