"""Write RLlib's episode files: a column `item`, with the msgpack of a `SingleAgentEpisode`'s state in each row.

The states equal those recorded by RLlib's env runners: buffers are lists with one item per step, with arrays encoded as
by msgpack-numpy. All steps of a column share the header of their encoded arrays, so the bytes of all rows are computed
together. `rllib_episodes` reads these files.
Dimension letters: R rows of a block, W bytes of an encoded row.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.offline.codecs.layout import Layout
from runner.offline.codecs.rllib_episodes import ITEM

if TYPE_CHECKING:
    from gymnasium import Space

# RLlib's env runners store it as plain integers.
_WEIGHTS_SEQ_NO = "weights_seq_no"
_INT64_HEAD, _FLOAT64_HEAD = b"\xd3", b"\xcb"
_MAX_TEXT = 1000
_Rows = npt.NDArray[np.uint8]  # (R, W)


def episodes_to_items(block: ColumnBlock, layout: Layout) -> pa.Table:
    """Return the episodes of a block as a table, one row each, without lookback.

    Rewards become 64-bit floats, like Python's; other columns keep their dtypes.

    Args:
        block: E chunks.
        layout: layout with the known spaces of the environment, which are stored in each row.
    """
    spaces = {name: describe_space(getattr(layout.spaces, name)) for name in ("observation", "action")}
    encoded = {name: _encoded_rows(name, column) for name, column in block.columns.items()}
    items = [_packed_state(block, chunk, encoded, spaces) for chunk in range(len(block))]
    return pa.table({ITEM: pa.array(items, pa.binary())})


def _packed_state(
    block: ColumnBlock, chunk: int, encoded: Mapping[str, _Rows], spaces: Mapping[str, dict[str, Any] | None]
) -> bytes:
    length, start, agents = int(block.lengths[chunk]), int(block.offsets[chunk]), block.agents
    t_started = int(block.t_started[chunk])
    steps = slice(start, start + length)
    infos = None if block.infos is None else block.infos.rows_of(chunk, 0, length + 1)
    outputs = {
        name: _packed_buffer(_joined(rows[steps]))
        for name, rows in encoded.items()
        if name not in (OBS, ACTIONS, REWARDS)
    }
    fields = {
        "id_": _packed(str(block.episode_ids[chunk])),
        "agent_id": _packed(None if agents is None else str(agents.agent_ids[chunk])),
        "module_id": _packed(None if agents is None else block.module_id),
        "multi_agent_episode_id": _packed(None if agents is None else str(agents.multi_agent_episode_ids[chunk])),
        "observations": _packed_buffer(
            _joined(encoded[OBS][start + chunk : start + chunk + length + 1]), spaces["observation"]
        ),
        "actions": _packed_buffer(_joined(encoded[ACTIONS][steps]), spaces["action"]),
        "rewards": _packed_buffer(_joined(encoded[REWARDS][steps]), _REWARD_SPACE),
        "infos": _packed_buffer(_packed([{}] * (length + 1) if infos is None else infos)),
        "extra_model_outputs": _packed_map(outputs) if outputs else _packed(None),
        "is_terminated": _packed(block.is_terminated[chunk]),
        "is_truncated": _packed(block.is_truncated[chunk]),
        "t_started": _packed(t_started),
        "t": _packed(t_started + length),
        "_observation_space": _packed(spaces["observation"]),
        "_action_space": _packed(spaces["action"]),
        "_start_time": _packed(None),
        "_last_step_time": _packed(None),
        "custom_data": _packed({}),
    }
    return _packed_map(fields)


# --- rows of a column -----------------------------------------------------------------------------


def _encoded_rows(name: str, column: Column) -> _Rows:
    """Return each row of a column as msgpack."""
    if name == REWARDS:
        return _plain_rows(np.asarray(column), _FLOAT64_HEAD, ">f8")
    if name == _WEIGHTS_SEQ_NO and isinstance(column, np.ndarray) and column.dtype.kind in "iu":
        return _plain_rows(column, _INT64_HEAD, ">i8")
    return _encoded_tree(column)


def _plain_rows(numbers: npt.NDArray[Any], head: bytes, dtype: str) -> _Rows:
    return _with_head(head, numbers.astype(dtype).reshape(-1, 1).view(np.uint8))


def _encoded_tree(column: Any) -> _Rows:
    if isinstance(column, Mapping):
        parts = [_with_head(_packed(key), _encoded_tree(part)) for key, part in column.items()]
        return _with_head(_packer().pack_map_header(len(parts)), np.concatenate(parts, axis=1))
    if isinstance(column, tuple):
        parts = [_encoded_tree(part) for part in column]
        return _with_head(_packer().pack_array_header(len(parts)), np.concatenate(parts, axis=1))
    array = np.ascontiguousarray(column)
    num_bytes = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    raw = np.frombuffer(array.tobytes(), np.uint8).reshape(len(array), num_bytes)
    fields = _array_fields(array.dtype, array.shape[1:], bool(array.shape[1:]))
    blank = _packed(bytes(num_bytes))
    head = _packed_map({key: _packed(value) for key, value in fields.items()} | {b"data": blank})
    return _with_head(head[: len(head) - num_bytes], raw)


def _array_fields(dtype: np.dtype[Any], shape: tuple[int, ...], is_array: bool) -> dict[bytes, Any]:
    """Return msgpack-numpy's fields of an array or scalar, without its data."""
    scalar = {b"nd": is_array, b"type": dtype.str}
    return scalar | ({b"kind": b"", b"shape": list(shape)} if is_array else {})


