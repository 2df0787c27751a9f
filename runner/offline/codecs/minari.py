"""Read Minari data sets in a local folder: `data/metadata.json` with `main_data.hdf5` or one Arrow file per episode.

An episode has T + 1 `observations`, and T `actions`, `rewards`, `terminations` and `truncations`. Dict spaces are
groups, and Tuple spaces are groups with the keys `_index_0`, `_index_1`, ... Images may be JPEG. Data sets written
before Minari 0.5 store the metadata as attributes of the HDF5 file. Neither Minari nor the environment is needed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from runner.config.errors import list_names, nearest_match
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock
from runner.episodes.nested import Array
from runner.episodes.spaces import space_from_dict
from runner.offline.codecs import hdf5
from runner.offline.codecs.layout import Spaces
from runner.offline.codecs.step_columns import column_to_arrays
from runner.offline.codecs.trajectories import ReadCounts, check_rewards, concatenate_alike
from runner.offline.files import input_files
from runner.offline.files.data_error import DataLocation, data_error, import_extra

if TYPE_CHECKING:
    from gymnasium import Space

_METADATA, _HDF5 = "metadata.json", "main_data.hdf5"
_FORMATS = ("hdf5", "arrow", "parquet")
_FIELDS = {"observations": OBS, "actions": ACTIONS, "rewards": REWARDS}
_TERMINATIONS, _TRUNCATIONS, _INFOS = "terminations", "truncations", "infos"
_EPISODE = re.compile(r"episode_(\d+)")
_MAX_DEPTH = 32


@dataclass(frozen=True)
class MinariInfo:
    """Metadata of a data set.

    Attributes:
        dataset_id: id, for example `mujoco/hopper/medium-v0`, or else the folder's name.
        env_name: name of the recorded environment, or None if unknown.
        data_format: hdf5, arrow or parquet.
        spaces: recorded spaces, if known.
    """

    dataset_id: str
    env_name: str | None
    data_format: str
    spaces: Spaces


def recognises(path: str | Path) -> bool:
    """Return whether a folder (or its subfolder `data`) is a Minari data set."""
    folder = _data_folder(path)
    if (folder / _HDF5).is_file():
        return True
    try:
        return json.loads((folder / _METADATA).read_text()).get("data_format") in _FORMATS
    except (OSError, ValueError, AttributeError):
        return False


def read_info(path: str | Path) -> MinariInfo:
    """Read the metadata of a data set. Raises `DataError` if it is damaged."""
    folder = _data_folder(path)
    place = DataLocation(str(folder / _METADATA))
    try:
        metadata = json.loads((folder / _METADATA).read_text())
    except FileNotFoundError:
        metadata = _read_attributes(folder)
    except (OSError, ValueError) as error:
        raise data_error(f"the metadata cannot be read: {error}", place) from None
    if not isinstance(metadata, dict):
        raise data_error("the metadata is not a JSON object", place)
    data_format = metadata.get("data_format", "hdf5")
    if data_format not in _FORMATS:
        got, expected = repr(data_format)[:80], ", ".join(_FORMATS)
        raise data_error("unknown data format", place.of("data_format"), got=got, expected=expected)
    return MinariInfo(
        dataset_id=str(metadata.get("dataset_id") or folder.resolve().parent.name),
        env_name=_env_name(metadata.get("env_spec")),
        data_format=data_format,
        spaces=Spaces(*(_read_space(metadata.get(name), place.of(name)) for name in _SPACES)),
    )


def blocks(
    path: str | Path,
    max_steps: int = hdf5.MAX_STEPS,
    *,
    counts: ReadCounts | None = None,
    with_infos: bool = False,
) -> Iterator[ColumnBlock]:
    """Yield the episodes of a data set in order, in blocks of about `max_steps` steps or one longer episode.

    Args:
        path: the data set's folder.
        max_steps: steps of a block.
        counts: updated with the corrections made.
        with_infos: whether to read `infos`, which become dicts per step on access.

    Raises:
        DataError: a package is missing, the data are damaged, or an episode's fields are missing or inconsistent.
    """
    counts = counts if counts is not None else ReadCounts()
    info = read_info(path)
    folder = _data_folder(path)
    read = _read_hdf5 if info.data_format == "hdf5" else _read_arrow
    held: list[_Episode] = []
    num_steps = 0
    for raw in read(folder, info, with_infos):
        episode = _check(raw, info, counts)
        if episode is None:
            continue
        if held and num_steps + episode.length > max_steps:
            yield _as_block(held)
            held, num_steps = [], 0
        held.append(episode)
        num_steps += episode.length
    if held:
        yield _as_block(held)


# --- metadata -------------------------------------------------------------------------------------

_SPACES = ("observation_space", "action_space")


def _data_folder(path: str | Path) -> Path:
    folder = Path(path)
    return folder / "data" if (folder / "data").is_dir() else folder


def _read_attributes(folder: Path) -> dict[str, Any]:
    if not (folder / _HDF5).is_file():
        what = f"this is not a Minari data set: it contains neither {_METADATA} nor {_HDF5}"
        raise data_error(what, DataLocation(str(folder)))
    with hdf5.open_file(folder / _HDF5, None) as (root, _):
        values = {key: root.attrs[key] for key in root.attrs}
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}


def _env_name(spec: Any) -> str | None:
    try:
        name = json.loads(spec)["id"]
    except (TypeError, ValueError, KeyError):
        return None
    return name if isinstance(name, str) else None


def _read_space(text: Any, place: DataLocation) -> Space[Any] | None:
    if text is None:
        return None
    try:
        return space_from_dict(_described(json.loads(text)))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise data_error(f"the description of a space is damaged: {error!s:.200}", place) from None


_KINDS = {
    **{"Box": "box", "Discrete": "discrete", "MultiDiscrete": "multi-discrete"},
    **{"MultiBinary": "multi-binary", "Text": "text"},
}


def _described(state: Any) -> dict[str, Any]:
    """Return Minari's description of a space as one of `space_to_dict`."""
    if not isinstance(state, dict) or not isinstance(kind := state.get("type"), str):
        raise ValueError(f"expected a dict with a type, got {state!r:.60}")
    if kind == "Dict":
        return {"space": "dict", "spaces": [[key, _described(part)] for key, part in state["subspaces"].items()]}
    if kind == "Tuple":
        return {"space": "tuple", "spaces": [_described(part) for part in state["subspaces"]]}
    known = {name: value for name, value in state.items() if value is not None}
    return known | {"space": _KINDS.get(kind, kind)}


