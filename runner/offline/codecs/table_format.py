"""Tables with one row per step. Native ones have metadata; others are read by column names and the user's schema.

| column                                      | holds                                                             |
|---------------------------------------------|-------------------------------------------------------------------|
| eps_id, t                                   | the episode, and the time step in it                              |
| agent_id, module_id, multi_agent_episode_id | null with a single agent                                          |
| task                                        | only if episodes have tasks; written but not read                 |
| obs, actions, rewards, extra model outputs  | a value, a fixed-size list, or bytes for two or more dimensions   |
| new_obs                                     | observation after the step                                        |
| terminateds, truncateds                     | whether the step ended the episode                                |
| infos, new_infos                            | JSON text, optional; new_infos only in the last row               |
| env_t, new_env_t                            | env time step of both observations; multi-agent only              |
Nested columns are stored as one column per leaf (`obs/position`). The metadata `runner.steps` of the schema describes
the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.arrow_columns import (
    info_from_json,
    info_to_json,
    not_null,
    stored_arrays,
    value_type,
    values_from_arrow,
    values_to_arrow,
)
from runner.offline.codecs.episode_format import TASK, tasks_to_arrow
from runner.offline.codecs.layout import Layout, Leaf, describe_column, layout_of
from runner.offline.codecs.rllib_tables import is_packed, unpack_column
from runner.offline.codecs.step_columns import column_to_arrays, read_end_flags
from runner.offline.codecs.table_schema import TableSchema, top_level_names
from runner.offline.files.data_error import DataError, DataLocation, data_error, first_line

METADATA_KEY = b"runner.steps"
NEW_OBS = "new_obs"

# --- writing --------------------------------------------------------------------------------------


def block_to_steps(block: ColumnBlock, layout: Layout | None = None) -> pa.Table:
    """Return the steps of a block as a table, one row each, without lookback.

    Raises:
        TypeError: a column cannot be recorded.
        ValueError: the block does not fit `layout`.
    """
    if layout is None:
        layout = layout_of(block)
    rows, chunk = block.num_rows, np.repeat(np.arange(len(block)), block.lengths)
    obs_rows = np.arange(rows) + chunk
    last = block.last_row_mask() if rows else np.zeros(0, np.bool_)
    t = np.arange(rows) - np.repeat(block.offsets[:-1] - block.t_started, block.lengths)
    ids = _id_columns(block, chunk)
    fields, arrays = list(ids), list(ids.values())

    def add(field: pa.Field, array: pa.Array) -> None:
        fields.append(field)
        arrays.append(array)

    add(not_null("t", pa.int64()), pa.array(t))
    for name, tree in layout.columns.items():
        for leaf, array in stored_arrays(tree, block.columns[name]):
            values = array[obs_rows] if name == OBS else array
            add(not_null(leaf.column, value_type(leaf)), values_to_arrow(values, leaf))
    for leaf, array in stored_arrays(layout.columns[OBS], block.columns[OBS]):
        add(not_null(new_obs_column(leaf), value_type(leaf)), values_to_arrow(array[obs_rows + 1], leaf))
    add(not_null("terminateds", pa.bool_()), pa.array(last & block.is_terminated[chunk]))
    add(not_null("truncateds", pa.bool_()), pa.array(last & block.is_truncated[chunk]))
    infos = _info_texts(block)
    if infos is not None:
        add(pa.field("infos", pa.string()), infos[0])
        add(pa.field("new_infos", pa.string()), infos[1])
    if block.agents is not None:
        add(not_null("env_t", pa.int64()), pa.array(np.asarray(block.agents.env_t)[obs_rows]))
        add(not_null("new_env_t", pa.int64()), pa.array(np.asarray(block.agents.env_t)[obs_rows + 1]))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, {METADATA_KEY: layout.to_json()}))


def new_obs_column(leaf: Leaf) -> str:
    """Return the column of next observations for a column of `obs`."""
    return NEW_OBS + leaf.column.removeprefix(OBS)


def read_steps_layout(schema: pa.Schema) -> Layout | None:
    """Return the layout in the metadata of a table, or None without metadata. Raises `StateError` if it is damaged."""
    content = (schema.metadata or {}).get(METADATA_KEY)
    return None if content is None else Layout.from_json(content)


def _id_columns(block: ColumnBlock, chunk: npt.NDArray[np.int64]) -> dict[pa.Field, pa.Array]:
    """Return the columns of episode, agent and task of the rows. Agents' columns are null with a single agent."""
    agents = block.agents
    texts = {
        "agent_id": None if agents is None else agents.agent_ids,
        "module_id": None if agents is None else [block.module_id] * len(block),
        "multi_agent_episode_id": None if agents is None else agents.multi_agent_episode_ids,
    }
    episode = {not_null("eps_id", pa.string()): _text_of(block.episode_ids, chunk)}
    tasks = tasks_to_arrow(block.tasks)
    return {
        **episode,
        **{pa.field(name, pa.string()): _text_of(values, chunk) for name, values in texts.items()},
        **({} if tasks is None else {pa.field(TASK, pa.string()): tasks.take(pa.array(chunk))}),
    }


