"""Gradient steps of a network: its parameters as one vector, and the optimiser that changes them.

Dimension letters: P learned parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.compat.torch_functions import backward
from runner.config.algorithms import AlgorithmConfig
from runner.config.schedules import scheduled_value
from runner.fast.allocation import keep_freed_memory
from runner.learners.gradients import ModuleGradient
from runner.learners.optimizers import make_optimizer
from runner.modules.flat_parameters import FlatParameters, check_same_network, parameter_groups
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule


class ParameterUpdater:
    """Takes clipped steps along gradients, with the learning rates of a configuration.

    Args:
        network: a module, or all modules of a run, on the learner's device.
        config: learning rates, optimiser, clipping.

    Attributes:
        network: network whose parameters are updated.
        gradient: (P,) gradient that `backward` adds to.
        members: optimiser -> its parameters.
    """

    def __init__(self, network: RLModule | MultiRLModule, config: AlgorithmConfig) -> None:
        keep_freed_memory()
        self.network, self._config = network, config
        self._weights = FlatParameters(network)
        self.gradient = self._weights.gradient
        self._one = torch.ones((), device=self.device)
        optimizers, groups = config.optimizers, self._weights.groups
        self.members = parameters_by_optimizer(network, list(optimizers))
        self._lr_fields = list(optimizers.values())
        self._optimizer_names = list(optimizers)
        named = None if len(optimizers) == 1 else list(optimizers)
        parts = [slice(None)] if named is None else [groups[name] for name in named]
        self._optimizer = make_optimizer(config.optimizer, self._weights, network, named)
        self._lr_names = [f"{name}_optimizer_learning_rate" for name in optimizers]
        self._parts = dict(zip(map(_norm_name, optimizers), parts, strict=True))

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a 0-d loss to `gradient`."""
        if loss.ndim:  # torch raises a clear error
            loss.backward()  # type: ignore[no-untyped-call]
            return
        backward(loss, self._one)

    def learning_rates(self, num_env_steps: int) -> list[float]:
        """Return the learning rate of each optimiser after a number of env steps, at the start of an update.

        Raises:
            RuntimeError: another object has replaced the parameters of this network, so steps would have no effect.
        """
        if not self._weights.has_module:
            raise RuntimeError(
                f"the learner's {type(self.network).__name__} was passed to another object that replaced its "
                "parameters, for example an env runner, so it would not learn; pass a copy instead (copy.deepcopy)"
            )
        return [scheduled_value(getattr(self._config, field), num_env_steps) for field in self._lr_fields]

    def clip(self) -> dict[str, Tensor]:
        """Scale the gradient of each optimiser down to `grad_clip`; return the norms before clipping.

        In host memory, reading a norm takes less time than operations on it.
        """
        if not self.gradient.is_cpu:
            return self.clip_vector(self.gradient)
        grad_clip, norms = self._config.grad_clip, {}
        for name, of_one in self._parts_of(self.gradient):
            norms[name] = norm = torch.linalg.vector_norm(of_one)
            if grad_clip is not None and (above := norm.item() + 1e-6) > grad_clip:
                of_one.mul_(grad_clip / above)
        return norms

    def clip_vector(self, gradient: Tensor) -> dict[str, Tensor]:
        """Clip a gradient (P,) like `clip`, in place and without reading a value."""
        grad_clip, norms = self._config.grad_clip, {}
        for name, of_one in self._parts_of(gradient):
            norms[name] = norm = torch.linalg.vector_norm(of_one)
            if grad_clip is not None:
                of_one.mul_((norm + 1e-6).reciprocal_().mul_(grad_clip).clamp_(max=1.0))
        return norms

    def _parts_of(self, gradient: Tensor) -> list[tuple[str, Tensor]]:
        """Return the name of each optimiser's norm, and its slice of a gradient (P,)."""
        if len(self._parts) == 1:
            return [(name, gradient) for name in self._parts]
        return [(name, gradient[part]) for name, part in self._parts.items()]

    def step(
        self, lrs: Sequence[float], norms: dict[str, Tensor], frozen_groups: Sequence[str] = ()
    ) -> dict[str, Tensor]:
        """Take a step along the clipped gradient with all optimisers except `frozen_groups`.

        Returns:
            The norms of these optimisers, from the result of `clip`.
        """
        if not frozen_groups:
            self._optimizer.step(*lrs)
            return norms
        of_steps = zip(self._optimizer_names, lrs, strict=True)
        self._optimizer.step(*(None if name in frozen_groups else lr for name, lr in of_steps))
        left_out = {_norm_name(name) for name in frozen_groups}
        return {name: norm for name, norm in norms.items() if name not in left_out}

    def add(self, gradients: ModuleGradient) -> None:
        """Add a gradient of other learners to the gradient of the next step.

        Raises:
            ValueError: the gradient belongs to another network.
        """
        if gradients.vector.shape != tuple(self.gradient.shape):
            got, expected = gradients.vector.size, self.gradient.numel()
            raise ValueError(f"a gradient has {got} values, but this module learns {expected} parameters")
        self.gradient.add_(torch.from_numpy(np.require(gradients.vector, requirements="W")).to(self.gradient.device))

    def metrics(self, lrs: Sequence[float]) -> dict[str, float]:
        """Return the learning rates as metrics."""
        return dict(zip(self._lr_names, lrs, strict=True))

    # -- parameters ------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The learned parameters in the order of the vector, as views of it."""
        return self._weights.learned

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._weights.parameter.device

    def get_weights(self) -> npt.NDArray[np.float32]:
        """Return all parameters, including frozen ones and float buffers, as one vector."""
        return self._weights.to_numpy()

    def set_weights(self, weights: npt.NDArray[np.float32]) -> None:
        """Set the parameters from a vector of `get_weights`.

        Raises:
            ValueError: the number of parameters differs.
        """
        self._weights.load(weights)

    def get_state(self) -> dict[str, Any]:
        """Return the parameters by name, and the state of the optimiser."""
        module = {name: value.clone() for name, value in self.network.state_dict().items()}
        return {"module": module, "optimizer": self._optimizer.get_state()}

    def set_state(self, state: Mapping[str, Any], has_same_parameters: bool = True) -> None:
        """Restore a state of `get_state`; if the learned parameters differ, the optimiser is reset.

        Raises:
            ConfigError: the parameters belong to a different network.
        """
        check_same_network(self.network, state["module"])
        with torch.no_grad():
            parameters = self.network.state_dict()
            for name, value in state["module"].items():
                parameters[name].copy_(torch.as_tensor(value))
        if has_same_parameters:
            self._optimizer.set_state(state["optimizer"])


def parameters_by_optimizer(network: nn.Module, optimizers: Sequence[str]) -> dict[str, list[nn.Parameter]]:
    """Return optimiser -> its parameters, in the order of the gradient's vector."""
    groups = parameter_groups(network)
    if len(optimizers) == 1:
        return {optimizers[0]: [parameter for group in groups.values() for parameter in group]}
    return {name: list(group) for name, group in groups.items()}


def backward_each(
    losses: Mapping[str, Tensor], members: Mapping[str, Sequence[nn.Parameter]], keeps_graph: bool = False
) -> None:
    """Add the gradient of each 0-d loss to the `grad` of the parameters under its name only.

    `keeps_graph`: whether another loss of the same forward pass follows.
    """
    learning = {name: [one for one in members[name] if one.requires_grad] for name in losses}
    having = [name for name, loss in losses.items() if loss.requires_grad and learning[name]]
    for number, name in enumerate(having, start=1):
        is_last = number == len(having)
        torch.autograd.backward(losses[name], inputs=learning[name], retain_graph=keeps_graph or not is_last)


def _norm_name(optimizer: str) -> str:
    return f"gradients_{optimizer}_optimizer_global_norm"
