"""One column of an episode, with rows from before timestep 0 of the episode (or chunk)."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.nested import (
    Array,
    assign,
    cast_exactly,
    concatenate,
    equal,
    full,
    leaves,
    map_leaves,
    row_count,
    stack,
    take,
    unstack,
)
from runner.episodes.spaces import blank_item, one_hot

if TYPE_CHECKING:
    from gymnasium import Space

_INT64 = np.dtype(np.int64)
_NUMBERS = frozenset({bool, int, float})

Indices = int | slice | Sequence[int] | Array | None


class LookbackBuffer:
    """A column of `lookback + len(buffer)` rows; row 0 of the data is timestep `-lookback`.

    List mode: `data` is a list of items. Numpy mode: `data` is an array, or nested dicts and tuples of arrays, with
    rows along axis 0; the constructor never copies them. Appending takes O(1) amortised in both modes.

    Indices: 0 is timestep 0. A negative index counts from the end, and may reach into the lookback; with
    `neg_index_as_lookback=True`, -1 is the last lookback row instead. A slice without a start begins at timestep 0.
    Without `fill` a slice is clipped to the data, like in Python, while other indices raise `IndexError`. With `fill`
    every position outside of the data, on either side, gets the fill value.
    """

    __slots__ = ("_origin", "_storage", "data", "lookback", "space")

    def __init__(self, data: Any = None, lookback: int = 0, space: Space[Any] | None = None) -> None:
        self.data: Any = [] if data is None else data
        self.lookback = lookback
        self.space = space
        self._storage: Any = None  # (data, arrays with spare rows that begin with data), once it has grown
        self._origin: Any = None  # (data, past, present): the columns that the rows of data were joined from

    @property
    def finalized(self) -> bool:
        """Whether the data are arrays (numpy mode)."""
        return not isinstance(self.data, list)

    def __len__(self) -> int:
        return max(self.len_incl_lookback() - self.lookback, 0)

    def len_incl_lookback(self) -> int:
        data = self.data
        return len(data) if type(data) is list or type(data) is np.ndarray else row_count(data)

    def __getitem__(self, indices: Indices) -> Any:
        return self.get(indices)

    def __setitem__(self, indices: Indices, new_data: Any) -> None:
        self.set(new_data, at_indices=indices)

    def __iter__(self) -> Iterator[Any]:
        return iter(unstack(self.get()) if self.finalized else self.get())

    def __add__(self, other: LookbackBuffer) -> LookbackBuffer:
        """Return a new buffer with this buffer's rows, followed by the other's without its lookback."""
        joined = LookbackBuffer(take(self.data, slice(None)), self.lookback, self.space)
        joined.concat(other)
        return joined

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LookbackBuffer) or self.finalized != other.finalized:
            return False
        if self.lookback != other.lookback or self.len_incl_lookback() != other.len_incl_lookback():
            return False
        return equal(self.data, other.data) if self.finalized else all(map(equal, self.data, other.data))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        mode = "numpy" if self.finalized else "list"
        return f"LookbackBuffer({mode}, len={len(self)}, lookback={self.lookback}, data={self.data!r:.200})"

    def __getstate__(self) -> tuple[Any, int, Any]:
        return self.data, self.lookback, self.space  # spare rows are not worth sending

    def __setstate__(self, state: tuple[Any, int, Any]) -> None:
        self.data, self.lookback, self.space = state
        self._storage = self._origin = None

    # --- growing and shrinking --------------------------------------------------------------------

    def append(self, item: Any) -> None:
        """Add one item; in numpy mode raise `ValueError` if its structure or shape differs from the rows'."""
        if isinstance(self.data, list):
            self.data.append(item)
        else:
            self.append_rows(self.as_row(item))

    def extend(self, items: Any) -> None:
        """Add many items: a list of items, or columns in numpy mode's form."""
        if isinstance(self.data, list):
            self.data.extend(unstack(items) if isinstance(items, dict) else items)
        elif not isinstance(items, list):
            self.append_rows(items)
        elif items:
            self.append_rows(stack(items))

    def concat(self, other: LookbackBuffer) -> None:
        """Add the other buffer's rows after its lookback; the modes may differ, and this buffer keeps its mode."""
        rows = other.get()
        if len(other) > 0:
            self.extend(unstack(rows) if other.finalized and not self.finalized else rows)

    def join(self, past: Any) -> None:
        """Put columns (H, ...) of other arrays in front of the rows, as lookback (numpy mode).

        `set` writes into both, but the joined rows are a copy. So getters return read-only arrays: numpy raises
        `ValueError` on a write, which would otherwise be lost.
        """
        joined = concatenate((past, self.data))
        map_leaves(lambda leaf: leaf.setflags(write=False), joined)
        self._origin = (joined, past, self.data)
        self.data, self.lookback = joined, row_count(past)

    def pop(self, index: int = -1) -> Any:
        """Remove and return one item; a lookback row shortens the lookback. Raises `IndexError` outside."""
        position = self._inside(index, False)
        item = self._item(position)
        if isinstance(self.data, list):
            del self.data[position]
        elif position == self.len_incl_lookback() - 1:
            self.data = take(self.data, slice(position))
        else:
            self.data = map_leaves(lambda column: np.delete(column, position, axis=0), self.data)
        self.lookback -= position < self.lookback
        return item

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` rows, lookback included."""
        self.data = take(self.data, slice(rows))

    def finalize(self) -> None:
        """Convert the list of items to columns; does nothing in numpy mode. Raises the errors of `nested.stack`."""
        self.data = self.to_columns()

    def to_columns(self) -> Any:
        """Return the rows, lookback included, as columns. Without rows: with the space's structure, or float32 (0,)."""
        if not isinstance(self.data, list):
            return self.data
        if self.data:
            column = _joined_arrays(self.data)
            return stack(self.data) if column is None else column
        blank = None if self.space is None else blank_item(self.space)
        return map_leaves(lambda leaf: np.zeros((0, *np.shape(leaf)), getattr(leaf, "dtype", np.float32)), blank)

    def has_room_for(self, item: Any) -> bool:
        """Return whether, in numpy mode, `append_fitting` may be used for `item`.

        True for a flat column with spare rows, if the item is already one of its rows or a Python number of its kind.
        """
        data, storage = self.data, self._storage
        if storage is None or storage[0] is not data or type(data) is not np.ndarray or len(storage[1]) == len(data):
            return False
        kind = type(item)
        if kind is np.ndarray:
            return bool(item.dtype == data.dtype and item.shape == data.shape[1:])
        if data.ndim > 1:
            return False
        if kind is int:
            return bool(data.dtype == _INT64) and -(2**63) <= item < 2**63
        return kind is data.dtype.type or (kind is float and data.dtype.kind == "f")

    def append_fitting(self, item: Any) -> None:
        """Add an item for which `has_room_for` returned True."""
        count, storage = len(self.data), self._storage[1]
        storage[count] = item
        self.data = storage[: count + 1]
        self._storage = (self.data, storage)

    def as_row(self, item: Any) -> Any:
        """Return columns of one row that can be appended in numpy mode; Python numbers get the column's dtype."""
        if self.len_incl_lookback() == 0:
            return self._first_row(item)
        rows = map_leaves(_row_like, self.data, item)
        map_leaves(_check_row_shape, self.data, rows)
        return rows

    def _first_row(self, item: Any) -> Any:
        """Empty columns keep their dtypes only if the first item has the same structure, shape and kind."""
        natural = stack([item])
        try:
            rows = map_leaves(_row_like, self.data, item)
            map_leaves(_check_row_shape, self.data, rows)
        except ValueError:
            return natural
        same_kind = map_leaves(lambda row, other: row.dtype.kind == other.dtype.kind, rows, natural)
        return rows if all(leaves(same_kind)) else natural

    def append_rows(self, rows: Any) -> None:
        """Add columns of any number of rows (numpy mode)."""
        if self.len_incl_lookback() == 0:
            self.data = map_leaves(np.array, rows)
            return
        if type(self.data) is np.ndarray and type(rows) is np.ndarray:
            self._append_flat_rows(self.data, rows)
            return
        map_leaves(_check_row_shape, self.data, rows)
        count = self.len_incl_lookback() + row_count(rows)
        known = self._storage is not None and self._storage[0] is self.data
        spare = self._storage[1] if known else map_leaves(lambda column: None, self.data)
        storage = map_leaves(_grown, self.data, spare, rows)
        self.data = take(storage, slice(count))
        self._storage = (self.data, storage)

    def _append_flat_rows(self, column: Array, rows: Array) -> None:
        _check_row_shape(column, rows)
        known = self._storage is not None and self._storage[0] is column
        storage = _grown(column, self._storage[1] if known else None, rows)
        self.data = storage[: len(column) + len(rows)]
        self._storage = (self.data, storage)

    # --- reading ----------------------------------------------------------------------------------

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Return the item at an int, the items at a list or slice, or everything from timestep 0 for None.

        Several items are a list in list mode and columns in numpy mode (views for a slice that does not need `fill`).

        Args:
            indices: see the class.
            neg_index_as_lookback: see the class.
            fill: a number, which is used for all leaves of a nested item, or an item.
            one_hot_discrete: whether to encode the space's Discrete and MultiDiscrete leaves (float32); filled rows of
                these are then vectors of `fill`.

        Raises:
            IndexError: an index is outside of the data, without `fill`.
            TypeError: another type of index.
            ValueError: the column cannot hold the fill value, or one-hot encoding does not have a space.
        """
        return self._get(indices, neg_index_as_lookback, fill, one_hot_discrete)

    def _get(self, indices: Indices, neg: bool = False, fill: Any = None, one_hot_discrete: bool = False) -> Any:
        """Implement `get`; positional arguments take less time."""
        data, lookback = self.data, self.lookback
        if not one_hot_discrete and (type(data) is list or type(data) is np.ndarray):
            if indices is None:
                return data[lookback:]
            if type(indices) is int:
                at = indices + (lookback if indices >= 0 or neg else len(data))
                if 0 <= at < len(data):
                    return data[at]
            elif type(indices) is slice:
                return self._get_slice(indices, neg, fill, False)
            elif type(indices) is list and not neg:
                try:
                    if type(data) is np.ndarray:
                        return data[[i if i < 0 else i + lookback for i in indices]]
                    return [data[i if i < 0 else i + lookback] for i in indices]
                except (IndexError, TypeError):
                    pass  # `_get_many` fills it, or raises the error
        return self._get_any(indices, neg, fill, one_hot_discrete)

    def _get_any(self, indices: Indices, neg: bool, fill: Any, one_hot_discrete: bool) -> Any:
        """Implement `get` also for nested data, encoded items and missing items."""
        if one_hot_discrete and self.space is None:
            raise ValueError("one_hot_discrete=True needs the space of the data; pass it to the constructor")
        if indices is None:
            indices = slice(None)
        if isinstance(indices, slice):
            return self._get_slice(indices, neg, fill, one_hot_discrete)
        if isinstance(indices, (list, tuple, range, np.ndarray)):
            return self._get_many(indices, neg, fill, one_hot_discrete)
        position = self._position(indices, neg)
        if 0 <= position < self.len_incl_lookback():
            item = self._item(position)
            return one_hot(self.space, item) if one_hot_discrete and self.space is not None else item
        if fill is None:
            self._check_inside(position, indices)
        filled = self._gather([position], fill, one_hot_discrete)
        return unstack(filled)[0] if self.finalized else filled[0]

    def _get_slice(self, slice_: slice, neg: bool, fill: Any, one_hot_discrete: bool) -> Any:
        data = self.data
        if slice_.step is None and (type(data) is list or type(data) is np.ndarray):
            rows = len(data)
            start, stop = self._slice_bounds(slice_, neg, rows, self.lookback, rows)
            if 0 <= start <= stop <= rows:
                return self._encoded(data[start:stop], one_hot_discrete) if one_hot_discrete else data[start:stop]
            if fill is not None and start < stop:
                return self._padded(start, stop, fill, one_hot_discrete)
        positions = self._slice_positions(slice_, neg, clip=fill is None)
        rows = self.len_incl_lookback()
        if positions and not (0 <= positions[0] < rows and 0 <= positions[-1] < rows):
            return self._gather(positions, fill, one_hot_discrete)
        stop_or_none = positions.stop if positions.stop >= 0 else None
        selected = slice(positions.start, stop_or_none, positions.step) if positions else slice(0, 0)
        return self._encoded(take(data, selected), one_hot_discrete)

    def _get_many(self, indices: Collection[Any], neg: bool, fill: Any, one_hot_discrete: bool) -> Any:
        positions, rows = self._positions(indices, neg), self.len_incl_lookback()
        if positions and not (min(positions) >= 0 and max(positions) < rows):
            if fill is None:
                for position, index in zip(positions, indices, strict=True):
                    self._check_inside(position, index)
            return self._gather(positions, fill, one_hot_discrete)
        if isinstance(self.data, list):
            return self._encoded([self.data[position] for position in positions], one_hot_discrete)
        return self._encoded(take(self.data, np.array(positions, np.intp)), one_hot_discrete)

    def _padded(self, start: int, stop: int, fill: Any, one_hot_discrete: bool) -> Any:
        """Return the rows `start` to `stop` of flat data, some of which are missing; a contiguous `_gather`."""
        known = self.data[start:stop] if start >= 0 else self.data[: max(stop, 0)]
        if one_hot_discrete:
            known = self._encoded(known, one_hot_discrete)
        before = min(-start, stop - start) if start < 0 else 0
        if type(known) is list:
            filled = self._filled_items(stop - start - len(known), fill, one_hot_discrete)
            return [*filled[:before], *known, *filled[before:]]
        if isinstance(known, np.ndarray) and known.dtype.kind in "biufc" and not isinstance(fill, (dict, tuple)):
            column = full((stop - start, *known.shape[1:]), fill, known.dtype)
            column[before : before + len(known)] = known
            return column
        return self._gather(range(start, stop), fill, one_hot_discrete)

    def _gather(self, positions: Sequence[int], fill: Any, one_hot_discrete: bool) -> Any:
        rows = self.len_incl_lookback()
        if isinstance(self.data, list):
            items = [self.data[p] for p in positions if 0 <= p < rows]
            known = iter(self._encoded(items, one_hot_discrete))
            filled = iter(self._filled_items(len(positions) - len(items), fill, one_hot_discrete))
            return [next(known) if 0 <= p < rows else next(filled) for p in positions]
        where = np.asarray(positions, dtype=np.intp)
        inside = (where >= 0) & (where < rows)
        columns = self._encoded(take(self.data, where[inside]), one_hot_discrete)
        return columns if inside.all() else _spread(columns, inside, fill)

    def _filled_items(self, count: int, fill: Any, one_hot_discrete: bool) -> list[Any]:
        """Return `count` fill values that do not share arrays."""
        if not count:
            return []
        template = self.data[0] if self.data else None
        is_number = type(fill) in _NUMBERS
        if is_number and type(template) in _NUMBERS and not one_hot_discrete:
            return [fill] * count
        if type(template) is np.ndarray and not one_hot_discrete and (is_number or not isinstance(fill, (dict, tuple))):
            return list(full((count, *template.shape), fill, template.dtype))
        first = self._filled_item(fill, one_hot_discrete)
        if isinstance(first, np.ndarray):
            return [first, *(first.copy() for _ in range(count - 1))]
        if isinstance(first, (dict, tuple)):
            return [first, *(self._filled_item(fill, one_hot_discrete) for _ in range(count - 1))]
        return [first] * count

    def _encoded(self, rows: Any, one_hot_discrete: bool) -> Any:
        if not one_hot_discrete or self.space is None:
            return rows
        return [one_hot(self.space, item) for item in rows] if isinstance(rows, list) else one_hot(self.space, rows)

    def _filled_item(self, fill: Any, one_hot_discrete: bool) -> Any:
        """Return the fill value of a missing item in list mode: shaped like a known item, or like the space's."""
        template = self.data[0] if self.data else None
        if self.space is not None and (one_hot_discrete or not self.data):
            template = blank_item(self.space)
        if self.space is not None and one_hot_discrete:
            template = one_hot(self.space, template)
        return _fill_like(template, fill)

    def _item(self, position: int) -> Any:
        return take(self.data, position)

    # --- writing ----------------------------------------------------------------------------------

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Replace rows in place; in numpy mode this writes into the original arrays.

        The length never changes.

        Args:
            new_data: one item for an int, otherwise a list of items (or columns) with one row for each of `at_indices`.
            at_indices, neg_index_as_lookback: see the class.

        Raises:
            IndexError: an index is outside of the data.
            ValueError: number of rows, structure or shape differ, or the column's dtype cannot hold the values; nothing
                is written then.
        """
        if at_indices is None:
            at_indices = slice(None)
        if isinstance(at_indices, slice):
            positions: Sequence[int] = self._slice_positions(at_indices, neg_index_as_lookback, clip=True)
        elif isinstance(at_indices, (list, tuple, range, np.ndarray)):
            positions = [self._inside(i, neg_index_as_lookback) for i in at_indices]
        else:
            self._write(self._inside(at_indices, neg_index_as_lookback), new_data)
            return
        if not self.finalized or isinstance(new_data, list):
            new_data = self._as_items(new_data, len(positions))
        if isinstance(self.data, list):
            for position, item in zip(positions, new_data, strict=True):
                self.data[position] = item
        elif not isinstance(new_data, list) or new_data:
            columns = stack(new_data) if isinstance(new_data, list) else new_data
            self._write(np.asarray(positions, dtype=np.intp), columns)

    @staticmethod
    def _as_items(new_data: Any, count: int) -> list[Any]:
        if not isinstance(new_data, (list, tuple, dict, np.ndarray)):
            raise TypeError(f"set: expected a list of {count} items, got {type(new_data).__name__}")
        items = unstack(new_data) if isinstance(new_data, (dict, np.ndarray)) else list(new_data)
        if len(items) != count:
            raise ValueError(f"set: expected {count} items, one for each row, got {len(items)}; the length is fixed")
        return items

    def _write(self, where: Any, values: Any) -> None:
        if isinstance(self.data, list):
            self.data[where] = values
            return
        fitting = map_leaves(lambda column, new: _fitting(column, where, new), self.data, values)
        if self._origin is not None and self._origin[0] is self.data:
            self._write_joined(where, fitting)
        else:
            assign(self.data, where, fitting)

    def _write_joined(self, where: Any, values: Any) -> None:
        """Write rows into the joined data, and from there into the columns that were joined."""
        positions = np.atleast_1d(where)
        is_past = positions < self.lookback

        def write(joined: Array, past: Array, present: Array, new: Array) -> None:
            joined.setflags(write=True)
            joined[where] = new
            joined.setflags(write=False)
            if is_past.any():
                past[positions[is_past]] = joined[positions[is_past]]
            present[positions[~is_past] - self.lookback] = joined[positions[~is_past]]

        _, past, present = self._origin
        map_leaves(write, self.data, past, present, values)

    # --- index arithmetic: indices count from timestep 0, positions from the first row of the data

    def _position(self, index: Any, neg_index_as_lookback: bool) -> int:
        try:
            index = operator.index(index)
        except TypeError:
            kind = type(index).__name__
            raise TypeError(f"indices must be None, an int, a slice or a list of ints, got {kind}") from None
        if index >= 0 or neg_index_as_lookback:
            return self.lookback + int(index)
        return self.len_incl_lookback() + int(index)

    def _positions(self, indices: Collection[Any], neg_index_as_lookback: bool) -> list[int]:
        if not {*map(type, indices)} <= {int}:
            return [self._position(index, neg_index_as_lookback) for index in indices]
        rows, lookback = self.len_incl_lookback(), self.lookback
        return [i + lookback if i >= 0 or neg_index_as_lookback else i + rows for i in indices]

    def _inside(self, index: Any, neg_index_as_lookback: bool) -> int:
        position = self._position(index, neg_index_as_lookback)
        self._check_inside(position, index)
        return position

    def _check_inside(self, position: int, index: Any) -> None:
        if not 0 <= position < self.len_incl_lookback():
            raise IndexError(
                f"index {index} is outside of the buffer: {len(self)} rows from timestep 0 on, "
                f"{self.lookback} lookback rows; pass fill= to get a value there"
            )

    def _slice_positions(self, slice_: slice, neg: bool, *, clip: bool) -> range:
        step = 1 if slice_.step is None else operator.index(slice_.step)
        if step == 0:
            raise ValueError("slice step cannot be 0")
        rows = self.len_incl_lookback()
        first, last = (self.lookback, rows) if step > 0 else (rows - 1, self.lookback - 1)
        start, stop = self._slice_bounds(slice_, neg, rows, first, last)
        if clip and not (step > 0 and 0 <= start <= stop <= rows):
            low, high = (0, rows) if step > 0 else (-1, rows - 1)
            start, stop = min(max(start, low), high), min(max(stop, low), high)
        return range(start, stop, step)

    def _slice_bounds(self, slice_: slice, neg: bool, rows: int, first: int, last: int) -> tuple[int, int]:
        """Return positions of start and stop; missing bounds are `first` and `last`."""
        start, stop, lookback = slice_.start, slice_.stop, self.lookback
        if start is None:
            start = first
        elif type(start) is int:
            start += lookback if start >= 0 or neg else rows
        else:
            start = self._position(start, neg)
        if stop is None:
            stop = last
        elif type(stop) is int:
            stop += lookback if stop >= 0 or neg else rows
        else:
            stop = self._position(stop, neg)
        return start, stop


class InfoBuffer(LookbackBuffer):
    """The infos of an episode: any Python objects, always a list, filled with the unchanged fill value."""

    __slots__ = ()

    def to_columns(self) -> Any:
        return self.data

    def _filled_items(self, count: int, fill: Any, one_hot_discrete: bool) -> list[Any]:
        return [fill] * count


# --- leaves ---------------------------------------------------------------------------------------


def _joined_arrays(items: list[Any]) -> Array | None:
    """Return arrays of numbers with equal shapes as a column, or None for other items.

    Equals the result of `stack`, in a third of its time.
    """
    first = items[0]
    if type(first) is not np.ndarray or not first.ndim:
        return None
    try:
        rows = np.concatenate(items)
        same_length = len(set(map(len, items))) == 1  # all other axes are equal, or they could not be joined
    except (TypeError, ValueError):
        return None  # `stack` raises the error
    return rows.reshape(len(items), *first.shape) if same_length and rows.dtype.kind in "biufc" else None


def _row_like(column: Array, value: Any) -> Array:
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        return np.asarray(value)[None]
    if isinstance(value, (bool, int, float)) and column.dtype.kind in "biufc":
        fits = isinstance(value, float) and column.dtype.kind == "f"
        try:
            return np.array([value], column.dtype if fits else np.result_type(column.dtype, value))
        except OverflowError:
            raise ValueError(f"{value} does not fit a column of dtype {column.dtype}") from None
    row: Array = stack([value])
    return row


def _check_row_shape(column: Array, rows: Array) -> None:
    if column.dtype != rows.dtype and (column.dtype.kind in "US") != (rows.dtype.kind in "US"):
        raise ValueError(f"rows have dtype {column.dtype}, got an item of dtype {rows.dtype}")
    if rows.shape[1:] != column.shape[1:]:
        raise ValueError(f"rows have shape {column.shape[1:]}, got an item of shape {rows.shape[1:]}")


def _grown(column: Array, spare: Array | None, rows: Array) -> Array:
    """Return an array with the rows of `column` and `rows`: `spare` itself if it has enough spare rows."""
    used, count = len(column), len(column) + len(rows)
    dtype = column.dtype if column.dtype == rows.dtype else np.result_type(column.dtype, rows.dtype)
    if spare is None or len(spare) < count or spare.dtype != dtype:
        spare = np.empty((max(2 * used, count, 8), *column.shape[1:]), dtype)
        spare[:used] = column
    spare[used:count] = rows
    return spare


def _fitting(column: Array, where: Any, new: Any) -> Array:
    fitting = cast_exactly(new, column.dtype)
    row_shape: tuple[int, ...] = column.shape[1:]
    shape = row_shape if isinstance(where, int) else (len(where), *row_shape)
    if fitting.shape != shape:
        raise ValueError(f"set: expected data of shape {shape}, got {fitting.shape}; the length is fixed")
    return fitting


def _spread(columns: Any, inside: Array, fill: Any) -> Any:
    """Return `columns` at the True positions of `inside`, `fill` at the others."""

    def spread(column: Array, value: Any) -> Array:
        filled = full((len(inside), *column.shape[1:]), value, column.dtype)
        out = filled.astype(np.result_type(filled.dtype, column.dtype)) if column.dtype.kind in "US" else filled
        out[inside] = column
        return out

    return map_leaves(spread, columns, _spread_fill(columns, fill))


def _spread_fill(template: Any, fill: Any) -> Any:
    """Return `fill` with the structure of `template`; a plain value is used for every leaf."""
    return fill if isinstance(fill, (dict, tuple)) else map_leaves(lambda leaf: fill, template)


def _fill_like(template: Any, fill: Any) -> Any:
    def fill_leaf(leaf: Any, value: Any) -> Any:
        if isinstance(leaf, (np.ndarray, np.generic)):
            return full((1, *leaf.shape), value, leaf.dtype)[0]
        return value

    if not isinstance(template, (dict, tuple)) and not isinstance(fill, (dict, tuple)):
        return fill_leaf(template, fill)
    return map_leaves(fill_leaf, template, _spread_fill(template, fill))