# --- episodes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Raw:
    """A stored episode: arrays by field."""

    number: int
    place: DataLocation
    fields: dict[str, Column]
    infos: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class _Episode:
    """An episode with consistent fields."""

    id_: str
    columns: dict[str, Column]
    length: int
    is_terminated: bool
    infos: Mapping[str, Array]


def _check(raw: _Raw, info: MinariInfo, counts: ReadCounts) -> _Episode | None:
    """Return the episode, or None if it does not contain a complete step."""
    place = raw.place
    columns = {name: raw.fields[name] for name in _FIELDS}
    rewards = columns["rewards"]
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        raise data_error("expected one number per step", place.of("rewards"))
    check_rewards(rewards, lambda step: place.of(f"rewards[{step}]"))
    length = len(rewards)
    for name, extra in (("actions", (0,)), ("observations", (1, 0)), (_TERMINATIONS, (0,)), (_TRUNCATIONS, (0,))):
        for leaf in nested.leaves(raw.fields[name]):
            if len(leaf) - length not in extra:
                expected = f"{length + extra[0]} for {length} rewards"
                raise data_error(
                    "the fields of an episode have inconsistent lengths",
                    place.of(name),
                    got=str(len(leaf)),
                    expected=expected,
                )
    for name in (_TERMINATIONS, _TRUNCATIONS):
        early = np.flatnonzero(raw.fields[name][:-1])
        if len(early):
            what = "an end flag is set before the last step of an episode"
            raise data_error(what, place.of(f"{name}[{int(early[0])}]"))
    is_terminated = bool(length) and bool(raw.fields[_TERMINATIONS][-1])
    obs = columns["observations"]
    if nested.row_count(obs) == length and length:
        if is_terminated:
            obs = nested.map_leaves(lambda leaf: np.concatenate((leaf, leaf[-1:])), obs)
            counts.final_obs_repeated += 1
        else:
            length -= 1
            columns = {name: nested.take(column, slice(0, length)) for name, column in columns.items()}
            counts.final_steps_dropped += 1
    if not length:
        counts.trajectories_dropped += 1
        return None
    rewards = columns["rewards"]
    columns["rewards"] = rewards if rewards.dtype.kind == "f" else rewards.astype(np.float64)
    named = {OBS: obs, ACTIONS: columns["actions"], REWARDS: columns["rewards"]}
    return _Episode(f"{info.dataset_id}/episode_{raw.number}", named, length, is_terminated, raw.infos)


