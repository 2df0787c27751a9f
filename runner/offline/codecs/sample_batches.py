"""Read SampleBatches of RLlib's old API stack: JSON lines or tables with one batch of many steps per row.

A column is a list with one item per step, or packed text (pickle, LZ4, base64) of one array for the entire batch. Of
MultiAgentBatches, which name policies and number agents, only one policy is read. Rows are grouped to trajectories by
`eps_id` and `t`. Without ids, each batch (each `unroll_id` in it) is cut at its end flags, and the next batch does not
continue it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.config.errors import nearest_match
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock, empty_block
from runner.episodes.nested import Array
from runner.offline.codecs.rllib_tables import first_packed, unpack_value
from runner.offline.codecs.step_columns import column_to_arrays, is_list
from runner.offline.codecs.trajectories import (
    ReadCounts,
    Steps,
    check_new_obs,
    check_rewards,
    concatenate_alike,
    group_steps,
)
from runner.offline.files.data_error import DataLocation, data_error
from runner.offline.files.input_files import ByteStream
from runner.offline.files.raw_rows import RawTable

MAX_TABLE_BYTES = 2**24
_READ_BYTES = 2**20
_TYPE = re.compile(rb'"type"\s*:\s*"(SampleBatch|MultiAgentBatch)"')
_NEW_OBS, _POLICY_BATCHES = "new_obs", "policy_batches"
_OWN = {OBS, ACTIONS, REWARDS, _NEW_OBS, "dones", "terminateds", "truncateds", "eps_id", "t", "infos"}
# Columns that the old stack stores or computes in addition to the steps, which are not module outputs.
_LEFT_OUT = {
    *("type", "count", "unroll_id", "agent_index", "env_id", "seq_lens", "batch_indexes"),
    *("prev_actions", "prev_rewards", "prev_obs"),
    *("advantages", "value_targets", "returns", "weights", "values_bootstrapped"),
}
_PER_SEQUENCE = re.compile(r"state_(in|out)_\d+")


def recognises(head: bytes) -> bool:
    """Return whether a file that starts with these bytes has lines of SampleBatches."""
    return head.lstrip()[:1] == b"{" and _TYPE.search(head) is not None


def recognises_schema(schema: pa.Schema) -> bool:
    """Return whether a table with these columns has one SampleBatch per row."""
    names = set(schema.names)
    if _POLICY_BATCHES in names:
        return True
    lists = [name for name in (REWARDS, ACTIONS) if name in names and is_list(schema.field(name).type)]
    return {OBS, ACTIONS} <= names and REWARDS in lists


def read_tables(
    stream: ByteStream, place: DataLocation | None = None, max_bytes: int = MAX_TABLE_BYTES
) -> Iterator[RawTable]:
    """Yield the lines of a JSON file as tables of about `max_bytes` of text, with the location of the first line.

    Raises:
        DataError: a line is not a JSON object. Names the line.
    """
    place = place or DataLocation(row=0, unit="line")
    first = 0
    held: list[bytes] = []
    num_bytes = 0
    for line in _lines(stream):
        held.append(line)
        num_bytes += len(line)
        if num_bytes >= max_bytes:
            yield from _parse(held, place.at(first))
            first += len(held)
            held, num_bytes = [], 0
    if held:
        yield from _parse(held, place.at(first))


def decode(
    table: pa.Table, place: DataLocation | None = None, counts: ReadCounts | None = None, policy: str | None = None
) -> ColumnBlock:
    """Decode the trajectories in these batches. The block is empty if no batch has steps of the policy.

    A chunk without an end flag keeps both flags false, because it may continue in other rows.

    Args:
        table: one batch per row.
        place: file and first row, for errors.
        counts: updated with the corrections made.
        policy: policy to read from MultiAgentBatches, or None if there is only one.

    Raises:
        DataError: columns are missing, damaged or inconsistent. Names the file, row and field.
    """
    place = place or DataLocation(row=0)
    of_policy = _of_policy(table, place, policy)
    if of_policy is None:
        return empty_block({})
    table = of_policy
    for name in (OBS, ACTIONS, REWARDS):
        if name not in table.column_names:
            near = nearest_match(name, table.column_names)
            what = f"the column {name} of a SampleBatch is missing"
            raise data_error(what, place, got=", ".join(table.column_names), nearest=near)
    reader = _BatchReader(table, place)
    check_rewards(reader.rewards, lambda step: place.at(reader.batch_of(step)).of(REWARDS))
    is_terminated = reader.flags("terminateds") if reader.has("terminateds") else reader.flags("dones")
    columns = {
        OBS: reader.column(OBS),
        ACTIONS: reader.column(ACTIONS),
        REWARDS: reader.rewards.astype(np.float64, copy=False),
    }
    for name in table.column_names:
        if name not in _OWN | _LEFT_OUT and not _PER_SEQUENCE.fullmatch(name) and reader.has(name):
            columns[name] = reader.column(name)
    new_obs = reader.column(_NEW_OBS) if reader.has(_NEW_OBS) else None
    if new_obs is not None:
        check_new_obs(columns[OBS], new_obs, place.of(_NEW_OBS))
    has_ids = reader.has("eps_id")
    steps = Steps(
        columns=columns,
        is_terminated=is_terminated,
        is_truncated=reader.flags("truncateds"),
        new_obs=new_obs,
        episode_ids=reader.ids() if has_ids else None,
        t=reader.integers("t") if reader.has("t") else None,
        infos=reader.infos(),
        segments=None if has_ids else reader.segments(),
    )
    return group_steps(steps, counts if counts is not None else ReadCounts())


class _BatchReader:
    """Reads the columns of batches with R steps in total.

    Attributes:
        rewards: (R,) numbers.
        sizes: steps of each batch.
    """

    def __init__(self, table: pa.Table, place: DataLocation) -> None:
        self._table, self._place = table, place
        rewards, self.sizes = self._read(REWARDS)
        self.rewards = self._as_numbers(rewards, REWARDS)

    def has(self, name: str) -> bool:
        """Return whether the batches have this column."""
        return name in self._table.column_names and self._table[name].null_count < self._table.num_rows

    def _read(self, name: str) -> tuple[Column, npt.NDArray[np.int64]]:
        """Return the column with the rows of all batches, and the number of rows of each batch."""
        column, place = self._table[name].combine_chunks(), self._place.of(name)
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise data_error("only some batches have this column", place.at(row))
        if first_packed(pa.chunked_array([column])) is not None:
            parts = [self._unpacked(text, place.at(row)) for row, text in enumerate(column.to_pylist())]
            sizes = np.array([nested.row_count(part) for part in parts], np.int64)
            return concatenate_alike(parts, "batches", place.at, ", as in the first"), sizes
        if not is_list(column.type):
            raise data_error("expected a list with an item for each step", place, got=str(column.type))
        items, sizes = column.flatten(), column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        place = DataLocation(place.file, None, name, unit="step")
        return column_to_arrays(items, pa.field(name, items.type), place), sizes

    def column(self, name: str) -> Column:
        """Return the column (R, ...)."""
        values, sizes = self._read(name)
        wrong = np.flatnonzero(sizes != self.sizes)
        if len(wrong):
            row = int(wrong[0])
            what, expected = "the columns of a batch must have the same length", f"{self.sizes[row]}, as in {REWARDS}"
            raise data_error(what, self._place.at(row).of(name), got=f"{sizes[row]} steps", expected=expected)
        return values

    def numbers(self, name: str) -> Array:
        """Return a column of numbers (R,)."""
        return self._as_numbers(self.column(name), name)

    def _as_numbers(self, values: Column, name: str) -> Array:
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biuf":
            raise data_error("expected one number per step", self._place.of(name))
        return values

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of integers (R,)."""
        values = self.numbers(name)
        if values.dtype.kind == "f":
            raise data_error("expected integers", self._place.of(name), got=str(values.dtype))
        return values.astype(np.int64)

    def flags(self, name: str) -> npt.NDArray[np.bool_]:
        """Return a column of flags (R,), bools or 0 and 1; false if it does not exist."""
        if not self.has(name):
            return np.zeros(int(self.sizes.sum()), np.bool_)
        values = self.numbers(name)
        wrong = np.flatnonzero((values != 0) & (values != 1))
        if len(wrong):
            place = self._place.at(self.batch_of(int(wrong[0]))).of(name)
            raise data_error("an end flag must be true or false", place, got=str(values[wrong[0]]))
        return values.astype(np.bool_)

    def ids(self) -> Array:
        """Return episode ids (R,) that also distinguish the agents of an episode."""
        ids = self.column("eps_id")
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iuSU":
            raise data_error("expected one id per step", self._place.of("eps_id"))
        agents = self.integers("agent_index") if self.has("agent_index") else None
        if agents is None or not agents.any():
            return ids
        pairs = zip(ids.tolist(), agents.tolist(), strict=True)
        return np.array([f"{episode}/{agent}" for episode, agent in pairs])

    def segments(self) -> npt.NDArray[np.int64]:
        """Return a number (R,) for the batch and unroll of each step, which replaces an id."""
        batch = np.repeat(np.arange(len(self.sizes)), self.sizes)
        if not self.has("unroll_id"):
            return batch
        unroll = self.integers("unroll_id")
        changes = np.concatenate(([False], (np.diff(batch) != 0) | (np.diff(unroll) != 0)))[: len(batch)]
        return np.cumsum(changes)

    def infos(self) -> list[dict[str, Any]] | None:
        """Return the infos (R,), or None if all are empty."""
        if not self.has("infos"):
            return None
        column, place = self._table["infos"], self._place.of("infos")
        rows: list[Any] = []
        for row, value in enumerate(column.to_pylist()):
            batch = unpack_value(value, place.at(row)) if isinstance(value, (str, bytes)) else value
            if not isinstance(batch, list) or len(batch) != self.sizes[row]:
                raise data_error("expected a list with an info for each step", place.at(row))
            rows += [_without_none(info) if isinstance(info, dict) else {} for info in batch]
        return rows if any(rows) else None

    def _unpacked(self, text: str | bytes, place: DataLocation) -> Column:
        value = unpack_value(text, place)
        try:
            column = nested.stack(value) if isinstance(value, list) else value
            nested.check_columns(column)
        except (TypeError, ValueError) as error:
            raise data_error(f"a packed batch does not contain arrays: {error}", place) from None
        return column

    def batch_of(self, step: int) -> int:
        """Return the batch of a step."""
        return int(np.searchsorted(np.cumsum(self.sizes), step, side="right"))


