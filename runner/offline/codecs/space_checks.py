"""Whether recorded data fit the spaces of an environment, and data brought into the form that these say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runner.config.errors import Problem
from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, Column, ColumnBlock
from runner.offline.codecs.layout import Leaf, Spaces
from runner.offline.files.data_error import DataError

if TYPE_CHECKING:
    from gymnasium import Space

_NAMES = {OBS: "observation", ACTIONS: "action"}


def fit_to_spaces(columns: dict[str, Column], spaces: Spaces | None) -> dict[str, Column]:
    """Return the columns with `obs` and `actions` in the structure, shapes and dtypes of the spaces, where they can
    be."""
    if spaces is None:
        return columns
    fitted = dict(columns)
    for name, space in ((OBS, spaces.observation), ("new_obs", spaces.observation), (ACTIONS, spaces.action)):
        if space is not None and name in columns:
            fitted[name] = fit_column(columns[name], space)
    return fitted


def fit_column(column: Column, space: Space[Any]) -> Column:
    """Return a column in the form of a space; as it is where it does not fit, which `find_space_problems` reports."""
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
    """Refuse data that do not fit an environment.

    Args:
        sample: the first episodes.
        observation_space, action_space: of the environment.
        where: the data, for the message.

    Raises:
        DataError: all that does not fit.
    """
    problems = []
    for name, space in ((OBS, observation_space), (ACTIONS, action_space)):
        if space is None:
            continue
        for path, got, allowed in find_differences(sample.columns[name], space):
            column = f"{name}{path}"
            what = f"the data do not fit the environment: {column} is not in its {_NAMES[name]} space"
            problems.append(Problem(what, where, got, allowed))
    if problems:
        raise DataError(problems)


def find_differences(column: Column, space: Space[Any], path: str = "") -> list[tuple[str, str, str]]:
    """Return where a column does not fit a space: path, the column's kind, the kind that fits."""
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
    allowed = describe_space(space)
    if not isinstance(column, np.ndarray) or column.shape[1:] != space.shape:
        return [(path, describe_column(column), allowed)]
    if np.dtype(space.dtype).kind in "iu" and column.dtype.kind == "f":
        return [(path, describe_column(column), allowed)]
    low, high = _bounds(space)
    if low is not None and len(column) and ((column < low) | (column > high)).any():
        outside = column[((column < low) | (column > high)).reshape(len(column), -1).any(axis=1)][0]
        return [(path, f"the value {outside.tolist()}", allowed)]
    return []


def _bounds(space: Space[Any]) -> tuple[Any, Any]:
    """Check the values of discrete spaces only: environments themselves leave the bounds of their Boxes."""
    from gymnasium import spaces as gs

    if isinstance(space, gs.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gs.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gs.MultiBinary):
        return 0, 1
    return None, None


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
    """Return a space in short."""
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
