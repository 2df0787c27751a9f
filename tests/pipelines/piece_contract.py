"""What every connector piece keeps to, ours and yours; put a piece of your own through it with `check_piece`.

The piece is put into its place in a default pipeline, on a row store of three sub-environments or on a block of
episode chunks, and its input and output there are compared.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runner.config.piece_reports import find_report_fault
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.episodes import nested
from runner.module_parts import make_piece
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.piece import ConnectorPiece, Items
from runner.pipelines.piece_metrics import PieceMetrics, ReducedValue
from runner.pipelines.pipeline import ConnectorPipeline
from runner.streams import random_stream
from tests.env_runners.coded_runs import CPU, coded_envs, coded_module, make_runner, weights_of

_PLAIN = (bool, int, float, str, bytes, type(None), np.ndarray, np.number)


@dataclass(frozen=True)
class PieceCase:
    """A piece and its place: `edits` are made first, then the piece is put in with `verb` (and `anchor`)."""

    make: Callable[[], ConnectorPiece]
    pipeline: str
    verb: str
    anchor: str | None = None
    edits: list[Mapping[str, Any]] = field(default_factory=list)


def check_piece(case: PieceCase) -> None:
    """All checks, with a message each."""
    check_call_signature(case)
    check_columns(case)
    check_rows(case)
    check_spaces(case)
    check_state(case)
    check_merge(case)
    check_reports(case)


def check_call_signature(case: PieceCase) -> None:
    """It takes every keyword of the protocol, and ones that later versions may add."""
    signature = inspect.signature(case.make().__call__)
    names = ("rl_module", "batch", "episodes", "explore", "shared_data", "metrics", "a_later_one")
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise AssertionError(f"__call__{signature} does not take all keywords of the protocol: {error}") from error


def check_columns(case: PieceCase) -> None:
    """It writes what it declares, and nothing else changes or appears."""
    piece, stage = _placed(case)
    for name in ("reads", "writes", "drops", "writes_per_fragment"):
        columns = getattr(piece, name)
        assert isinstance(columns, tuple), f"{name} is no tuple: {columns!r}"
        assert all(isinstance(column, str) and column.isidentifier() for column in columns), f"{name}: {columns!r}"
    stage.pipeline.check_order(stage.available)
    before, after = stage.around(piece)
    missing = [column for column in piece.reads if column not in before]
    assert not missing, f"the batch has no {missing}, which the piece reads"
    missing = [column for column in piece.writes if column not in after]
    assert not missing, f"declared in `writes` but not written: {missing}"
    undeclared = set(after) - set(before) - set(piece.writes) - set(stage.recorded)
    assert not undeclared, f"written but not declared in `writes`: {sorted(undeclared)}"
    gone = set(before) - set(after)
    assert gone == set(piece.drops), f"columns are gone: {sorted(gone)}; declared in `drops`: {sorted(piece.drops)}"
    for column in set(before) - set(piece.writes) - gone:
        same = np.array_equal(_values(before[column]), _values(after[column]))
        assert same, f"column {column!r} is changed, but not declared in `writes`"
    if piece.writes_per_fragment:
        columns = stage.fragment_columns()
        given = {name: column.copy() for name, column in columns.items()}
        piece.complete_fragment(columns, stage.module)
        assert set(columns) - set(given) == set(piece.writes_per_fragment)
        assert {len(columns[name]) for name in piece.writes_per_fragment} == {len(given["actions"])}


def check_rows(case: PieceCase) -> None:
    """Columns keep their number of rows, episodes theirs, and at the end all columns have equally many."""
    piece, stage = _placed(case)
    steps = [len(episode) for episode in stage.episodes]
    before, after = stage.around(piece)
    for column in set(before) & set(after):
        got, expected = len(_values(after[column])), len(_values(before[column]))
        assert got == expected, f"column {column!r} has {got} rows after the piece, {expected} before it"
    assert [len(episode) for episode in stage.episodes] == steps, "the piece changed the number of steps of episodes"
    final = _by_column(stage.run_all())
    rows = {column: len(_values(values)) for column, values in final.items()}
    assert len(set(rows.values())) == 1, f"columns end up with different numbers of rows: {rows}"


def check_spaces(case: PieceCase) -> None:
    """It maps spaces to spaces, the same ones each time."""
    piece, stage = _placed(case)
    for infer in (piece.recompute_output_observation_space, piece.recompute_output_action_space):
        space = infer(*stage.pipeline.input_spaces)
        assert isinstance(space, gym.Space), f"{infer.__name__} returns {space!r}"
        assert infer(*stage.pipeline.input_spaces) == space


def check_state(case: PieceCase) -> None:
    """Its state is plain, and a new piece with this state goes on as it does."""
    piece, stage = _placed(case)
    for _ in range(3):
        stage.around(piece)
    state = copy.deepcopy(piece.get_state())
    _check_plain(state, "state")
    other, other_stage = _placed(case)
    other.set_state(copy.deepcopy(state))
    assert _equal(other.get_state(), state), "get_state after set_state gives another state"
    for _ in range(3):
        _, expected = stage.around(piece)
        _, got = other_stage.around(other)
        for column in expected:
            assert np.array_equal(_values(got[column]), _values(expected[column])), (
                f"a piece restored from the state of another writes other {column!r}"
            )
    assert _equal(other.get_state(), piece.get_state()), "restored and original piece drift apart"
    piece.reset_state()
    stage.around(piece)


def check_merge(case: PieceCase) -> None:
    """What runners share is plain, can be taken over, and merging what is merged changes nothing."""
    (piece, stage), (second, second_stage) = _placed(case), _placed(case)
    stage.around(piece)
    for _ in range(2):
        second_stage.around(second)
    merged = piece.merge_states([piece.get_state(), second.get_state()])
    assert isinstance(merged, dict)
    _check_plain(merged, "merged state")
    if not merged:
        return
    piece.set_state(copy.deepcopy(merged))
    second.set_state(copy.deepcopy(merged))
    again = piece.merge_states([piece.get_state(), second.get_state()])
    assert _equal(again, merged), "merging runners that have just been merged changes the state: counted twice?"


def check_reports(case: PieceCase) -> None:
    """It declares its metrics in the form that metrics need, reports each of them, and writes the same without."""
    piece, stage = _placed(case)
    fault = find_report_fault(piece.reports)
    assert fault is None, f"{type(piece).__name__}.{fault}"
    _, expected = stage.around(piece)
    for name in piece.reports:
        result = stage.reported[name].result
        assert result is not None, f"metric {name} is declared in `reports`, but not reported"
        assert np.isfinite(result), f"metric {name} is {result}"
    other, other_stage = _placed(case)
    other_stage.reports_nothing = True
    _, got = other_stage.around(other)
    for column in expected:
        assert np.array_equal(_values(got[column]), _values(expected[column])), f"reporting changes column {column!r}"


# -- the places of pieces ----------------------------------------------------------------------------------------------


@dataclass
class _Stage:
    """A pipeline with what is passed through it; every pass gets the same input."""

    pipeline: ConnectorPipeline
    module: Any
    episodes: Any
    rl_module: Any
    batch: dict[str, Any]
    available: tuple[str, ...]
    recorded: tuple[str, ...]
    runner: SingleAgentEnvRunner
    _before: dict[str, Any] | None = None
    reports_nothing: bool = False
    reported: dict[str, ReducedValue] = field(default_factory=dict)

    def around(self, piece: ConnectorPiece) -> tuple[dict[str, Any], dict[str, Any]]:
        """The batch before and after one of the pieces; the same batch, and the same episodes, at every call."""
        if self._before is None:
            self._before = copy.deepcopy(self.batch)
            for other in self.pipeline:
                if other is piece:
                    break
                self._before = self._call(other, self._before)
        rows = self.runner._buffer.current_obs.copy()
        after = self._call(piece, copy.deepcopy(self._before))
        self.runner._buffer.current_obs[...] = rows  # a piece may rewrite the episodes
        return _by_column(self._before), _by_column(after)

    def run_all(self) -> dict[str, Any]:
        """The batch after all pieces."""
        batch = copy.deepcopy(self.batch)
        for piece in self.pipeline:
            batch = self._call(piece, batch)
        return batch

    def _call(self, piece: ConnectorPiece, batch: dict[str, Any]) -> dict[str, Any]:
        batch = piece(
            rl_module=self.rl_module,
            batch=batch,
            episodes=self.episodes,
            explore=True,
            shared_data={},
            metrics=None if self.reports_nothing else self._metrics_of(piece),
        )
        assert isinstance(batch, dict), f"{type(piece).__name__} returned {type(batch).__name__}, not the batch"
        return batch

    def _metrics_of(self, piece: ConnectorPiece) -> PieceMetrics:
        self.reported = {name: ReducedValue(reduction) for name, (reduction, _) in piece.reports.items()}
        return PieceMetrics(type(piece).__name__, self.pipeline.name, piece.reports, self.reported)

    def fragment_columns(self) -> dict[str, Any]:
        """A fragment's columns without those that pieces add once."""
        block = self.runner.sample(5, True, weights_of(self.module), {}).rollout.blocks["default_policy"]
        return {name: column for name, column in block.columns.items() if name not in self.pipeline.fragment_columns}


