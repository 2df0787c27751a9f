"""Exportable torch graphs of connectors while acting, returned by `Connector.to_graph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt
from torch import nn

from runner.episodes.columns import OBS

Columns = dict[str, Any]
# Source of the next value of a remembered input: the graph itself, or only the caller.
Source = Literal["graph", "action", "reward"]


@dataclass(frozen=True)
class Remembered:
    """A value from past steps that a connector remembers; an input of the graph.

    Attributes:
        initial: (...) value at an episode's start, nested or an array, without a batch axis; it also sets the dtype.
        source: `graph`: the next value is an output of the graph, see `Step.remember`. `action`: the caller passes the
            unscaled action that the module took in the previous step. `reward`: the caller passes its reward.
    """

    initial: Any
    source: Source = "graph"


@dataclass
class Step:
    """The inputs of a connector other than the columns: one step of B episodes.

    Attributes:
        obs: (B, ...) observations of the environment, nested like its space.
        module: the network.
        module_state: (B, ...) recurrent state of the module, nested; {} for stateless modules.
        past: (B, ...) values that this connector remembers, by name.
        remembered: values that this connector passes to the next step, by name: see `remember`.
    """

    obs: Any
    module: Any
    module_state: Any = field(default_factory=dict)
    past: Mapping[str, Any] = field(default_factory=dict)
    remembered: dict[str, Any] = field(default_factory=dict)

    def remember(self, name: str, value: Any) -> None:
        """Set (B, ...) `past[name]` of the next step, with the same shape and dtype as in this step."""
        self.remembered[name] = value


class ConnectorGraph(nn.Module):
    """Transforms the columns (B, ...) of one step as the connector does, with tensors instead of arrays. Override
    `forward`.

    Buffers named by `statistics` are learned values: they can be updated without a new export.
    """

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Return the columns after the connector. B varies at run time, so use neither `len` nor branches on values."""
        raise NotImplementedError(f"{type(self).__name__} does not implement forward")

    def memory(self) -> dict[str, Remembered]:
        """Return name -> remembered value; {} for connectors that use only one step."""
        return {}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return name of a buffer -> its value, from a state of the connector's `get_state`."""
        return {}


class ObservationGraph(ConnectorGraph):
    """Graph of most observation connectors: applies a function of (B, ...) tensors, nested like the space, to `obs`.

    Args:
        function: an `nn.Module`, or a function that does not hold tensors.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace the column."""
        return {**columns, OBS: self._function(columns.get(OBS, step.obs))}


class PipelineGraph(ConnectorGraph):
    """A sequence of connector graphs.

    Args:
        graphs: name of a connector -> its graph, without connectors that do nothing here.
    """

    def __init__(self, graphs: Mapping[str, ConnectorGraph]) -> None:
        super().__init__()
        self.connectors = nn.ModuleDict(graphs)
        self.entered = ""  # name of the connector called most recently

    def graphs(self) -> dict[str, ConnectorGraph]:
        """Return the connectors' graphs by name."""
        return dict(self.connectors.items())  # type: ignore[arg-type]

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Call all of them."""
        for name, graph in self.graphs().items():
            self.entered = name
            connector_step = Step(step.obs, step.module, step.module_state, _within(name, step.past))
            columns = graph(columns, connector_step)
            for key, value in connector_step.remembered.items():
                step.remember(f"{name}/{key}", value)
        return columns

    def memory(self) -> dict[str, Remembered]:
        """Return the remembered values of all connectors by `connector/name`."""
        return {f"{name}/{key}": one for name, graph in self.graphs().items() for key, one in graph.memory().items()}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the statistics of all connectors that have a state, by the name of this module's buffer."""
        return {
            f"connectors.{name}.{key}": value
            for name, graph in self.graphs().items()
            if name in state
            for key, value in graph.statistics(state[name]).items()
        }


def _within(name: str, past: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in past.items() if key.startswith(start)}
