"""What every connector keeps to, ours and yours."""

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
    """Check a connector in its place in a default pipeline, on episodes of three sub-environments.

    Args:
        make: makes the connector, the same each time: its class, or a function.
        pipeline: `env_to_module`, `module_to_env` or `learner`; None: the one that it belongs in.
        verb: `prepend`, `append`, `insert_before`, `insert_after` or `replace`, as in YAML.
        anchor: class name of the connector that the verb names; None: of the pipeline's natural place for a connector
            of one's own.
        edits: of the pipeline, before the connector is put in.
        observation_space: of the environment; its items are drawn at random.
        action_space: of the environment.

    Raises:
        BrokenContract: the connector breaks rules; it lists all of them.
        ConfigError: the place is none.
    """
    contract = _ConnectorContract(place_of(make, pipeline, verb, anchor, edits, (observation_space, action_space)))
    check_rules(contract.name, contract.rules())


check_piece = check_connector  # the earlier name


class _ConnectorContract:
    """The rules of one connector."""

    def __init__(self, place: ConnectorPlacement) -> None:
        self._place = place
        connector = place.make()
        self.name = type(connector).__name__
        self._played = play(
            place.observation_space, place.action_space, max(1, Requirements.of(connector).num_lookback)
        )

    def rules(self) -> Iterator[Any]:
        """Yield the rules; what needs a pipeline is not asked of a connector that has no place in one."""
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
        yield from (self.goes_on_from_its_state, self.merges_states, self.reports_what_it_declares)

    def _stage(self) -> Stage:
        return make_stage(self._place, self._played)

    def takes_all_keywords(self) -> Iterator[Problem]:
        """It takes every keyword of the protocol, and ones that later versions may add."""
        signature = inspect.signature(self._place.make().__call__)
        try:
            signature.bind(**dict.fromkeys(_KEYWORDS))
        except TypeError as error:
            what = f"__call__ does not take all keywords of the protocol: {error}"
            yield Problem(what, "__call__", str(signature), "(self, *, batch, episodes, **kwargs), for example")

    def declares_columns(self) -> Iterator[Problem]:
        """Columns are named by tuples of names."""
        requires = Requirements.of(self._place.make())
        for attribute in _COLUMNS:
            columns = getattr(requires, attribute)
            if not isinstance(columns, tuple) or not all(isinstance(c, str) and c.isidentifier() for c in columns):
                what = f"{attribute} is not a tuple of column names"
                yield Problem(what, attribute, repr(columns), '("obs",), for example')

    def writes_what_it_declares(self) -> Iterator[Problem]:
        """It reads and writes the columns that it declares, and no other changes, appears or goes."""
        stage = self._stage()
        requires = Requirements.of(stage.connector)
        stage.pipeline.check_order(stage.available)
        before, after, _ = stage.around()
        for column in [column for column in requires.reads if column not in before]:
            yield Problem(f"the batch has no {column}, which the connector reads", "reads", expected=", ".join(before))
        for column in [column for column in requires.writes if column not in after]:
            yield Problem(f"column {column} is declared in `writes` and not written", "writes", ", ".join(after))
        for column in sorted(set(after) - set(before) - set(requires.writes) - set(stage.recorded)):
            yield Problem(f"column {column} is written and not declared in `writes`", "writes", repr(requires.writes))
        gone = set(before) - set(after)
        for column in sorted(gone ^ set(requires.drops)):
            what = f"column {column} is gone and not declared in `drops`"
            if column not in gone:
                what = f"column {column} is declared in `drops` and still there"
            yield Problem(what, "drops", repr(requires.drops))
        for column in sorted(set(before) - set(requires.writes) - gone):
            if not np.array_equal(rows_of(before[column]), rows_of(after[column])):
                what = f"column {column} is changed and not declared in `writes`"
                yield Problem(what, "writes", repr(requires.writes))

    def keeps_rows(self) -> Iterator[Problem]:
        """Columns keep their number of rows, episodes theirs, and at the end all columns have equally many."""
        stage = self._stage()
        before, after, episodes = stage.around()
        for column in [column for column in before if column in after]:
            got, expected = (len(rows_of(columns[column])) for columns in (after, before))
            if got != expected:
                what = f"column {column} has another number of rows after the connector"
                yield Problem(what, "__call__", f"{got} rows", f"{expected}, as before it")
        steps, steps_after = ([len(episode) for episode in one] for one in (stage.episodes, episodes))
        if steps != steps_after:
            what = "the connector changes the number of steps of episodes"
            yield Problem(what, "__call__", str(steps_after), str(steps))
        rows = {column: len(rows_of(values)) for column, values in stage.run_all().items()}
        if len(set(rows.values())) > 1:
            yield Problem("columns end up with different numbers of rows", "__call__", str(rows))

    def completes_fragments(self) -> Iterator[Problem]:
        """What it adds once a fragment is what it declares, a row for each step."""
        stage = self._stage()
        before, after = stage.completed_columns()
        added, declared = set(after) - set(before), set(Requirements.of(stage.connector).writes_per_fragment)
        if added != declared:
            what = "complete_fragment adds other columns than `writes_per_fragment` declares"
            yield Problem(what, "complete_fragment", ", ".join(sorted(added)), ", ".join(sorted(declared)) or "none")
        num_steps = len(rows_of(before["actions"]))
        for column in sorted(added):
            num_rows = len(rows_of(after[column]))
            if num_rows != num_steps:
                what = f"complete_fragment gives column {column} another number of rows than the fragment has steps"
                yield Problem(what, "complete_fragment", str(num_rows), str(num_steps))

    def infers_spaces(self) -> Iterator[Problem]:
        """It maps spaces to spaces, the same ones each time."""
        stage = self._stage()
        connector, (spaces, _) = stage.connector, stage.spaces
        for infer in (connector.recompute_output_observation_space, connector.recompute_output_action_space):
            space = infer(*spaces)
            if not isinstance(space, gym.Space):
                yield Problem("a space is none", infer.__name__, repr(space), "a gymnasium.Space")
            elif infer(*spaces) != space:
                yield Problem("the second call returns another space", infer.__name__, expected="the same each time")

    def gives_observations_of_its_space(self) -> Iterator[Problem]:
        """Rows of `obs` after it have the structure, shapes and dtype kinds of its output space."""
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
        """Two connectors with the same streams and input write the same."""
        (_, first, _), (_, second, _) = self._stage().around(), self._stage().around()
        column = _difference(first, second)
        if column is not None:
            what = f"two connectors with the same stream and input write different {column}"
            yield Problem(
                what, "__call__", expected="randomness from the stream that use_stream gives, and nothing else"
            )

    def leaves_episodes_alone(self) -> Iterator[Problem]:
        """It does not write into arrays of episodes; `write_obs` and blocks of its own are the ways to change them."""
        stage = self._stage()
        _, _, episodes = stage.around()
        if isinstance(episodes, ColumnBlock):
            column = find_difference(stage.episodes.columns, episodes.columns)
        else:
            column = None if nested.equal(stage.episodes.current_obs, episodes.current_obs) else "obs"
        if column is not None and not Requirements.of(stage.connector).writes_obs_to_episodes:
            expected = "a changed copy in the batch; observations by `write_obs`, with writes_obs_to_episodes = True"
            yield Problem(f"the connector writes into {column} of the episodes", "__call__", expected=expected)

    def acts_without_exploration(self) -> Iterator[Problem]:
        """In inference it writes no other columns and no other shapes; noise, for example, it may leave out."""
        exploring, greedy = self._stage(), self._stage()
        greedy.explore = False
        (_, expected, _), (_, got, _) = exploring.around(), greedy.around()
        for column in sorted(set(got) - set(expected)):
            yield Problem(f"column {column} is written without explore only", "__call__", expected="with explore, too")
        for column in set(expected) & set(got):
            shapes = [rows_of(columns[column]).shape for columns in (got, expected)]
            if shapes[0] != shapes[1]:
                what = f"column {column} has another shape without explore"
                yield Problem(what, "__call__", str(shapes[0]), str(shapes[1]))

    def goes_on_from_its_state(self) -> Iterator[Problem]:
        """Its state is plain, and a new connector with this state and its random stream continues as it does."""
        stage, other = self._stage(), self._stage()
        for _ in range(3):
            stage.around()
        kept = through_checkpoint(stage.connector.get_state(), self.name)
        other.pipeline.set_state(through_checkpoint(stage.get_state(), self.name))
        key = find_difference(kept, other.connector.get_state())
        if key is not None:
            yield Problem(
                f"get_state after set_state gives another {key}", "set_state", expected="the state that was set"
            )
        attributes = [f"self.{name}" for name in differing_attributes(stage.connector, other.connector)]
        for _ in range(3):
            (_, expected, _), (_, got, _) = stage.around(), other.around()
            column = _difference(expected, got)
            if column is not None:
                what = f"a connector with the state of another one writes other {column}"
                got_keys = f"another {', '.join(attributes)} after set_state" if attributes else None
                advice = "get_state includes all that later calls depend on; the pipeline saves the stream itself"
                yield Problem(what, "get_state, set_state", got_keys, advice)
                return
        if find_difference(stage.connector.get_state(), other.connector.get_state()) is not None:
            yield Problem("a connector and one with its state drift apart", "get_state, set_state")
        stage.connector.reset_state()
        stage.around()

    def merges_states(self) -> Iterator[Problem]:
        """What runners share is plain, can be taken over, and merging what is merged changes nothing."""
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
            what = "merging states that have just been merged changes them: is something counted twice?"
            yield Problem(what, "merge_states", str(again), str(merged))

    def reports_what_it_declares(self) -> Iterator[Problem]:
        """It declares its metrics as metrics need it, reports each, and writes the same without."""
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
                yield Problem(f"metric {metric} is declared and not reported", "reports")
            elif not np.isfinite(result):
                yield Problem(f"metric {metric} is not finite", "metrics.report", str(result))
        _, got, _ = silent.around()
        column = _difference(expected, got)
        if column is not None:
            yield Problem(
                f"reporting changes column {column}", "__call__", expected="the same columns with metrics=None"
            )


def _are_rows_of(space: Space, rows: Any) -> bool:
    """Return whether rows are nested like the items of a space, with their shapes and kinds of dtypes."""

    def fits(blank: Any, leaf: Any) -> bool:
        is_known = blank is not None  # of a Text, for example, arrays may be anything
        return not is_known or (leaf.shape[1:], leaf.dtype.kind) == (np.shape(blank), np.asarray(blank).dtype.kind)

    try:
        return all(nested.leaves(nested.map_leaves(fits, blank_item(space), rows)))
    except ValueError:  # another structure
        return False


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return a column whose rows differ; None if there is none."""
    by_rows = ({name: rows_of(column) for name, column in one.items()} for one in (first, second))
    return find_difference(*by_rows)
