"""Tables: rows to whole trajectories, wherever they are cut and however they lie; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.errors import ConfigError, Problem
from runner.episodes.columns import ColumnBlock, concat_blocks
from runner.offline.codecs import trajectory_assembler
from runner.offline.codecs.table_format import block_to_steps, read_steps, read_steps_layout
from runner.offline.codecs.table_schema import resolve_schema, schema_of_layout
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.codecs.trajectory_assembler import TrajectoryAssembler
from runner.offline.files.data_error import DataError, DataLocation
from tests.offline.blocks import assert_same, blocks, flat_block, part_of
from tests.offline.problems import (
    after_its_end,
    data_error,
    no_number,
    not_finite,
    other_shape,
    step_twice,
    unnamed_column,
    value_missing,
    wrongly_named_column,
)
from tests.support.problems import assert_error


def read(tables: Sequence[pa.Table], **mapping: str) -> tuple[list[ColumnBlock], ReadCounts]:
    """The blocks of some tables, one after the other."""
    names, layout = tables[0].column_names, read_steps_layout(tables[0].schema)
    schema = resolve_schema(names, mapping, "file") if layout is None else schema_of_layout(layout, names)
    counts = ReadCounts()
    assembler = TrajectoryAssembler(schema, counts)
    found = []
    for number, table in enumerate(tables):
        place = DataLocation(f"file-{number}", 0)
        found += assembler.add(read_steps(table, schema, layout, place), place)
    return found + assembler.finish(), counts


def cut(table: pa.Table, cuts: Sequence[int]) -> list[pa.Table]:
    edges = [0, *sorted(cuts), table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(edges)]


def without_metadata(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata(None)


@settings(max_examples=40, deadline=None)
@given(blocks(), st.data())
def test_round_trip_is_exact_wherever_it_is_cut(block: ColumnBlock, data: st.DataObject) -> None:
    table = block_to_steps(block)
    assert table.num_rows == block.num_rows
    cuts = data.draw(st.lists(st.integers(0, table.num_rows), max_size=4))
    found, counts = read(cut(table, cuts))
    assert counts == ReadCounts()
    # An episode is complete when its last row is there; those that have no end come last.
    by_id = {one.episode_ids[0]: one for part in found for one in (part_of(part, i, i + 1) for i in range(len(part)))}
    assert len(by_id) == len(block)
    whole = concat_blocks([by_id[id_] for id_ in block.episode_ids])
    assert_same(whole, block)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.booleans(), st.booleans(), st.data())
def test_rows_in_any_order(lengths: list[int], has_t: bool, has_new_obs: bool, data: st.DataObject) -> None:
    """With `t` rows are sorted; without it, episodes may still lie among each other."""
    block = flat_block(lengths)
    table = without_metadata(block_to_steps(block))
    if has_t:
        order = data.draw(st.permutations(range(table.num_rows)))
    else:
        table = table.drop_columns(["t"])
        owners = data.draw(st.permutations(np.repeat(np.arange(len(block)), block.lengths).tolist()))
        order = np.empty(table.num_rows, np.int64)
        order[np.argsort(owners, kind="stable")] = np.arange(table.num_rows)
        order = order.tolist()
    if not has_new_obs:
        table = table.drop_columns(["new_obs"])
    found, counts = read(cut(table.take(pa.array(order)), data.draw(st.lists(st.integers(0, table.num_rows)))))
    episodes = {id_: part_of(b, i, i + 1) for b in found for i, id_ in enumerate(b.episode_ids)}
    for number, length in enumerate(lengths):
        expected = part_of(block, number, number + 1)
        is_terminated = bool(expected.is_terminated[0])
        if not has_new_obs and not is_terminated and length == 1:
            assert f"e{number}" not in episodes
            continue
        episode = episodes[f"e{number}"]
        kept = length if has_new_obs or is_terminated else length - 1
        assert episode.lengths.tolist() == [kept]
        assert (episode.is_terminated[0], episode.is_truncated[0]) == (is_terminated, not is_terminated)
        for name in ("actions", "rewards", "action_logp"):
            np.testing.assert_array_equal(episode.columns[name], expected.columns[name][:kept])
        obs = expected.columns["obs"][: kept + 1].copy()
        if not has_new_obs and is_terminated:
            obs[-1] = obs[-2]
        np.testing.assert_array_equal(episode.columns["obs"], obs)
    if has_new_obs:
        assert counts == ReadCounts()
    else:
        num_terminated = int(block.is_terminated.sum())
        assert counts.final_obs_repeated == num_terminated
        assert counts.final_steps_dropped == len(block) - num_terminated


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.booleans(), st.data())
def test_rows_without_ids_follow_their_order(lengths: list[int], has_t: bool, data: st.DataObject) -> None:
    block = flat_block(lengths)
    dropped = ["eps_id"] + ([] if has_t else ["t"])
    table = without_metadata(block_to_steps(block)).drop_columns(dropped)
    found, _ = read(cut(table, data.draw(st.lists(st.integers(0, table.num_rows), max_size=5))))
    whole = concat_blocks(found)
    assert len(set(whole.episode_ids)) == len(block)
    np.testing.assert_array_equal(whole.lengths, block.lengths)
    np.testing.assert_array_equal(whole.is_terminated, block.is_terminated)
    for name, column in block.columns.items():
        np.testing.assert_array_equal(whole.columns[name], column)


def test_time_steps_alone_tell_where_episodes_start() -> None:
    block = flat_block([3, 4, 2])
    table = without_metadata(block_to_steps(block)).drop_columns(["eps_id", "terminateds", "truncateds"])
    found, _ = read(cut(table, [1, 5]))
    whole = concat_blocks(found)
    assert whole.lengths.tolist() == [3, 4, 2]
    assert not whole.is_terminated.any()


def test_old_done_and_a_schema() -> None:
    block = flat_block([3, 2])
    names = {"obs": "o_t", "actions": "a_t", "rewards": "r_t", "new_obs": "o_tp1", "terminateds": "d_t"}
    table = without_metadata(block_to_steps(block)).drop_columns(["truncateds", "t", "eps_id"])
    done = pa.array([False, False, True, False, True])
    table = table.set_column(table.schema.get_field_index("terminateds"), "terminateds", done)
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    mapping = {
        "obs": "o_t",
        "actions": "a_t",
        "rewards": "r_t",
        "new_obs": "o_tp1",
        "done": "d_t",
        "logp": "action_logp",
    }
    (whole,), _ = read([table], **mapping)
    assert whole.lengths.tolist() == [3, 2]
    assert whole.is_terminated.tolist() == [True, True]
    assert whole.is_truncated.tolist() == [False, False]
    assert whole.extra_columns == ["logp"]
    np.testing.assert_array_equal(whole.columns["obs"], block.columns["obs"])


def test_ungrouped_rows_are_episodes_of_one_step() -> None:
    block = flat_block([3, 2])
    dropped = ["eps_id", "t", "terminateds", "truncateds"]
    table = without_metadata(block_to_steps(block)).drop_columns(dropped)
    assert not resolve_schema(table.column_names, {}, "file").has_trajectories
    found, _ = read(cut(table, [2]))
    whole = concat_blocks(found)
    assert whole.lengths.tolist() == [1] * 5
    assert list(whole.episode_ids) == [f"row-{i}" for i in range(5)]
    np.testing.assert_array_equal(whole[1].get_observations(), block.columns["obs"][1:3])
    found, _ = read([table.drop_columns(["new_obs"])])
    np.testing.assert_array_equal(found[0].columns["obs"][0::2], found[0].columns["obs"][1::2])


def test_only_open_episodes_are_held() -> None:
    table = block_to_steps(flat_block([10] * 50))
    assembler = TrajectoryAssembler(resolve_schema(table.column_names, {}, "file"), ReadCounts())
    for start in range(0, 500, 25):
        place = DataLocation("file", start)
        assembler.add(read_steps(table.slice(start, 25), assembler._schema, None, place), place)
        assert assembler._held is None or len(assembler._held) < 10


def test_episodes_without_end_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    block = flat_block([10] * 20)
    table = block_to_steps(block).drop_columns(["terminateds", "truncateds"])
    found, _ = read(cut(table, range(0, 200, 15)))
    assert concat_blocks(found).lengths.tolist() == [10] * 20
    # With end flags none of which is set, only when there are too many.
    nothing = pa.array(np.zeros(200, np.bool_))
    table = table.append_column("terminateds", nothing)
    monkeypatch.setattr(trajectory_assembler, "MAX_HELD_BYTES", 1000)
    found, _ = read(cut(table, range(0, 200, 15)))
    assert len(found) > 5
    assert concat_blocks(found).lengths.tolist() == [10] * 20


def test_a_missing_step_cuts_the_trajectory() -> None:
    block = flat_block([6])
    table = block_to_steps(block).take(pa.array([0, 1, 3, 4, 5]))
    (whole,), _ = read([table])
    assert whole.lengths.tolist() == [2, 3]
    assert whole.t_started.tolist() == [0, 3]
    assert whole.is_terminated.tolist() == [False, True]
    np.testing.assert_array_equal(whole[0].get_observations(), block.columns["obs"][:3])


def test_structs_lists_and_text_of_other_tools() -> None:
    table = pa.table(
        {
            "obs": pa.array([{"x": [1.0, 2.0], "y": 3}] * 2),
            "actions": ["[0.5, 1.5]", "[2, 3]"],
            "rewards": [1, 2],
            "image": pa.array([[[1, 2], [3, 4], [5, 6]]] * 2),
            "done": ["False", "True"],
        }
    )
    (whole,), _ = read([table])
    assert whole.columns["obs"]["x"].shape == (3, 2)
    assert whole.columns["actions"].tolist() == [[0.5, 1.5], [2, 3]]
    assert whole.columns["image"].shape == (2, 3, 2)
    assert whole.is_terminated.tolist() == [True]


def test_integer_rewards_keep_their_values() -> None:
    rewards = [300, -70_000, 2**40, 0]
    table = _with(without_metadata(block_to_steps(flat_block([4]))), "rewards", rewards)
    (whole,), _ = read([table])
    assert whole.columns["rewards"].tolist() == rewards


_NAMES = ["obs", "actions", "rewards", "action_logp", "eps_id", "t", "terminateds"]
_RENAMED = "act, action_logp, eps_id, o, rew, t, terminateds"
ERRORS: Mapping[str, tuple[Callable[[pa.Table], pa.Table], dict[str, str], ConfigError]] = {
    "columns_missing": (
        lambda t: t.rename_columns(["o", "act", "rew", *t.column_names[3:]]),
        {},
        data_error(
            unnamed_column("obs", "file", _RENAMED, "o"),
            unnamed_column("actions", "file", _RENAMED, "action_logp, act"),
            unnamed_column("rewards", "file", _RENAMED, "rew"),
        ),
    ),
    "schema_of_another_file": (
        lambda t: t,
        {"obs": "o_t", "logp": "action_lgp"},
        data_error(
            wrongly_named_column("obs", "o_t", "file", ", ".join(sorted(_NAMES)), "t"),
            wrongly_named_column("logp", "action_lgp", "file", ", ".join(sorted(_NAMES)), "action_logp, actions"),
        ),
    ),
    "reward_is_nan": (
        lambda t: _with(t, "rewards", [1.0, float("nan"), 1.0, 1.0]),
        {},
        data_error(not_finite("e0", 1, "file-0, row 1, column rewards")),
    ),
    "reward_is_infinite": (
        lambda t: _with(t, "rewards", [1.0, 1.0, float("-inf"), 1.0]),
        {},
        data_error(not_finite("e0", 2, "file-0, row 2, column rewards", "-inf")),
    ),
    "shapes_differ": (
        lambda t: _with(t, "obs", [[1.0, 2.0], [1.0, 2.0], [1.0], [1.0, 2.0]]),
        {},
        data_error(other_shape("file-0, row 2, column obs", "[1]", "[2]")),
    ),
    "shapes_differ_deep": (
        lambda t: _with(t, "obs", [[[1.0], [2.0]]] * 2 + [[[1.0], [2.0, 3.0]]] * 2),
        {},
        data_error(other_shape("file-0, row 2, column obs", "[2]", "[1]")),
    ),
    "value_missing": (
        lambda t: _with(t, "actions", [1, None, 0, 1]),
        {},
        data_error(value_missing("file-0, row 1, column actions")),
    ),
    "step_twice": (lambda t: _with(t, "t", [0, 1, 1, 2]), {}, data_error(step_twice(1, "e0", "file-0"))),
    "continues_after_its_end": (
        lambda t: _with(t, "terminateds", [False, True, False, False]),
        {},
        data_error(after_its_end("e0", 1, "file-0")),
    ),
    "continues_after_its_truncation": (
        lambda t: _with_truncation(t, [False, False, True, False]),
        {},
        data_error(after_its_end("e0", 2, "file-0")),
    ),
    "flag_is_no_bool": (
        lambda t: _with(t, "terminateds", [0, 0, 2, 1]),
        {},
        data_error(
            Problem("an end flag must be true or false", "file-0, row 2, column terminateds", "2", "true, false, 0, 1")
        ),
    ),
    "reward_is_a_vector": (
        lambda t: _with(t, "rewards", [[1.0, 2.0]] * 4),
        {},
        data_error(no_number("file-0, row 0, column rewards", "float64[2]")),
    ),
    "values_are_dates": (
        lambda t: _with(t, "actions", pa.array([0, 1, 2, 3], pa.date32())),
        {},
        data_error(
            Problem(
                "values of type date32[day] are not supported",
                "file-0, row 0, column actions",
                expected="numbers, bools, text, lists",
            )
        ),
    ),
}


def _with(table: pa.Table, name: str, values: object) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def _with_truncation(table: pa.Table, values: list[bool]) -> pa.Table:
    return _with(table, "terminateds", [False] * 4).append_column("truncateds", pa.array(values))


@pytest.mark.parametrize(("change", "mapping", "expected"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_is_said(
    change: Callable[[pa.Table], pa.Table], mapping: dict[str, str], expected: ConfigError, tmp_path: Path
) -> None:
    table = without_metadata(block_to_steps(flat_block([4]))).select(_NAMES)
    with pytest.raises(DataError) as error:
        read([change(table)], **mapping)
    assert_error(error.value, expected, tmp_path)


def test_an_episode_that_comes_again(tmp_path: Path) -> None:
    table = block_to_steps(flat_block([4, 3])).drop_columns(["t"])
    with pytest.raises(DataError) as error:
        read([table, table])
    problem = Problem(
        "episode e0 continues after its end: its rows are too far apart, or two episodes have the same id",
        "file-1, row 0, column eps_id",
        fix="use ids that are unique over all files, and keep the rows of an episode together",
    )
    assert_error(error.value, data_error(problem), tmp_path)


def test_agents_of_some_rows_only(tmp_path: Path) -> None:
    first, second = cut(without_metadata(block_to_steps(flat_block([4]))), [2])
    with pytest.raises(DataError) as error:
        read([first, _with(second, "agent_id", ["a", "a"])])
    assert_error(error.value, data_error(Problem("only some rows have agent_id", "file-1, row 0")), tmp_path)


def test_agents_in_separate_files_may_have_different_spaces() -> None:
    first, second = (without_metadata(block_to_steps(flat_block([4], prefix))) for prefix in "ab")
    for name in ("obs", "new_obs"):
        second = _with(second, name, [row[:3] for row in second[name].to_pylist()])
    found, _ = read([_with(first, "agent_id", ["a"] * 4), _with(second, "agent_id", ["b"] * 4)])
    assert [block.columns["obs"].shape[1:] for block in found] == [(4,), (3,)]


def test_agents_that_alternate_without_ids(tmp_path: Path) -> None:
    table = without_metadata(block_to_steps(flat_block([2, 2]))).drop_columns(["eps_id"])
    one_after_other, alternating = table, table.take([0, 2, 1, 3])
    assert [block.lengths.tolist() for block in read([_with(one_after_other, "agent_id", list("aabb"))])[0]] == [[2, 2]]
    with pytest.raises(DataError) as error:
        read(cut(_with(alternating, "agent_id", list("abab")), [1]))
    problem = Problem(
        "the agent changes from b to a within an episode",
        "file-1, row 1, column agent_id",
        expected="a column eps_id, because the episodes of several agents alternate",
        fix="set offline.input_read_schema.eps_id=COLUMN",
    )
    assert_error(error.value, data_error(problem), tmp_path)
