"""Group rows of single steps to trajectories, and find the observations after their last steps.

Dimension letters: R rows, E trajectories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column, ColumnBlock, ListedInfos, row_ranges
from runner.episodes.nested import Array
from runner.offline.files.data_error import DataLocation, data_error

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass
class ReadCounts:
    """Corrections that reading has made, summed over a data set.

    Attributes:
        final_obs_repeated: terminated trajectories without a final observation. The previous observation is repeated,
            as its value is never used.
        final_steps_dropped: other trajectories without a final observation. They are truncated one step earlier.
        trajectories_dropped: trajectories left out because they do not contain a complete step.
        breaks: rows whose next observation differs from the next row's observation.
        gaps: missing time steps within an episode.
        columns_left_out: extra columns that cannot become arrays and were not requested -> reason.
    """

    final_obs_repeated: int = 0
    final_steps_dropped: int = 0
    trajectories_dropped: int = 0
    breaks: int = 0
    gaps: int = 0
    columns_left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Steps:
    """R steps in the order of the file.

    Attributes:
        columns: `obs`, `actions`, `rewards` and extra model outputs, R rows each.
        is_terminated: (R,) whether the step led to a terminal state.
        is_truncated: (R,) whether the step was the last one before a limit.
        new_obs: observations after the steps, R rows; None if they are only known from the next rows.
        episode_ids: (R,) text or integers.
        t: (R,) time step within the episode.
        infos: (R,) dicts, each belonging to the observation before the step.
        segments: (R,) numbers; rows with different ones do not follow each other.
    """

    columns: Mapping[str, Column]
    is_terminated: BoolArray
    is_truncated: BoolArray
    new_obs: Column | None = None
    episode_ids: Array | None = None
    t: IntArray | None = None
    infos: Sequence[dict[str, Any]] | None = None
    segments: IntArray | None = None


@dataclass(frozen=True)
class Spans:
    """E trajectories of consecutive rows: first row, number of rows, first time step and id of each."""

    starts: IntArray
    lengths: IntArray
    t_started: IntArray
    ids: Sequence[str]

    @property
    def last(self) -> IntArray:
        """(E,) last row of each trajectory."""
        return self.starts + self.lengths - 1

    def selected(self, is_kept: BoolArray) -> Spans:
        """Return only some of the trajectories."""
        ids = [id_ for id_, keep in zip(self.ids, is_kept.tolist(), strict=True) if keep]
        return Spans(self.starts[is_kept], self.lengths[is_kept], self.t_started[is_kept], ids)


def group_steps(steps: Steps, counts: ReadCounts) -> ColumnBlock:
    """Group rows to trajectories, in the order of their first rows.

    Rows follow each other if the episode id is the same, `t` grows by one, no end flag is set, and `new_obs`, if
    recorded, equals the next row's observation. With ids and `t`, separate parts of an episode are joined.
    """
    num_rows = len(steps.is_terminated)
    code = np.zeros(num_rows, np.int64) if steps.episode_ids is None else number_ids(steps.episode_ids)
    follows = _follows(steps, code, counts)
    starts = np.flatnonzero(~follows)
    lengths = np.diff(np.append(starts, num_rows))
    groups = _join(steps, code, starts, lengths)
    order, group_starts, group_lengths = _arrange(groups, starts, lengths)
    if not np.array_equal(order, np.arange(num_rows)):
        steps = _reorder(steps, order)
        code = code[order]
    t_started = np.zeros(len(group_starts), np.int64) if steps.t is None else steps.t[group_starts].astype(np.int64)
    ids = _ids(steps, code, group_starts, group_lengths, t_started)
    block, spans = build_block(steps, Spans(group_starts, group_lengths, t_started, ids), counts)
    if steps.infos is None:
        return block
    pairs = zip(spans.starts.tolist(), block.lengths.tolist(), strict=True)
    infos = [steps.infos[start : start + length] for start, length in pairs]
    # Final observations get empty infos.
    return replace(block, infos=ListedInfos([[*chunk, {}] if any(chunk) else None for chunk in infos]))


def build_block(steps: Steps, spans: Spans, counts: ReadCounts) -> tuple[ColumnBlock, Spans]:
    """Build the block of some trajectories, without infos. Final observations are completed as `ReadCounts` describes.

    Returns:
        The block, and the spans of the trajectories in it. A span includes the last step if only its observation is
        kept.
    """
    is_terminated, is_truncated = steps.is_terminated[spans.last], steps.is_truncated[spans.last]
    lengths = spans.lengths.copy()
    if steps.new_obs is None:
        lengths -= ~is_terminated
        is_truncated = is_truncated | ~is_terminated
        counts.final_obs_repeated += int(is_terminated.sum())
        counts.final_steps_dropped += int((~is_terminated).sum())
    is_kept = lengths > 0
    counts.trajectories_dropped += int((~is_kept).sum())
    spans, lengths = spans.selected(is_kept), lengths[is_kept]
    ends = np.cumsum(lengths)
    rows = row_ranges(spans.starts, lengths)
    columns = {name: _gather(column, rows) for name, column in steps.columns.items() if name != OBS}
    columns = {OBS: _gather(steps.columns[OBS], np.insert(rows, ends, spans.last))} | columns
    if steps.new_obs is not None:
        nested.assign(columns[OBS], ends + np.arange(len(ends)), nested.take(steps.new_obs, spans.last))
    block = ColumnBlock(
        columns=columns,
        lengths=lengths,
        is_terminated=is_terminated[is_kept],
        is_truncated=is_truncated[is_kept],
        t_started=spans.t_started,
        episode_ids=spans.ids,
    )
    return block, spans


def rows_equal(a: Column, b: Column) -> BoolArray:
    """Return whether rows are equal in every leaf, as bools (R,); NaN equals NaN."""

    def leaf(x: Array, y: Array) -> Array:
        same = x == y
        if x.dtype.kind in "fc":
            same |= (x != x) & (y != y)
        return np.asarray(same.reshape(len(same), -1).all(axis=1))

    equal: BoolArray = np.logical_and.reduce(list(nested.leaves(nested.map_leaves(leaf, a, b))))
    return equal


def check_rewards(rewards: Array, place_of: Callable[[int], DataLocation]) -> None:
    """Reject rewards that are not finite; `place_of` returns the location of a step's reward."""
    wrong = np.flatnonzero(~np.isfinite(rewards))
    if len(wrong):
        step = int(wrong[0])
        raise data_error("a reward is not finite", place_of(step), got=str(rewards[step]))


