"""Layout of the columns of a file, stored as JSON in its schema metadata; and checks of data against spaces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.config.errors import Problem
from runner.config.paths import runner_version
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, Column, ColumnBlock
from runner.episodes.nested import StateError, read_key
from runner.episodes.spaces import discrete_bounds, space_from_dict, space_to_dict
from runner.offline.files.data_error import DataError

if TYPE_CHECKING:
    from gymnasium import Space


VERSION = 1
# File columns that are not columns of a block. Extra model outputs with these names are renamed.
RESERVED_NAMES = {
    *("eps_id", "agent_id", "module_id", "multi_agent_episode_id", "task"),
    *("t", "t_started", "length", "episode_return"),
    *("terminated", "truncated", "terminateds", "truncateds", "new_obs", "infos", "new_infos", "env_t", "new_env_t"),
}
# First part of the names of agents' columns in files of env episodes.
AGENTS = "agents"
_KINDS = "biufcSU"


@dataclass(frozen=True)
class Spaces:
    """Observation and action space of recorded episodes; None if unknown."""

    observation: Space[Any] | None = None
    action: Space[Any] | None = None


@dataclass(frozen=True)
class Leaf:
    """One array of a block: dtype and shape of a row, and its column in the file.

    Raises:
        TypeError: the dtype is not bool, integer, float, complex or text.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    column: str

    def __post_init__(self) -> None:
        if self.dtype.kind not in _KINDS:
            raise TypeError(
                f"{self.column}: arrays of dtype {self.dtype} cannot be recorded; expected numbers, bools or text"
            )

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Size of a row in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def is_text(self) -> bool:
        """Whether rows are text or bytes."""
        return self.dtype.kind in "SU"


