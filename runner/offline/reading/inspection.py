"""Summarise recorded data (counts, returns, lengths, actions, ranges, first rows) in one pass over blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.layout import describe_space
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.reading.recorded_source import Description, RecordedSource
from runner.offline.reading.source import RecordedEnvEpisodes, open_with_all_agents

NUM_FIRST_ROWS = 3
MAX_COUNTED_VALUES = 64
_MAX_BINS = 10
_PERCENTILES = (5, 25, 50, 75, 95)
ACTION_LOGP = "action_logp"


@dataclass
class Distribution:
    """Statistics of one number per episode."""

    mean: float
    std: float
    minimum: float
    maximum: float
    percentiles: dict[int, float]
    bin_edges: list[float]
    bin_counts: list[int]

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Distribution:
        """Describe an array of at least one value."""
        values = values.astype(np.float64)
        low, high = float(values.min()), float(values.max())
        edges = _bin_edges(low, high, np.array_equal(values, np.round(values)))
        counts, _ = np.histogram(values, edges)
        percentiles = np.percentile(values, _PERCENTILES)
        return cls(
            mean=float(values.mean()),
            std=float(values.std()),
            minimum=low,
            maximum=high,
            percentiles=dict(zip(_PERCENTILES, percentiles.tolist(), strict=True)),
            bin_edges=edges.tolist(),
            bin_counts=counts.tolist(),
        )


@dataclass
class ColumnSummary:
    """Summary of a leaf of a column: type, shape of a row and range of values.

    Attributes:
        minimum, maximum, mean: over all finite numbers, or None for text.
        num_not_finite: number of NaN and infinite values.
        counts: value -> number of occurrences, for integers with few distinct values.
    """

    name: str
    dtype: str
    shape: list[int]
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    num_not_finite: int = 0
    counts: dict[int, int] | None = None


@dataclass
class Inspection:
    """Summary of single-agent data.

    Attributes:
        trajectories: reason why rows do not form trajectories, or None if they do.
        tasks: task -> number of its episodes.
    """

    description: Description
    env_name: str | None
    observation_space: str
    action_space: str
    episodes: int
    steps: int
    terminated: int
    truncated: int
    trajectories: str | None
    has_action_logp: bool
    has_infos: bool
    returns: Distribution
    lengths: Distribution
    columns: list[ColumnSummary]
    first_rows: list[dict[str, Any]] = field(default_factory=list)
    counts: ReadCounts = field(default_factory=ReadCounts)
    tasks: dict[str, int] = field(default_factory=dict)


@dataclass
class AgentsInspection:
    """Summary of multi-agent data.

    Attributes:
        episodes, steps, terminated, truncated, returns, lengths: about env episodes; returns are summed over agents.
        modules: agent -> modules that chose its actions.
        agents: agent -> summary of its episodes.
        tasks: task -> number of its env episodes.
    """

    description: Description
    env_name: str | None
    episodes: int
    steps: int
    terminated: int
    truncated: int
    returns: Distribution
    lengths: Distribution
    modules: dict[str, list[str]]
    agents: dict[str, Inspection]
    tasks: dict[str, int]


def inspect_data(config: OfflineConfig) -> Inspection | AgentsInspection:
    """Summarise the data of `offline.input_`.

    Raises:
        DataError, ConfigError: see `open_source`.
    """
    recorded = open_with_all_agents(config)
    return _inspect_agents(recorded) if isinstance(recorded, RecordedEnvEpisodes) else _inspect_source(recorded)


def _inspect_agents(recorded: RecordedEnvEpisodes) -> AgentsInspection:
    sources = {agent: recorded.source_of(agent) for agent in recorded.layouts}
    agents = {agent: _inspect_source(source) for agent, source in sources.items()}
    ends = list(recorded.ends())
    lengths = np.concatenate([part.lengths for part in ends])
    return AgentsInspection(
        description=next(iter(sources.values())).description(),
        env_name=recorded.env_name,
        episodes=len(lengths),
        steps=int(lengths.sum()),
        terminated=sum(int(part.is_terminated.sum()) for part in ends),
        truncated=sum(int(part.is_truncated.sum()) for part in ends),
        returns=Distribution.of(np.concatenate([part.to_numpy() for part in recorded.returns()])),
        lengths=Distribution.of(lengths),
        modules={agent: recorded.modules_of(agent) for agent in agents},
        agents=agents,
        tasks=_counted(task for part in ends for task in part.tasks or ()),
    )


def _counted(tasks: Iterable[str | None]) -> dict[str, int]:
    """Return the number of episodes of each task, sorted by name."""
    return dict(sorted(Counter(task for task in tasks if task is not None).items()))


def _inspect_source(source: RecordedSource) -> Inspection:
    scan = _Scan()
    for block in source.blocks():
        scan.add(block)
    return scan.result(source)


class _Scan:
    """Statistics accumulated over the blocks."""

    def __init__(self) -> None:
        self._returns: list[npt.NDArray[np.float64]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []
        self._terminated = self._truncated = 0
        self._columns: dict[str, _LeafScan] = {}
        self._first: list[dict[str, Any]] = []
        self._has_infos = False
        self._tasks: list[str | None] = []

    def add(self, block: ColumnBlock) -> None:
        """Add a block."""
        if not self._first:
            self._first = _first_rows(block)
        rewards = np.asarray(block.columns[REWARDS], np.float64)
        self._returns.append(np.add.reduceat(rewards.reshape(len(rewards), -1).sum(axis=1), block.offsets[:-1]))
        self._lengths.append(block.lengths)
        self._terminated += int(block.is_terminated.sum())
        self._truncated += int(block.is_truncated.sum())
        self._tasks += block.tasks or ()
        if not self._has_infos and block.infos is not None:
            self._has_infos = any(block.infos.rows_of(chunk, 1) is not None for chunk in range(len(block)))
        for name, column in block.columns.items():
            for path, leaf in _named_leaves(name, column):
                self._columns.setdefault(path, _LeafScan(path)).add(np.asarray(leaf))

    def result(self, source: RecordedSource) -> Inspection:
        """Return the summary."""
        left_out = source.counts.columns_left_out
        names = [name for name in self._columns if name.partition("/")[0] not in left_out]
        order = {OBS: 0, ACTIONS: 1, REWARDS: 2}
        names.sort(key=lambda name: order.get(name.partition("/")[0], 3))
        without = None
        if not source.format.has_trajectories:
            without = "rows have neither eps_id, t nor end flags, so each is an episode of one step"
        return Inspection(
            description=source.description(),
            env_name=source.env_name,
            observation_space=describe_space(source.spaces.observation),
            action_space=describe_space(source.spaces.action),
            episodes=sum(len(part) for part in self._lengths),
            steps=int(sum(part.sum() for part in self._lengths)),
            terminated=self._terminated,
            truncated=self._truncated,
            trajectories=without,
            has_action_logp=ACTION_LOGP in names,
            has_infos=self._has_infos,
            returns=Distribution.of(np.concatenate(self._returns)),
            lengths=Distribution.of(np.concatenate(self._lengths)),
            columns=[self._columns[name].summary() for name in names],
            first_rows=self._first,
            counts=source.counts,
            tasks=_counted(self._tasks),
        )


class _LeafScan:
    """Statistics accumulated over one leaf."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._dtype, self._shape = np.dtype(np.bool_), ()
        self._low, self._high = math.inf, -math.inf
        self._sum, self._num = 0.0, 0
        self._num_not_finite = 0
        self._counts: dict[int, int] | None = {}

    def add(self, leaf: Array) -> None:
        """Add rows."""
        self._dtype, self._shape = leaf.dtype, leaf.shape[1:]
        if leaf.dtype.kind not in "biuf" or leaf.size == 0:
            return
        total = float(leaf.sum(dtype=np.float64))
        if leaf.dtype.kind != "f":
            self._count(leaf)
        elif not math.isfinite(total):
            is_finite = np.isfinite(leaf)
            self._num_not_finite += int(leaf.size - is_finite.sum())
            leaf = leaf[is_finite]
            if not leaf.size:
                return
            total = float(leaf.sum(dtype=np.float64))
        self._low, self._high = min(self._low, leaf.min().item()), max(self._high, leaf.max().item())
        self._sum += total
        self._num += leaf.size

    def _count(self, leaf: Array) -> None:
        """Count the values of integers or bools, as long as there are few distinct ones."""
        if self._counts is None or leaf.size > 2**22 or self._name == OBS or self._name.startswith(f"{OBS}/"):
            self._counts = None
            return
        low, high = int(leaf.min()), int(leaf.max())
        if high - low >= 2**16:
            self._counts = None
            return
        wide = leaf if leaf.dtype == np.uint64 else leaf.astype(np.int64)  # differences of int8 would overflow
        counts = np.bincount((wide - wide.dtype.type(low)).astype(np.int64).reshape(-1))
        for value in np.flatnonzero(counts).tolist():
            self._counts[low + value] = self._counts.get(low + value, 0) + int(counts[value])
        if len(self._counts) > MAX_COUNTED_VALUES:
            self._counts = None

    def summary(self) -> ColumnSummary:
        """Return the summary of the rows so far."""
        known = self._num > 0
        return ColumnSummary(
            name=self._name,
            dtype=str(self._dtype),
            shape=list(self._shape),
            minimum=float(self._low) if known else None,
            maximum=float(self._high) if known else None,
            mean=self._sum / self._num if known else None,
            num_not_finite=self._num_not_finite,
            counts=dict(sorted(self._counts.items())) if self._counts else None,
        )


