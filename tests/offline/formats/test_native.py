"""Episodes whose metadata are lost: what their columns say, and what they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.episodes.columns import Column, ColumnBlock
from runner.offline.codecs.episode_format import episodes_to_table
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.formats.native import infer_layout
from tests.offline.blocks import assert_same, flat_block, part_of
from tests.offline.recorded import read

LENGTHS = [5, 3, 8]


def with_observations(observations: Column) -> ColumnBlock:
    block = flat_block(LENGTHS)
    return replace(block, columns={**block.columns, "obs": observations})


def write(block: ColumnBlock, path: Path, with_metadata: bool = False) -> None:
    table = episodes_to_table(block)
    pq.write_table(table if with_metadata else table.replace_schema_metadata(None), path)


NUM_ROWS = sum(LENGTHS) + len(LENGTHS)
NUMBERS = np.arange(NUM_ROWS)


@pytest.mark.parametrize(
    "observations",
    [
        NUMBERS,
        NUMBERS.astype(np.uint8),
        np.arange(NUM_ROWS * 3, dtype=np.float64).reshape(-1, 3),
        np.array([f"{number}" for number in NUMBERS]),
        {"a/b": NUMBERS % 2 == 0, "parts": (np.ones((NUM_ROWS, 2), np.float16), NUMBERS)},
    ],
    ids=["numbers", "bytes_of_numbers", "vectors", "text", "nested"],
)
def test_the_columns_say_what_they_hold(tmp_path: Path, observations: Column) -> None:
    block = with_observations(observations)
    write(block, tmp_path / "a.parquet")
    assert_same(read(tmp_path), block)


def test_lists_of_any_length_have_the_one_of_the_first(tmp_path: Path) -> None:
    """As Ray Data makes them of rows that a function has mapped."""
    block = flat_block(LENGTHS)
    table = episodes_to_table(block).replace_schema_metadata(None)
    lists = pa.array(table["obs"].to_pylist(), pa.list_(pa.list_(pa.float32())))
    pq.write_table(table.set_column(table.schema.get_field_index("obs"), "obs", lists), tmp_path / "a.parquet")
    assert_same(read(tmp_path), block)


def test_some_files_have_lost_theirs(tmp_path: Path) -> None:
    block = flat_block(LENGTHS)
    write(part_of(block, 0, 1), tmp_path / "a.parquet", with_metadata=True)
    write(part_of(block, 1, 3), tmp_path / "b.parquet")
    assert_same(read(tmp_path), block)


def test_pictures_are_bytes_of_which_only_the_metadata_say_what_they_are(tmp_path: Path) -> None:
    write(with_observations(np.zeros((NUM_ROWS, 4, 4, 3), np.uint8)), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"fixed_size_binary\[48\] can only be decoded with the metadata") as caught:
        read(tmp_path)
    assert str(caught.value.problems[0].where).endswith("a.parquet, column obs")


def test_episodes_without_a_row_show_no_shape() -> None:
    table = episodes_to_table(flat_block([2])).replace_schema_metadata(None)
    lists = pa.array([[]], pa.list_(pa.list_(pa.float32())))
    with pytest.raises(DataError, match="do not show the shape"):
        infer_layout(table.set_column(table.schema.get_field_index("obs"), "obs", lists), DataLocation("a"))
