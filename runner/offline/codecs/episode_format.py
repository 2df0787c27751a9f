"""Native format of episodes: Parquet with one row per episode (chunk) and list columns.

| column                                      | type               | holds                                           |
|---------------------------------------------|--------------------|-------------------------------------------------|
| eps_id                                      | string             | shared by all chunks of an episode              |
| agent_id, module_id, multi_agent_episode_id | string             | null with a single agent                        |
| t_started, length                           | int64              | time step of the first row; env steps           |
| terminated, truncated                       | bool               | end flags                                       |
| episode_return                              | float64            | sum of the rewards of this row                  |
| task                                        | string             | only if episodes have tasks                     |
| obs                                         | list, length + 1   | includes the final observation                  |
| actions, rewards, each extra model output   | list, length       | values of the steps                             |
| infos                                       | list of JSON text  | length + 1, null if empty; optional             |
| env_t                                       | list of int64      | length + 1, env time step; multi-agent only     |

A nested column is stored as one column per leaf, with keys joined by `/` (`obs/position`). The metadata
`runner.episodes` of the schema describes their nesting (`runner.offline.codecs.layout`). Any Arrow tool can read the
files, and slices need no decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runner.episodes import nested
from runner.episodes.columns import DEFAULT_MODULE_ID, REWARDS, Agents, ColumnBlock
from runner.episodes.nested import Array, StateError
from runner.offline.codecs.arrow_columns import (
    RecordedInfos,
    concat_arrays,
    infos_to_arrow,
    not_null,
    stored_arrays,
    value_type,
    values_from_arrow,
    values_to_arrow,
)
from runner.offline.codecs.layout import Layout, Leaf, layout_of, rows_per_chunk
from runner.offline.codecs.step_columns import read_end_flags
from runner.offline.files.data_error import DataError, DataLocation

METADATA_KEY = b"runner.episodes"
INFOS = "infos"
TASK = "task"
_ENV_T = "env_t"
# Columns that every reader needs.
KEYS = ("eps_id", "t_started", "length", "terminated", "truncated")
_MODULE_ID = "module_id"
_OF_AGENTS = ("agent_id", _MODULE_ID, "multi_agent_episode_id")
_INFO_TYPE = pa.list_(not_null("item", pa.string()))
_ENV_T_TYPE = pa.list_(not_null("item", pa.int64()))


def episodes_schema(layout: Layout, has_infos: bool, has_agents: bool, has_tasks: bool) -> pa.Schema:
    """Return the schema of a file."""
    fields = [
        not_null("eps_id", pa.string()),
        *(pa.field(name, pa.string()) for name in _OF_AGENTS),
        not_null("t_started", pa.int64()),
        not_null("terminated", pa.bool_()),
        not_null("truncated", pa.bool_()),
        not_null("length", pa.int64()),
        pa.field("episode_return", pa.float64()),
        *([pa.field(TASK, pa.string())] if has_tasks else []),
    ]
    for leaf in layout.leaves():
        if leaf.size:
            fields.append(not_null(leaf.column, pa.list_(not_null("item", value_type(leaf)))))
    if has_infos:
        fields.append(pa.field(INFOS, _INFO_TYPE))
    if has_agents:
        fields.append(not_null(_ENV_T, _ENV_T_TYPE))
    return pa.schema(fields, {METADATA_KEY: layout.to_json()})


def episodes_to_table(block: ColumnBlock, layout: Layout | None = None) -> pa.Table:
    """Return the episodes of a block as a table, one row each, without lookback. Arrays are not copied.

    Args:
        block: E chunks.
        layout: layout that this block must fit, or None for its own.

    Raises:
        TypeError: a column cannot be recorded (arrays of objects).
        ValueError: the block does not fit `layout`.
    """
    if layout is None:
        layout = layout_of(block)
    infos = infos_to_arrow(_info_rows(block))
    tasks = tasks_to_arrow(block.tasks)
    schema = episodes_schema(layout, infos is not None, block.agents is not None, tasks is not None)
    ends = np.concatenate(([0], np.cumsum(block.lengths)))
    arrays: dict[str, pa.Array] = {
        "eps_id": pa.array(list(block.episode_ids), pa.string()),
        **_agent_columns(block),
        "t_started": pa.array(block.t_started),
        "terminated": pa.array(block.is_terminated),
        "truncated": pa.array(block.is_truncated),
        "length": pa.array(block.lengths),
        "episode_return": _returns(block, ends),
        TASK: tasks,
        INFOS: infos,
    }
    for name, tree in layout.columns.items():
        offsets = _list_offsets(ends, rows_per_chunk(name))
        for leaf, array in stored_arrays(tree, block.columns[name]):
            type_ = schema.field(leaf.column).type
            arrays[leaf.column] = pa.ListArray.from_arrays(offsets, values_to_arrow(array, leaf), type=type_)
    if block.agents is not None:
        env_t = pa.array(np.ascontiguousarray(block.agents.env_t, np.int64))
        arrays[_ENV_T] = pa.ListArray.from_arrays(_list_offsets(ends, 1), env_t, type=_ENV_T_TYPE)
    return pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)


def table_to_block(table: pa.Table, layout: Layout | None = None) -> ColumnBlock:
    """Return the episodes of a table or slice as a block, with views of Arrow's memory if possible.

    Args:
        table: table with the required columns and the layout's columns, in any order.
        layout: layout of the columns. None uses the table's metadata, restricted to the columns that it has.

    Raises:
        ValueError: the table does not match the layout.
    """
    if layout is None:
        layout = present_columns(read_layout(table.schema), table.column_names)
    missing = [name for name in KEYS if name not in table.column_names]
    if missing:
        raise ValueError(f"columns of the episode format are missing: {', '.join(missing)}")
    lengths = _numbers(table["length"], np.int64)

    def read(name: str, tree: Any) -> Any:
        return nested.map_leaves(lambda leaf: _read_leaf(table, leaf, lengths, rows_per_chunk(name)), tree)

    columns = {name: read(name, tree) for name, tree in layout.columns.items()}
    infos = table[INFOS].combine_chunks() if INFOS in table.column_names else None
    return ColumnBlock(
        columns=columns,
        lengths=lengths,
        is_terminated=read_flags(table, "terminated"),
        is_truncated=read_flags(table, "truncated"),
        t_started=_numbers(table["t_started"], np.int64),
        episode_ids=table["eps_id"].to_pylist(),
        infos=None if infos is None or infos.null_count == len(infos) else RecordedInfos(infos),
        module_id=layout.module_id or DEFAULT_MODULE_ID,
        agents=_read_agents(table, lengths),
        tasks=read_tasks(table),
    )


def tasks_to_arrow(tasks: Sequence[str | None] | None) -> pa.Array | None:
    """Return the column of episode tasks, or None if all are unknown."""
    return pa.array(tasks, pa.string()) if any(task is not None for task in tasks or ()) else None


def read_tasks(table: pa.Table) -> list[str | None] | None:
    """Return the tasks of the episodes, or None if they are not recorded."""
    return table[TASK].to_pylist() if TASK in table.column_names else None


def read_layout(schema: pa.Schema) -> Layout:
    """Return the layout in the metadata of a schema. Raises `StateError` if it is missing or damaged."""
    content = (schema.metadata or {}).get(METADATA_KEY)
    if content is None:
        raise StateError(f"the schema does not have the metadata {METADATA_KEY.decode()}")
    return Layout.from_json(content)


def is_episodes(schema: pa.Schema) -> bool:
    """Return whether a file with this schema holds episodes in the native format."""
    return METADATA_KEY in (schema.metadata or {})


def present_columns(layout: Layout, names: Iterable[str]) -> Layout:
    """Return the layout of the columns of which all leaves are in `names`."""
    present = set(names)

    def is_present(leaf: Leaf) -> bool:
        return not leaf.size or leaf.column in present

    kept = {name for name, tree in layout.columns.items() if all(is_present(leaf) for leaf in nested.leaves(tree))}
    return layout.selected(kept)


def rows_by_module(table: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield the rows of each acting module, in order of first appearance, with None as unknown id."""
    found = table[_MODULE_ID] if _MODULE_ID in table.column_names else pa.nulls(table.num_rows, pa.string())
    modules = pc.unique(found).to_pylist()
    if len(modules) == 1:
        yield modules[0], table
        return
    for module_id in modules:
        yield module_id, table.filter(pc.is_in(found, pa.array([module_id], pa.string())))


