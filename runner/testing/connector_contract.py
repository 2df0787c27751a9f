"""Contract of connectors, built-in and user-defined."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.declared_metrics import find_report_fault
from runner.config.errors import ConfigError, Problem
from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import blank_item
from runner.pipelines.connector import OBS, Connector
from runner.pipelines.requirements import Requirements
from runner.testing.connector_stage import ConnectorPlacement, Stage, arrays_of, make_stage, place_of, play, rows_of
from runner.testing.rules import (
    are_equal,
    check_rules,
    differing_attributes,
    find_difference,
    outline,
    through_checkpoint,
)
from runner.testing.sampled_items import DISCRETE, OBSERVATIONS, Space

_KEYWORDS = (
    "rl_module",
    "batch",
    "episodes",
    "explore",
    "shared_data",
    "metrics",
    "episodes_of_modules",
    "a_later_one",
)
_COLUMNS = ("reads", "writes", "drops", "writes_per_fragment")


def check_connector(
    make: Callable[[], Connector],
    pipeline: str | None = None,
    verb: str = "insert_after",
    anchor: str | None = None,
    edits: Sequence[Mapping[str, Any]] = (),
    *,
    observation_space: Space = OBSERVATIONS,
    action_space: Space = DISCRETE,
) -> None:
    """Check a connector at its position in a default pipeline, on episodes of three sub-environments.

    Args:
        make: the class of the connector, or a function; must make equal connectors each time.
        pipeline: `env_to_module`, `module_to_env` or `learner`, or None for the only pipeline that supports it.
        verb: `prepend`, `append`, `insert_before`, `insert_after` or `replace`, as in YAML.
        anchor: class name of the connector that the verb refers to, or None for the usual position of custom connectors
            in
            the pipeline.
        edits: edits of the pipeline before the connector is added.
        observation_space: space of the environment; observations are drawn at random.
        action_space: space of the environment.

    Raises:
        BrokenContract: the connector breaks rules; the message lists all of them.
        ConfigError: the position is not valid.
    """
    contract = _ConnectorContract(place_of(make, pipeline, verb, anchor, edits, (observation_space, action_space)))
    check_rules(contract.name, contract.rules())


check_piece = check_connector  # the old name


class _ConnectorContract:
    def __init__(self, place: ConnectorPlacement) -> None:
        self._place = place
        connector = place.make()
        self.name = type(connector).__name__
        self._played = play(
            place.observation_space, place.action_space, max(1, Requirements.of(connector).num_lookback)
        )

    def rules(self) -> Iterator[Any]:
        """Yield the rules; rules that need a pipeline are skipped if the connector cannot be placed in one."""
        yield self.takes_all_keywords
        yield self.declares_columns
        if list(self.takes_all_keywords()):
            return
        try:
            self._stage()
        except ConfigError as error:
            problems = error.problems
            yield lambda: problems
            return
        yield from (self.writes_what_it_declares, self.keeps_rows, self.completes_fragments, self.infers_spaces)
        yield self.gives_observations_of_its_space
        yield from (self.draws_from_its_stream, self.leaves_episodes_alone, self.acts_without_exploration)
        yield from (self.continues_from_its_state, self.merges_states, self.reports_what_it_declares)

    def _stage(self) -> Stage:
        return make_stage(self._place, self._played)

    def takes_all_keywords(self) -> Iterator[Problem]:
        """Check that it takes every keyword of the protocol, and keywords that later versions may add."""
        signature = inspect.signature(self._place.make().__call__)
        try:
            signature.bind(**dict.fromkeys(_KEYWORDS))
        except TypeError as error:
            what = f"__call__ does not take all keywords of the protocol: {error}"
            yield Problem(what, "__call__", str(signature), "(self, *, batch, episodes, **kwargs), for example")

    def declares_columns(self) -> Iterator[Problem]:
        """Check that columns are declared as tuples of names."""
        requires = Requirements.of(self._place.make())
        for attribute in _COLUMNS:
            columns = getattr(requires, attribute)
            if not isinstance(columns, tuple) or not all(isinstance(c, str) and c.isidentifier() for c in columns):
                what = f"{attribute} is not a tuple of column names"
                yield Problem(what, attribute, repr(columns), '("obs",), for example')

    def writes_what_it_declares(self) -> Iterator[Problem]:
        """Check that it reads and writes the declared columns, and that other columns are unchanged."""
        stage = self._stage()
        requires = Requirements.of(stage.connector)
        stage.pipeline.check_order(stage.available)
        before, after, _ = stage.around()
        for column in [column for column in requires.reads if column not in before]:
            yield Problem(
                f"the connector reads {column}, which the batch does not contain", "reads", expected=", ".join(before)
            )
        for column in [column for column in requires.writes if column not in after]:
            yield Problem(f"column {column} is declared in `writes` but not written", "writes", ", ".join(after))
        for column in sorted(set(after) - set(before) - set(requires.writes) - set(stage.recorded)):
            yield Problem(f"column {column} is written but not declared in `writes`", "writes", repr(requires.writes))
        gone = set(before) - set(after)
        for column in sorted(gone ^ set(requires.drops)):
            what = f"column {column} is removed but not declared in `drops`"
            if column not in gone:
                what = f"column {column} is declared in `drops` but not removed"
            yield Problem(what, "drops", repr(requires.drops))
        for column in sorted(set(before) - set(requires.writes) - gone):
            if not np.array_equal(rows_of(before[column]), rows_of(after[column])):
                what = f"column {column} is changed but not declared in `writes`"
                yield Problem(what, "writes", repr(requires.writes))

    def keeps_rows(self) -> Iterator[Problem]:
        """Check that columns and episodes keep their lengths, and that all columns have equal lengths in the end."""
        stage = self._stage()
        before, after, episodes = stage.around()
        for column in [column for column in before if column in after]:
            got, expected = (len(rows_of(columns[column])) for columns in (after, before))
            if got != expected:
                what = f"the connector changes the number of rows of column {column}"
                yield Problem(what, "__call__", f"{got} rows", f"{expected}, as before it")
        steps, steps_after = ([len(episode) for episode in one] for one in (stage.episodes, episodes))
        if steps != steps_after:
            what = "the connector changes the number of steps of episodes"
            yield Problem(what, "__call__", str(steps_after), str(steps))
        rows = {column: len(rows_of(values)) for column, values in stage.run_all().items()}
        if len(set(rows.values())) > 1:
            yield Problem("columns end up with different numbers of rows", "__call__", str(rows))

    def completes_fragments(self) -> Iterator[Problem]:
        """Check that `complete_fragment` adds the declared columns, with a row for each step."""
        stage = self._stage()
        before, after = stage.completed_columns()
        added, declared = set(after) - set(before), set(Requirements.of(stage.connector).writes_per_fragment)
        if added != declared:
            what = "complete_fragment does not add the columns declared in `writes_per_fragment`"
            yield Problem(what, "complete_fragment", ", ".join(sorted(added)), ", ".join(sorted(declared)) or "none")
        num_steps = len(rows_of(before["actions"]))
        for column in sorted(added):
            num_rows = len(rows_of(after[column]))
            if num_rows != num_steps:
                what = f"complete_fragment adds column {column} with a wrong number of rows"
                yield Problem(what, "complete_fragment", str(num_rows), str(num_steps))

    def infers_spaces(self) -> Iterator[Problem]:
        """Check that it maps spaces to spaces, always to the same ones."""
        stage = self._stage()
        connector, (spaces, _) = stage.connector, stage.spaces
        for infer in (connector.recompute_output_observation_space, connector.recompute_output_action_space):
            space = infer(*spaces)
            if not isinstance(space, gym.Space):
                yield Problem("the method does not return a space", infer.__name__, repr(space), "a gymnasium.Space")
            elif infer(*spaces) != space:
                yield Problem(
                    "the second call returns a different space", infer.__name__, expected="the same each time"
                )

    def gives_observations_of_its_space(self) -> Iterator[Problem]:
        """Check that `obs` after it has the structure, shapes and dtype kinds of its output space."""
        stage = self._stage()
        _, (space, _) = stage.spaces
        _, after, _ = stage.around()
        if not isinstance(space, gym.Space) or OBS not in after:
            return
        obs = arrays_of(after[OBS])
        if not _are_rows_of(space, obs):
            what = "observations after the connector are not in its output space"
            yield Problem(what, "recompute_output_observation_space", outline(obs), f"rows of {space}")

    def draws_from_its_stream(self) -> Iterator[Problem]:
        """Check that two connectors with the same streams and input write the same columns."""
        (_, first, _), (_, second, _) = self._stage().around(), self._stage().around()
        column = _difference(first, second)
        if column is not None:
            what = f"two connectors with the same stream and input write different {column}"
            yield Problem(what, "__call__", fix="draw all random numbers from the stream of use_stream")

    def leaves_episodes_alone(self) -> Iterator[Problem]:
        """Check that it does not write into arrays of episodes; `write_obs` and new blocks are allowed."""
        stage = self._stage()
        _, _, episodes = stage.around()
        if isinstance(episodes, ColumnBlock):
            column = find_difference(stage.episodes.columns, episodes.columns)
        else:
            column = None if nested.equal(stage.episodes.current_obs, episodes.current_obs) else "obs"
        if column is not None and not Requirements.of(stage.connector).writes_obs_to_episodes:
            fix = "change a copy in the batch, or set observations by `write_obs`, with writes_obs_to_episodes = True"
            yield Problem(f"the connector writes into {column} of the episodes", "__call__", fix=fix)

    def acts_without_exploration(self) -> Iterator[Problem]:
        """Check that it writes the same columns and shapes without exploration; it may omit noise, for example."""
        exploring, greedy = self._stage(), self._stage()
        greedy.explore = False
        (_, expected, _), (_, got, _) = exploring.around(), greedy.around()
        for column in sorted(set(got) - set(expected)):
            yield Problem(
                f"column {column} is written only without exploration", "__call__", expected="written in both cases"
            )
        for column in set(expected) & set(got):
            shapes = [rows_of(columns[column]).shape for columns in (got, expected)]
            if shapes[0] != shapes[1]:
                what = f"column {column} has a different shape without exploration"
                yield Problem(what, "__call__", str(shapes[0]), str(shapes[1]))

    def continues_from_its_state(self) -> Iterator[Problem]:
        """Check that its state is plain, and that a new connector with its state and random stream continues it."""
        stage, other = self._stage(), self._stage()
        for _ in range(3):
            stage.around()
        kept = through_checkpoint(stage.connector.get_state(), self.name)
        other.pipeline.set_state(through_checkpoint(stage.get_state(), self.name))
        key = find_difference(kept, other.connector.get_state())
        if key is not None:
            yield Problem(
                f"get_state after set_state returns a different {key}", "set_state", expected="the state that was set"
            )
        attributes = [f"self.{name}" for name in differing_attributes(stage.connector, other.connector)]
        for _ in range(3):
            (_, expected, _), (_, got, _) = stage.around(), other.around()
            column = _difference(expected, got)
            if column is not None:
                what = f"a connector with the state of another one writes different {column}"
                got_keys = f"different {', '.join(attributes)} after set_state" if attributes else None
                fix = (
                    "return everything that later calls depend on from get_state; the pipeline saves the stream itself"
                )
                yield Problem(what, "get_state, set_state", got_keys, fix=fix)
                return
        if find_difference(stage.connector.get_state(), other.connector.get_state()) is not None:
            yield Problem("a connector and a copy with its state diverge", "get_state, set_state")
        stage.connector.reset_state()
        stage.around()

    def merges_states(self) -> Iterator[Problem]:
        """Check that a shared state is plain and can be set, and that merging merged states changes nothing."""
        stage, second = self._stage(), self._stage()
        stage.around()
        for _ in range(2):
            second.around()
        merged = stage.connector.merge_states([stage.connector.get_state(), second.connector.get_state()])
        merged = through_checkpoint(merged, f"{self.name}.merge_states")
        if not merged:
            return
        for one in (stage, second):
            one.connector.set_state(copy.deepcopy(merged))
        again = stage.connector.merge_states([stage.connector.get_state(), second.connector.get_state()])
        if not are_equal(again, merged):
            what = "merging states that were just merged changes them; something may be counted twice"
            yield Problem(what, "merge_states", str(again), str(merged))

    def reports_what_it_declares(self) -> Iterator[Problem]:
        """Check that it declares its metrics, reports all of them, and writes the same columns without reporting."""
        fault = find_report_fault(self._place.make().reports)
        if fault is not None:
            yield replace(fault, where="reports")
            return
        stage, silent = self._stage(), self._stage()
        silent.reports_nothing = True
        _, expected, _ = stage.around()
        for metric in stage.connector.reports:
            result = stage.reported[metric].result
            if result is None:
                yield Problem(f"metric {metric} is declared but not reported", "reports")
            elif not np.isfinite(result):
                yield Problem(f"metric {metric} is not finite", "metrics.report", str(result))
        _, got, _ = silent.around()
        column = _difference(expected, got)
        if column is not None:
            yield Problem(
                f"reporting changes column {column}", "__call__", expected="the same columns with metrics=None"
            )


def _are_rows_of(space: Space, rows: Any) -> bool:
    """Return whether rows are nested like the items of a space, with their shapes and dtype kinds."""

    def fits(blank: Any, leaf: Any) -> bool:
        is_known = blank is not None  # for some spaces, Text for example, any array is valid
        return not is_known or (leaf.shape[1:], leaf.dtype.kind) == (np.shape(blank), np.asarray(blank).dtype.kind)

    try:
        return all(nested.leaves(nested.map_leaves(fits, blank_item(space), rows)))
    except ValueError:  # the structures differ
        return False


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return a column whose rows differ, or None."""
    by_rows = ({name: rows_of(column) for name, column in one.items()} for one in (first, second))
    return find_difference(*by_rows)