def _text_of(texts: Any, chunk: npt.NDArray[np.int64]) -> pa.Array:
    if texts is None:
        return pa.nulls(len(chunk), pa.string())
    values = pa.array([str(text) for text in texts], pa.string())
    return values.take(pa.array(chunk))


def _info_texts(block: ColumnBlock) -> tuple[pa.Array, pa.Array] | None:
    """Return `infos` and `new_infos` of all rows, or None if all are empty."""
    if block.infos is None:
        return None
    texts: list[str | None] = []
    finals: list[str | None] = []
    for chunk, length in enumerate(block.lengths.tolist()):
        infos = block.infos.rows_of(chunk, length + 1)
        if infos is None or not any(infos):
            texts += [None] * length
            finals += [None] * length
            continue
        texts += [info_to_json(info) if info else None for info in infos[:length]]
        finals += [None] * (length - 1) + [info_to_json(infos[length]) if infos[length] else None]
    if all(text is None for text in texts) and all(text is None for text in finals):
        return None
    return pa.array(texts, pa.string()), pa.array(finals, pa.string())


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRows:
    """Rows of a table as arrays with R rows each, or None for missing columns.

    Attributes:
        columns: `obs`, `actions`, `rewards`, extra model outputs.
        new_obs: observations after the steps.
        eps_ids, agent_ids, module_ids, multi_agent_episode_ids: text.
        t: time step within the episode.
        is_terminated, is_truncated: whether the step ended the episode.
        infos, new_infos: JSON text, or None per row without infos.
        env_t, new_env_t: env time step of both observations.
    """

    columns: dict[str, Column]
    new_obs: Column | None
    eps_ids: pa.Array | None
    agent_ids: pa.Array | None
    module_ids: pa.Array | None
    multi_agent_episode_ids: pa.Array | None
    t: npt.NDArray[np.int64] | None
    is_terminated: npt.NDArray[np.bool_]
    is_truncated: npt.NDArray[np.bool_]
    infos: Array | None
    new_infos: Array | None
    env_t: Array | None
    new_env_t: Array | None

    def __len__(self) -> int:
        return len(self.is_terminated)


def read_steps(
    table: pa.Table,
    schema: TableSchema,
    layout: Layout | None,
    place: DataLocation,
    left_out: dict[str, str] | None = None,
) -> StepRows:
    """Decode the rows of a table.

    Args:
        table: some rows of a file.
        schema: role of each column.
        layout: layout of a native table, or None if it is inferred from the columns.
        place: file and first row, for messages.
        left_out: receives extra columns that cannot become arrays -> reason. If None, they raise an error.

    Raises:
        DataError: a column has an invalid type or values, or rewards are not finite.
    """
    reader = _StepReader(table, schema, layout, place, left_out)
    columns = {OBS: reader.column(OBS), ACTIONS: reader.column(ACTIONS), REWARDS: reader.rewards()}
    columns |= {name: reader.extra(name, column) for name, column in schema.extra.items()}
    is_terminated, is_truncated = reader.end_flags()
    rows = StepRows(
        columns={name: column for name, column in columns.items() if column is not None},
        new_obs=reader.column(NEW_OBS) if schema.has_next_obs else None,
        eps_ids=reader.text("eps_id"),
        agent_ids=reader.text("agent_id"),
        module_ids=reader.text("module_id"),
        multi_agent_episode_ids=reader.text("multi_agent_episode_id"),
        t=reader.time_steps(),
        is_terminated=is_terminated,
        is_truncated=is_truncated,
        infos=reader.infos("infos"),
        new_infos=reader.infos("new_infos"),
        env_t=reader.integers("env_t"),
        new_env_t=reader.integers("new_env_t"),
    )
    _check_rewards(rows, place.of(schema.names.get(REWARDS, REWARDS)))
    return rows


