"""A zoo of spaces, batches of their items as tensors, and hypothesis strategies for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import strategies as st

from runner.episodes import nested

Space = gym.Space[Any]
BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
ACTIONS_BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
NESTED = gym.spaces.Dict(
    {
        "camera": gym.spaces.Box(0, 255, (10, 12, 3), np.uint8),
        "inner": gym.spaces.Tuple(
            (gym.spaces.Discrete(3, start=-1), gym.spaces.Dict({"bits": gym.spaces.MultiBinary(4), "x": BOX}))
        ),
        "multi": gym.spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[1, 0], [-2, 5]]),
    }
)


def leaf_spaces(space: Space) -> list[Any]:
    """The spaces in nested ones."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else space.spaces
        return [leaf for part in parts for leaf in leaf_spaces(part)]
    return [space]


def items_of(space: Space, *leading: int, seed: int = 0) -> Any:
    """Items (*leading, ...) of a space, as tensors nested like it."""
    space.seed(seed)
    items = [space.sample() for _ in range(int(np.prod(leading)))]
    return nested.map_leaves(
        lambda leaf: torch.from_numpy(leaf.reshape(*leading, *leaf.shape[1:])), nested.stack(items)
    )


def rows_of(tree: Any, rows: Any) -> Any:
    """The same rows of every leaf."""
    return nested.map_leaves(lambda leaf: leaf[rows], tree)


_SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def _multi_discretes(draw: st.DrawFn) -> Space:
    shape = draw(_SHAPES.filter(len))
    count = int(np.prod(shape))
    sizes = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    starts = draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    dtype = draw(st.sampled_from([np.int64, np.int32]))
    nvec, start = (np.array(numbers, dtype).reshape(shape) for numbers in (sizes, starts))
    return gym.spaces.MultiDiscrete(nvec, dtype, start=start)


@st.composite
def _integer_boxes(draw: st.DrawFn) -> Space:
    dtype = draw(st.sampled_from([np.int8, np.uint8, np.int32, np.int64]))
    low = draw(st.integers(0, 3) if dtype is np.uint8 else st.integers(-3, 3))
    return gym.spaces.Box(low, low + draw(st.integers(0, 4)), draw(_SHAPES), dtype)


_LEAVES = st.one_of(
    st.builds(gym.spaces.Discrete, st.integers(1, 5), start=st.integers(-3, 3)),
    st.builds(gym.spaces.Discrete, st.integers(1, 5), dtype=st.sampled_from([np.int32, np.int8])),
    _multi_discretes(),
    st.builds(gym.spaces.MultiBinary, st.integers(1, 4) | st.just((2, 3))),
    st.builds(gym.spaces.Box, st.just(-2), st.just(2), _SHAPES, st.sampled_from([np.float32, np.float64, np.float16])),
    _integer_boxes(),
)
_KEYS = st.sampled_from(["a", "b", "c", "z"])


def spaces() -> st.SearchStrategy[Space]:
    """Spaces that can be encoded and acted in."""
    return st.recursive(
        _LEAVES,
        lambda parts: st.one_of(
            st.dictionaries(_KEYS, parts, min_size=1, max_size=3).map(gym.spaces.Dict),
            st.lists(parts, min_size=1, max_size=3).map(gym.spaces.Tuple),
        ),
        max_leaves=5,
    )
