"""Random column blocks, and whether two of them hold the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from runner.episodes import nested
from runner.episodes.columns import OBS, Agents, Column, ColumnBlock, ListedInfos

_DTYPES = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "U5", "S3")
_INFO = st.one_of(
    st.just({}),
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["array", "dtype", "shape", "tuple", "map", "bytes"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=4)
        | st.binary(max_size=4)
        | st.tuples(st.integers(), st.text(max_size=2))
        | st.sampled_from([np.float32(1.5), np.arange(3), np.ones((2, 2), np.float16), np.bool_(True), [1, (2,)]])
        | st.dictionaries(st.integers(0, 9), st.booleans(), max_size=2),
        max_size=3,
    ),
)


def trees() -> st.SearchStrategy[Any]:
    """Structures of nested columns: leaves are (dtype, shape)."""
    leaf = st.tuples(st.sampled_from(_DTYPES), st.lists(st.integers(0, 3), max_size=3).map(tuple)).map(_Leaf)
    keys = st.sampled_from(["position", "a/b", "0", "", "%2F", "length", "é", "a.b"]) | st.integers(0, 2)
    return st.recursive(
        leaf,
        lambda parts: (
            st.dictionaries(keys, parts, min_size=1, max_size=3).filter(lambda d: len({str(k) for k in d}) == len(d))
            | st.lists(parts, min_size=1, max_size=3).map(tuple)
        ),
        max_leaves=4,
    )


@dataclass(frozen=True)
class _Leaf:
    dtype_and_shape: tuple[str, tuple[int, ...]]

    def make(self, rows: int, rng: np.random.Generator) -> Any:
        dtype, shape = np.dtype(self.dtype_and_shape[0]), self.dtype_and_shape[1]
        if dtype.kind in "US":
            words = np.array(["", "a", "ab", "xyz"], dtype)
            return words[rng.integers(0, 4, (rows, *shape))]
        raw = rng.integers(0, 2 if dtype.kind == "b" else 256, (rows, *shape, dtype.itemsize), dtype=np.uint8)
        return np.ascontiguousarray(raw).view(dtype)[..., 0]  # all bit patterns, NaNs among them


@st.composite
def blocks(draw: st.DrawFn, *, simple: bool = False, max_chunks: int = 6) -> ColumnBlock:
    """Any block; `simple`: unique whole episodes of at least one step, without agents."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_chunks = draw(st.integers(1, max_chunks))
    lengths = np.array(draw(st.lists(st.integers(1, 7), min_size=num_chunks, max_size=num_chunks)), np.int64)
    extra = draw(st.dictionaries(st.sampled_from(["action_logp", "x/y", "length", "new_obs_", "obs/a"]), trees()))
    structure = {"obs": draw(trees()), "actions": draw(trees()), **extra}
    total = int(lengths.sum())
    columns: dict[str, Column] = {
        name: nested.map_leaves(lambda leaf, name=name: leaf.make(total + num_chunks * (name == OBS), rng), tree)
        for name, tree in structure.items()
    }
    columns["rewards"] = rng.normal(size=total).astype(draw(st.sampled_from([np.float32, np.float64])))
    if simple:
        endings = st.sampled_from([(True, False), (False, True), (True, True)])
    else:
        endings = st.tuples(st.booleans(), st.booleans())
    ends = [draw(endings) for _ in range(num_chunks)]
    infos = None
    if draw(st.booleans()):
        rows = [draw(st.none() | st.lists(_INFO, min_size=n + 1, max_size=n + 1)) for n in lengths.tolist()]
        infos = ListedInfos(rows)
    agents = None
    if not simple and draw(st.booleans()):
        env_t = np.sort(rng.integers(0, 50, total + num_chunks))
        agents = Agents([f"agent_{i}" for i in range(num_chunks)], ["m"] * num_chunks, env_t)
    return ColumnBlock(
        columns,
        lengths,
        np.array([end[0] for end in ends]),
        np.array([end[1] for end in ends]),
        np.array([draw(st.sampled_from([0, 3])) for _ in range(num_chunks)], np.int64),
        [f"episode_{i}" for i in range(num_chunks)],
        infos=infos,
        agents=agents,
        module_id="pilot" if agents else "default_policy",
    )


