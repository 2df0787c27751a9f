"""Pipelines: sequences of connectors that are checked when they are built. There are three kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.declared_metrics import connector_metric, meaning_of
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.user_code import is_user_defined, place_of, problem_of
from runner.episodes.columns import block_from_episodes
from runner.pipelines.connector import Batch, Connector
from runner.pipelines.connector_graph import PipelineGraph
from runner.pipelines.connector_list import ConnectorList, named_connectors
from runner.pipelines.connector_list import PipelineError as PipelineError
from runner.pipelines.custom_metrics import ReducedMetrics, merged_metrics
from runner.pipelines.drawing import draw_pipeline
from runner.pipelines.first_calls import check_first_calls
from runner.pipelines.pipeline_checks import check_rows, find_misplaced_connector, rows_to_learn_from
from runner.pipelines.pipeline_metrics import Call, PipelineMetrics, joined_reports
from runner.pipelines.requirements import Requirements
from runner.streams import restore_stream, stream_state

# Key in the state of a pipeline, in addition to the names of connectors.
STREAMS = "#streams"


class ConnectorPipeline(ConnectorList, Connector):
    """Connectors that are called in order. A pipeline is a connector itself, so pipelines can be nested.

    A nested pipeline is a plain one, or of the same kind as the outer one.

    Args:
        connectors: connectors in the order of their calls.
        input_observation_space, input_action_space: spaces before the first connector; a nested pipeline gets those
            after the previous connector.
    """

    name = "pipeline"
    spaces_after: Sequence[tuple[gym.Space[Any], gym.Space[Any]]] = ()
    """Observation and action space after each connector; empty until the spaces before the first connector are
    known.
    """
    _input_spaces: tuple[gym.Space[Any], gym.Space[Any]] | None = None

    def __init__(
        self,
        connectors: Iterable[Connector],
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
    ) -> None:
        self._connectors = list(connectors)
        self._streams: dict[str, np.random.Generator] = {}
        self._infer_columns()  # also names nested pipelines, for messages of `_infer`
        if input_observation_space is not None and input_action_space is not None:
            self._input_spaces = (input_observation_space, input_action_space)
            self._infer()

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Pass the batch through all connectors."""
        for call in self._calls:
            batch = call(batch=batch, episodes=episodes, **kwargs)
        return batch

    def substitute_connectors(self, connectors: Sequence[Connector]) -> None:
        """Call these connectors in place of the originals, one for each; spaces and columns are not changed (for
        profiling)."""
        self._connectors = list(connectors)
        self._bind()

    def _bind(self) -> None:
        """Prepare the calls of the connectors, with `metrics` for connectors that report."""
        self._named = named_connectors(self._connectors)
        for connector in self._connectors:
            if isinstance(connector, ConnectorPipeline) and Requirements.of(connector).belongs_in is None:
                connector.name = self.name
                connector._bind()
        self.reports = joined_reports(self.single_connectors(), f"connectors.{self.name}")
        self._metrics = PipelineMetrics(self._connectors, self.name)
        self._completing, self._scheduled = (
            _overriding(hook, self._named) for hook in ("complete_fragment", "at_env_steps")
        )
        self._stateful = {name: one for name, one in self._named.items() if one.has_state}
        draws = _overriding("use_stream", self._named)
        self._drawing = [name for name, connector in draws.items() if not isinstance(connector, ConnectorPipeline)]
        self._calls: list[Call] = list(self._connectors)
        if self.is_training:
            self._calls = [self._metrics.call_of(connector) for connector in self._connectors]
        spaces: list[gym.Space[Any] | None] = [space for space, _ in self.spaces_after]
        check_first_calls(self._calls, self._connectors, spaces or [None] * len(self._connectors), self.name)

    def take_metrics(self, module_id: str) -> ReducedMetrics:
        """Return the metrics that the connectors of this module's pipeline have reported since the last call, by their
        names in the run.
        """
        if not self.reports:
            return {}
        reported = merged_metrics(
            connector._metrics.take()
            for connector in (self, *self.every_connector())
            if isinstance(connector, ConnectorPipeline)
        )
        return {connector_metric(module_id, self.name, name): reduced for name, reduced in reported.items()}

    def reported_metrics(self, module_id: str) -> dict[str, str]:
        """Return name in the run -> meaning, for the metrics of the connectors in this module's pipeline."""
        return {connector_metric(module_id, self.name, name): meaning_of(self.reports, name) for name in self.reports}

    # -- spaces and columns ----------------------------------------------------------------------------------------

    @property
    def input_spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space before the first connector.

        Raises:
            ValueError: the spaces are not known yet.
        """
        if self._input_spaces is None:
            what = "the spaces before the first connector are not known"
            raise ValueError(f"{what}: pass input_observation_space and input_action_space")
        return self._input_spaces

    def _infer(self) -> None:
        """Infer the columns that the pipeline reads and writes and, if the spaces before it are known, the spaces."""
        if self._input_spaces is not None:
            spaces_after = [self._input_spaces]
            for connector in self._connectors:
                spaces_after.append(self._spaces_after(connector, *spaces_after[-1]))
            self.spaces_after = spaces_after[1:]
            self.observation_space, self.action_space = spaces_after[-1]
        self._infer_columns()

    def _spaces_after(self, connector: Connector, *spaces: gym.Space[Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Return the spaces after a connector.

        Raises:
            PipelineError: a user-defined connector does not return a space.
            TypeError: a connector does not support the spaces.
        """
        if not is_user_defined(type(connector)):
            return connector.recompute_output_observation_space(*spaces), connector.recompute_output_action_space(
                *spaces
            )
        found = []
        for method in ("recompute_output_observation_space", "recompute_output_action_space"):
            where = f"connectors.{self.name}"
            try:
                found.append(getattr(connector, method)(*spaces))
            except (ConfigError, TypeError):
                raise
            except Exception as error:
                raise PipelineError([problem_of(error, where)]) from error
            if not isinstance(found[-1], gym.Space):
                what = f"{type(connector).__name__}.{method} does not return a space"
                where = f"{where}, {place_of(type(connector), method)}"
                raise PipelineError([Problem(what, where, repr(found[-1]), "a gymnasium.Space")])
        return found[0], found[1]

    def observation_spaces_after(self) -> Iterator[tuple[Connector, gym.Space[Any]]]:
        """Yield each single connector, also of nested pipelines, with the observation space after it."""
        for connector, (space, _) in zip(self._connectors, self.spaces_after, strict=True):
            if isinstance(connector, ConnectorPipeline):
                yield from connector.observation_spaces_after()
            else:
                yield connector, space

    def _infer_columns(self) -> None:
        """Infer the columns, requirements and metrics of the pipeline."""
        self._bind()
        for connector in self._connectors:
            self._check_declared(connector)
        together = Requirements.of_sequence(self._connectors)
        self.requires = replace(together, belongs_in=type(self).requires.belongs_in)

    def _check_declared(self, connector: Connector) -> None:
        requires = Requirements.of(connector)
        for attribute in ("reads", "writes", "drops", "writes_per_fragment"):
            names = getattr(requires, attribute)
            if isinstance(names, str):
                what = f"{type(connector).__name__}.{attribute} is not a tuple of column names"
                where = f"connectors.{self.name}, {place_of(type(connector))}"
                raise PipelineError([Problem(what, where, repr(names), f"({names!r},)")])

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Return the observation space after the last connector."""
        self._input_spaces = (input_observation_space, input_action_space)
        self._infer()
        return self.observation_space

    def recompute_output_action_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Return the action space after the last connector."""
        self._input_spaces = (input_observation_space, input_action_space)
        self._infer()
        return self.action_space

    def check_order(self, available: Iterable[str]) -> tuple[str, ...]:
        """Check that every connector is in a valid position and finds the columns that it reads; return the columns
        after the last one.

        Args:
            available: columns in the batch before the first connector.

        Raises:
            PipelineError: names the connector, the column and, if there is one, the later connector that writes it.
        """
        misplaced = find_misplaced_connector(list(self.every_connector()), self.name)
        if misplaced is not None:
            raise PipelineError([misplaced])
        columns = list(available)
        for position, requires in enumerate(map(Requirements.of, self._connectors)):
            for column in requires.reads:
                if column not in columns:
                    raise PipelineError([self._order_problem(position, column, columns)])
            columns += [column for column in requires.writes if column not in columns]
            columns = [column for column in columns if column not in requires.drops]
        return tuple(columns)

    def _order_problem(self, position: int, column: str, columns: Sequence[str]) -> Problem:
        name = type(self._connectors[position]).__name__
        later = [type(p).__name__ for p in self._connectors[position + 1 :] if column in Requirements.of(p).writes]
        once = [type(p).__name__ for p in self._connectors if column in Requirements.of(p).writes_per_fragment]
        hint = f"; the later {later[0]} writes it" if later else ""
        if once:
            hint = f"; {once[0]} writes it once per fragment, not at every step"
        return Problem(
            f"{name} reads the column {column!r}, which no earlier connector writes{hint}",
            where=f"connectors.{self.name}, connector {position + 1} of {len(self._connectors)}",
            got=" -> ".join(type(connector).__name__ for connector in self._connectors),
            expected=f"one of the columns at this place: {', '.join(columns) or 'none'}",
            nearest=None if later or once else nearest_match(column, columns),
        )

    # -- calls that are passed to the connectors -----------------------------------------------------------------------

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Call each connector's `complete_fragment`."""
        for connector in self._completing.values():
            connector.complete_fragment(columns, rl_module)

    def _repr_svg_(self) -> str:
        """Return an SVG image for notebooks: the connectors in order, with the columns that they read and write."""
        return draw_pipeline(self, self.input_spaces, self.spaces_after)

    def to_graph(self) -> PipelineGraph:
        """Return the sequence of all connectors' graphs."""
        graphs = {name: connector.to_graph() for name, connector in self._named.items()}
        return PipelineGraph({name: graph for name, graph in graphs.items() if graph is not None})

    def give_streams(self, make_stream: Callable[[str, int], np.random.Generator]) -> None:
        """Give each connector a random stream, `make_stream(pipeline name, position)`; states include them."""
        self._give([make_stream(self.name, position) for position in range(len(self._connectors))])

    def _give(self, streams: Sequence[np.random.Generator]) -> None:
        self._streams = dict(zip(self._named, streams, strict=True))
        for connector, stream in zip(self._connectors, streams, strict=True):
            connector.use_stream(stream)

    def at_env_steps(self, num_env_steps: int) -> None:
        """Pass the number of env steps sampled by all runners to each connector."""
        for connector in self._scheduled.values():
            connector.at_env_steps(num_env_steps)

    def use_env_runner(self, index: int, num_env_runners: int) -> None:
        """Pass the index of the env runner to each connector."""
        for connector in self._connectors:
            connector.use_env_runner(index, num_env_runners)

    def use_agents(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        """Pass the agents of the run to each connector."""
        for connector in self._connectors:
            connector.use_agents(spaces)

    def use_stream(self, stream: np.random.Generator) -> None:
        """Give each connector a child of the stream; called if the pipeline is nested."""
        self._give(stream.spawn(len(self._connectors)))

    def freeze(self) -> None:
        """Freeze all connectors and stop reporting, for evaluations."""
        super().freeze()
        for connector in self._connectors:
            connector.freeze()
        self._bind()

    def named_connectors(self) -> dict[str, Connector]:
        """Return name -> connector in order, named as in states; a nested pipeline is one connector."""
        return dict(self._named)

    def get_state(self) -> dict[str, Any]:
        """Return connector name -> its state, for stateful connectors, and the streams of connectors that use them."""
        states = {name: connector.get_state() for name, connector in self._stateful.items()}
        states = {name: state for name, state in states.items() if state}
        streams = {name: stream_state(self._streams[name]) for name in self._drawing if name in self._streams}
        return {**states, STREAMS: streams} if streams else states

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`; raises an error for states of connectors that do not exist here."""
        state = dict(state)
        for name, of_stream in state.pop(STREAMS, {}).items():
            if name in self._streams:
                restore_stream(self._streams[name], of_stream)
        connectors = self._named
        for name, connector_state in state.items():
            if name not in connectors:
                raise PipelineError(
                    [
                        Problem(
                            f"the {self.name} pipeline does not contain the connector {name} of the saved state",
                            where=f"connectors.{self.name}",
                            got=", ".join(state),
                            expected=", ".join(connectors),
                        )
                    ]
                )
            connectors[name].set_state(connector_state)

    def reset_state(self) -> None:
        """Reset every connector."""
        for connector in self._connectors:
            connector.reset_state()

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the states of several runners by connector name; each runner keeps its streams.

        The state of a connector may be missing in some runners, because empty states are left out.
        """
        connectors = self._named
        names = dict.fromkeys(name for state in states for name in state if name != STREAMS)
        merged = {
            name: connectors[name].merge_states([state[name] for state in states if name in state]) for name in names
        }
        return {name: state for name, state in merged.items() if state}


class EnvToModulePipeline(ConnectorPipeline):
    """Pipeline from the running episodes to the batch of the next forward pass."""

    name = "env_to_module"
    requires = Requirements(belongs_in=("env_to_module",))
    _are_rows_checked = False

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Build the batch; the first call checks the number of rows after each connector."""
        if self._are_rows_checked:
            return super().__call__(batch=batch, episodes=episodes, **kwargs)
        for connector, call in zip(self._connectors, self._calls, strict=True):
            batch = call(batch=batch, episodes=episodes, **kwargs)
            check_rows(self.name, connector, batch, len(episodes))
        self._are_rows_checked = True
        return batch

    @property
    def held_observation_space(self) -> gym.Space[Any]:
        """The space of the observations in episodes: of the environment, or of the connector that writes them."""
        held = self.input_spaces[0]
        for connector, space in self.observation_spaces_after():
            if Requirements.of(connector).writes_obs_to_episodes:
                held = space
        return held


class ModuleToEnvPipeline(ConnectorPipeline):
    """Pipeline from the module's outputs to the actions of the next vector step."""

    name = "module_to_env"
    requires = Requirements(belongs_in=("module_to_env",))


class LearnerConnectorPipeline(ConnectorPipeline):
    """Pipeline from episode chunks to the train batch, `{module id: {column: (B, ...) tensor}}`."""

    name = "learner"
    requires = Requirements(belongs_in=("learner",))

    def _bind(self) -> None:
        super()._bind()
        self._are_built_in = [is_built_in(connector) for connector in self._connectors]
        self._are_checked = [False] * len(self._connectors)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Build the batch. `episodes` may be a column block or any sequence of episodes.

        Raises:
            RunFailure: a connector leaves a column with too many or too few rows. Built-in connectors are checked only
                in the first call.
        """
        block = block_from_episodes(episodes)
        for place, call in enumerate(self._calls):
            batch = call(batch=batch, episodes=block, **kwargs)
            if self._are_checked[place]:
                continue
            columns = batch.get(block.module_id, batch)
            check_rows(self.name, self._connectors[place], columns, rows_to_learn_from(columns, block))
            self._are_checked[place] = self._are_built_in[place]
        return batch


def _overriding(hook: str, connectors: Mapping[str, Connector]) -> dict[str, Connector]:
    """Return the connectors whose class overrides a hook that does nothing by default."""
    nothing = getattr(Connector, hook)
    return {name: connector for name, connector in connectors.items() if getattr(type(connector), hook) is not nothing}


def is_built_in(connector: Connector) -> bool:
    """Return whether a connector, including the connectors in it, is built in rather than user-defined."""
    if isinstance(connector, ConnectorPipeline):
        return all(map(is_built_in, connector.single_connectors()))
    return not is_user_defined(type(connector))


def taken_metrics(pipelines: Mapping[str, Iterable[ConnectorPipeline]]) -> ReducedMetrics:
    """Return the values that connectors have reported since the last call, by metric name in the run; module id -> its
    pipelines."""
    return merged_metrics(
        pipeline.take_metrics(module_id)
        for module_id, of_module in pipelines.items()
        for pipeline in of_module
        if pipeline.reports
    )
