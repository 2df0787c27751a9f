"""Infos of observations, stored as the environment returned them and split on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.config.errors import Problem, RunFailure
from runner.rows.array_namespace import Array

# Infos that a vector environment returns: one dict per sub-environment, or gymnasium's dict of arrays.
Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass
class RowInfos:
    """Infos by row of a store: of all its slots together, or of one slot."""

    of_row: dict[int, Infos] = field(default_factory=dict)
    of_slot: dict[tuple[int, int], Mapping[str, Any]] = field(default_factory=dict)  # (row, slot) -> info

    def __bool__(self) -> bool:
        return bool(self.of_row or self.of_slot)

    def clear(self) -> None:
        """Forget all infos."""
        self.of_row.clear()
        self.of_slot.clear()

    def at(self, row: int, slot: int) -> dict[str, Any]:
        """Return the info of a slot's observation in a row; empty if there was none."""
        if row in self.of_row:
            return info_of(self.of_row[row], slot)
        return dict(self.of_slot.get((row, slot), {}))

    def move_newest(self, newest_row: Callable[[int], int], to_row: int) -> None:
        """Move the infos of the newest observation of each slot to a row, and forget the others."""
        newest = self.of_row.get(newest_row(0))
        self.of_row = {} if newest is None else {to_row: newest}
        self.of_slot = {(to_row, slot): info for (row, slot), info in self.of_slot.items() if row == newest_row(slot)}

    def of_chunks(self, slots: Array, first_rows: Array) -> ChunkInfos:
        """Return the infos of chunks that begin in these rows (E,) of these slots (E,), safe from later writes."""
        return ChunkInfos(RowInfos(dict(self.of_row), dict(self.of_slot)), slots.tolist(), first_rows.tolist())


@dataclass(frozen=True)
class ChunkInfos:
    """The infos of a cut fragment."""

    infos: RowInfos
    slots: Sequence[int]
    first_rows: Sequence[int]

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        """Return `num_rows` infos of the chunk's observations."""
        first, slot = self.first_rows[chunk], self.slots[chunk]
        return [self.infos.at(row, slot) for row in range(first, first + num_rows)]


def copied_info(value: Any) -> Any:
    """Return an info with copies of its dicts, lists and arrays, safe from an environment that reuses them."""
    if isinstance(value, np.ndarray):
        return value.copy()
    kind = type(value)
    if kind is dict:
        return {key: copied_info(part) for key, part in value.items()}
    return kind(map(copied_info, value)) if kind in (list, tuple) else value


def info_of(infos: Infos, env: int) -> dict[str, Any]:
    """Return the info of one sub-environment from a list, or from gymnasium's dict of arrays.

    In that dict `_key` has a mask of the sub-environments that have `key`.

    Raises:
        RunFailure: a key of the dict does not have a value for each sub-environment.
    """
    if not isinstance(infos, Mapping):
        return dict(infos[env])
    info: dict[str, Any] = {}
    for key, values in infos.items():
        is_valid = infos.get(f"_{key}")
        if _is_note(key, infos):
            continue
        try:
            if is_valid is None or is_valid[env]:
                info[key] = info_of(values, env) if isinstance(values, Mapping) else values[env]
        except (LookupError, TypeError) as error:
            raise missing_values(str(key), str(values)) from error
    return info


def missing_values(key: str, got: str | None = None) -> RunFailure:
    """Return the error for a key of a vector environment's infos without a value for each sub-environment."""
    what = f"info {key} does not contain a value per sub-environment"
    expected = f"an array with a value for each of them, and a mask _{key} if only some have one"
    return RunFailure(Problem(what, "infos of the vector environment", got, expected))


def keys_of(infos: Infos) -> list[str]:
    """Return the keys of infos in order, nested ones joined with slashes."""
    if not isinstance(infos, Mapping):
        return sorted({key for info in infos for key in keys_of(info)})
    keys: list[str] = []
    for key, value in infos.items():
        if _is_note(key, infos):
            continue
        keys += [f"{key}/{part}" for part in keys_of(value)] if isinstance(value, Mapping) else [str(key)]
    return sorted(keys)


def _is_note(key: Any, infos: Mapping[Any, Any]) -> bool:
    """Return whether a key is gymnasium's mask of the sub-environments that have another key."""
    return isinstance(key, str) and key.startswith("_") and key[1:] in infos
