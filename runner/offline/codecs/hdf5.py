"""Read HDF5 files in D4RL's layout: one array per field, with the steps of all episodes concatenated.

The fields are `observations`, `actions` and `rewards` (N rows each), the end flags `terminals` and `timeouts`, and
optionally `next_observations` and `infos/...`. Nested observations are groups. If `next_observations` exists, an
episode also ends if a row's next observation differs from the following row's observation. Episodes are read in blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from runner.config.errors import list_names, nearest_match
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.offline.codecs.step_columns import read_end_flags
from runner.offline.codecs.trajectories import (
    ReadCounts,
    Spans,
    Steps,
    build_block,
    check_new_obs,
    check_rewards,
    rows_equal,
)
from runner.offline.files.data_error import DataLocation, data_error, import_extra
from runner.offline.files.input_files import check_size

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_STEPS = 2**16
_NAMES = {OBS: "observations", ACTIONS: "actions", REWARDS: "rewards"}
_NEXT, _TERMINALS, _TIMEOUTS, _INFOS = "next_observations", "terminals", "timeouts", "infos"
_LOGP = "action_log_probs"  # the only field of `infos` that is a model output
_MAX_DEPTH = 32

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def blocks(
    file: str | Path | BinaryIO,
    max_steps: int = MAX_STEPS,
    *,
    name: str | None = None,
    counts: ReadCounts | None = None,
    with_infos: bool = False,
    extra: Collection[str] | None = None,
) -> Iterator[ColumnBlock]:
    """Yield the episodes of a file in blocks of about `max_steps` steps; longer episodes are split into chunks.

    Args:
        file: path, or an open seekable file.
        max_steps: steps of a block.
        name: name of the file for errors and episode ids. None uses its path.
        counts: updated with the corrections made.
        with_infos: whether to read `infos/...`, which become dicts per step on access.
        extra: extra columns to read in addition to `obs`, `actions` and `rewards`, or None for all.

    Raises:
        DataError: h5py is missing, the file is damaged, or a field is missing or inconsistent.
    """
    counts = counts if counts is not None else ReadCounts()
    with open_file(file, name) as (root, place):
        fields = _Fields.read(root, place, with_infos).selected(extra)
        ends, is_terminated, is_truncated = _find_ends(fields, place, counts, max_steps)
        prefix = "/".join(Path(place.file or "data").with_suffix("").parts[-2:])
        for spans in _group(ends, max_steps, prefix):
            yield _read_block(fields, spans, (is_terminated, is_truncated), counts, place)


@contextmanager
def open_file(file: str | Path | BinaryIO, name: str | None) -> Iterator[tuple[Any, DataLocation]]:
    """Open the file's root group and its location for errors. Errors of h5py become `DataError`."""
    place = DataLocation(
        name or (str(file) if isinstance(file, (str, Path)) else getattr(file, "name", None)), unit="step"
    )
    h5py = import_extra("h5py", place, "reading HDF5 files")
    try:
        root = h5py.File(file, "r")
    except FileNotFoundError:
        raise data_error("the file does not exist", place) from None
    except (OSError, RuntimeError) as error:
        raise data_error(f"this is not an HDF5 file, or it is damaged: {error}", place) from None
    with root:
        try:
            yield root, place
        except (OSError, RuntimeError, KeyError) as error:
            raise data_error(f"an HDF5 file is damaged: {error}", place) from None


