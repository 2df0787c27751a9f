"""Write RLlib's episode files: a column `item`, with the msgpack of a `SingleAgentEpisode`'s state in each row.

The states equal those recorded by RLlib's env runners: buffers are lists with one item per step, with arrays encoded as
by msgpack-numpy. `rllib_episodes` reads these files.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.layout import Layout
from runner.offline.codecs.rllib_episodes import ITEM

if TYPE_CHECKING:
    from gymnasium import Space

# RLlib's env runners store it as plain integers.
_WEIGHTS_SEQ_NO = "weights_seq_no"
_MAX_TEXT = 1000
# Type of msgpack -> classes whose instances become one.
_PLAIN: dict[Any, type] = {dict: Mapping, list: tuple, int: int, float: float, str: str}


def episodes_to_items(block: ColumnBlock, layout: Layout) -> pa.Table:
    """Return the episodes of a block as a table, one row each, without lookback.

    Rewards become 64-bit floats, like Python's; other columns keep their dtypes.

    Args:
        block: E chunks.
        layout: layout with the known spaces of the environment, which are stored in each row.
    """
    import msgpack

    packer = msgpack.Packer(default=_as_plain, strict_types=True)  # numpy's float64 and text derive from Python's types
    spaces = {name: describe_space(getattr(layout.spaces, name)) for name in ("observation", "action")}
    items = [packer.pack(_state_of(block, chunk, spaces)) for chunk in range(len(block))]
    return pa.table({ITEM: pa.array(items, pa.binary())})


def _state_of(block: ColumnBlock, chunk: int, spaces: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
    length, start, agents = int(block.lengths[chunk]), int(block.offsets[chunk]), block.agents
    t_started = int(block.t_started[chunk])
    infos = None if block.infos is None else block.infos.rows_of(chunk, length + 1)
    outputs = {
        name: _buffer(_rows(name, column, start, length))
        for name, column in block.columns.items()
        if name not in (OBS, ACTIONS, REWARDS)
    }
    return {
        "id_": str(block.episode_ids[chunk]),
        "agent_id": None if agents is None else str(agents.agent_ids[chunk]),
        "module_id": None if agents is None else block.module_id,
        "multi_agent_episode_id": None if agents is None else str(agents.multi_agent_episode_ids[chunk]),
        "observations": _buffer(_rows(OBS, block.columns[OBS], start + chunk, length + 1), spaces["observation"]),
        "actions": _buffer(_rows(ACTIONS, block.columns[ACTIONS], start, length), spaces["action"]),
        "rewards": _buffer(_rows(REWARDS, block.columns[REWARDS], start, length), _REWARD_SPACE),
        "infos": _buffer([{}] * (length + 1) if infos is None else infos),
        "extra_model_outputs": outputs or None,
        "is_terminated": block.is_terminated[chunk],
        "is_truncated": block.is_truncated[chunk],
        "t_started": t_started,
        "t": t_started + length,
        "_observation_space": spaces["observation"],
        "_action_space": spaces["action"],
        "_start_time": None,
        "_last_step_time": None,
        "custom_data": {},
    }


def _buffer(data: Sequence[Any], space: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"data": data, "lookback": 0, "finalized": False, "space": space}


def _rows(name: str, column: Column, start: int, length: int) -> list[Any]:
    """Return rows of a column as RLlib stores them."""
    rows = nested.take(column, slice(start, start + length))
    if name == REWARDS:
        return list(np.asarray(rows, np.float64).tolist())
    if name == _WEIGHTS_SEQ_NO and isinstance(rows, np.ndarray) and rows.dtype.kind in "iu":
        return list(rows.tolist())
    return nested.unstack(nested.map_leaves(_with_encoded_text, rows))


def _with_encoded_text(leaf: Array) -> Array:
    """Return text scalars encoded with the column's dtype, because each of numpy's has a dtype of its length."""
    if leaf.dtype.kind not in "SU" or leaf.ndim > 1:
        return leaf
    encoded = np.empty(len(leaf), object)
    for row in range(len(leaf)):
        encoded[row] = _encoded(leaf.dtype, leaf[row : row + 1].tobytes())
    return encoded


def _encoded(dtype: np.dtype[Any], data: bytes, shape: tuple[int, ...] | None = None) -> dict[bytes, Any]:
    """Return an array, or a scalar without a shape, in the form of msgpack-numpy."""
    fields = {} if shape is None else {b"kind": b"", b"shape": list(shape)}
    return {b"nd": shape is not None, b"type": dtype.str, **fields, b"data": data}


def _as_plain(value: Any) -> Any:
    """Convert a value that msgpack lacks: arrays as in msgpack-numpy, others, such as large integers, as text."""
    if isinstance(value, str):  # numpy's text, also as a key
        return str(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return _encoded(value.dtype, value.tobytes(), value.shape if isinstance(value, np.ndarray) else None)
    for plain, base in _PLAIN.items():
        if isinstance(value, base) and type(value) is not plain:
            return plain(value)
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