def _as_block(episodes: Sequence[_Episode]) -> ColumnBlock:
    lengths = np.array([episode.length for episode in episodes], np.int64)
    is_terminated = np.array([episode.is_terminated for episode in episodes], np.bool_)
    return ColumnBlock(
        columns={name: _concatenate(episodes, name) for name in (OBS, ACTIONS, REWARDS)},
        lengths=lengths,
        is_terminated=is_terminated,
        is_truncated=~is_terminated,  # also episodes without an end flag: they do not continue
        t_started=np.zeros(len(lengths), np.int64),
        episode_ids=[episode.id_ for episode in episodes],
        infos=hdf5.ArrayInfos([episode.infos for episode in episodes]) if any(e.infos for e in episodes) else None,
    )


def _concatenate(episodes: Sequence[_Episode], name: str) -> Column:
    parts = [episode.columns[name] for episode in episodes]
    return concatenate_alike(parts, "episodes", lambda number: DataLocation(episodes[number].id_, column=name))


# --- HDF5 -----------------------------------------------------------------------------------------


def _read_hdf5(folder: Path, info: MinariInfo, with_infos: bool) -> Iterator[_Raw]:
    with hdf5.open_file(folder / _HDF5, None) as (root, place):
        numbers = sorted(int(match[1]) for match in map(_EPISODE.fullmatch, root) if match)
        if not numbers:
            raise data_error("this data set does not contain any episodes", place, got=list_names(root))
        for number in numbers:
            group, where = root[f"episode_{number}"], DataLocation(place.file, number, unit="episode")
            fields = {
                "observations": _read_tree(group, "observations", info.spaces.observation, where),
                "actions": _read_tree(group, "actions", info.spaces.action, where),
                "rewards": _read_tree(group, "rewards", None, where),
                **{name: _read_flags(group, name, where) for name in (_TERMINATIONS, _TRUNCATIONS)},
            }
            yield _Raw(number, where, fields, _read_infos(group, number) if with_infos else {})


def _read_tree(group: Any, name: str, space: Space[Any] | None, place: DataLocation, depth: int = 0) -> Column:
    """Return the arrays under a name, nested like the groups, in the order of the space's keys."""
    import h5py
    from gymnasium import spaces as gs

    column = f"{place.column}/{name}" if depth else name
    if name not in group:
        near = nearest_match(name, group)
        what = f"the field {name} of an episode is missing"
        raise data_error(what, place.of(column), got=list_names(group, name), nearest=near)
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise data_error("links to other files are not supported", place.of(column))
    item = group[name]
    if isinstance(item, h5py.Group):
        if depth > _MAX_DEPTH or not len(item):
            raise data_error("expected arrays", place.of(column))
        indices = [f"_index_{index}" for index in range(len(item))]
        if isinstance(space, gs.Tuple) or (space is None and set(indices) == set(item)):
            parts = space.spaces if isinstance(space, gs.Tuple) else [None] * len(indices)
            pairs = zip(indices if len(parts) == len(indices) else [], parts, strict=False)
            return tuple(_read_tree(item, key, part, place.of(column), depth + 1) for key, part in pairs)
        branches = dict(space.spaces) if isinstance(space, gs.Dict) else dict.fromkeys(item)
        return {key: _read_tree(item, key, part, place.of(column), depth + 1) for key, part in branches.items()}
    return _read_leaf(item, space, place.of(column))


def _read_leaf(item: Any, space: Space[Any] | None, place: DataLocation) -> Array:
    import h5py

    if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external or not item.shape:
        raise data_error("expected an array in this file", place)
    hdf5.check_dataset(item, place)
    rows = input_files.check_rows(item, Path(item.file.filename).stat().st_size, place)
    if h5py.check_string_dtype(item.dtype) is not None:
        texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text) for text in rows]
        return np.array(texts, np.str_)
    is_image = (
        space is not None and space.shape is not None and len(space.shape) > 1 and item.ndim < 1 + len(space.shape)
    )
    if is_image or h5py.check_vlen_dtype(item.dtype) is not None:
        return _decode_images([np.asarray(row, np.uint8).tobytes() for row in rows], space, place)
    if item.dtype.kind not in "biufc":
        raise data_error("expected an array of numbers", place, got=str(item.dtype))
    array: Array = item[()]
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_flags(group: Any, name: str, place: DataLocation) -> Array:
    flags = _read_tree(group, name, None, place)
    if not isinstance(flags, np.ndarray) or ((flags != 0) & (flags != 1)).any():
        raise data_error("expected one flag per step", place.of(name))
    return flags.astype(np.bool_)