# --- the fields -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Fields:
    """Datasets of a file, each with `num_steps` rows, which are read later."""

    columns: dict[str, Any]
    next_obs: Any | None
    terminals: Any | None
    timeouts: Any | None
    infos: dict[str, Any]
    num_steps: int

    @classmethod
    def read(cls, root: Any, place: DataLocation, with_infos: bool) -> _Fields:
        rewards = _dataset(root, _NAMES[REWARDS], place)
        num_steps = len(rewards) if rewards.shape else 0
        if not num_steps:
            raise data_error("this file does not contain any steps", place.of("rewards"))
        columns = {column: _tree(root, name, place) for column, name in _NAMES.items()}
        known = {*_NAMES.values(), _NEXT, _TERMINALS, _TIMEOUTS, _INFOS}
        for name in root:
            if name not in known and _is_plain(root, name, num_steps):
                columns[name] = root[name]
        infos = root[_INFOS] if _INFOS in root and _is_inside(root, _INFOS) else {}
        if _is_plain(infos, _LOGP, num_steps):
            columns["action_logp"] = infos[_LOGP]
        fields = cls(
            columns=columns,
            next_obs=_tree(root, _NEXT, place) if _NEXT in root else None,
            terminals=_dataset(root, _TERMINALS, place) if _TERMINALS in root else None,
            timeouts=_dataset(root, _TIMEOUTS, place) if _TIMEOUTS in root else None,
            infos={key: infos[key] for key in infos if _is_plain(infos, key, num_steps)} if with_infos else {},
            num_steps=num_steps,
        )
        fields.check(place)
        return fields

    def selected(self, extra: Collection[str] | None) -> _Fields:
        """Return the fields without unused columns."""
        if extra is None:
            return self
        return replace(self, columns={n: c for n, c in self.columns.items() if n in _NAMES or n in extra})

    def check(self, place: DataLocation) -> None:
        """Check that every field has one row per reward."""
        fields = {**self.columns, _NEXT: self.next_obs, _TERMINALS: self.terminals, _TIMEOUTS: self.timeouts}
        for column, tree in fields.items():
            for leaf in () if tree is None else nested.leaves(tree):
                check_dataset(leaf, place.of(leaf.name.lstrip("/") or column))
                if leaf.shape[:1] != (self.num_steps,):
                    got = f"shape {leaf.shape}"
                    where = place.of(leaf.name.lstrip("/") or column)
                    raise data_error(f"expected one row for each of the {self.num_steps} rewards", where, got=got)
        for name, leaf in self.infos.items():
            check_dataset(leaf, place.of(name))
        if self.terminals is None:
            near = nearest_match(_TERMINALS, self.columns)
            raise data_error("the field terminals, which marks the ends of episodes, is missing", place, nearest=near)


def check_dataset(item: Any, place: DataLocation) -> None:
    """Reject a dataset that declares far more than the file stores: HDF5 fills missing values with zeros."""
    check_size(int(item.nbytes), int(item.id.get_storage_size()), place)


def _dataset(root: Any, name: str, place: DataLocation) -> Any:
    """Return a dataset of plain numbers without reading it."""
    leaf = _tree(root, name, place)
    if isinstance(leaf, (dict, tuple)):
        raise data_error("expected an array, got a group", place.of(name))
    return leaf


def _tree(group: Any, name: str, place: DataLocation, depth: int = 0) -> Any:
    """Return the datasets under a name, nested like the groups."""
    import h5py

    if name not in group:
        got, near = list_names(group, name), nearest_match(name, group)
        raise data_error(f"there is no field {name}", place, got=got, nearest=near)
    if not _is_inside(group, name):
        raise data_error("links to other files are not supported", place.of(name))
    item = group[name]
    where = place.of(str(item.name).lstrip("/"))
    if isinstance(item, h5py.Dataset):
        if item.dtype.kind not in "biufcS" or item.is_virtual or item.external:
            raise data_error("expected an array of numbers in this file", where, got=str(item.dtype))
        return item
    if not isinstance(item, h5py.Group) or depth > _MAX_DEPTH or not len(item):
        raise data_error("expected an array, or a group of arrays", where)
    parts = {key: _tree(item, key, place, depth + 1) for key in item}
    indices = [f"_index_{index}" for index in range(len(parts))]  # Minari's tuples
    return tuple(parts[key] for key in indices) if set(indices) == set(parts) else parts


def _is_inside(group: Any, name: str) -> bool:
    """Return whether a name does not link to another file."""
    import h5py

    return isinstance(group.get(name, getlink=True), h5py.HardLink)


def _is_plain(group: Any, name: str, num_steps: int) -> bool:
    """Return whether the name is an array of numbers with one row per step."""
    import h5py

    if name not in group or not _is_inside(group, name):
        return False
    item = group[name]
    if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
        return False
    return item.dtype.kind in "biuf" and bool(item.shape) and item.shape[0] == num_steps


def read_rows(tree: Any, start: int, stop: int) -> Column:
    """Read rows of datasets as arrays in native byte order."""

    def read(leaf: Any) -> Array:
        rows: Array = leaf[start:stop]
        return rows.astype(rows.dtype.newbyteorder("="), copy=False)

    return nested.map_leaves(read, tree)


def read_flags(leaf: Any, start: int, stop: int, place: DataLocation) -> BoolArray:
    """Read bool flags (rows,) from a dataset of bools or of the numbers 0 and 1."""
    values = leaf[start:stop].reshape(-1)
    if len(values) != stop - start:
        raise data_error("expected one flag per step", place.of(leaf.name.lstrip("/")), got=f"shape {leaf.shape}")
    return read_end_flags(values, place.at(start).of(leaf.name.lstrip("/")))


