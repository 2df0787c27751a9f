"""Env-to-module connectors, module and module-to-env connectors as one torch module: raw observation in, action out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.episodes.spaces import leaf_at, leaf_spaces, plain_array
from runner.module_building import BuiltActingModule
from runner.modules.action_distribution import torch_dtype
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTIONS_FOR_ENV, STATE_OUT
from runner.pipelines.connector_graph import PipelineGraph, Remembered, Step
from runner.pipelines.connector_graphs import paths


@dataclass(frozen=True)
class Port:
    """An input or output of the graph, a tensor (B, *shape).

    Attributes:
        name: name in the graph.
        role: `obs`, `state`, `prev_action`, `prev_reward`, `actions` or `action_dist_inputs`.
        dtype: numpy's name.
        shape: shape without the batch axis.
        path: keys and indices that lead to it in the nested observation, action or state.
        initial: initial value of a state in an episode.
        next_from: for a state input, the output that becomes this input in the next step.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    path: tuple[Any, ...] = ()
    initial: npt.NDArray[Any] | None = None
    next_from: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the port as JSON values."""
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


def leaf_ports(prefix: str, role: str, space: gym.Space[Any]) -> list[Port]:
    """Return a port for each leaf of a space, named `prefix/key/...`.

    Raises:
        ConfigError: a leaf is not an array of numbers.
    """
    return [
        Port(join(prefix, path), role, _dtype_of(leaf), tuple(leaf.shape or ()), path)
        for path, leaf in leaf_spaces(space)
    ]


def state_ports(prefix: str, initial: Any) -> list[Port]:
    """Return a port for each leaf of a nested state with these initial values."""
    return [
        Port(join(prefix, path), "state", str(value.dtype), tuple(value.shape), path, value)
        for path, value in zip(paths(initial), nested.leaves(initial), strict=True)
    ]


def join(prefix: str, path: Sequence[Any]) -> str:
    """Return the name of a leaf."""
    return "/".join([prefix, *map(str, path)])


def rebuild(template: Any, leaf: Callable[[tuple[Any, ...]], Any], path: tuple[Any, ...] = ()) -> Any:
    """Return a structure like a space's or a nested value's, with `leaf(path)` as its leaves."""
    if isinstance(template, gym.spaces.Dict):
        template = dict(template.spaces)
    elif isinstance(template, gym.spaces.Tuple):
        template = tuple(template.spaces)
    if isinstance(template, Mapping):
        return {key: rebuild(part, leaf, (*path, key)) for key, part in template.items()}
    if isinstance(template, tuple):
        return tuple(rebuild(part, leaf, (*path, index)) for index, part in enumerate(template))
    return leaf(path)


def _dtype_of(space: gym.Space[Any]) -> str:
    dtype = space.dtype
    if space.shape is None or dtype is None or np.dtype(dtype).kind not in "biuf":
        problem = Problem("the policy cannot be exported: this space does not consist of numbers", "env", str(space))
        raise ConfigError([problem])
    return str(np.dtype(dtype))


def checked_names(ports: Sequence[Port]) -> tuple[Port, ...]:
    """Return the ports after checking that their names differ.

    Raises:
        ConfigError: two keys of the environment's spaces result in the same name.
    """
    names = [port.name for port in ports]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = "the policy cannot be exported: two of its inputs or outputs would have the same name"
        raise ConfigError([Problem(what, "env", ", ".join(twice), "keys of spaces without /")])
    return tuple(ports)


def dtype_in_graph(port: Port) -> torch.dtype:
    """Return the port's dtype, or int64 if torch does not have it."""
    return torch_dtype(np.dtype(port.dtype), torch.int64)


_STATE_IN, _STATE_OUT = "state_in", "state_out"
_NUM_EXAMPLE_ROWS = 3  # neither 0 nor 1, which torch.export would treat as constants


