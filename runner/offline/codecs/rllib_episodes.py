"""Read RLlib's episode files: a column `item`, with the msgpack of a `SingleAgentEpisode`'s state in each row.

A field of the state is a buffer: `data` (a list of items, or arrays if the episode was finalized), `lookback` (the
number of rows before the chunk) and its space. Rows of several buffers are joined to one column without a Python loop
over steps. Object arrays, which msgpack-numpy pickles, are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from runner.config.errors import nearest_match
from runner.episodes import nested
from runner.episodes.columns import (
    ACTIONS,
    DEFAULT_MODULE_ID,
    OBS,
    REWARDS,
    Agents,
    Column,
    ColumnBlock,
    InfoRows,
    ListedInfos,
    LookbackOfChunks,
)
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.numpy_msgpack import (
    EncodedArrayError,
    decode_items,
    decode_tree,
    is_encoded,
    read_space,
)
from runner.offline.codecs.trajectories import ReadCounts, check_rewards, concatenate_alike
from runner.offline.files.data_error import DataLocation, data_error

ITEM = "item"
_STATE_NAMES = {"observations": OBS, "actions": ACTIONS, "rewards": REWARDS}
_FLAGS = ("is_terminated", "is_truncated")


@dataclass(frozen=True)
class _Episode:
    """One row: the chunk's columns, the rows before it, and the rest of its state."""

    columns: dict[str, Column]
    past: dict[str, Column]
    num_before: int
    length: int
    infos: list[dict[str, Any]] | None
    flags: tuple[bool, bool]
    t_started: int
    id_: str
    agent_id: str | None
    module_id: str | None
    multi_agent_episode_id: str | None


def recognises(schema: pa.Schema) -> bool:
    """Return whether a file with this schema holds RLlib's episodes."""
    if ITEM not in schema.names:
        return False
    type_ = schema.field(ITEM).type
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def decode_by_module(
    table: pa.Table, place: DataLocation | None = None, counts: ReadCounts | None = None
) -> list[ColumnBlock]:
    """Decode the episode chunks in `table`, with their time steps, lookback, infos and ids.

    Return one block per acting module, in order of first appearance. Chunks without steps are left out and counted.

    Raises:
        DataError: a row cannot be read or does not match others of its module. Names the file, row and field.
    """
    place = place or DataLocation(row=0)
    counts = counts if counts is not None else ReadCounts()
    rows = [(row, _read_episode(_unpack(item, place.at(row)), place.at(row))) for row, item in _items(table, place)]
    by_module: dict[str | None, list[tuple[int, _Episode]]] = {}
    for row, episode in rows:
        if episode.length:
            by_module.setdefault(episode.module_id, []).append((row, episode))
    counts.trajectories_dropped += len(rows) - sum(map(len, by_module.values()))
    if not by_module:
        raise data_error("these rows do not contain an episode with a step", place)
    return [_block(of_module, module_id or DEFAULT_MODULE_ID, place) for module_id, of_module in by_module.items()]


def _block(rows: Sequence[tuple[int, _Episode]], module_id: str, place: DataLocation) -> ColumnBlock:
    """Return the episodes of one module as a block; `rows` are pairs of row number and episode."""
    episodes = [episode for _, episode in rows]
    names = list(episodes[0].columns)
    for row, episode in rows:
        if set(episode.columns) != set(names):
            odd = ", ".join(sorted(set(episode.columns) ^ set(names)))
            raise data_error(f"only some episodes have {odd}", place.at(row))
    return ColumnBlock(
        columns={name: _concatenate(rows, name, place) for name in names},
        lengths=np.array([episode.length for episode in episodes], np.int64),
        is_terminated=np.array([episode.flags[0] for episode in episodes], np.bool_),
        is_truncated=np.array([episode.flags[1] for episode in episodes], np.bool_),
        t_started=np.array([episode.t_started for episode in episodes], np.int64),
        episode_ids=[episode.id_ for episode in episodes],
        lookback=_lookback_of(episodes),
        infos=_infos_of(episodes),
        module_id=module_id,
        agents=_agents_of(episodes),
    )


def read_spaces(table: pa.Table, place: DataLocation | None = None) -> Spaces:
    """Return the known spaces in the first row's state."""
    place = place or DataLocation(row=0)
    _, item = next(_items(table.slice(0, 1), place))
    state = _unpack(item, place)
    read = []
    for name, field in (("_observation_space", "observations"), ("_action_space", "actions")):
        buffer = state.get(field)
        plain = state.get(name) or (buffer.get("space") if isinstance(buffer, dict) else None)
        try:
            read.append(read_space(plain))
        except EncodedArrayError as error:
            raise data_error(str(error), place.of(f"{ITEM}.{name}")) from None
    return Spaces(*read)