def flat_block(lengths: list[int], prefix: str = "e", seed: int = 0) -> ColumnBlock:
    """Whole episodes of CartPole's shapes; the last one of an even number is terminated."""
    rng = np.random.default_rng(seed)
    rows, num_chunks = sum(lengths), len(lengths)
    is_terminated = np.arange(num_chunks) % 2 == 0
    return ColumnBlock(
        {
            "obs": rng.normal(size=(rows + num_chunks, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, rows),
            "rewards": rng.normal(size=rows).astype(np.float32),
            "action_logp": rng.normal(size=rows).astype(np.float32),
        },
        np.array(lengths, np.int64),
        is_terminated,
        ~is_terminated,
        np.zeros(num_chunks, np.int64),
        [f"{prefix}{i}" for i in range(num_chunks)],
    )


def assert_same(first: ColumnBlock, second: ColumnBlock) -> None:
    """Every value, dtype and shape is the same (text may be of another width); infos too."""
    assert list(first.episode_ids) == list(second.episode_ids)
    for name in ("lengths", "is_terminated", "is_truncated", "t_started"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
        assert getattr(first, name).dtype == getattr(second, name).dtype
    assert first.columns.keys() == second.columns.keys()
    for name in first.columns:
        nested.map_leaves(_assert_same_array, first.columns[name], second.columns[name])
    for chunk, length in enumerate(first.lengths.tolist()):
        mine, theirs = (b.infos.rows_of(chunk, length + 1) if b.infos else None for b in (first, second))
        assert _normal(mine) == _normal(theirs)
    assert (first.agents is None) == (second.agents is None)
    if first.agents is not None and second.agents is not None:
        assert first.module_id == second.module_id
        assert list(first.agents.agent_ids) == list(second.agents.agent_ids)
        assert list(first.agents.multi_agent_episode_ids) == list(second.agents.multi_agent_episode_ids)
        np.testing.assert_array_equal(first.agents.env_t, second.agents.env_t)


def _assert_same_array(mine: Any, theirs: Any) -> None:
    assert mine.shape == theirs.shape
    assert mine.dtype.kind == theirs.dtype.kind
    if mine.dtype.kind in "US":
        np.testing.assert_array_equal(mine, theirs)
    else:
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()


def _normal(infos: list[dict[str, Any]] | None) -> Any:
    """Infos in a form that can be compared; none at all and only empty ones are the same."""
    return None if infos is None or not any(infos) else [_plain(info) for info in infos]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [_plain(item) for item in value])
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value).__name__, value.dtype.str, value.shape, value.tolist())
    return value


def part_of(block: ColumnBlock, start: int, stop: int) -> ColumnBlock:
    """The chunks from `start` to `stop`, copied by hand: what slicing a table must give."""
    offsets = block.offsets
    rows = slice(int(offsets[start]), int(offsets[stop]))
    obs_rows = slice(rows.start + start, rows.stop + stop)
    chunks = slice(start, stop)
    infos, agents = block.infos, block.agents
    return ColumnBlock(
        {n: nested.take(c, obs_rows if n == OBS else rows) for n, c in block.columns.items()},
        block.lengths[chunks],
        block.is_terminated[chunks],
        block.is_truncated[chunks],
        block.t_started[chunks],
        list(block.episode_ids)[chunks],
        infos=ListedInfos([infos.rows_of(i, int(block.lengths[i]) + 1) for i in range(start, stop)]) if infos else None,
        module_id=block.module_id,
        agents=Agents(agents.agent_ids[chunks], agents.multi_agent_episode_ids[chunks], agents.env_t[obs_rows])
        if agents
        else None,
    )