def check_new_obs(obs: Column, new_obs: Column, place: DataLocation) -> None:
    """Reject next observations with another structure or shape than the observations."""

    def check(known: Array, new: Array) -> None:
        if known.shape != new.shape or (known.dtype.kind in "SU") != (new.dtype.kind in "SU"):
            got, expected = (f"{array.dtype} {array.shape[1:]}" for array in (new, known))
            raise data_error("next observations and observations differ", place, got=got, expected=expected)

    try:
        nested.map_leaves(check, obs, new_obs)
    except ValueError as error:
        raise data_error(f"next observations and observations differ: {error}", place) from None


def concatenate_alike(
    parts: Sequence[Column],
    what: str,
    place_of: Callable[[int], DataLocation],
    as_in: str = "",
    mixes_numbers: bool = False,
) -> Column:
    """Concatenate parts, which must have the structure, shapes and kinds of dtypes of the first one.

    Args:
        parts: columns of episodes or batches.
        what: name of the parts in messages, for example `episodes`.
        place_of: returns the location of a part.
        as_in: describes the first part, for messages.
        mixes_numbers: whether integers and floats may be mixed.

    Raises:
        DataError: a part differs.
    """

    def is_like(a: Array, b: Array) -> bool:
        kinds = {a.dtype.kind, b.dtype.kind}
        same_kind = len(kinds) == 1 or (mixes_numbers and kinds <= set("iuf"))
        return a.shape[1:] == b.shape[1:] and same_kind

    for number, part in enumerate(parts):
        try:
            same = all(nested.leaves(nested.map_leaves(is_like, parts[0], part)))
        except ValueError as error:
            raise data_error(f"{what} differ: {error}", place_of(number)) from None
        if not same:
            got, first = (", ".join(f"{a.dtype} {a.shape[1:]}" for a in nested.leaves(c)) for c in (part, parts[0]))
            raise data_error(f"{what} differ", place_of(number), got=got, expected=first + as_in)
    return nested.concatenate(parts)


