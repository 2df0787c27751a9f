"""What a piece does while acting, in torch operations that can be exported: `ConnectorPiece.to_graph` returns it."""

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
    """Something that a piece knows of the past, an input of the graph.

    Attributes:
        initial: (...) value at an episode's start, nested or an array, without a batch axis; its dtype counts.
        source: `graph`: the next value is an output of the graph, see `Step.remember`. `action`: the caller gives the
            action that the module took in the step before, unscaled. `reward`: the caller gives the reward for it.
    """

    initial: Any
    source: Source = "graph"


@dataclass
class Step:
    """What a piece can look at besides the columns: one step of B episodes.

    Attributes:
        obs: (B, ...) what the environment returned, nested as its space.
        module: the network.
        module_state: (B, ...) its memory, nested; {} without.
        past: (B, ...) what this piece remembers, by name.
        remembered: what this piece wants to remember, by name: see `remember`.
    """

    obs: Any
    module: Any
    module_state: Any = field(default_factory=dict)
    past: Mapping[str, Any] = field(default_factory=dict)
    remembered: dict[str, Any] = field(default_factory=dict)

    def remember(self, name: str, value: Any) -> None:
        """Give (B, ...) `past[name]` of the next step, of the shape and dtype of the one before."""
        self.remembered[name] = value


class PieceGraph(nn.Module):
    """What a piece does to the columns (B, ...) of one step, tensors instead of arrays. Override `forward`.

    Buffers that `statistics` names are part of what is learned: they get new values without a new export.
    """

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Return the columns after the piece. B is known at run time only: no `len`, no branches on values."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def memory(self) -> dict[str, Remembered]:
        """Name -> what the piece knows of the past; {} for pieces that look at one step only."""
        return {}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Name of a buffer -> its value, out of a state of the piece's `get_state`."""
        return {}


class ObservationGraph(PieceGraph):
    """Column `obs` through a function of (B, ...) tensors, nested as the space: the graph of most observation pieces.

    Args:
        function: an `nn.Module`, or a function that keeps no tensors of its own.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace the column."""
        return {**columns, OBS: self._function(columns.get(OBS, step.obs))}


class PipelineGraph(PieceGraph):
    """Pieces one after the other.

    Args:
        graphs: name of a piece -> its graph, without pieces that do nothing here.
    """

    def __init__(self, graphs: Mapping[str, PieceGraph]) -> None:
        super().__init__()
        self.pieces = nn.ModuleDict(graphs)
        self.entered = ""  # name of the piece that was called last

    def graphs(self) -> dict[str, PieceGraph]:
        """Return the pieces' graphs by name."""
        return dict(self.pieces.items())  # type: ignore[arg-type]

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Call all of them."""
        for name, graph in self.graphs().items():
            self.entered = name
            piece_step = Step(step.obs, step.module, step.module_state, _within(name, step.past))
            columns = graph(columns, piece_step)
            for key, value in piece_step.remembered.items():
                step.remember(f"{name}/{key}", value)
        return columns

    def memory(self) -> dict[str, Remembered]:
        """Return what all pieces know of the past, by `piece/name`."""
        return {f"{name}/{key}": one for name, graph in self.graphs().items() for key, one in graph.memory().items()}

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the statistics of all pieces with a state here, by the name of this module's buffer."""
        return {
            f"pieces.{name}.{key}": value
            for name, graph in self.graphs().items()
            if name in state
            for key, value in graph.statistics(state[name]).items()
        }


def _within(name: str, past: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{name}/"
    return {key.removeprefix(start): value for key, value in past.items() if key.startswith(start)}