def _items(table: pa.Table, place: DataLocation) -> Any:
    if ITEM not in table.column_names:
        near = nearest_match(ITEM, table.column_names)
        raise data_error(f"there is no column {ITEM}", place, got=", ".join(table.column_names), nearest=near)
    for row, item in enumerate(table[ITEM].to_pylist()):
        if not isinstance(item, bytes):
            raise data_error("expected bytes", place.at(row).of(ITEM), got=type(item).__name__)
        yield row, item


def _unpack(item: bytes, place: DataLocation) -> dict[str, Any]:
    import msgpack

    try:
        state = msgpack.unpackb(item, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        what = str(error) or type(error).__name__
        raise data_error(f"an episode is damaged: it is not valid msgpack: {what:.200}", place.of(ITEM)) from None
    if not isinstance(state, dict) or not _STATE_NAMES.keys() <= state.keys():
        got = ", ".join(map(str, state))[:200] if isinstance(state, dict) else type(state).__name__
        expected = f"a SingleAgentEpisode's state with {', '.join(_STATE_NAMES)}"
        raise data_error("this row is not an RLlib episode", place.of(ITEM), got=got, expected=expected)
    return state


def _read_episode(state: dict[str, Any], place: DataLocation) -> _Episode:
    rewards, num_before = _read_buffer(state["rewards"], "rewards", place)
    num_rows = 0 if rewards is None else nested.row_count(rewards)
    if not 0 <= num_before <= num_rows:
        raise data_error(f"invalid lookback of {num_before} in {num_rows} steps", place.of(f"{ITEM}.rewards"))
    buffers = {"observations": state["observations"], "actions": state["actions"]}
    outputs = state.get("extra_model_outputs") or {}
    if not isinstance(outputs, dict):
        raise data_error("expected a dict", place.of(f"{ITEM}.extra_model_outputs"), got=type(outputs).__name__)
    buffers |= {f"extra_model_outputs.{_as_text(key)}": buffer for key, buffer in outputs.items()}
    whole: dict[str, Any] = {REWARDS: rewards}
    for field, buffer in buffers.items():
        column, before = _read_buffer(buffer, field, place)
        expected = num_rows + (field == "observations")
        got = 0 if column is None else nested.row_count(column)
        if num_rows and (got != expected or before != num_before):
            what = f"{got} rows, {before} of them lookback, for {num_rows} rewards with {num_before} of lookback"
            raise data_error(f"the fields of an episode are inconsistent: {what}", place.of(f"{ITEM}.{field}"))
        whole[_STATE_NAMES.get(field, field.removeprefix("extra_model_outputs."))] = column
    whole = {name: whole[name] for name in (OBS, ACTIONS, REWARDS, *whole)}
    length = num_rows - num_before
    if num_rows and not (isinstance(rewards, np.ndarray) and rewards.dtype.kind in "biuf" and rewards.ndim == 1):
        raise data_error("expected one number per step", place.of(f"{ITEM}.rewards"))
    if isinstance(rewards, np.ndarray):
        check_rewards(rewards, lambda step: place.of(f"{ITEM}.rewards[{step}]"))
    kept = whole if length else {}
    return _Episode(
        columns={name: nested.take(column, slice(num_before, None)) for name, column in kept.items()},
        past={name: nested.take(column, slice(0, num_before)) for name, column in kept.items()},
        num_before=num_before,
        length=length,
        infos=_read_infos(state.get("infos"), num_before, length, place) if length else None,
        flags=(_read_flag(state, _FLAGS[0], place), _read_flag(state, _FLAGS[1], place)),
        t_started=_read_number(state, "t_started", place),
        id_=_as_text(state.get("id_")) or f"{place}",
        agent_id=_as_text(state.get("agent_id")),
        module_id=_as_text(state.get("module_id")),
        multi_agent_episode_id=_as_text(state.get("multi_agent_episode_id")),
    )


def _read_buffer(buffer: Any, field: str, place: DataLocation) -> tuple[Column | None, int]:
    """Return a buffer's column (None if it is empty) and its number of lookback rows."""
    where = place.of(f"{ITEM}.{field}")
    if not isinstance(buffer, dict) or "data" not in buffer:
        raise data_error("expected a buffer with its data", where, got=type(buffer).__name__)
    data, lookback = buffer["data"], buffer.get("lookback", 0)
    if type(lookback) is not int:
        raise data_error("lookback must be a number of steps", where, got=type(lookback).__name__)
    try:
        if not isinstance(data, list) or _is_tuple(buffer):
            return _check_rows(_as_columns(decode_tree(data)), where), lookback
        return (decode_items(data) if data else None), lookback
    except EncodedArrayError as error:
        raise data_error(f"{field} cannot be read: {error}", where) from None


def _is_tuple(buffer: dict[str, Any]) -> bool:
    """Return whether `data` is a tuple of columns, which msgpack stores as a list."""
    return bool(buffer.get("finalized")) and all(is_encoded(part) or isinstance(part, dict) for part in buffer["data"])


def _as_columns(tree: Any) -> Any:
    """Return lists of arrays as tuples."""
    if isinstance(tree, dict):
        return {key: _as_columns(branch) for key, branch in tree.items()}
    return tuple(_as_columns(part) for part in tree) if isinstance(tree, list) else tree


def _check_rows(column: Any, place: DataLocation) -> Column:
    try:
        nested.check_columns(column)
    except (TypeError, ValueError) as error:
        raise data_error(f"an episode is damaged: {error}", place) from None
    return column


def _read_infos(buffer: Any, num_before: int, length: int, place: DataLocation) -> list[dict[str, Any]] | None:
    if buffer is None:
        return None
    where = place.of(f"{ITEM}.infos")
    data = buffer.get("data") if isinstance(buffer, dict) else None
    if is_encoded(data):
        what = "infos cannot be read: object arrays are not supported, because decoding them runs code from the file"
        raise data_error(what, where)
    if not isinstance(data, list):
        raise data_error("expected a buffer with a list of infos", where, got=type(buffer).__name__)
    if not any(data):
        return None
    infos = data[num_before:]
    if len(infos) != length + 1:
        raise data_error(f"{len(infos)} infos for {length + 1} observations", where)
    try:
        return [decode_tree(info) if isinstance(info, dict) else {} for info in infos]
    except EncodedArrayError as error:
        raise data_error(f"infos cannot be read: {error}", where) from None


def _read_flag(state: dict[str, Any], name: str, place: DataLocation) -> bool:
    try:
        value = decode_tree(state.get(name, False))
    except EncodedArrayError as error:
        raise data_error(f"{name} cannot be read: {error}", place.of(f"{ITEM}.{name}")) from None
    if not isinstance(value, (bool, np.bool_)):
        raise data_error("expected true or false", place.of(f"{ITEM}.{name}"), got=type(value).__name__)
    return bool(value)


def _read_number(state: dict[str, Any], name: str, place: DataLocation) -> int:
    try:
        value = decode_tree(state.get(name) or 0)
    except EncodedArrayError as error:
        raise data_error(f"{name} cannot be read: {error}", place.of(f"{ITEM}.{name}")) from None
    if not isinstance(value, (int, np.integer)) or not 0 <= value < 2**62:
        raise data_error("expected a time step", place.of(f"{ITEM}.{name}"), got=repr(value)[:40])
    return int(value)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _concatenate(rows: Sequence[tuple[int, _Episode]], name: str, place: DataLocation) -> Column:
    parts, as_in = [episode.columns[name] for _, episode in rows], f", as in row {rows[0][0]}"
    where = place.of(name)
    return concatenate_alike(parts, "episodes", lambda at: where.at(rows[at][0]), as_in, mixes_numbers=True)


def _lookback_of(episodes: Sequence[_Episode]) -> LookbackOfChunks | None:
    if not any(episode.num_before for episode in episodes):
        return None
    num_before = np.array([episode.num_before for episode in episodes], np.int64)
    return LookbackOfChunks([episode.past for episode in episodes], num_before)


def _infos_of(episodes: Sequence[_Episode]) -> InfoRows | None:
    infos = [episode.infos for episode in episodes]
    return ListedInfos(infos) if any(rows is not None for rows in infos) else None


def _agents_of(episodes: Sequence[_Episode]) -> Agents | None:
    """Return the agents of the episodes, or None if one of them does not name its agent."""
    if any(episode.agent_id is None for episode in episodes):
        return None
    env_t = [np.arange(episode.length + 1) + episode.t_started for episode in episodes]
    return Agents(
        agent_ids=[episode.agent_id or "" for episode in episodes],
        multi_agent_episode_ids=[episode.multi_agent_episode_id or episode.id_ for episode in episodes],
        env_t=np.concatenate(env_t),
    )