def _read_infos(group: Any, number: int) -> dict[str, Array]:
    """Return infos that are arrays of numbers; others are left out."""
    import h5py

    found: dict[str, Array] = {}
    infos = group.get(_INFOS)
    if not isinstance(infos, h5py.Group) or not isinstance(group.get(_INFOS, getlink=True), h5py.HardLink):
        return found

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biufc" and item.shape and not item.is_virtual:
            found[name] = item[()]

    infos.visititems(visit)  # follows hard links only
    return found


# --- Arrow ----------------------------------------------------------------------------------------


def _read_arrow(folder: Path, info: MinariInfo, with_infos: bool) -> Iterator[_Raw]:
    numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.is_dir() and entry.name.isdigit())
    if not numbers:
        raise data_error("this data set does not contain any episodes", DataLocation(str(folder)))
    for number in numbers:
        place = DataLocation(str(folder), number, unit="episode")
        table = _read_table(folder / str(number), info.data_format, place)
        for name in (*_FIELDS, _TERMINATIONS, _TRUNCATIONS):
            if name not in table.column_names:
                near = nearest_match(name, table.column_names)
                got = ", ".join(table.column_names)
                raise data_error(f"the field {name} of an episode is missing", place.of(name), got=got, nearest=near)
        steps = table.slice(0, max(table.num_rows - 1, 0))  # the last row only has an observation
        fields = {
            "observations": _from_arrow(table["observations"], info.spaces.observation, place.of("observations")),
            "actions": _from_arrow(steps["actions"], info.spaces.action, place.of("actions")),
            **{
                name: _from_arrow(steps[name], None, place.of(name))
                for name in ("rewards", _TERMINATIONS, _TRUNCATIONS)
            },
        }
        yield _Raw(number, place, fields)


def _read_table(folder: Path, data_format: str, place: DataLocation) -> pa.Table:
    import pyarrow.parquet as pq

    files = sorted(folder.glob(f"*.{data_format}"))
    try:
        if data_format == "parquet":
            return pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
        return pa.concat_tables([pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files])
    except (pa.ArrowInvalid, OSError) as error:
        raise data_error(f"an episode's file is damaged: {error}", place) from None


def _from_arrow(column: pa.ChunkedArray, space: Space[Any] | None, place: DataLocation) -> Column:
    from gymnasium import spaces as gs

    type_ = column.type
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type_)
    if pa.types.is_struct(type_):
        names = [type_.field(index).name for index in range(type_.num_fields)]
        parts = dict(zip(names, array.flatten(), strict=True))
        branches = dict(space.spaces) if isinstance(space, gs.Dict) else dict.fromkeys(names)
        if isinstance(space, gs.Tuple):
            branches = {str(index): part for index, part in enumerate(space.spaces)}
        if branches.keys() != parts.keys():
            raise data_error("a column does not have the space's keys", place, got=", ".join(names))
        read = {
            key: _from_arrow(pa.chunked_array([parts[key]]), part, place.of(f"{place.column}/{key}"))
            for key, part in branches.items()
        }
        return tuple(read.values()) if isinstance(space, gs.Tuple) else read
    if pa.types.is_binary(type_):
        return _decode_images(array.to_pylist(), space, place)
    values = column_to_arrays(array, pa.field(place.column or "", type_), place)
    if space is not None and space.shape is not None and isinstance(values, np.ndarray) and len(space.shape) > 1:
        try:
            return values.reshape(len(values), *space.shape)
        except ValueError:
            raise data_error(f"rows do not fit the space of shape {space.shape}", place) from None
    return values


def _decode_images(rows: Sequence[Any], space: Space[Any] | None, place: DataLocation) -> Array:
    """Decode JPEG files to a uint8 array (rows, height, width, ...)."""
    image_module = import_extra("PIL.Image", place, "reading JPEG images")
    images = []
    for row, content in enumerate(rows):
        try:
            image = image_module.open(io.BytesIO(content), formats=["JPEG"])
            images.append(np.array(image, np.uint8))
        except (OSError, TypeError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
            raise data_error(f"an image is damaged: {error}", place.of(f"{place.column}[{row}]")) from None
        expected = images[0].shape if space is None else space.shape
        if images[-1].shape != expected:
            got, advice = f"shape {images[-1].shape}", f"shape {expected}"
            what = "an image has an unexpected shape"
            raise data_error(what, place.of(f"{place.column}[{row}]"), got=got, expected=advice)
    return np.stack(images)