def _without_none(info: dict[str, Any]) -> dict[str, Any]:
    """Remove keys that only other rows have, which Arrow adds with the value null."""
    return {key: value for key, value in info.items() if value is not None}


def policies_in(schema: pa.Schema) -> list[str]:
    """Return the policies of MultiAgentBatches with this schema; empty for SampleBatches."""
    if _POLICY_BATCHES not in schema.names or not pa.types.is_struct(schema.field(_POLICY_BATCHES).type):
        return []
    return [field.name for field in schema.field(_POLICY_BATCHES).type]


def _of_policy(table: pa.Table, place: DataLocation, name: str | None) -> pa.Table | None:
    """Return the columns of one policy of MultiAgentBatches, or None without rows. Other tables are unchanged."""
    if _POLICY_BATCHES not in table.column_names:
        if name is not None:
            what = "these SampleBatches come from a single agent, but the experiment has several"
            raise data_error(what, place, expected="MultiAgentBatches, whose policies have the names of modules")
        return table
    batches = table[_POLICY_BATCHES].combine_chunks()
    if isinstance(batches, pa.ChunkedArray) or not pa.types.is_struct(batches.type) or batches.null_count:
        raise data_error("SampleBatches and MultiAgentBatches are mixed", place.of(_POLICY_BATCHES))
    names = policies_in(table.schema)
    if name is None and len(names) != 1:
        what = "these batches come from several policies, but the experiment has a single agent"
        fix = "use an experiment with several agents whose modules are named like the policies"
        raise data_error(what, place.of(_POLICY_BATCHES), got=", ".join(names), fix=fix)
    if name is not None and name not in names:
        return None
    policy = batches.field(names.index(name) if name is not None else 0)
    if name is not None and pa.types.is_struct(policy.type):
        policy = policy.filter(policy.is_valid())  # not every policy acts in every batch
    if not pa.types.is_struct(policy.type) or policy.null_count:
        what = "a MultiAgentBatch does not contain a SampleBatch"
        raise data_error(what, place.of(_POLICY_BATCHES), got=str(policy.type)[:80])
    fields = [policy.type.field(index).name for index in range(policy.type.num_fields)]
    return pa.Table.from_arrays(policy.flatten(), names=fields)


