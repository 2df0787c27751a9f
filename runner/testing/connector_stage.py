"""A connector at its position in a default pipeline, and episodes to pass through it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runner.config.errors import ConfigError, Problem
from runner.env_runners.vector_envs import BatchedEnvironments
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import blank_item
from runner.module_building import make_connector
from runner.modules import RLModule
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTIONS_FOR_ENV, DEFAULT_MODULE_ID, Connector, Items
from runner.pipelines.custom_metrics import CustomMetrics, ReducedValue
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.pipeline import STREAMS, ConnectorPipeline
from runner.pipelines.requirements import Requirements
from runner.rows.lock_step_rows import LockStepRows
from runner.streams import random_stream
from runner.testing.sampled_items import SampledEnvironments, Space, small_module

NUM_ENVS = 3
# Pipeline -> the connector after which a custom connector is placed by default.
_ANCHORS = {
    "env_to_module": "AddObservationsFromEpisodesToBatch",
    "module_to_env": "GetActions",
    "learner": "AddColumnsFromEpisodesToTrainBatch",
}
_FRAGMENT_STEPS = 6  # steps of each sub-environment
_RUNNING_STEPS = 2  # after the fragment
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ConnectorPlacement:
    """How a connector is made, and its position.

    Attributes:
        make: makes the connector.
        pipeline: `env_to_module`, `module_to_env` or `learner`.
        verb: `prepend`, `append`, `insert_before`, `insert_after` or `replace`.
        anchor: the connector that the verb refers to.
        edits: edits of the pipeline before the connector is added.
        observation_space, action_space: spaces of the environment.
    """

    make: Callable[[], Connector]
    pipeline: str
    verb: str
    anchor: str | None
    edits: Sequence[Mapping[str, Any]]
    observation_space: Space
    action_space: Space


def place_of(
    make: Callable[[], Connector],
    pipeline: str | None,
    verb: str,
    anchor: str | None,
    edits: Sequence[Mapping[str, Any]],
    spaces: tuple[Space, Space],
) -> ConnectorPlacement:
    """Return the position of a connector; missing arguments are derived from the connector.

    Raises:
        ConfigError: the pipeline is unknown, or cannot be derived from the connector.
    """
    named = (Requirements.of(make()).belongs_in or ()) if pipeline is None else (pipeline,)
    if len(named) != 1 or named[0] not in _ANCHORS:
        what = "check_connector needs the pipeline of the connector"
        raise ConfigError([Problem(what, "pipeline", ", ".join(named) or "nothing", ", ".join(_ANCHORS))])
    has_anchor = verb not in ("prepend", "append")
    return ConnectorPlacement(
        make, named[0], verb, anchor or (_ANCHORS[named[0]] if has_anchor else None), edits, *spaces
    )


@dataclass(frozen=True)
class Played:
    """Data sampled by a module; every pass through a connector gets a copy.

    Attributes:
        module: the acting module.
        running: running episodes.
        block: chunks of earlier steps.
        columns: columns of the block for `complete_fragment`.
    """

    module: RLModule
    running: LockStepRows
    block: ColumnBlock
    columns: Mapping[str, Any]


@dataclass
class Stage:
    """A pipeline with the checked connector; every pass through it gets the same input.

    Attributes:
        module: a small network, which has acted.
        episodes: running episodes, or a block of chunks.
        batch: input of the pipeline.
        available: columns of the input.
        recorded: extra model outputs in the chunks.
        reported: metrics that the connectors have reported in the last pass.
    """

    pipeline: ConnectorPipeline
    connector: Connector
    module: RLModule
    episodes: Any
    batch: dict[str, Any]
    available: tuple[str, ...]
    recorded: tuple[str, ...]
    columns: Mapping[str, Any]
    reports_nothing: bool = False
    explore: bool = True
    reported: dict[str, ReducedValue] = field(default_factory=dict)
    _before: dict[str, Any] | None = None

    def around(self) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Return the batch before and after the connector, and the episodes after it."""
        if self._before is None:
            self._before = copy.deepcopy(self.batch)
            for other in self.pipeline:
                if other is self.connector:
                    break
                self._before = self._call(other, self._before, self.episodes)
        episodes = copy.deepcopy(self.episodes)
        after = self._call(self.connector, copy.deepcopy(self._before), episodes)
        return by_column(self._before), by_column(after), episodes

    def get_state(self) -> dict[str, Any]:
        """Return the state of the connector as its pipeline saves it, including its random stream."""
        state, streams = self.pipeline.get_state(), {}
        [name] = [name for name, connector in self.pipeline.named_connectors().items() if connector is self.connector]
        if name in state.get(STREAMS, {}):
            streams = {STREAMS: {name: state[STREAMS][name]}}
        return ({name: state[name]} if name in state else {}) | streams

    def run_all(self) -> dict[str, Any]:
        """Return the batch after all connectors, by column."""
        batch, episodes = copy.deepcopy(self.batch), copy.deepcopy(self.episodes)
        for connector in self.pipeline:
            batch = self._call(connector, batch, episodes)
        return by_column(batch)

    @property
    def spaces(self) -> tuple[tuple[Space, Space], tuple[Space, Space]]:
        """Observation and action space before and after the connector."""
        before = self.pipeline.input_spaces
        for other, after in zip(self.pipeline, self.pipeline.spaces_after, strict=True):
            if other is self.connector:
                return before, after
            before = after
        raise LookupError(f"{type(self.connector).__name__} is not in its pipeline")

    def completed_columns(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the columns of a fragment before and after `complete_fragment`."""
        columns = {name: copy.deepcopy(column) for name, column in self.columns.items()}
        self.connector.complete_fragment(columns, self.module)
        return dict(self.columns), columns

    def _call(self, connector: Connector, batch: dict[str, Any], episodes: Any) -> dict[str, Any]:
        is_learner = isinstance(episodes, ColumnBlock)
        batch = connector(
            rl_module={DEFAULT_MODULE_ID: self.module} if is_learner else self.module,
            batch=batch,
            episodes=episodes,
            explore=self.explore,
            shared_data={},
            metrics=None if self.reports_nothing else self._metrics_of(connector),
        )
        if not isinstance(batch, dict):
            what = f"{type(connector).__name__}.__call__ does not return the batch"
            raise ConfigError([Problem(what, "__call__", type(batch).__name__, "a dict of columns")])
        return batch

    def _metrics_of(self, connector: Connector) -> CustomMetrics:
        self.reported = {name: ReducedValue(reduction) for name, (reduction, _) in connector.reports.items()}
        return CustomMetrics(type(connector).__name__, self.pipeline.name, connector.reports, self.reported)


def by_column(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the module, also from a batch grouped by module."""
    return dict(batch.get(DEFAULT_MODULE_ID, batch))


def make_stage(place: ConnectorPlacement, played: Played) -> Stage:
    """Make a new connector at its position, with sampled episodes."""
    connector, module = place.make(), played.module
    spaces = place.observation_space, place.action_space
    pipeline: ConnectorPipeline
    batch: dict[str, Any] = {}
    episodes: Any = played.running
    recorded: tuple[str, ...] = ()
    if place.pipeline == "env_to_module":
        pipeline = env_to_module_pipeline(*spaces, _CPU, place.edits, make_connector)
    elif place.pipeline == "module_to_env":
        pipeline = module_to_env_pipeline(*spaces, True, False, place.edits, make_connector)
        width = module.action_dist.num_inputs
        batch = {ACTION_DIST_INPUTS: torch.linspace(-1.0, 1.0, NUM_ENVS * width).reshape(NUM_ENVS, width)}
    else:
        pipeline = learner_pipeline(*spaces, _CPU, place.edits, make_connector)
        episodes, recorded = played.block, tuple(played.block.extra_columns)
    arguments = (connector,) if place.anchor is None else (place.anchor, connector)
    getattr(pipeline, place.verb)(*arguments)
    pipeline.give_streams(lambda name, position: random_stream(0, name, position))
    return Stage(pipeline, connector, module, episodes, batch, tuple(batch), recorded, played.columns)


def play(observation_space: Space, action_space: Space, num_lookback: int) -> Played:
    """Sample episodes with a small module."""
    spaces = observation_space, action_space
    module = small_module(*spaces)
    env = BatchedEnvironments(SampledEnvironments(NUM_ENVS, *spaces), seed=0)
    to_module = env_to_module_pipeline(*spaces, _CPU, (), make_connector)
    to_env = module_to_env_pipeline(*spaces, True, False, (), make_connector)
    for pipeline in (to_module, to_env):
        pipeline.give_streams(lambda name, position: random_stream(0, name, position))
    rows = LockStepRows(NUM_ENVS, blank_item(spaces[0]), blank_item(spaces[1]), "check", num_lookback)
    rows.add_reset(*env.reset(("check", 0)))
    given: dict[str, Any] = {}

    def complete(columns: dict[str, Any]) -> None:
        given.update(columns)
        to_env.complete_fragment(columns, module)

    for number in range(_FRAGMENT_STEPS + _RUNNING_STEPS):
        if number == _FRAGMENT_STEPS:
            block = rows.cut(complete).block
        batch = to_module(rl_module=module, batch={}, episodes=rows, explore=True, shared_data={})
        with torch.no_grad():
            outputs = module.forward_exploration(batch)
        acted = to_env(rl_module=module, batch=outputs, episodes=rows, explore=True, shared_data={})
        rows.add_step(*env.step(acted.pop(ACTIONS_FOR_ENV)), acted)
    return Played(module, rows, block, given)


def arrays_of(column: Any) -> Any:
    """Return the rows of observations as arrays (rows, ...) with the same nesting, also if they are still items."""
    if type(column) is Items:
        return column.stacked()
    if isinstance(column, list):
        return nested.stack([nested.map_leaves(np.asarray, item) for item in column])
    return nested.map_leaves(np.asarray, column)


def rows_of(column: Any) -> np.ndarray[Any, Any]:
    """Return the rows of a column as one array for comparisons, also if they are still items of episodes."""
    if type(column) is Items:
        column = [item for items in column.values() for item in items]
    if isinstance(column, (dict, tuple)):
        return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in nested.leaves(column)], axis=1)
    if isinstance(column, list):
        return np.stack([np.asarray(item) for item in column])
    return np.asarray(column)