@dataclass(frozen=True)
class Layout:
    """Columns of a file of episodes or steps.

    Attributes:
        columns: name of a block's column -> `Leaf`, nested as the column is.
        spaces: recorded spaces of the environment.
        env_name: name of the environment.
        module_id: module that chose the actions, or None if it is unknown or there are several.
    """

    columns: Mapping[str, Any]
    spaces: Spaces = field(default_factory=Spaces)
    env_name: str | None = None
    module_id: str | None = None

    def leaves(self) -> Iterator[Leaf]:
        """Yield all leaves of all columns."""
        yield from nested.leaves(dict(self.columns))

    def file_columns(self) -> list[str]:
        """Return the file columns of all leaves. Leaves without values are not stored."""
        return [leaf.column for leaf in self.leaves() if leaf.size]

    def selected(self, names: set[str]) -> Layout:
        """Return the layout of the given columns only."""
        return replace(self, columns={name: tree for name, tree in self.columns.items() if name in names})

    def merged_with(self, other: Layout) -> Layout:
        """Return a layout for the data of both. Columns must be equal; text is as wide as the wider one.

        If the modules differ, `module_id` becomes None.

        Raises:
            ValueError: a column differs; the message names it.
        """
        if self.columns.keys() != other.columns.keys():
            odd = sorted(self.columns.keys() ^ other.columns.keys())
            raise ValueError(f"only some have {', '.join(odd)}")
        merged = {}
        for name, tree in self.columns.items():
            try:
                merged[name] = nested.map_leaves(_wider_leaf, tree, other.columns[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        module_id = self.module_id if self.module_id == other.module_id else None
        return replace(self, columns=merged, module_id=module_id)

    def bytes_per_step(self) -> int:
        """Return the size of one step in memory in bytes."""
        return sum(leaf.num_bytes for leaf in self.leaves())

    def to_json(self) -> bytes:
        """Return the layout as stored in files."""
        spaces = {"observation_space": self.spaces.observation, "action_space": self.spaces.action}
        content = {
            "version": VERSION,
            "package_version": runner_version(),
            "env": self.env_name,
            "module_id": self.module_id,
            **{name: _space_to_plain(space) for name, space in spaces.items()},
            "columns": {name: _tree_to_plain(tree) for name, tree in self.columns.items()},
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Layout:
        """Invert `to_json`. Raises `StateError` if the content is damaged."""
        state = load_metadata(content)
        columns = read_key(state, "columns", (dict,), "layout")
        return cls(
            {name: _tree_from_plain(tree, f"columns.{name}") for name, tree in columns.items()},
            Spaces(_read_space(state, "observation_space"), _read_space(state, "action_space")),
            read_key(state, "env", (str,), "layout", default=None),
            read_key(state, "module_id", (str,), "layout", default=None),
        )


def load_metadata(content: bytes) -> Any:
    """Return the state in the metadata of a schema. Raises `StateError` if it is damaged or of a newer version."""
    try:
        state = json.loads(content)
    except ValueError as error:
        raise StateError(f"not valid JSON: {error}") from None
    version = read_key(state, "version", (int,), "layout")
    if version > VERSION:
        raise StateError(f"written by a newer version of runner (format {version}, this one reads {VERSION})")
    return state


def layout_of(block: ColumnBlock, spaces: Spaces | None = None, env_name: str | None = None) -> Layout:
    """Return the layout of a block's columns, with a unique file column for each leaf."""
    taken = set(RESERVED_NAMES)
    columns = {name: _describe(column, _base_name(name), taken) for name, column in block.columns.items()}
    module_id = block.module_id if block.agents is not None else None
    return Layout(columns, spaces or Spaces(), env_name, module_id)


def _base_name(name: str) -> str:
    base = escaped(name)
    while base in RESERVED_NAMES:
        base += "_"
    return base


def _describe(column: Column, name: str, taken: set[str]) -> Any:
    if isinstance(column, dict):
        return {key: _describe(branch, f"{name}/{escaped(key)}", taken) for key, branch in column.items()}
    if isinstance(column, tuple):
        return tuple(_describe(branch, f"{name}/{index}", taken) for index, branch in enumerate(column))
    while name in taken:
        name += "_"
    taken.add(name)
    array = np.asarray(column)
    return Leaf(array.dtype.newbyteorder("="), array.shape[1:], name)


def escaped(key: Any) -> str:
    """Return a key escaped for use in a column name."""
    return str(key).replace("%", "%25").replace("/", "%2F") or "%"


def rows_per_chunk(name: str) -> int:
    """Return the rows of a column beyond one per step: one for the final observation of a chunk."""
    return 1 if name == OBS else 0


def _wider_leaf(mine: Leaf, theirs: Leaf) -> Leaf:
    if mine.shape != theirs.shape or mine.dtype.kind != theirs.dtype.kind:
        raise ValueError(f"some hold {mine.dtype} {list(mine.shape)}, others {theirs.dtype} {list(theirs.shape)}")
    if mine.dtype != theirs.dtype and not mine.is_text:
        raise ValueError(f"some hold {mine.dtype}, others {theirs.dtype}")
    if mine.column != theirs.column:
        raise ValueError(f"some call it {mine.column}, others {theirs.column}")
    return mine if mine.dtype.itemsize >= theirs.dtype.itemsize else theirs


def _tree_to_plain(tree: Any) -> dict[str, Any]:
    if isinstance(tree, Leaf):
        return {"dtype": tree.dtype.str, "shape": list(tree.shape), "column": tree.column}
    if isinstance(tree, dict):
        return {"dict": [[key, _tree_to_plain(branch)] for key, branch in tree.items()]}
    return {"tuple": [_tree_to_plain(branch) for branch in tree]}


def _tree_from_plain(state: Any, where: str, depth: int = 0) -> Any:
    if depth > 32:
        raise StateError(f"{where[:120]}: nested deeper than 32 levels")
    if isinstance(state, dict) and "dict" in state:
        pairs = read_key(state, "dict", (list,), where)
        if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int)) for pair in pairs):
            raise StateError(f"{where}.dict: expected a list of [key, column] pairs")
        return {key: _tree_from_plain(branch, f"{where}.{key}", depth + 1) for key, branch in pairs}
    if isinstance(state, dict) and "tuple" in state:
        parts = read_key(state, "tuple", (list,), where)
        return tuple(_tree_from_plain(part, f"{where}[{i}]", depth + 1) for i, part in enumerate(parts))
    name, shape = read_key(state, "dtype", (str,), where), read_key(state, "shape", (list,), where)
    if not all(type(size) is int and size >= 0 for size in shape):
        raise StateError(f"{where}.shape: expected non-negative integers, got {shape!r:.80}")
    try:
        return Leaf(np.dtype(name), tuple(shape), read_key(state, "column", (str,), where))
    except TypeError as error:
        raise StateError(f"{where}.dtype: {error}") from None


def _space_to_plain(space: Space[Any] | None) -> dict[str, Any] | None:
    if space is None:
        return None
    try:
        return space_to_dict(space)
    except TypeError:  # a user-defined space, which is not needed to read the data
        return None


def _read_space(state: Any, name: str) -> Space[Any] | None:
    plain = read_key(state, name, (dict,), "layout", default=None)
    return None if plain is None else space_from_dict(plain, name)


_NAMES = {OBS: "observation", ACTIONS: "action"}


def fit_to_spaces(columns: Mapping[str, Column], spaces: Spaces) -> dict[str, Column]:
    """Convert `obs` and `actions` to the structure, shapes and dtypes of the spaces, if possible."""
    fitted = dict(columns)
    for name, space in ((OBS, spaces.observation), ("new_obs", spaces.observation), (ACTIONS, spaces.action)):
        if space is not None and name in columns:
            fitted[name] = fit_column(columns[name], space)
    return fitted