# --- the episodes ---------------------------------------------------------------------------------


def _find_ends(
    fields: _Fields, place: DataLocation, counts: ReadCounts, max_steps: int
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Return the ends of episodes (row after the last one) and the flags of all steps, at two bytes per step."""
    size = fields.num_steps
    is_terminated = read_flags(fields.terminals, 0, size, place)
    is_truncated = np.zeros(size, np.bool_) if fields.timeouts is None else read_flags(fields.timeouts, 0, size, place)
    is_end = is_terminated | is_truncated
    if fields.next_obs is not None:
        for start in range(0, size - 1, max_steps):
            stop = min(start + max_steps, size - 1)
            following, recorded = (
                read_rows(fields.columns[OBS], start + 1, stop + 1),
                read_rows(fields.next_obs, start, stop),
            )
            check_new_obs(following, recorded, place.of(_NEXT))
            fits = rows_equal(recorded, following)
            breaks = np.flatnonzero(~fits & ~is_end[start:stop]) + start
            is_truncated[breaks] = is_end[breaks] = True
            counts.breaks += len(breaks) if fields.timeouts is not None else 0  # without timeouts, breaks are expected
    elif not is_end.any():
        what = (
            "the ends of episodes are unknown: terminals and timeouts are all false, and next_observations is missing"
        )
        raise data_error(what, place.of(_TERMINALS))
    is_end[-1] = True
    is_truncated[-1] |= not is_terminated[-1]  # the last row of the file
    return np.flatnonzero(is_end) + 1, is_terminated, is_truncated


def _group(ends: IntArray, max_steps: int, prefix: str) -> Iterator[Spans]:
    """Yield the episodes in groups of about `max_steps` steps; each chunk of a longer episode is a separate group."""
    starts = np.concatenate(([0], ends[:-1]))
    first = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + max_steps, side="right")))
        if last == first + 1 and ends[first] - starts[first] > max_steps:
            start, end = int(starts[first]), int(ends[first])
            for at in range(start, end, max_steps):
                length = min(max_steps, end - at)
                yield Spans(np.array([at]), np.array([length]), np.array([at - start]), [f"{prefix}/{start}"])
        else:
            ids = [f"{prefix}/{start}" for start in starts[first:last].tolist()]
            lengths = ends[first:last] - starts[first:last]
            yield Spans(starts[first:last], lengths, np.zeros(last - first, np.int64), ids)
        first = last


def _read_block(
    fields: _Fields, spans: Spans, flags: tuple[BoolArray, BoolArray], counts: ReadCounts, place: DataLocation
) -> ColumnBlock:
    start, stop = int(spans.starts[0]), int(spans.last[-1]) + 1
    is_terminated, is_truncated = (flag[start:stop] for flag in flags)
    columns = {name: read_rows(tree, start, stop) for name, tree in fields.columns.items()}
    rewards = columns[REWARDS].reshape(-1)
    if len(rewards) != stop - start:
        raise data_error("expected one reward per step", place.of("rewards"), got=f"shape {columns[REWARDS].shape}")
    check_rewards(rewards, lambda step: place.at(start + step).of("rewards"))
    columns[REWARDS] = rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)
    new_obs = None if fields.next_obs is None else read_rows(fields.next_obs, start, stop)
    is_cut = not (is_terminated[-1] or is_truncated[-1]) and stop < fields.num_steps
    if is_cut and new_obs is None:  # the row after a chunk of a long episode is its final observation
        after = read_rows(fields.columns[OBS], stop, stop + 1)
        new_obs = nested.concatenate((nested.take(columns[OBS], slice(1, None)), after))
    steps = Steps(columns, is_terminated, is_truncated, new_obs)
    block, spans = build_block(steps, replace(spans, starts=spans.starts - start), counts)
    if not fields.infos or not len(block):
        return block
    infos = {key: leaf[start:stop] for key, leaf in fields.infos.items()}
    pairs = zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    return replace(block, infos=ArrayInfos([nested.take(infos, slice(at, at + length)) for at, length in pairs]))


@dataclass(frozen=True)
class ArrayInfos:
    """Infos stored as arrays; become dicts on access.

    Attributes:
        chunks: name -> array, for each of E chunks. Row i belongs to observation i; the last ones may lack rows.
    """

    chunks: Sequence[Mapping[str, Array]]

    def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
        columns = self.chunks[chunk]
        if not columns:
            return None
        return [{key: column[row] for key, column in columns.items() if row < len(column)} for row in range(num_rows)]
