"""Ray data sets of recorded data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from runner.config.offline import OfflineConfig
from runner.offline.files.parquet_reader import ParquetReader
from runner.offline.files.ray_reader import RAY_OPTIONS
from runner.offline.files.row_filters import ray_expression

if TYPE_CHECKING:
    from ray.data import Dataset


def parquet_dataset(
    config: OfflineConfig, reader: ParquetReader, columns: list[str] | None, options: Mapping[str, Any]
) -> Dataset:
    """Return the rows of Parquet files, which Ray reads in parallel and in their order.

    Args:
        config: the `offline` block; its filter and its arguments of reading are applied.
        reader: of the files.
        columns: of the files that are read; None: all.
        options: of `ray.data.read_parquet`; they go before the configured ones.
    """
    import ray.data

    files, row_filter = reader.files, config.input_read_method_kwargs.get("filter")
    given = _configured(config) | dict(options) | {"filesystem": files.filesystem, "file_extensions": None}
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    dataset: Dataset = ray.data.read_parquet(list(files.paths), **given)
    if row_filter is not None:
        dataset = dataset.filter(expr=ray_expression(row_filter))
    if columns is not None:
        dataset = dataset.select_columns(columns)
    return dataset


def streamed_dataset(
    config: OfflineConfig, read: Callable[[], Iterator[pa.Table]], num_bytes: int | None, options: Mapping[str, Any]
) -> Dataset:
    """Return a data set with one read task, which yields the tables of `read`.

    Args:
        config: the `offline` block; its arguments of reading are applied.
        read: can be pickled.
        num_bytes: size of it all, about; None: unknown.
        options: of `ray.data.read_datasource`; they go before the configured ones.
    """
    import ray.data
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    class EpisodeStream(Datasource):
        def get_name(self) -> str:
            return "Episodes"

        def estimate_inmemory_data_size(self) -> int | None:
            return num_bytes

        def get_read_tasks(self, parallelism: int, *args: Any, **kwargs: Any) -> list[ReadTask]:
            metadata = BlockMetadata(num_rows=None, size_bytes=num_bytes, input_files=None, exec_stats=None)
            return [ReadTask(read, metadata)]

    given = _configured(config) | dict(options)
    dataset: Dataset = ray.data.read_datasource(EpisodeStream(), **given)  # type: ignore[no-untyped-call]
    return dataset


def _configured(config: OfflineConfig) -> dict[str, Any]:
    given = config.input_read_method_kwargs
    return {name: given[name] for name in RAY_OPTIONS if name in given}
