"""Column blocks and rollouts as plain values and arrays, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import (
    Agents,
    ColumnBlock,
    InfoRows,
    ListedInfos,
    Lookback,
    LookbackRows,
    Rollout,
    columns_before_each,
    lookback_rows,
)


def rollout_to_state(rollout: Rollout) -> dict[str, Any]:
    """Return a rollout as nested dicts and lists of arrays and plain values.

    Values of infos that checkpoints cannot hold are dropped.
    """
    return {
        "blocks": {module_id: block_to_state(block) for module_id, block in rollout.blocks.items()},
        "num_env_steps": rollout.num_env_steps,
        "leave_out": list(rollout.skip_journal_records),
    }


def rollout_from_state(state: Mapping[str, Any]) -> Rollout:
    """Invert `rollout_to_state`."""
    blocks = {module_id: block_from_state(block) for module_id, block in state["blocks"].items()}
    return Rollout(blocks, int(state["num_env_steps"]), tuple(state["leave_out"]))


def block_to_state(block: ColumnBlock) -> dict[str, Any]:
    """Return a block as nested dicts and lists of arrays and plain values."""
    return {
        "columns": dict(block.columns),
        "lengths": block.lengths,
        "is_terminated": block.is_terminated,
        "is_truncated": block.is_truncated,
        "t_started": block.t_started,
        "episode_ids": list(block.episode_ids),
        "lookback": _lookback_to_state(block.lookback, len(block)),
        "last_lookback": _lookback_to_state(block.last_lookback, len(block)),
        "infos": None if block.infos is None else _infos_to_state(block.infos, block.lengths),
        "module_id": block.module_id,
        "agents": None if block.agents is None else asdict(block.agents),
    }


def block_from_state(state: Mapping[str, Any]) -> ColumnBlock:
    """Invert `block_to_state`."""
    infos, agents = state["infos"], state["agents"]
    return ColumnBlock(
        columns=state["columns"],
        lengths=state["lengths"],
        is_terminated=state["is_terminated"],
        is_truncated=state["is_truncated"],
        t_started=state["t_started"],
        episode_ids=state["episode_ids"],
        lookback=_lookback_from_state(state["lookback"]),
        last_lookback=_lookback_from_state(state["last_lookback"]),
        infos=None if infos is None else ListedInfos(infos),
        module_id=state["module_id"],
        agents=None if agents is None else Agents(**agents),
    )


def _lookback_to_state(lookback: Lookback | None, num_chunks: int) -> dict[str, Any] | None:
    rows = lookback_rows(columns_before_each(lookback, range(num_chunks)), num_chunks)
    return None if rows is None else {"num_before": rows.num_before, "columns": dict(rows.columns)}


def _lookback_from_state(state: Mapping[str, Any] | None) -> Lookback | None:
    return None if state is None else LookbackRows(state["columns"], state["num_before"])


def _infos_to_state(infos: InfoRows, lengths: npt.NDArray[np.int64]) -> list[Any]:
    rows = [infos.rows_of(chunk, length + 1) for chunk, length in enumerate(lengths.tolist())]
    return [None if one is None else [storable_info(info) for info in one] for one in rows]


def storable_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an info without the values that a checkpoint cannot hold."""
    return {key: value for key, value in info.items() if _is_key(key) and _is_storable(value)}


def _is_storable(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_key(key) and _is_storable(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_storable, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return value is None or isinstance(value, (bool, int, float, str, np.number, np.bool_))


def _is_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_key, key))
    return key is None or isinstance(key, (bool, int, float, str, np.number, np.bool_))
