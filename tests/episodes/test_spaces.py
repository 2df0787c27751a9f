"""Spaces as plain dicts: every kind comes back equal, and every bad dict says what is wrong."""

import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces as gs

from runner.episodes.nested import StateError
from runner.episodes.spaces import blank_item, one_hot, space_from_dict, space_to_dict

SPACES = [
    gs.Box(-1, 1, (2, 3)),
    gs.Box(-np.inf, np.inf, (4,), np.float64),
    gs.Box(np.array([-1.5, -np.inf], np.float32), np.array([0.1, np.inf], np.float32)),
    gs.Box(0, 255, (4, 4, 3), np.uint8),
    gs.Box(-(2**63), 2**63 - 1, (1,), np.int64),
    gs.Box(0, 1, ()),
    gs.Box(0, 1, (0, 3)),
    gs.Discrete(5),
    gs.Discrete(5, start=-2, dtype=np.int32),
    gs.MultiDiscrete([2, 3, 4]),
    gs.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-1, 7]])),
    gs.MultiBinary(4),
    gs.MultiBinary([2, 3]),
    gs.Text(7, min_length=2, charset="zab"),
    gs.Dict(b=gs.Discrete(2), a=gs.Tuple([gs.Box(0, 1), gs.Dict(x=gs.MultiBinary(1))])),
    gs.Dict([("z", gs.Discrete(2)), ("a", gs.Discrete(3))]),
    gs.Tuple([]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip_through_json(space):
    text = json.dumps(space_to_dict(space), allow_nan=False)
    twin = space_from_dict(json.loads(text))
    assert twin == space
    assert (twin.shape, twin.dtype) == (space.shape, space.dtype)
    if isinstance(space, gs.Dict):
        assert list(twin.spaces) == list(space.spaces)
    twin.seed(1)
    assert space.contains(twin.sample())


def test_equal_bounds_are_one_number():
    state = space_to_dict(gs.Box(0, 255, (84, 84, 4), np.uint8))
    assert state == {"space": "box", "low": 0, "high": 255, "shape": [84, 84, 4], "dtype": "uint8"}


def test_spaces_that_cannot_be_saved():
    with pytest.raises(TypeError, match="a Sequence space cannot be saved; expected: Box, Discrete"):
        space_to_dict(gs.Tuple([gs.Sequence(gs.Discrete(2))]))
    with pytest.raises(TypeError, match="keys of a Dict space must be strings or integers"):
        space_to_dict(gs.Dict([((1, 2), gs.Discrete(2))]))


BOX = {"space": "box", "low": 0, "high": 1, "shape": [2], "dtype": "float32"}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "space: expected a dict, got NoneType"),
        ({}, "space: missing key 'space', expected str"),
        ({"space": "graph"}, "space.space: unknown kind 'graph'; expected: box, discrete"),
        ({**BOX, "low": "low"}, "space.low: expected numbers, 'inf' or '-inf', got 'low'"),
        ({**BOX, "low": [0, 1, 2]}, r"space.low: expected one number or shape \[2\], got \[3\]"),
        ({**BOX, "low": [0, [1]]}, "not a valid box space"),
        ({**BOX, "low": 2}, "not a valid box space"),
        ({**BOX, "high": [300, 1], "dtype": "uint8"}, "not a valid box space"),
        ({**BOX, "shape": [-1]}, "space.shape: expected non-negative integers"),
        ({**BOX, "shape": [2**20, 2**20]}, r"product at most 2\*\*24"),
        ({**BOX, "shape": 3}, "space.shape: expected list or tuple, got int"),
        ({**BOX, "dtype": "object"}, "space.dtype: expected a numpy dtype of kind b/i/u/f, got 'object'"),
        ({**BOX, "dtype": "nonsense"}, "space.dtype: expected a numpy dtype"),
        ({"space": "discrete"}, "space: missing key 'n', expected int"),
        ({"space": "discrete", "n": 0}, "not a valid discrete space"),
        ({"space": "discrete", "n": True}, "space.n: expected int, got bool"),
        ({"space": "multi-discrete", "nvec": [0]}, "not a valid multi-discrete space"),
        ({"space": "multi-discrete", "nvec": ["a"]}, "not a valid multi-discrete space"),
        ({"space": "multi-binary", "n": "a"}, "space.n: expected list or tuple, got str"),
        ({"space": "text", "charset": "a"}, "missing key 'max_length'"),
        ({"space": "dict", "spaces": [["a"]]}, r"space.spaces\[0\]: expected \[key, space\]"),
        ({"space": "dict", "spaces": [["a", {"space": "discrete"}]]}, "space.a: missing key 'n'"),
        ({"space": "tuple", "spaces": [{"space": "box"}]}, r"space\[0\]: missing key 'shape'"),
    ],
)
def test_bad_dicts_are_refused_by_name(state, message):
    with pytest.raises(StateError, match=message):
        space_from_dict(state)


def test_the_largest_integers_are_exact():
    box = space_from_dict({**BOX, "high": [2**64 - 1, 1], "dtype": "uint64"})
    assert box.high.tolist() == [2**64 - 1, 1]


def test_depth_is_limited():
    state = {"space": "discrete", "n": 2}
    for _ in range(100):
        state = {"space": "tuple", "spaces": [state]}
    with pytest.raises(StateError, match="nested deeper than 32 levels"):
        space_from_dict(state)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_blank_item_lies_in_the_space_where_zero_does(space):
    item = blank_item(space)
    if not isinstance(space, gs.Text):
        assert space.contains(item)
    else:
        assert item is None


def test_one_hot_keeps_leading_axes():
    values = np.arange(6).reshape(2, 3)
    encoded = one_hot(gs.Discrete(6), values)
    assert (encoded.shape, encoded.dtype) == ((2, 3, 6), np.float32)
    np.testing.assert_array_equal(encoded.argmax(-1), values)
    np.testing.assert_array_equal(encoded.sum(-1), np.ones((2, 3)))


@pytest.mark.parametrize("value", [-1, np.int64(1), np.uint8(2), np.uint64(2), np.array(0)])
def test_one_hot_of_one_value(value):
    space = gs.Discrete(4, start=-1)
    np.testing.assert_array_equal(one_hot(space, value), np.eye(4, dtype=np.float32)[int(value) + 1], strict=True)
    with pytest.raises(ValueError, match="a value is outside of its Discrete space of size"):
        one_hot(space, value + 6)


def test_one_hot_without_rows():
    assert one_hot(gs.MultiDiscrete([2, 3]), np.zeros((0, 2), np.int64)).shape == (0, 5)


def test_importing_episodes_needs_numpy_only():
    heavy = ["gymnasium", "torch", "ray", "hydra", "omegaconf"]
    code = f"import sys, runner.episodes; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
