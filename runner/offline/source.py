"""Where recorded data come from: `open_source` finds files, tells their format and checks them.

| format          | rows                                                             | decoded by                     |
|-----------------|------------------------------------------------------------------|--------------------------------|
| episodes        | our episodes                                                     | `episode_format`               |
| rllib_episodes  | RLlib's, one msgpack each                                        | `foreign.rllib_episodes`       |
| table           | steps: ours, RLlib's, anybody's (Parquet, JSON, CSV, Ray Data)   | `table_format`, `trajectories` |
| sample_batches  | RLlib's old SampleBatches                                        | `foreign.sample_batches`       |
| hdf5, minari    | D4RL's files, Minari's folders; blocks, no rows                  | `foreign.hdf5`, `.minari`      |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from runner.config.errors import Problem
from runner.config.offline import OfflineConfig
from runner.episodes.nested import StateError
from runner.offline.episode_format import (
    is_episodes,
    read_layout,
)
from runner.offline.foreign import minari, rllib_episodes, rllib_tables, sample_batches, unpacking
from runner.offline.foreign.data_error import DataError, Place, data_error
from runner.offline.input_files import check_kind, find_files, read_head
from runner.offline.layout import Layout, Spaces, layout_of
from runner.offline.raw_readers import ParquetReader, SampleBatchReader, read_parquet_schemas
from runner.offline.ray_reader import OWN_OPTIONS, RAY_OPTIONS, RayReader, check_option_names, check_ray_options
from runner.offline.row_filters import read_filter
from runner.offline.source_checks import (
    ALWAYS_READ,
    check_complete,
    check_flags,
    check_names,
    check_options,
    check_rewards,
    check_same_columns,
    check_unique_names,
    refuse_filter,
)
from runner.offline.source_stream import Source
from runner.offline.space_checks import check_spaces
from runner.offline.table_format import read_steps_layout
from runner.offline.table_schema import canonical_name, resolve_schema, schema_of_layout
from runner.offline.text_readers import TEXT_OPTIONS, TextReader

_HEAD_BYTES = 2**16
_KIND_OF_METHOD = {"read_parquet": "parquet", "read_json": "json", "read_csv": "csv"}


def open_source(
    config: OfflineConfig,
    spaces: Spaces | None = None,
    columns: Sequence[str] | None = None,
    with_infos: bool = True,
) -> Source:
    """Find and check recorded data; nothing is trained before.

    Args:
        config: the `offline` block.
        spaces: of the environment, which the data must fit; None: they are not compared.
        columns: the extra model outputs that are needed beside `obs`, `actions` and `rewards` (the latter is then
            needed only if it is named); None: all. `input_read_method_kwargs.columns` narrows further.
        with_infos: whether infos are read.

    Raises:
        DataError: a path is missing, a folder has no data, files are damaged, formats are mixed, columns are missing,
            rewards are not finite, spaces do not fit.
        ConfigError: options that do not go together, an unknown file system or function.
    """
    check_options(config)
    unpacking.allow(config.input_max_unpacked_ratio)
    columns = _wanted_columns(config, columns)
    source = _open(config, spaces, columns, with_infos)
    if source.layout is None:
        block = source.first_block()
        source.layout = layout_of(block, source.spaces, source.env_name)
        sample = block
    else:
        sample = source.first_block()
    if spaces is not None:
        check_spaces(sample, spaces.observation, spaces.action, source.where())
        source.spaces = _completed(spaces, source.spaces)
    check_rewards(source)
    return source


def is_read_by_ray(config: OfflineConfig) -> bool:
    """Return whether a `ray.data` function of the user's choice reads the data, which takes a cluster."""
    return config.input_read_method not in ("auto", *_KIND_OF_METHOD)


