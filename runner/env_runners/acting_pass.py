"""The forward pass that acts."""

from __future__ import annotations

from typing import Any

import torch

from runner.episodes import nested
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule


class ActingPass:
    """Runs a module on batches that lie on the CPU, where env pipelines, masks, noise and states are.

    A module on a GPU gets a copy of its inputs there, and its outputs are copied back: one copy in each direction for
    all sub-environments.

    Args:
        module: it stays on its device.
    """

    def __init__(self, module: RLModule | MultiRLModule) -> None:
        self._module = module
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._other_device = None if device.type == "cpu" else device

    def __call__(self, batch: dict[str, Any], explore: bool) -> dict[str, Any]:
        """Return the module's outputs, exploring or greedy, on the CPU."""
        forward = self._module.forward_exploration if explore else self._module.forward_inference
        if self._other_device is None:
            return forward(batch)
        there = nested.map_leaves(lambda leaf: _moved(leaf, self._other_device), batch)
        outputs: dict[str, Any] = nested.map_leaves(lambda leaf: _moved(leaf, "cpu"), forward(there))
        return outputs


def _moved(leaf: Any, device: Any) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