def file_columns(layout: Layout, schema: pa.Schema, with_infos: bool = True) -> list[str]:
    """Return the file columns that a reader of `layout` needs. Tasks are read together with infos."""
    names = {*KEYS, *_OF_AGENTS, _ENV_T, *([INFOS, TASK] if with_infos else []), *layout.file_columns()}
    return [name for name in schema.names if name in names]


# --- writing --------------------------------------------------------------------------------------


def _list_offsets(ends: npt.NDArray[np.int64], rows_per_chunk: int) -> pa.Array:
    offsets = ends + rows_per_chunk * np.arange(len(ends))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} rows do not fit into one table; split the block")
    return pa.array(offsets.astype(np.int32))


def _returns(block: ColumnBlock, ends: npt.NDArray[np.int64]) -> pa.Array:
    rewards = block.columns.get(REWARDS)
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        return pa.nulls(len(block), pa.float64())
    returns, has_steps = np.zeros(len(block)), block.lengths > 0
    if has_steps.any():
        returns[has_steps] = np.add.reduceat(rewards.astype(np.float64), ends[:-1][has_steps])
    return pa.array(returns)


def _info_rows(block: ColumnBlock) -> list[list[dict[str, Any]] | None]:
    if block.infos is None:
        return []
    if isinstance(block.infos, RecordedInfos) and block.infos.texts.null_count == len(block):
        return []
    return [block.infos.rows_of(chunk, int(length) + 1) for chunk, length in enumerate(block.lengths)]