def _wanted_columns(config: OfflineConfig, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    given = config.input_read_method_kwargs.get("columns")
    if given is None:
        return None if columns is None else tuple(columns)
    names = {canonical_name(str(name).partition("/")[0]) for name in given}
    return tuple(name for name in (columns if columns is not None else names) if canonical_name(name) in names)


def _open(config: OfflineConfig, spaces: Spaces | None, columns: tuple[str, ...] | None, with_infos: bool) -> Source:
    method = config.input_read_method
    if is_read_by_ray(config):
        return _open_with_ray(Source(config, "", None, columns, with_infos, spaces=spaces or Spaces()))
    files = find_files(config, _KIND_OF_METHOD.get(method))
    check_option_names(config, f"reading {files.kind}", [*OWN_OPTIONS, *RAY_OPTIONS, *TEXT_OPTIONS.get(files.kind, ())])
    source = Source(config, "", files, columns, with_infos, spaces=spaces or Spaces())
    if files.kind in ("hdf5", "minari"):
        source.format = files.kind
        for path in files.paths if files.kind == "hdf5" else ():
            check_kind(files, path)
        if files.kind == "minari":
            info = minari.read_info(files.paths[0])
            source.env_name = info.env_name
            source.spaces = spaces or info.spaces
        refuse_filter(config, files.kind)
        check_flags(source)
        return source
    if files.kind == "parquet":
        _open_parquet(source)
    else:
        _open_text(source)
    return source


def _open_with_ray(source: Source) -> Source:
    check_ray_options(source.config)
    source.reader = reader = RayReader(source.config)
    reader.row_filter = read_filter(source.config.input_read_method_kwargs.get("filter"), reader.schema)
    _set_format(source, next(reader.tables(), (reader.schema.empty_table(),))[0])
    return source


def _open_parquet(source: Source) -> None:
    assert source.files is not None
    files = source.files
    schemas = [metadata.schema.to_arrow_schema() for metadata in read_parquet_schemas(files)]
    row_filter = read_filter(source.config.input_read_method_kwargs.get("filter"), schemas[0])
    # Files of one writer differ in whether there were infos yet: the schema is taken from a file with all columns.
    source.reader = ParquetReader(files, max(schemas, key=lambda schema: len(schema.names)), row_filter)
    kinds = [is_episodes(schema) for schema in schemas]
    if len(set(kinds)) > 1:
        odd = files.paths[kinds.index(not kinds[0])]
        what = f"some files hold episodes, others do not: {files.paths[0]} and this one"
        raise data_error(what, Place(odd))
    if kinds[0]:
        source.format = "episodes"
        check_flags(source)
        source.layout = _common_layout(source, schemas, read_layout)
        return
    check_same_columns(files, schemas)
    first = next((table for table, _ in source.reader.tables()), schemas[0].empty_table())
    _set_format(source, first, schemas)


def _open_text(source: Source) -> None:
    assert source.files is not None
    files, config = source.files, source.config
    given = config.input_read_method_kwargs
    if files.kind == "json":
        head = read_head(files, _HEAD_BYTES)
        if config.input_read_sample_batches or sample_batches.recognises(head):
            source.reader = SampleBatchReader(files)
            source.format = "sample_batches"
            refuse_filter(config, "sample_batches")
            check_flags(source)
            return
    options = {name: value for name, value in given.items() if name in TEXT_OPTIONS[files.kind]}
    reader = TextReader(files, options)
    reader.row_filter = read_filter(given.get("filter"), reader.schema)
    source.reader = reader
    _set_format(source, next((table for table, _ in reader.tables()), reader.schema.empty_table()))


def _set_format(source: Source, first: pa.Table, schemas: Sequence[pa.Schema] | None = None) -> None:
    """Tell the format by the first rows and by the schemas of all files."""
    schemas = schemas or [first.schema]
    names = max((schema.names for schema in schemas), key=len)
    config, schema = source.config, schemas[0]
    check_unique_names(schema, source.where())
    if is_episodes(schema):
        source.format = "episodes"
        check_flags(source)
        source.layout = _common_layout(source, schemas, read_layout)
        return
    if rllib_episodes.recognises(schema):
        source.format = "rllib_episodes"
        check_flags(source)
        if first.num_rows:
            source.spaces = _completed(source.spaces, rllib_episodes.read_spaces(first, Place(source.where(), 0)))
        return
    if config.input_read_sample_batches or sample_batches.recognises_schema(schema):
        source.format = "sample_batches"
        check_flags(source)
        return
    source.format = "table"
    check_flags(source)
    is_mapped = any(name != column for name, column in config.input_read_schema.items())
    if not is_mapped:
        source.steps_layout = _common_layout(source, schemas, read_steps_layout)
    if source.steps_layout is not None:
        source.table_schema = schema_of_layout(source.steps_layout, names, source.wanted)
    else:
        source.table_schema = resolve_schema(names, config.input_read_schema, source.where(), source.wanted)
    source.is_packed = source.steps_layout is None and rllib_tables.recognises(first)
    source.has_trajectories = source.table_schema.has_trajectories
    source.has_final_obs = source.table_schema.has_next_obs
    if not source.with_infos:
        kept = {n: c for n, c in source.table_schema.names.items() if n not in ("infos", "new_infos")}
        source.table_schema = replace(source.table_schema, names=kept)


def _common_layout(
    source: Source, schemas: Sequence[pa.Schema], read: Callable[[pa.Schema], Layout | None]
) -> Layout | None:
    """Return the layout of all files, narrowed to what is read; None for tables of others."""
    paths = source.files.paths if source.files is not None else [source.where()]
    layout: Layout | None = None
    for path, schema in zip(paths, schemas, strict=True):
        try:
            found = read(schema)
            if found is None:
                return None
            check_complete(found, schema, path)
            if source.wanted is not None:
                check_names(source.wanted, found, path)
                found = found.selected({*ALWAYS_READ, *source.wanted})
            layout = found if layout is None else layout.merged_with(found)
        except StateError as error:
            raise data_error(f"the metadata of this file are damaged: {error}", Place(path)) from None
        except ValueError as error:
            what = f"the files do not hold the same columns: {error}"
            allowed = (
                f"the columns of {paths[0]}; or offline.input_read_method_kwargs.columns=[obs,actions,rewards,...]"
            )
            raise DataError([Problem(what, path, allowed=allowed)]) from None
    if layout is not None:
        source.env_name = layout.env_name
        source.spaces = _completed(source.spaces, layout.spaces)
    return layout


def _completed(given: Spaces, recorded: Spaces) -> Spaces:
    return Spaces(given.observation or recorded.observation, given.action or recorded.action)