def _with_head(head: bytes, rows: _Rows) -> _Rows:
    constant = np.broadcast_to(np.frombuffer(head, np.uint8), (len(rows), len(head)))
    return np.concatenate([constant, rows], axis=1)


def _joined(rows: _Rows) -> bytes:
    """Return rows as one msgpack array."""
    return bytes(_packer().pack_array_header(len(rows))) + rows.tobytes()


# --- parts of a state -----------------------------------------------------------------------------


def _packed_buffer(data: bytes, space: dict[str, Any] | None = None) -> bytes:
    fields = {"data": data, "lookback": _packed(0), "finalized": _packed(False), "space": _packed(space)}
    return _packed_map(fields)


def _packed_map(fields: Mapping[Any, bytes]) -> bytes:
    """Return a map of values that are already packed."""
    packed = [_packed(key) + value for key, value in fields.items()]
    return b"".join([_packer().pack_map_header(len(fields)), *packed])


def _packer() -> Any:
    import msgpack

    return msgpack.Packer(default=_as_plain)


def _packed(value: Any) -> bytes:
    return bytes(_packer().pack(value))


def _as_plain(value: Any) -> Any:
    """Convert a value that msgpack lacks: arrays as in msgpack-numpy, others, such as large integers, as text."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        fields = _array_fields(value.dtype, value.shape, isinstance(value, np.ndarray))
        return fields | {b"data": value.tobytes()}
    return str(value)[:_MAX_TEXT]


# --- spaces ---------------------------------------------------------------------------------------


def describe_space(space: Space[Any] | None) -> dict[str, Any] | None:
    """Return RLlib's description of a space; None for None and for kinds that `read_space` does not support."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Box):
        bounds = {"low": _packed_bounds(space.low), "high": _packed_bounds(space.high)}
        return {"space": "box", **bounds, "shape": list(space.shape), "dtype": space.dtype.str}
    if isinstance(space, gs.Discrete):
        return {"space": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gs.MultiDiscrete):
        return {"space": "multi-discrete", "nvec": _packed_bounds(space.nvec), "dtype": space.dtype.str}
    if isinstance(space, gs.MultiBinary):
        return {"space": "multi-binary", "n": int(space.n) if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, gs.Tuple):
        parts = [describe_space(part) for part in space.spaces]
        return None if None in parts else {"space": "tuple", "spaces": parts}
    if isinstance(space, gs.Dict):
        named = {key: describe_space(part) for key, part in space.spaces.items()}
        return None if None in named.values() else {"space": "dict", "spaces": named}
    return None


def _packed_bounds(array: npt.NDArray[Any]) -> str:
    """Encode an array in numpy's file format, compressed, in base64."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return base64.b64encode(zlib.compress(file.getvalue())).decode("ascii")


def _reward_space() -> dict[str, Any]:
    bounds = {"low": np.array(-np.inf, np.float32), "high": np.array(np.inf, np.float32)}
    packed = {name: _packed_bounds(bound) for name, bound in bounds.items()}
    return {"space": "box", **packed, "shape": [], "dtype": "<f4"}


_REWARD_SPACE = _reward_space()