def _agent_columns(block: ColumnBlock) -> dict[str, pa.Array]:
    if block.agents is None:
        return {name: pa.nulls(len(block), pa.string()) for name in _OF_AGENTS}
    return {
        "agent_id": pa.array([str(agent) for agent in block.agents.agent_ids], pa.string()),
        "module_id": pa.array([block.module_id] * len(block), pa.string()),
        "multi_agent_episode_id": pa.array(list(block.agents.multi_agent_episode_ids), pa.string()),
    }


# --- reading --------------------------------------------------------------------------------------


def _check_no_nulls(column: pa.ChunkedArray) -> None:
    if column.null_count:
        raise ValueError("t_started, length, terminated and truncated must not have empty values")


def _numbers(column: pa.ChunkedArray, dtype: Any) -> npt.NDArray[Any]:
    _check_no_nulls(column)
    numbers: npt.NDArray[Any] = column.to_numpy().astype(dtype, copy=False)
    return numbers


def read_flags(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Return the bool flags (E,) of a column of end flags. Raises `ValueError` for other values."""
    column = table[name]
    _check_no_nulls(column)
    try:
        return read_end_flags(np.asarray(column), DataLocation(column=name))
    except DataError as error:
        problem = error.problems[0]
        raise ValueError(f"{problem.what}: {problem.where}, got {problem.got}") from None


def _read_leaf(table: pa.Table, leaf: Leaf, lengths: npt.NDArray[np.int64], rows_per_chunk: int) -> Array:
    expected = lengths + rows_per_chunk
    if not leaf.size:
        return np.zeros((int(expected.sum()), *leaf.shape), leaf.dtype)
    column = table[leaf.column]
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        raise ValueError(f"{leaf.column} holds {column.type}, expected lists")
    counts = pc.list_value_length(column)
    if counts.null_count or not np.array_equal(counts.to_numpy(), expected):
        wrong = np.flatnonzero(pc.fill_null(counts, -1).to_numpy() != expected)[0]
        found, steps = counts[int(wrong)].as_py(), int(lengths[wrong])
        raise ValueError(f"{leaf.column} has {found} rows in an episode of {steps} steps (row {wrong})")
    parts = [values_from_arrow(chunk.flatten(), leaf) for chunk in column.chunks if len(chunk)]
    return concat_arrays(parts, leaf)


def _read_agents(table: pa.Table, lengths: npt.NDArray[np.int64]) -> Agents | None:
    names = set(table.column_names)
    if not {"agent_id", "multi_agent_episode_id"} <= names or table["agent_id"].null_count == table.num_rows:
        return None
    if _ENV_T in names:
        leaf = Leaf(np.dtype(np.int64), (), _ENV_T)
        env_t = _read_leaf(table, leaf, lengths, 1)
    else:  # without env_t, every agent acts in every env step
        starts = np.repeat(_numbers(table["t_started"], np.int64), lengths + 1)
        first = np.concatenate(([0], np.cumsum(lengths + 1)[:-1]))
        env_t = starts + np.arange(len(starts)) - np.repeat(first, lengths + 1)
    return Agents(table["agent_id"].to_pylist(), table["multi_agent_episode_id"].to_pylist(), env_t)