def _named_leaves(name: str, column: Column) -> list[tuple[str, Array]]:
    if isinstance(column, Mapping):
        return [pair for key, branch in column.items() for pair in _named_leaves(f"{name}/{key}", branch)]
    if isinstance(column, tuple):
        return [pair for index, branch in enumerate(column) for pair in _named_leaves(f"{name}/{index}", branch)]
    return [(name, column)]


def _first_rows(block: ColumnBlock) -> list[dict[str, Any]]:
    count = min(NUM_FIRST_ROWS, int(block.lengths[0]))
    rows = []
    for row in range(count):
        values = {
            path: np.asarray(leaf[row])
            for name, column in block.columns.items()
            for path, leaf in _named_leaves(name, nested.take(column, slice(0, count)))
        }
        rows.append({"t": int(block.t_started[0]) + row} | {path: _short(value) for path, value in values.items()})
    return rows


def _short(value: Array) -> Any:
    """Return a small value, or the type and shape of a large one, such as an image."""
    return value.tolist() if value.size <= 16 else f"{value.dtype}{list(value.shape)}"


def _bin_edges(low: float, high: float, are_integers: bool) -> npt.NDArray[np.float64]:
    """Return at most ten bins with round edges."""
    if low == high:
        return np.array([low, low + max(1.0, np.spacing(abs(low)))])
    raw = (high - low) / _MAX_BINS
    magnitude = 10.0 ** math.floor(math.log10(raw))
    width = next(step * magnitude for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * magnitude >= raw * (1 - 1e-9))
    if are_integers:
        width = max(1.0, math.ceil(width))
    first = math.floor(low / width) * width
    count = max(1, math.ceil((high - first) / width - 1e-9))  # the last bin includes its upper edge
    edges: npt.NDArray[np.float64] = first + width * np.arange(count + 1, dtype=np.float64)
    return edges
