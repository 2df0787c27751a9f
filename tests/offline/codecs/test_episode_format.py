"""Episodes as Parquet: exact round trips, slices, several row groups, what is refused."""

from __future__ import annotations

import io

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes.columns import ColumnBlock, block_from_episodes
from runner.episodes.nested import StateError
from runner.offline.codecs.episode_format import episodes_to_table, file_columns, read_layout, table_to_block
from runner.offline.codecs.layout import Layout, Leaf, Spaces, layout_of
from tests.offline.blocks import assert_same, blocks, flat_block, part_of


def through_parquet(table: pa.Table, row_group_size: int) -> pa.Table:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=row_group_size)
    return pq.read_table(io.BytesIO(file.getvalue()))


@settings(max_examples=35, deadline=None)
@given(blocks(), st.integers(1, 4), st.data())
def test_round_trip_is_exact_for_any_structure_slice_and_row_group(
    block: ColumnBlock, row_group_size: int, data: st.DataObject
) -> None:
    table = through_parquet(episodes_to_table(block), row_group_size)
    assert_same(table_to_block(table), block)
    start = data.draw(st.integers(0, len(block) - 1))
    stop = data.draw(st.integers(start + 1, len(block)))
    part = table.slice(start, stop - start)
    assert_same(table_to_block(part), part_of(block, start, stop))
    assert_same(table_to_block(pa.concat_tables([table.slice(0, start), table.slice(start)])), block)


def test_columns_are_what_other_tools_expect() -> None:
    block = flat_block([3, 2])
    spaces = Spaces(gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2))
    table = episodes_to_table(block, layout_of(block, spaces, "CartPole-v1"))
    row = table.to_pylist()[1]
    assert row["eps_id"] == "e1"
    assert (row["length"], row["terminated"], row["truncated"], row["t_started"]) == (2, False, True, 0)
    assert row["episode_return"] == pytest.approx(float(block.columns["rewards"][3:].sum()))
    assert np.array(row["obs"]).shape == (3, 4)
    assert len(row["actions"]) == 2
    assert row["agent_id"] is None
    assert "infos" not in row
    layout = read_layout(table.schema)
    assert layout.env_name == "CartPole-v1"
    assert layout.spaces.action == gym.spaces.Discrete(2)
    assert layout.spaces.observation == gym.spaces.Box(-1, 1, (4,))


@pytest.mark.parametrize("lengths", [[3, 0], [0, 3], [0, 0], [2, 0, 1, 0, 0]])
def test_returns_next_to_chunks_without_steps(lengths: list[int]) -> None:
    block = flat_block(lengths)
    block.columns["rewards"][:] = 2.0
    assert episodes_to_table(block)["episode_return"].to_pylist() == [2.0 * length for length in lengths]


def test_images_are_bytes_and_read_without_a_copy() -> None:
    block = flat_block([2])
    images = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    block = ColumnBlock({**block.columns, "obs": images}, *_rest(block))
    table = episodes_to_table(block)
    assert table.schema.field("obs").type.value_type == pa.binary(20)
    read = table_to_block(table)
    np.testing.assert_array_equal(read.columns["obs"], images)
    assert np.shares_memory(read.columns["obs"], images)


def test_views_of_one_episode_and_lookback() -> None:
    block = flat_block([4, 3])
    episode = next(iter(block))
    episode = episode[2:]
    assert len(episode) == 2
    chunk = block_from_episodes([episode])
    read = table_to_block(episodes_to_table(chunk))
    assert read.t_started.tolist() == [2]
    np.testing.assert_array_equal(read[0].get_observations(), block.columns["obs"][2:5])


def test_a_subset_of_columns() -> None:
    table = episodes_to_table(flat_block([3, 2]))
    layout = read_layout(table.schema).selected({"obs", "actions", "rewards"})
    columns = file_columns(layout, table.schema, with_infos=False)
    assert "action_logp" not in columns
    assert set(table_to_block(table.select(columns)).columns) == {"obs", "actions", "rewards"}
    assert set(table_to_block(table.select(columns), layout).columns) == {"obs", "actions", "rewards"}


def test_what_is_damaged_is_named() -> None:
    table = episodes_to_table(flat_block([3, 2]))
    lengths = table.schema.get_field_index("length")
    wrong = table.set_column(lengths, table.schema.field(lengths), pa.array([3, 3]))
    with pytest.raises(ValueError, match=r"actions has 2 rows in an episode of 3 steps|obs has 3 rows"):
        table_to_block(wrong)
    with pytest.raises(ValueError, match="missing: t_started"):
        table_to_block(table.drop_columns(["t_started"]))
    with pytest.raises(StateError, match="does not have the metadata"):
        table_to_block(table.replace_schema_metadata(None))
    with pytest.raises(StateError, match="newer version"):
        Layout.from_json(b'{"version": 99}')


def test_objects_are_refused() -> None:
    block = flat_block([2])
    things = np.array([object(), object()])
    with pytest.raises(TypeError, match="things: arrays of dtype object cannot be recorded"):
        episodes_to_table(ColumnBlock({**block.columns, "things": things}, *_rest(block)))


def test_layouts_of_two_files() -> None:
    def layout(**leaves: Leaf) -> Layout:
        return Layout(leaves)

    narrow, wide = Leaf(np.dtype("U3"), (), "x"), Leaf(np.dtype("U7"), (), "x")
    assert layout(x=narrow).merged_with(layout(x=wide)).columns["x"] == wide
    with pytest.raises(ValueError, match=r"x: some hold float32 \[4\], others float32 \[3\]"):
        layout(x=Leaf(np.dtype("f4"), (4,), "x")).merged_with(layout(x=Leaf(np.dtype("f4"), (3,), "x")))
    with pytest.raises(ValueError, match="only some have y"):
        layout(x=narrow).merged_with(layout(x=narrow, y=narrow))


def _rest(block: ColumnBlock) -> tuple[object, ...]:
    return block.lengths, block.is_terminated, block.is_truncated, block.t_started, block.episode_ids
