"""Raw rows: what every reader of files gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from runner.offline.files.data_error import DataLocation

RawTable = tuple[pa.Table, DataLocation]


class RawReader(Protocol):
    """A stream of raw rows, in the order of the files, a bounded number of them at a time; can be pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the first rows; files that hold the same kind of data may differ in detail."""

    @property
    def row_filter(self) -> Any:
        """What the rows that are left out are told by; None: no row is left out."""

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[RawTable]:
        """Return the rows, table by table, each with its file and the number of its first row in it."""
