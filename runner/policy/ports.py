"""What goes into a policy's graph and what comes out: names, dtypes, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.modules.action_distribution import torch_dtype
from runner.pipelines.connector_graphs import paths

ROLES = ("obs", "state", "prev_action", "prev_reward", "actions", "action_dist_inputs")


@dataclass(frozen=True)
class Port:
    """An input or output of the graph, a tensor (B, *shape).

    Attributes:
        name: in the graph.
        role: one of `ROLES`.
        dtype: numpy's name.
        shape: without the batch axis.
        path: keys and indices that lead to it in the nested observation, action or state.
        initial: of a state: its value at an episode's start.
        next_from: of a state input: the output that it is in the next step.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    path: tuple[Any, ...] = ()
    initial: npt.NDArray[Any] | None = None
    next_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the port as JSON has it."""
        content: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "path": list(self.path),
        }
        if self.initial is not None:
            content["initial"] = plain_array(self.initial)
        if self.next_from is not None:
            content["next_from"] = self.next_from
        return content

    def blank(self, num_rows: int) -> torch.Tensor:
        """Return (num_rows, *shape): the initial value, or zeros."""
        item = np.zeros(self.shape, self.dtype) if self.initial is None else self.initial
        return torch.from_numpy(np.repeat(item[None], num_rows, axis=0))


def plain_array(array: npt.NDArray[Any]) -> Any:
    """Return nested lists, or one number where all are equal; infinities as "inf" and "-inf"."""
    if array.size and (array == array.flat[0]).all():
        return _plain_number(array.flat[0].item())
    return _plain(array.tolist())


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list) else _plain_number(value)


def _plain_number(number: Any) -> Any:
    return str(number) if isinstance(number, float) and math.isinf(number) else number


def leaf_ports(prefix: str, role: str, space: gym.Space[Any]) -> list[Port]:
    """Return a port for each leaf of a space, named `prefix/key/...`.

    Raises:
        ConfigError: a leaf is no array of numbers.
    """
    return [
        Port(join(prefix, path), role, _dtype_of(leaf), _shape_of(leaf), path) for path, leaf in space_leaves(space)
    ]


def state_ports(prefix: str, initial: Any) -> list[Port]:
    """Return a port for each leaf of a nested state with these initial values."""
    arrays = list(nested.leaves(initial))
    found = zip(paths(initial), arrays, strict=True) if arrays else ()
    return [
        Port(join(prefix, path), "state", str(value.dtype), tuple(value.shape), path, value) for path, value in found
    ]


def join(prefix: str, path: Sequence[Any]) -> str:
    """Return the name of a leaf."""
    return "/".join([prefix, *map(str, path)])


def rebuild(template: Any, leaf: Callable[[tuple[Any, ...]], Any], path: tuple[Any, ...] = ()) -> Any:
    """Return a structure like a space's or a nested value's, with `leaf(path)` in its leaves."""
    if isinstance(template, gym.spaces.Dict):
        template = dict(template.spaces)
    elif isinstance(template, gym.spaces.Tuple):
        template = tuple(template.spaces)
    if isinstance(template, Mapping):
        return {key: rebuild(part, leaf, (*path, key)) for key, part in template.items()}
    if isinstance(template, tuple):
        return tuple(rebuild(part, leaf, (*path, index)) for index, part in enumerate(template))
    return leaf(path)


def space_leaves(space: gym.Space[Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], gym.Space[Any]]]:
    """Return the leaves of a space and their places."""
    from runner.pipelines.flat_encoding import leaf_spaces

    return leaf_spaces(space, path)


def _shape_of(space: gym.Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def _dtype_of(space: gym.Space[Any]) -> str:
    dtype = space.dtype
    if space.shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
        problem = Problem("the policy cannot be exported: this space has no numbers", "env", str(space))
        raise ConfigError([problem])
    return str(np.dtype(dtype))


def checked_names(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports, whose names must differ.

    Raises:
        ConfigError: two keys of the environment's spaces give one name.
    """
    names = [port.name for port in ports]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = "the policy cannot be exported: two of its inputs or outputs would have one name"
        raise ConfigError([Problem(what, "env", ", ".join(twice), "keys of spaces without /")])
    return tuple(ports)


def dtype_in_graph(port: Port) -> torch.dtype:
    """Return the port's dtype; int64 where torch has none like it."""
    return torch_dtype(np.dtype(port.dtype), torch.int64)