def fit_column(column: Column, space: Space[Any]) -> Column:
    """Convert a column to the form of a space; return it unchanged if it does not fit (see `check_spaces`)."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        if isinstance(column, dict) and column.keys() == space.spaces.keys():
            return {key: fit_column(column[key], part) for key, part in space.spaces.items()}
        return column
    if isinstance(space, gs.Tuple):
        if isinstance(column, dict) and [str(key) for key in column] == [str(i) for i in range(len(space.spaces))]:
            column = tuple(column.values())
        if isinstance(column, tuple) and len(column) == len(space.spaces):
            return tuple(fit_column(*pair) for pair in zip(column, space.spaces, strict=True))
        return column
    if not isinstance(column, np.ndarray) or space.shape is None or space.dtype is None:
        return column
    if column.shape[1:] != space.shape and column[:1].size == int(np.prod(space.shape, dtype=np.int64)):
        column = column.reshape(len(column), *space.shape)
    try:
        return nested.cast_exactly(column, np.dtype(space.dtype))
    except ValueError:
        return column


def check_spaces(
    sample: ColumnBlock, observation_space: Space[Any] | None, action_space: Space[Any] | None, where: str
) -> None:
    """Reject data that do not fit an environment.

    Args:
        sample: the first episodes.
        observation_space, action_space: spaces of the environment.
        where: location of the data, for the message.

    Raises:
        DataError: columns do not fit; lists all of them.
    """
    problems = []
    for name, space in ((OBS, observation_space), (ACTIONS, action_space)):
        if space is None:
            continue
        for path, got, expected in find_differences(sample.columns[name], space):
            column = f"{name}{path}"
            what = f"the data do not fit the environment: {column} is not in its {_NAMES[name]} space"
            problems.append(Problem(what, where, got, expected))
    if problems:
        raise DataError(problems)


def find_differences(column: Column, space: Space[Any], path: str = "") -> list[tuple[str, str, str]]:
    """Return the differences between a column and a space: path, kind of the column, expected kind."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Dict):
        if not isinstance(column, dict) or column.keys() != space.spaces.keys():
            got = f"keys {', '.join(map(str, column))}" if isinstance(column, dict) else describe_column(column)
            return [(path, got, f"keys {', '.join(map(str, space.spaces))}")]
        return [d for key, part in space.spaces.items() for d in find_differences(column[key], part, f"{path}/{key}")]
    if isinstance(space, gs.Tuple):
        if not isinstance(column, tuple) or len(column) != len(space.spaces):
            return [(path, describe_column(column), f"a tuple of {len(space.spaces)}")]
        parts = enumerate(zip(column, space.spaces, strict=True))
        return [d for index, (part, branch) in parts for d in find_differences(part, branch, f"{path}/{index}")]
    if isinstance(space, gs.Text):
        is_text = isinstance(column, np.ndarray) and column.dtype.kind == "U"
        return [] if is_text else [(path, describe_column(column), "text")]
    if space.shape is None or space.dtype is None:
        return []
    expected = describe_space(space)
    if not isinstance(column, np.ndarray) or column.shape[1:] != space.shape:
        return [(path, describe_column(column), expected)]
    if np.dtype(space.dtype).kind in "iu" and column.dtype.kind == "f":
        return [(path, describe_column(column), expected)]
    low, high = discrete_bounds(space)  # environments often violate the bounds of a Box
    if low is not None and len(column) and ((column < low) | (column > high)).any():
        outside = column[((column < low) | (column > high)).reshape(len(column), -1).any(axis=1)][0]
        return [(path, f"the value {outside.tolist()}", expected)]
    return []


def describe_column(column: Column) -> str:
    """Return dtype and shape of a row, for messages."""
    if isinstance(column, dict):
        return "{" + ", ".join(f"{key}: {describe_column(part)}" for key, part in column.items()) + "}"
    if isinstance(column, tuple):
        return "(" + ", ".join(describe_column(part) for part in column) + ")"
    shape = column.shape if isinstance(column, Leaf) else column.shape[1:]
    kind = {"U": "text", "S": "bytes"}.get(column.dtype.kind, str(column.dtype))
    return f"{kind}{list(shape) if shape else ''}"


def describe_space(space: Space[Any] | None) -> str:
    """Return a short description of a space."""
    from gymnasium import spaces as gs

    if space is None:
        return "unknown"
    if isinstance(space, gs.Box):
        low, high = (f"{bound.flat[0]:g}" if bound.size and (bound == bound.flat[0]).all() else "..." for bound in
                     (space.low, space.high))  # fmt: skip
        bounds = "" if "..." in (low, high) else f"{low}, {high}, "
        return f"Box({bounds}{list(space.shape)}, {space.dtype})"
    if isinstance(space, gs.Dict):
        return "Dict(" + ", ".join(f"{key}: {describe_space(part)}" for key, part in space.spaces.items()) + ")"
    if isinstance(space, gs.Tuple):
        return "Tuple(" + ", ".join(describe_space(part) for part in space.spaces) + ")"
    return str(space)