# --- JSON lines -----------------------------------------------------------------------------------


def _lines(stream: ByteStream) -> Iterator[bytes]:
    """Yield the lines of a file, including line ends."""
    rest: list[bytes] = []
    while chunk := stream.read(_READ_BYTES):
        *complete, tail = chunk.split(b"\n")
        for line in complete:
            rest.append(line)
            yield b"".join([*rest, b"\n"])
            rest = []
        if tail:
            rest.append(tail)
    if rest:
        yield b"".join(rest)


def _parse(lines: Sequence[bytes], place: DataLocation) -> Iterator[RawTable]:
    """Yield one table per run of lines whose columns have equal types.

    Python parses the lines: pyarrow 25 crashes the process if a line is not an object (`null`), and returns arrays of
    unequal length for some damaged lines.
    """
    first, signature = 0, None
    run: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            batch = json.loads(line)
        except (ValueError, RecursionError) as error:
            hint = "" if line.endswith(b"\n") else "; the file is truncated"
            raise data_error(f"this line is not valid JSON: {error!s:.200}{hint}", place.at(number)) from None
        if not isinstance(batch, dict):
            raise data_error("this line is not a JSON object", place.at(number), got=type(batch).__name__)
        types = {name: type(value) for name, value in batch.items()}
        if run and types.keys() != run[0].keys():
            odd = ", ".join(sorted(types.keys() ^ run[0].keys()))
            raise data_error(f"only some batches have {odd}", place.at(number))
        if run and types != signature:
            yield _as_table(run, place.at(first))
            run = []
        if not run:
            first, signature = number, types
        run.append(batch)
    if run:
        yield _as_table(run, place.at(first))


def _as_table(batches: list[dict[str, Any]], place: DataLocation) -> RawTable:
    columns = {}
    for name in batches[0]:
        try:
            columns[name] = pa.array([batch[name] for batch in batches])
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise data_error(f"the values have different types: {error!s:.200}", place.of(name)) from None
    return pa.table(columns), place