def _placed(case: PieceCase) -> tuple[ConnectorPiece, _Stage]:
    env, _ = coded_envs("batched", 3, [4, 2, 9])
    module = coded_module()
    runner = make_runner(env, module)
    block = runner.sample(13, True, weights_of(module), {}).rollout.blocks["default_policy"]
    runner.sample(1, True, weights_of(module), {})
    for _ in range(2):
        with torch.inference_mode():
            runner._step(True)
    spaces = env.single_observation_space, env.single_action_space
    pipeline: ConnectorPipeline
    batch: dict[str, Any] = {}
    episodes: Any = runner._buffer
    rl_module: Any = module
    available: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    if case.pipeline == "env_to_module":
        pipeline = env_to_module_pipeline(*spaces, CPU, case.edits, make_piece)
    elif case.pipeline == "module_to_env":
        pipeline = module_to_env_pipeline(*spaces, True, False, case.edits, make_piece)
        available = ("action_dist_inputs",)
        batch = {"action_dist_inputs": torch.linspace(-1.0, 1.0, 15).reshape(3, 5)}
    else:
        pipeline = learner_pipeline(*spaces, CPU, case.edits, make_piece)
        episodes, rl_module, recorded = block, {"default_policy": module}, tuple(block.extra_columns)
    piece = case.make()
    arguments = (piece,) if case.anchor is None else (case.anchor, piece)
    getattr(pipeline, case.verb)(*arguments)
    pipeline.give_streams(lambda name, position: random_stream(0, name, position))
    return piece, _Stage(pipeline, module, episodes, rl_module, batch, available, recorded, runner)


def _by_column(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the one module, where they are by module."""
    return dict(batch.get("default_policy", batch))


def _values(column: Any) -> np.ndarray[Any, Any]:
    """The rows of a column, also of one that is still items of episodes."""
    if type(column) is Items:
        column = [item for items in column.values() for item in items]
    if isinstance(column, (dict, tuple)):
        return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in nested.leaves(column)], axis=1)
    if isinstance(column, list):
        return np.stack([np.asarray(item) for item in column])
    return np.asarray(column)


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            assert isinstance(key, str), f"{where} has the key {key!r}"
            _check_plain(item, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]")
    else:
        assert isinstance(value, _PLAIN), f"{where} is no plain value: {type(value).__name__}"


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping) and left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
        )
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(np.array_equal(left, right))
