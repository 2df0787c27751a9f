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
from runner.pipelines.pipeline import ConnectorPipeline, is_built_in

# Modules of environments and wrappers without user code and without networks.
_KNOWN = ("gymnasium.envs.", "gymnasium.wrappers.common", "runner.env_runners.")


class ActingPass:
    """The forward pass of a module on batches in the CPU's memory, where pipelines, noise and states also are.

    If the module is on a GPU, its inputs are copied there and its outputs back, once for all sub-environments.

    No gradients are recorded. Tensors are float32, even if an environment has changed torch's default.

    Args:
        module: the module, which stays on its device.
    """

    def __init__(self, module: RLModule | MultiRLModule) -> None:
        self._module = module
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._other_device = None if device.type == "cpu" else device
        # Passes are never nested, so all of them use one; creating it takes longer than entering it.
        self._without_gradients = torch.no_grad()
        self.check_default_device()

    def check_default_device(self) -> None:
        """Note whether an environment has changed torch's default device; this takes too long for every pass."""
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
    return not (is_known and all(map(is_built_in, pipelines)))


def array_of(leaf: Any) -> npt.NDArray[Any]:
    """Return a copy of a leaf of a batch as an array; a connector may have computed it with gradients."""
    return np.array(leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf)


def _moved(leaf: Any, device: Any) -> Any:
    return leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf
