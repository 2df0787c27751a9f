"""Rewards of Parquet files that are looked at before anything else is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.raw_rows import RawTable

_MAX_CHECKED_BYTES = 2**28


def find_not_finite(reader: ParquetReader, column: str, more: Sequence[str]) -> Iterator[RawTable]:
    """Yield the tables in which a reward is NaN or infinite; none where the column is too large to look at.

    Args:
        reader: of the files.
        column: of the rewards.
        more: columns that the tables have beside it.
    """
    if column not in reader.schema.names or reader.column_bytes(column) > _MAX_CHECKED_BYTES:
        return
    for table, place in reader.tables([column, *more]):
        values = flat_values(table[column])
        if pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() is False:
            yield table, place


def flat_values(column: pa.ChunkedArray) -> pa.Array:
    """Return the numbers of a column, out of all lists."""
    values = column.combine_chunks()
    while isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        values = values.flatten()
    return values
