"""All parameters of a module in one contiguous buffer, and their comparison with stored parameters.

A single optimiser kernel, gradient norm, copy of the weights, and all-reduce then suffice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.errors import ConfigError, Problem
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.observation_encoder import CNN
from runner.modules.rl_module import RLModule

_FLAT_FIX = "use module.image_layout=flat to continue this checkpoint, whose network flattens images"


def check_same_network(network: nn.Module, stored: Mapping[str, Any]) -> None:
    """Check that stored parameters have the names and shapes of a network's state.

    Raises:
        ConfigError: the parameters belong to a different network.
    """
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    saved = {name: tuple(np.shape(value)) for name, value in stored.items()}
    if expected == saved:
        return
    differing = sorted(name for name in {*expected, *saved} if expected.get(name) != saved.get(name))
    here = "; ".join(f"{name} {expected.get(name, 'missing')}" for name in differing) + " in this configuration"
    fix = flat_images_fix(network, saved)
    problem = Problem(
        "the checkpoint's network differs from the network of this configuration",
        where="module",
        got="; ".join(f"{name} {saved.get(name, 'missing')}" for name in differing) + " in the checkpoint",
        expected=here,
        fix=fix,
    )
    raise ConfigError([problem])


def flat_images_fix(network: nn.Module, stored: Collection[str]) -> str | None:
    """Return the fix if a network reads images that the network of the stored parameters flattened, otherwise None.

    Args:
        network: network of the configuration.
        stored: names of the stored parameters.
    """
    cnns = [name for name, module in network.named_modules() if isinstance(module, CNN)]
    if not cnns or any(parameter.startswith(f"{name}.") for name in cnns for parameter in stored):
        return None
    return _FLAT_FIX


class FlatParameters:
    """Makes the parameters and float buffers of `module` views of one vector, and their gradients views of another.

    Learned parameters come first, ordered by parameter group. Frozen parameters (of target networks) are treated as
    buffers.

    Attributes:
        learned: the module's parameters that have a gradient, in the order of the vector.
        parameter: (P,) leaf for an optimiser; `backward` of any loss of the module fills its `grad`.
        groups: name of a parameter group -> its slice of `parameter`.
    """

    def __init__(self, module: nn.Module) -> None:
        groups = parameter_groups(module)
        self.learned = parameters = [parameter for group in groups.values() for parameter in group]
        tensors: list[Tensor] = [*parameters, *_unlearned(module)]
        device = tensors[0].device
        self._num_parameters = sum(parameter.numel() for parameter in parameters)
        self._values = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=torch.float32, device=device)
        gradient = torch.zeros(self._num_parameters, dtype=torch.float32, device=device)
        start = 0
        for tensor in tensors:
            rows = slice(start, start + tensor.numel())
            self._values[rows] = tensor.detach().reshape(-1)
            tensor.data = self._values[rows].view_as(tensor)
            if tensor.requires_grad:
                tensor.grad = gradient[rows].view_as(tensor)
            start = rows.stop
        self.groups = _slices({name: sum(parameter.numel() for parameter in group) for name, group in groups.items()})
        self.parameter = nn.Parameter(self._values[: self._num_parameters])
        self.parameter.grad = gradient
        # On the host an array of the same memory: torch takes ten times as long to copy a few values.
        self._on_host = self._values.numpy() if self._values.is_cpu else None

    @property
    def gradient(self) -> Tensor:
        """The gradient (P,) that `backward` adds to."""
        assert self.parameter.grad is not None  # set in __init__ and never removed
        return self.parameter.grad

    @property
    def has_module(self) -> bool:
        """Whether the module's parameters are views of this vector; a later `FlatParameters` moves them."""
        return not self.learned or _memory_of(self.learned[0]) == _memory_of(self.parameter)

    def to_numpy(self) -> npt.NDArray[np.float32]:
        """Return a copy of parameters and buffers on the host."""
        return self._values.cpu().numpy() if self._on_host is None else self._on_host.copy()

    def load(self, values: npt.NDArray[Any]) -> None:
        """Set the values from `to_numpy` of a module of the same shape.

        Raises:
            RuntimeError: a later `FlatParameters` has moved the parameters.
            ValueError: the number of values differs.
        """
        if not self.has_module:
            raise RuntimeError("the module would not change, because another FlatParameters holds its parameters")
        if values.shape != tuple(self._values.shape):
            raise ValueError(f"weights have {values.size} values, but this module has {self._values.numel()}")
        if self._on_host is None:
            self._values.copy_(torch.from_numpy(np.require(values, requirements="W")))
        else:
            self._on_host[:] = values


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()  # unlike `tensor.data_ptr`, also of an empty tensor


def flat_values(module: nn.Module) -> npt.NDArray[np.float32]:
    """Return the result of `FlatParameters(module).to_numpy()` without moving the parameters."""
    learned = [parameter for group in parameter_groups(module).values() for parameter in group]
    values = torch.cat([tensor.detach().reshape(-1) for tensor in (*learned, *_unlearned(module))])
    array: npt.NDArray[np.float32] = values.cpu().numpy()
    return array


def _unlearned(module: nn.Module) -> list[Tensor]:
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    return [*frozen, *(buffer for buffer in module.buffers() if buffer.is_floating_point())]


def parameter_groups(module: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return name -> learned parameters; a network without named groups has one group, `default`."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not isinstance(module, (RLModule, MultiRLModule)):
        return {"default": learned}
    groups = {name: list(group) for name, group in module.parameter_groups().items()}
    ids = [id(parameter) for group in groups.values() for parameter in group]
    if sorted(ids) != sorted(map(id, learned)):
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        missing = [name for name, parameter in zip(names, learned, strict=True) if ids.count(id(parameter)) != 1]
        raise ValueError(
            f"{type(module).__name__}.parameter_groups: every parameter with a gradient must be in one group of "
            f"{', '.join(groups)}; not the case for {', '.join(missing) or 'a parameter of another module'}"
        )
    return groups


def _slices(sizes: dict[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}