class PolicyGraph(nn.Module):
    """One module of a run with the connectors around it, as copies on the CPU.

    Its variables are the module's parameters and float buffers, and the statistics of connectors.

    Args:
        built: module with its pipelines.

    Attributes:
        inputs, outputs: ports of the graph, in order.

    Raises:
        ConfigError: a connector cannot be exported; names it.
    """

    def __init__(self, built: BuiltActingModule) -> None:
        super().__init__()
        self._built = built
        self.env_to_module: PipelineGraph = built.env_to_module.to_graph()
        self.module: RLModule = copy.deepcopy(built.module).cpu().eval()
        self.module_to_env: PipelineGraph = built.module_to_env.to_graph()
        self._weights = FlatParameters(self.module)
        self._acts_differently = type(self.module).forward_inference is not RLModule.forward_inference
        initial_state = self.module.get_initial_state()
        self._module_state = nested.map_leaves(lambda leaf: leaf.detach().cpu().numpy(), initial_state)
        self.inputs = checked_names(self._find_inputs())
        self._originals = dict(self.variables())
        with self._naming_connectors(), torch.no_grad():
            example = self(self.example_inputs())
        self.outputs = checked_names(self._find_outputs(example))

    # -- inputs and outputs ------------------------------------------------------------------------------------------

    def _find_inputs(self) -> list[Port]:
        ports = leaf_ports("obs", "obs", self._built.spec.observation_space)
        for port in state_ports(_STATE_IN, self._module_state):
            ports.append(_with_next(port))
        for name, remembered in self._memory().items():
            for port in state_ports(f"{_STATE_IN}/{name}", remembered.initial):
                role = {"graph": "state", "action": "prev_action", "reward": "prev_reward"}[remembered.source]
                ports.append(_with_next(port) if role == "state" else replace(port, role=role))
        return ports

    def _find_outputs(self, example: Mapping[str, Tensor]) -> list[Port]:
        actions = leaf_ports("actions", "actions", self._built.spec.action_space)
        inputs = Port(ACTION_DIST_INPUTS, ACTION_DIST_INPUTS, "float32", tuple(example[ACTION_DIST_INPUTS].shape[1:]))
        states = [
            Port(str(port.next_from), "state", port.dtype, port.shape, port.path)
            for port in self.inputs
            if port.next_from is not None
        ]
        missing = [port.name for port in (*actions, *states) if port.name not in example]
        if missing:
            what = "the policy cannot be exported: its connectors do not return all of its outputs"
            raise ConfigError([Problem(what, "connectors", ", ".join(missing))])
        return [*actions, inputs, *states]

    def _memory(self) -> dict[str, Remembered]:
        return self.env_to_module.memory() | self.module_to_env.memory()

    def example_inputs(self) -> dict[str, Tensor]:
        """Return inputs of a few rows, for tracing."""
        return {port.name: port.blank(_NUM_EXAMPLE_ROWS) for port in self.inputs}

    # -- computation -------------------------------------------------------------------------------------------------

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return outputs by name from inputs by name, (B, ...) each."""
        return self.compute(inputs, dict(self.variables()))

    def compute(self, inputs: Mapping[str, Tensor], variables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute `forward` with other tensors instead of the variables."""
        with _Substituted({id(original): variables[name] for name, original in self._originals.items()}):
            return self._compute(inputs)

    def _compute(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.env_to_module.entered = self.module_to_env.entered = ""
        obs = rebuild(self._built.spec.observation_space, lambda path: inputs[join("obs", path)])
        module_state = rebuild(self._module_state, lambda path: inputs[join(_STATE_IN, path)])
        past = {name: self._remembered(name, one, inputs) for name, one in self._memory().items()}
        step = Step(obs, self.module, module_state, past)
        batch = self.env_to_module({}, step)
        acted = self.module_to_env(dict(self.module.forward_exploration(batch)), step)
        greedy = acted
        if self._acts_differently:
            greedy = self.module_to_env(dict(self.module.forward_inference(batch)), step)
        return self._outputs_of(greedy[ACTIONS_FOR_ENV], acted, step.remembered)

    @staticmethod
    def _remembered(name: str, one: Remembered, inputs: Mapping[str, Tensor]) -> Any:
        return rebuild(one.initial, lambda path: inputs[join(f"{_STATE_IN}/{name}", path)])

    def _outputs_of(self, actions: Any, acted: Mapping[str, Any], remembered: Mapping[str, Any]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        for port in leaf_ports("actions", "actions", self._built.spec.action_space):
            outputs[port.name] = leaf_at(actions, port.path).to(dtype_in_graph(port))
        outputs[ACTION_DIST_INPUTS] = acted[ACTION_DIST_INPUTS]
        for port in state_ports(_STATE_OUT, self._module_state):
            outputs[port.name] = leaf_at(acted[STATE_OUT], port.path)
        for name, value in remembered.items():
            for port in state_ports(f"{_STATE_OUT}/{name}", value):
                outputs[port.name] = leaf_at(value, port.path)
        return outputs

    @contextmanager
    def _naming_connectors(self) -> Iterator[None]:
        """Add the connector in which an error of the graph occurred to its message."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            raise self.export_error(error) from error

    def export_error(self, error: Exception) -> ConfigError:
        """Return the error of a graph that cannot be computed or exported."""
        last = self.module_to_env.entered or self.env_to_module.entered
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        problem = Problem(
            "the policy cannot be exported",
            where=f"connectors; the last one entered is {last}, the module is {type(self.module).__name__}",
            got=f"{type(error).__name__}: {lines[0][:300]}",
            fix="use torch operations on tensors with any number of rows, see docs/guides/evaluate.md",
        )
        return ConfigError([problem])

    # -- trained values ----------------------------------------------------------------------------------------------

    def variables(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each variable that training changes."""
        for name, parameter in self.module.named_parameters():
            yield f"module.{name}", parameter
        for name, buffer in self.module.named_buffers():
            if buffer.is_floating_point():
                yield f"module.{name}", buffer
        for role, graph, states in self._pipelines():
            for name in graph.statistics(states):
                yield f"{role}.{name}", graph.get_buffer(name)

    def _pipelines(self) -> Iterator[tuple[str, PipelineGraph, dict[str, Any]]]:
        for role in ("env_to_module", "module_to_env"):
            yield role, getattr(self, role), getattr(self._built, role).get_state()

    def places(self) -> dict[str, slice]:
        """Return name of a parameter -> its slice of the vector of `FlatParameters`."""
        return {
            name: slice(int(tensor.storage_offset()), int(tensor.storage_offset()) + tensor.numel())
            for name, tensor in self.variables()
            if name.startswith("module.")
        }

    def statistics(self, shared_state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return name of a variable -> its value in a state of the connectors; missing variables are skipped."""
        return {
            f"env_to_module.{name}": np.asarray(value)
            for name, value in self.env_to_module.statistics(shared_state).items()
        }

    @torch.no_grad()
    def load(self, weights: npt.NDArray[np.float32], shared_state: Mapping[str, Any]) -> None:
        """Load parameters (P,) and the state of connectors.

        Raises:
            ValueError: the number of parameters differs.
        """
        self._weights.load(weights)
        variables = dict(self.variables())
        for name, value in self.statistics(shared_state).items():
            variables[name].copy_(torch.from_numpy(value))


class _Substituted(TorchFunctionMode):
    """Replaces tensors in calls of torch functions by other tensors, by identity.

    Modules may keep references to their parameters anywhere, where `functional_call` would not find them.
    """

    def __init__(self, by_id: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._by_id = by_id

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*self._substitute(args), **self._substitute(kwargs or {}))

    def _substitute(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._by_id.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(self._substitute(item) for item in value)
        if type(value) is dict:
            return {name: self._substitute(item) for name, item in value.items()}
        return value


def _with_next(port: Port) -> Port:
    return replace(port, next_from=_STATE_OUT + port.name.removeprefix(_STATE_IN))
