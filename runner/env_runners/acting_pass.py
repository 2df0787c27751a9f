"""The forward pass that computes actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.env_runners.env_states import layers_of
from runner.episodes import nested
from runner.modules.default_settings import default_settings, has_default_device, is_default_dtype
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import ConnectorPipeline, is_of_runner

# Modules of environments and wrappers without user code and without networks.
_KNOWN = ("gymnasium.envs.", "gymnasium.wrappers.common", "runner.env_runners.")


class ActingPass:
    """Runs a module on batches on the CPU, like env pipelines, masks, noise and states.

    A module on a GPU gets a copy of its inputs there, and its outputs are copied back: one copy in each direction for
    all sub-environments.

    No gradients are recorded. Tensors are float32, even if an environment has changed torch's default.

    Args:
        module: the module, which stays on its device.
    """

    def __init__(self, module: RLModule | MultiRLModule) -> None:
        self._module = module
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._other_device = None if device.type == "cpu" else device
        # Entered with every pass, never nested; making one takes longer than entering it.
        self._without_gradients = torch.no_grad()
        self.look_at_settings()

    def look_at_settings(self) -> None:
        """Check whether an environment has changed torch's default device; this takes too long for every pass."""
        self._has_default_device = has_default_device()

    def __call__(self, batch: dict[str, Any], explore: bool) -> dict[str, Any]:
        """Return the module's outputs, exploring or greedy, on the CPU."""
        if is_default_dtype() and self._has_default_device:
            if torch.is_inference_mode_enabled():
                return self._forward(batch, explore)
            with self._without_gradients:
                return self._forward(batch, explore)
        with default_settings(), self._without_gradients:
            return self._forward(batch, explore)

    def _forward(self, batch: dict[str, Any], explore: bool) -> dict[str, Any]:
        forward = self._module.forward_exploration if explore else self._module.forward_inference
        if self._other_device is None:
            return forward(batch)
        there = nested.map_leaves(lambda leaf: _moved(leaf, self._other_device), batch)
        outputs: dict[str, Any] = nested.map_leaves(lambda leaf: _moved(leaf, "cpu"), forward(there))
        return outputs


def run_user_code(environments: Any, pipelines: Iterable[ConnectorPipeline]) -> bool:
    """Return whether any code of these environments, their wrappers and pipelines belongs to the user.

    If not, steps run in torch's inference mode, which is faster. A user's environment, connector or callback may train
    a network; then only the forward pass runs without gradients.

    Args:
        environments: see `SubEnvironments`.
        pipelines: pipelines around the module.
    """
    together = environments if isinstance(environments, list) else [environments]
    layers = [layer for env in together for layer in (layers_of(env) if hasattr(env, "unwrapped") else [env])]
    is_known = all(type(layer).__module__.startswith(_KNOWN) for layer in layers)
    return not (is_known and all(map(is_of_runner, pipelines)))


def array_of(leaf: Any) -> npt.NDArray[Any]:
    """Return a copy of a leaf of a batch as an array; a connector may have computed it with gradients."""
    return np.array(leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf)


def _moved(leaf: Any, device: Any) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
