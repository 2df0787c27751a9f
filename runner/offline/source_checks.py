"""What is wrong with recorded data, told before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.config.errors import Problem, list_names, nearest_match
from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.offline.arrow_columns import value_type
from runner.offline.episode_format import KEYS, is_episodes, read_layout, table_to_block
from runner.offline.foreign import rllib_tables
from runner.offline.foreign.data_error import DataError, Place, data_error
from runner.offline.input_files import InputFiles
from runner.offline.layout import Layout
from runner.offline.raw_readers import ParquetReader
from runner.offline.table_schema import canonical_name

if TYPE_CHECKING:
    from runner.offline.source_stream import Source

ALWAYS_READ = (OBS, ACTIONS, REWARDS)
_OPTIONAL = {"infos", "new_infos"}  # only in files with infos
_MAX_CHECKED_BYTES = 2**28
_EXTENSION, _PICKLED = b"ARROW:extension:name", "ray.data.arrow_pickled_object"


def check_names(wanted: Sequence[str], layout: Layout, path: str) -> None:
    """Refuse names of columns that the files do not have."""
    problems = [
        Problem(
            f"there is no column {name}",
            path,
            allowed=list_names(layout.columns),
            nearest=nearest_match(name, layout.columns),
        )
        for name in wanted
        if name not in layout.columns
        and canonical_name(name) not in ("eps_id", "t", "infos", "terminateds", "truncateds", "new_obs")
    ]
    if problems:
        raise DataError(problems)


def check_complete(layout: Layout, schema: pa.Schema, path: str) -> None:
    """Refuse a file of ours from which another tool has taken columns that every reader needs."""
    needed = [leaf.column for leaf in layout.selected(set(ALWAYS_READ)).leaves() if value_type(leaf) is not None]
    missing = [name for name in ALWAYS_READ if name not in layout.columns]
    missing += [name for name in (*needed, *(KEYS if is_episodes(schema) else ())) if name not in schema.names]
    if missing:
        raise data_error(f"there is no column {', '.join(missing)}", Place(path), allowed=list_names(schema.names))


def check_same_columns(files: InputFiles, schemas: Sequence[pa.Schema]) -> None:
    """Refuse tables whose columns differ."""
    for path, schema in zip(files.paths, schemas, strict=True):
        odd_names = (set(schema.names) ^ set(schemas[0].names)) - _OPTIONAL
        if odd_names:
            odd = ", ".join(sorted(odd_names))
            what = f"the files do not have the same columns: {odd}"
            raise data_error(what, Place(path), allowed=f"as in {files.paths[0]}: {list_names(schemas[0].names)}")


def check_unique_names(schema: pa.Schema, path: str) -> None:
    """Refuse a table that has two columns of one name, and columns of pickled objects."""
    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise data_error(f"several columns have the name {', '.join(sorted(twice))}", Place(path))
    for field in schema:
        kinds = {getattr(field.type, "extension_name", ""), (field.metadata or {}).get(_EXTENSION, b"").decode()}
        if _PICKLED in kinds:
            what = "a column of pickled objects is not read, as that would run code in the file"
            raise data_error(what, Place(path, column=field.name))


def check_unpacked(table: pa.Table, packed: Sequence[str], place: Place) -> None:
    """Refuse columns that RLlib has packed and that nobody names."""
    for name in table.column_names:
        if name not in packed and rllib_tables.is_packed(table[name]):
            what = "this column is packed by RLlib"
            raise data_error(what, place.of(name), allowed=f"its name in offline.input_compress_columns: [{name}, ...]")


def check_flags(source: Source) -> None:
    """Refuse a configuration that says the rows are something else than they are."""
    config, format_ = source.config, source.format
    holds_episodes = format_ in ("episodes", "rllib_episodes", "hdf5", "minari")
    problem: tuple[str, str, str] | None = None
    if config.input_read_sample_batches and format_ != "sample_batches":
        problem = ("input_read_sample_batches", "true", "these data are no SampleBatches")
    elif config.input_read_episodes is True and not holds_episodes:
        problem = ("input_read_episodes", "true", "the rows of these data are no episodes")
    elif config.input_read_episodes is False and format_ in ("episodes", "rllib_episodes"):
        problem = ("input_read_episodes", "false", "the rows of these data are episodes")
    mapping = {name: column for name, column in config.input_read_schema.items() if name != column}
    if mapping and format_ != "table":
        what = f"data of the format {format_} have no columns to be named: {source.where()}"
        raise DataError([Problem(what, "offline.input_read_schema", str(mapping), "{}")])
    if problem is not None:
        name, got, what = problem
        allowed = f"leave it out: it is seen from the files ({format_})"
        raise DataError([Problem(f"{what}: {source.where()}", f"offline.{name}", got, allowed)])


def refuse_filter(config: OfflineConfig, format_: str) -> None:
    """Refuse a row filter where none can be applied."""
    if config.input_read_method_kwargs.get("filter") is not None:
        where = "offline.input_read_method_kwargs.filter"
        raise DataError([Problem(f"data of the format {format_} are read without a filter", where)])


def check_rewards(source: Source) -> None:
    """Look at all rewards where that needs no more than one column of Parquet files."""
    reader = source.reader
    if not isinstance(reader, ParquetReader) or source.format not in ("episodes", "table"):
        return
    column = REWARDS
    more: tuple[str, ...]
    if source.format == "episodes":
        more = KEYS
    else:
        assert source.table_schema is not None
        names = source.table_schema.names
        column = names.get(REWARDS, REWARDS)
        more = tuple(names[name] for name in ("eps_id", "t") if name in names)
    if column not in reader.schema.names or reader.column_bytes(column) > _MAX_CHECKED_BYTES:
        return
    for table, place in reader.tables([column, *more]):
        _check_reward_rows(table, column, more, place, source)


def _check_reward_rows(table: pa.Table, column: str, more: Sequence[str], place: Place, source: Source) -> None:
    import pyarrow.compute as pc

    values = table[column].combine_chunks()
    while isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        values = values.flatten()
    if not pa.types.is_floating(values.type) or pc.all(pc.is_finite(values)).as_py() is not False:
        return
    if source.format == "episodes":
        layout = read_layout(source.reader.schema) if source.reader is not None else Layout({})
        block = table_to_block(table, layout.selected({REWARDS}))
        raise not_finite(block, block.columns[REWARDS], place)
    row = int(np.flatnonzero(~np.isfinite(values.to_numpy(zero_copy_only=False)))[0])
    words = (" in episode", ", step") if len(more) == 2 else ()
    said = "".join(f"{word} {table[name][row].as_py()}" for word, name in zip(words, more, strict=False))
    raise data_error(f"a reward is not finite{said}", place.at(row).of(column), got=str(values[row].as_py()))


def not_finite(block: ColumnBlock, rewards: Any, place: Place) -> DataError:
    """Return the error for the first reward that is NaN or infinite."""
    row = int(np.flatnonzero(~np.isfinite(rewards).reshape(len(rewards), -1).all(axis=1))[0])
    chunk = int(np.searchsorted(block.offsets, row, side="right")) - 1
    step = row - int(block.offsets[chunk]) + int(block.t_started[chunk])
    what = f"a reward is not finite in episode {block.episode_ids[chunk]}, step {step}"
    return data_error(what, place.at(chunk).of(REWARDS), got=str(rewards[row]))


def check_options(config: OfflineConfig) -> None:
    """Refuse options that contradict each other."""
    if config.input_read_episodes and config.input_read_sample_batches:
        what = "rows are either episodes or SampleBatches"
        raise DataError([Problem(what, "offline.input_read_sample_batches", "true", "one of both is false")])


def check_same_form(obs: Column, new_obs: Column | None, place: Place) -> None:
    """Refuse next observations of another structure, shape or kind than the observations; raises `DataError`."""
    if new_obs is not None and _form(obs) != _form(new_obs):
        what = "next observations are no observations: structure, shape or kind differ"
        raise data_error(what, place.of("new_obs"), got=str(_form(new_obs)), allowed=str(_form(obs)))


def _form(column: Column) -> Any:
    return nested.map_leaves(lambda leaf: [*leaf.shape[1:], "text" if leaf.dtype.kind in "SU" else "numbers"], column)