class _StepReader:
    """Reads the columns of one table."""

    def __init__(
        self,
        table: pa.Table,
        schema: TableSchema,
        layout: Layout | None,
        place: DataLocation,
        left_out: dict[str, str] | None = None,
    ) -> None:
        self.table, self.schema, self.layout, self.place, self.left_out = table, schema, layout, place, left_out

    def _place(self, name: str) -> DataLocation:
        return self.place.of(self.schema.names[name])

    def column(self, name: str) -> Column:
        """Return obs, new_obs or actions."""
        file_name = self.schema.names[name]
        tree = None if self.layout is None else self.layout.columns.get(OBS if name == NEW_OBS else name)
        if tree is None:
            return self._by_type(file_name)
        return self._by_layout(tree, is_new_obs=name == NEW_OBS)

    def extra(self, name: str, file_name: str) -> Column | None:
        """Return an extra model output, or None if the column is empty or left out."""
        if self.layout is not None and name in self.layout.columns:
            return self._by_layout(self.layout.columns[name])
        if file_name in self.table.column_names and _is_empty(self.table[file_name]):
            self._leave_out(name, "all values are missing")
            return None
        try:
            return self._by_type(file_name)
        except DataError as error:
            if self.left_out is None:
                raise
            problem = error.problems[0]
            self._leave_out(name, problem.what if problem.where is None else f"{problem.what}: {problem.where}")
            return None

    def _leave_out(self, name: str, reason: str) -> None:
        if self.left_out is not None:
            self.left_out[name] = reason

    def rewards(self) -> Array:
        """Return the rewards (R,) as floats, or zeros without rewards."""
        if REWARDS not in self.schema.names:
            return np.zeros(self.table.num_rows, np.float32)
        rewards = self.column(REWARDS)
        place = self._place(REWARDS)
        if isinstance(rewards, np.ndarray) and rewards.shape[1:] == (1,):
            rewards = rewards[:, 0]
        if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
            raise data_error("a reward must be one number per step", place, got=describe_column(rewards))
        return rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)

    def end_flags(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return terminated and truncated flags (R,), false if missing. `dones` count as terminated."""
        nothing = np.zeros(self.table.num_rows, np.bool_)
        is_terminated, is_truncated = self.flags("terminateds"), self.flags("truncateds")
        if is_terminated is None:
            is_terminated = self.flags("dones")
        return nothing if is_terminated is None else is_terminated, nothing if is_truncated is None else is_truncated

    def flags(self, name: str) -> npt.NDArray[np.bool_] | None:
        """Return a column of flags (R,), see `read_end_flags`."""
        if name not in self.schema.names:
            return None
        values = self._by_type(self.schema.names[name])
        place = self._place(name)
        if isinstance(values, np.ndarray) and values.shape[1:] == (1,):
            values = values[:, 0]
        if not isinstance(values, np.ndarray) or values.ndim != 1:
            raise data_error("an end flag must be true or false", place, got=describe_column(values))
        return read_end_flags(values, place)

    def integers(self, name: str) -> npt.NDArray[np.int64] | None:
        """Return a column of integers (R,) as int64."""
        if name not in self.schema.names or _is_empty(self.table[self.schema.names[name]]):
            return None
        values = self._by_type(self.schema.names[name])
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
            raise data_error(f"{name} must be an integer", self._place(name), got=describe_column(values))
        with np.errstate(invalid="ignore"):  # NaN
            integers = values.astype(np.int64)
        wrong = np.flatnonzero(integers != values)
        if len(wrong):
            row = int(wrong[0])
            raise data_error(f"{name} must be an integer", self._place(name).at(row), got=str(values[row]))
        return integers

    def time_steps(self) -> npt.NDArray[np.int64] | None:
        """Return the time steps (R,) as int64, from 0."""
        t = self.integers("t")
        if t is None:
            return None
        wrong = np.flatnonzero(t < 0)
        if len(wrong):
            row = int(wrong[0])
            raise data_error("t must count the steps of an episode from 0", self._place("t").at(row), got=str(t[row]))
        return t

    def text(self, name: str) -> pa.Array | None:
        """Return a column of text (R,), converted from integers if necessary; None if a column of agents is empty."""
        if name not in self.schema.names:
            return None
        if name != "eps_id" and _is_empty(self.table[self.schema.names[name]]):
            return None
        column = self.table[self.schema.names[name]]
        place = self._place(name)
        try:
            values = column.cast(pa.string()).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise data_error(f"{name} must be text or a number", place, got=str(column.type)) from None
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise data_error("a value is missing", place.at(row))
        return values

    def infos(self, name: str) -> Array | None:
        """Return a column of infos (R,): JSON text, or None per row. A table may lack infos that other tables have."""
        file_name = self.schema.names.get(name)
        if file_name is None:
            return None
        if file_name not in self.table.column_names or _is_empty(self.table[file_name]):
            return np.full(self.table.num_rows, None, object)
        column = self.table[file_name]
        if self.layout is not None and pa.types.is_string(column.type):
            return np.asarray(column.to_numpy(), object)
        try:
            infos = column.to_pylist()
        except ValueError as error:  # two fields with the same name
            raise data_error(f"infos cannot be read: {first_line(error)}", self._place(name)) from None
        return np.array([None if not info else _info_text(info) for info in infos], object)

    def _by_layout(self, tree: Any, is_new_obs: bool = False) -> Column:
        """Return a column whose leaves a native table describes."""

        def read(leaf: Leaf) -> Array:
            if not leaf.size:
                return np.zeros((self.table.num_rows, *leaf.shape), leaf.dtype)
            name = new_obs_column(leaf) if is_new_obs else leaf.column
            try:
                column = self.table[name].combine_chunks()
                return values_from_arrow(column, leaf)
            except (ValueError, KeyError) as error:
                raise data_error(str(error).strip("'\""), self.place.of(name)) from None

        return nested.map_leaves(read, tree)

    def _by_type(self, name: str) -> Column:
        """Return a column whose arrays follow from the types of the file's columns."""
        if name in self.schema.features:
            return self._stacked(self.schema.features[name])
        if name in self.table.column_names:
            return self._arrays_of(name)
        parts = {
            column.partition("/")[2]: self._arrays_of(column)
            for column in self.table.column_names
            if column.startswith(f"{name}/")
        }
        return nest_columns(parts)

    def _arrays_of(self, name: str) -> Column:
        column, place = self.table[name], self.place.of(name)
        if is_packed(column):
            return unpack_column(column, place)
        return column_to_arrays(column, self.table.schema.field(name), place)

    def _stacked(self, columns: Sequence[str]) -> Array:
        """Concatenate columns of features, each with one feature or a list of them, to numbers (R, K)."""
        parts = []
        for name in columns:
            part = self._by_type(name)
            if not isinstance(part, np.ndarray) or part.ndim > 2 or part.dtype.kind not in "biuf":
                what = "a column of features must hold numbers"
                raise data_error(what, self.place.of(name), got=describe_column(part))
            parts.append(part.reshape(len(part), -1))
        return np.concatenate(parts, axis=1)


def nest_columns(parts: Mapping[str, Any]) -> Any:
    """Nest arrays or descriptions by the names of columns: `{"a": x, "b/0": y}` -> `{"a": x, "b": (y,)}`."""
    heads = top_level_names(parts)
    branches: dict[str, Any] = {}
    for head in heads:
        inner = {name.partition("/")[2]: part for name, part in parts.items() if name.startswith(f"{head}/")}
        branches[head] = nest_columns(inner) if inner else parts[head]
    if heads == [str(index) for index in range(len(heads))]:
        return tuple(branches.values())
    return {_unescape(head): branch for head, branch in branches.items()}


def _unescape(key: str) -> str:
    return "" if key == "%" else key.replace("%2F", "/").replace("%25", "%")


def _info_text(value: Any) -> str:
    """Return an info of any table as the JSON text of an object; other values are wrapped in one."""
    if isinstance(value, str):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            info_from_json(value)
            return value
    return info_to_json(value if isinstance(value, dict) else {"info": value})


def _is_empty(column: pa.ChunkedArray) -> bool:
    return len(column) > 0 and column.null_count == len(column)


def _check_rewards(rows: StepRows, place: DataLocation) -> None:
    rewards = rows.columns[REWARDS]
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if not len(wrong):
        return
    row = int(wrong[0])
    episode = "" if rows.eps_ids is None else f" in episode {rows.eps_ids[row]}"
    step = "" if rows.t is None else f", step {rows.t[row]}"
    raise data_error(f"a reward is not finite{episode}{step}", place.at(row), got=str(rewards[row]))