def content_id(steps: Steps, start: int, length: int) -> str:
    """Return an id computed from the trajectory's data, equal whenever the same data are read."""
    digest = hashlib.blake2b(digest_size=16)
    for name in (OBS, ACTIONS, REWARDS):
        for leaf in nested.leaves(nested.take(steps.columns[name], slice(start, start + length))):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def number_ids(ids: Array) -> IntArray:
    """Number the ids (R,) by first appearance."""
    if not len(ids):
        return np.zeros(0, np.int64)
    changes = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))  # sort only the starts of long runs
    _, first, inverse = np.unique(ids[changes], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.repeat(rank[inverse], np.diff(np.append(changes, len(ids))))


def _follows(steps: Steps, code: IntArray, counts: ReadCounts) -> BoolArray:
    """Return whether each row continues the trajectory of the previous row, as bools (R,)."""
    follows = np.ones(len(code), np.bool_)
    if len(code):
        follows[0] = False
    follows[1:] &= (code[1:] == code[:-1]) & ~(steps.is_terminated | steps.is_truncated)[:-1]
    if steps.t is not None:
        follows[1:] &= np.diff(steps.t) == 1
    if steps.segments is not None:
        follows[1:] &= steps.segments[1:] == steps.segments[:-1]
    if steps.new_obs is not None and len(code) > 1:
        fits = rows_equal(nested.take(steps.new_obs, slice(None, -1)), nested.take(steps.columns[OBS], slice(1, None)))
        counts.breaks += int((follows[1:] & ~fits).sum())
        follows[1:] &= fits
    return follows


def _join(steps: Steps, code: IntArray, starts: IntArray, lengths: IntArray) -> list[list[int]]:
    """Return the runs of rows of each trajectory, in the order of their first rows."""
    if steps.episode_ids is None or not len(starts):
        return [[run] for run in range(len(starts))]
    last = starts + lengths - 1
    done = (steps.is_terminated | steps.is_truncated)[last]
    t_first = np.arange(len(starts)) if steps.t is None else steps.t[starts]
    order = np.lexsort((t_first, code[starts]))
    before, after = order[:-1], order[1:]
    joins = (code[starts[before]] == code[starts[after]]) & ~done[before]
    if steps.t is not None:
        joins &= steps.t[last[before]] + 1 == steps.t[starts[after]]
    if steps.new_obs is not None and joins.any():
        ends, heads = nested.take(steps.new_obs, last[before]), nested.take(steps.columns[OBS], starts[after])
        joins &= rows_equal(ends, heads)
    groups: list[list[int]] = []
    for run, joined in zip(order.tolist(), [False, *joins.tolist()], strict=True):
        if joined:
            groups[-1].append(run)
        else:
            groups.append([run])
    return sorted(groups, key=min)


def _arrange(groups: list[list[int]], starts: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return an order of rows in which each group is contiguous, and the groups' first rows and lengths in it."""
    runs = np.array([run for group in groups for run in group], np.int64)
    order = row_ranges(starts[runs], lengths[runs])
    num_runs = np.array([len(group) for group in groups], np.int64)
    sizes = np.add.reduceat(lengths[runs], np.cumsum(num_runs) - num_runs) if len(runs) else lengths[:0]
    return order, np.cumsum(sizes) - sizes, sizes


def _reorder(steps: Steps, order: IntArray) -> Steps:
    return replace(
        steps,
        columns={name: nested.take(column, order) for name, column in steps.columns.items()},
        is_terminated=steps.is_terminated[order],
        is_truncated=steps.is_truncated[order],
        new_obs=None if steps.new_obs is None else nested.take(steps.new_obs, order),
        episode_ids=None if steps.episode_ids is None else steps.episode_ids[order],
        t=None if steps.t is None else steps.t[order],
        infos=None if steps.infos is None else [steps.infos[row] for row in order.tolist()],
    )


def _ids(steps: Steps, code: IntArray, starts: IntArray, lengths: IntArray, t_started: IntArray) -> list[str]:
    """Return ids of the trajectories.

    A chunk gets the id with a number if it cannot continue an earlier chunk of its id: that chunk has ended, reaches at
    least as far, or does not end where this one starts.
    """
    if steps.episode_ids is None:
        return [content_id(steps, *span) for span in zip(starts.tolist(), lengths.tolist(), strict=True)]
    last = starts + lengths - 1
    is_done = (steps.is_terminated | steps.is_truncated)[last].tolist()
    number: dict[int, int] = {}
    end: dict[int, float] = {}
    ids = []
    names = [str(name) for name in steps.episode_ids[starts].tolist()]
    for name, key, first, length, done in zip(
        names, code[starts].tolist(), t_started.tolist(), lengths.tolist(), is_done, strict=True
    ):
        if key in end and (steps.t is None or first <= end[key]):
            number[key] = number.get(key, 0) + 1
        end[key] = np.inf if done else first + length
        ids.append(f"{name}~{number[key]}" if key in number else name)
    return ids


def _gather(column: Column, rows: IntArray) -> Column:
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return nested.take(column, slice(int(rows[0]), int(rows[-1]) + 1))  # a view
    return nested.take(column, rows)
