"""What a connector does while acting, in torch operations that can be exported: `Connector.to_graph` returns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt
from torch import nn

from runner.episodes.columns import OBS

Columns = dict[str, Any]
# Who knows the next value of a remembered input: the graph itself, or only the caller.
Source = Literal["graph", "action", "reward"]


@dataclass(frozen=True)
class Remembered:
    """Something that a connector knows of the past, an input of the graph.

    Attributes:
        initial: (...) value at an episode's start, nested or an array, without a batch axis; its dtype counts.
        source: `graph`: the next value is an output of the graph, see `Step.remember`. `action`: the caller gives the
            action that the module took in the step before, unscaled. `reward`: the caller gives the reward for it.
    """

    initial: Any
    source: Source = "graph"


@dataclass
class Step:
    """What a connector can look at besides the columns: one step of B episodes.

    Attributes:
        obs: (B, ...) what the environment returned, nested as its space.
        module: the network.
        module_state: (B, ...) its memory, nested; {} without.
        past: (B, ...) what this connector remembers, by name.
        remembered: what this connector wants to remember, by name: see `remember`.
    """

    obs: Any
    module: Any
    module_state: Any = field(default_factory=dict)
    past: Mapping[str, Any] = field(default_factory=dict)
    remembered: dict[str, Any] = field(default_factory=dict)

    def remember(self, name: str, value: Any) -> None:
        """Give (B, ...) `past[name]` of the next step, of the shape and dtype of the one before."""
        self.remembered[name] = value


class ConnectorGraph(nn.Module):
    """What a connector does to the columns (B, ...) of one step, tensors instead of arrays. Override `forward`.

    Buffers that `statistics` names are part of what is learned: they get new values without a new export.
    """

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Return the columns after the connector. B is known at run time only: no `len`, no branches on values."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def memory(self) -> dict[str, Remembered]:
        """Name -> what the connector knows of the past; {} for connectors that look at one step only."""
        return {}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Name of a buffer -> its value, out of a state of the connector's `get_state`."""
        return {}


class ObservationGraph(ConnectorGraph):
    """Column `obs` through a function of (B, ...) tensors, nested as the space: the graph of most observation
    connectors.

    Args:
        function: an `nn.Module`, or a function that keeps no tensors of its own.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace the column."""
        return {**columns, OBS: self._function(columns.get(OBS, step.obs))}


class PipelineGraph(ConnectorGraph):
    """Connectors one after the other.

    Args:
        graphs: name of a connector -> its graph, without connectors that do nothing here.
    """

    def __init__(self, graphs: Mapping[str, ConnectorGraph]) -> None:
        super().__init__()
        self.connectors = nn.ModuleDict(graphs)
        self.entered = ""  # name of the connector that was called last

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
        """Return what all connectors know of the past, by `connector/name`."""
        return {f"{name}/{key}": one for name, graph in self.graphs().items() for key, one in graph.memory().items()}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the statistics of all connectors with a state here, by the name of this module's buffer."""
        return {
            f"connectors.{name}.{key}": value
            for name, graph in self.graphs().items()
            if name in state
            for key, value in graph.statistics(state[name]).items()
        }


def _within(name: str, past: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in past.items() if key.startswith(start)}
