"""LookbackBuffer against a naive model of its index rules, in list and in numpy mode."""

import copy
import pickle
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.episodes import LookbackBuffer
from runner.episodes.lookback_buffer import InfoBuffer

ROWS, LOOKBACK = 6, 2  # data 10..15; timestep 0 is 12
MODES = ["list", "numpy"]


def make_buffer(mode, rows=ROWS, lookback=LOOKBACK, space=None):
    data = list(range(10, 10 + rows))
    return LookbackBuffer(data if mode == "list" else np.array(data, dtype=np.int64), lookback, space)


def plain(result):
    return result.tolist() if isinstance(result, (np.ndarray, np.generic)) else result


def model_get(indices, neg_index_as_lookback, fill, rows=ROWS, lookback=LOOKBACK):
    """The index rules spelled out one position at a time."""
    data = list(range(10, 10 + rows))

    def position(index):
        return index + (lookback if index >= 0 or neg_index_as_lookback else rows)

    def item(p):
        if 0 <= p < rows:
            return data[p]
        if fill is None:
            raise IndexError
        return fill

    if isinstance(indices, int):
        return item(position(indices))
    if isinstance(indices, list):
        return [item(position(i)) for i in indices]
    step = indices.step or 1
    first, last = (lookback, rows) if step > 0 else (rows - 1, lookback - 1)
    start = first if indices.start is None else position(indices.start)
    stop = last if indices.stop is None else position(indices.stop)
    if fill is None:  # as Python clips: reversed slices run from the last row at most, to before the first
        low, high = (0, rows) if step > 0 else (-1, rows - 1)
        start, stop = max(low, min(high, start)), max(low, min(high, stop))
    return [item(p) for p in range(start, stop, step)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("neg", [False, True])
@pytest.mark.parametrize("fill", [None, 99])
class TestIndexTables:
    def test_int(self, mode, neg, fill):
        buffer = make_buffer(mode)
        for index in range(-10, 11):
            try:
                expected = model_get(index, neg, fill)
            except IndexError:
                with pytest.raises(IndexError, match=f"index {index} is outside of the buffer"):
                    buffer.get(index, neg_index_as_lookback=neg, fill=fill)
            else:
                assert buffer.get(index, neg_index_as_lookback=neg, fill=fill) == expected, index

    def test_list(self, mode, neg, fill):
        buffer = make_buffer(mode)
        for pair in product(range(-8, 8), repeat=2):
            try:
                expected = model_get(list(pair), neg, fill)
            except IndexError:
                with pytest.raises(IndexError, match="is outside of the buffer"):
                    buffer.get(list(pair), neg_index_as_lookback=neg, fill=fill)
            else:
                assert plain(buffer.get(list(pair), neg_index_as_lookback=neg, fill=fill)) == expected, pair

    def test_slice(self, mode, neg, fill):
        buffer = make_buffer(mode)
        ends = [None, *range(-9, 10)]
        for start, stop, step in product(ends, ends, [None, 1, 2, 3, -1, -2]):
            indices = slice(start, stop, step)
            got = buffer.get(indices, neg_index_as_lookback=neg, fill=fill)
            assert plain(got) == model_get(indices, neg, fill), indices


@given(
    rows=st.integers(0, 7),
    lookback=st.integers(0, 7),
    start=st.none() | st.integers(-12, 12),
    stop=st.none() | st.integers(-12, 12),
    step=st.sampled_from([None, 1, 2, -1, -3]),
    neg=st.booleans(),
)
def test_fill_on_both_sides_is_like_the_model(rows, lookback, start, stop, step, neg):
    lookback = min(lookback, rows)
    expected = model_get(slice(start, stop, step), neg, 99, rows, lookback)
    for mode in MODES:
        got = make_buffer(mode, rows, lookback).get(slice(start, stop, step), neg_index_as_lookback=neg, fill=99)
        assert plain(got) == expected


@pytest.mark.parametrize("mode", MODES)
class TestBothModes:
    def test_none_is_everything_from_timestep_0(self, mode):
        buffer = make_buffer(mode)
        assert plain(buffer.get()) == [12, 13, 14, 15]
        assert list(buffer) == [12, 13, 14, 15]
        assert (len(buffer), buffer.len_incl_lookback()) == (4, 6)
        assert (buffer[0], buffer[-1], plain(buffer[1:3])) == (12, 15, [13, 14])

    def test_other_index_types_are_refused(self, mode):
        for bad in ("a", 1.5, [1.5]):
            with pytest.raises(TypeError, match="indices must be None, an int, a slice or a list of ints, got"):
                make_buffer(mode).get(bad)
        with pytest.raises(ValueError, match="slice step cannot be 0"):
            make_buffer(mode).get(slice(0, 1, 0))

    def test_append_extend_concat_add(self, mode):
        buffer = make_buffer(mode)
        buffer.append(16)
        buffer.extend([17, 18])
        buffer.extend([])
        for other_mode in MODES:
            buffer.concat(make_buffer(other_mode, rows=3, lookback=1))
        both = buffer + make_buffer(mode, rows=3)
        assert plain(buffer.data) == [*range(10, 19), 11, 12, 11, 12]
        assert plain(both.data) == [*range(10, 19), 11, 12, 11, 12, 12]
        assert buffer.finalized is (mode == "numpy")
        assert both.lookback == LOOKBACK

    def test_pop_returns_and_shortens_the_lookback_only_for_its_rows(self, mode):
        buffer = make_buffer(mode)
        assert (buffer.pop(), buffer.pop(0), buffer.lookback) == (15, 12, 2)
        assert (buffer.pop(-3), plain(buffer.data), buffer.lookback) == (11, [10, 13, 14], 1)
        with pytest.raises(IndexError, match=r"index 2 is outside of the buffer: 2 rows .* 1 lookback rows"):
            buffer.pop(2)

    def test_truncate(self, mode):
        buffer = make_buffer(mode)
        buffer.truncate(3)
        assert plain(buffer.data) == [10, 11, 12]

    def test_equality_and_repr(self, mode):
        assert make_buffer(mode) == make_buffer(mode)
        changed = make_buffer(mode)
        changed.set(0, at_indices=0)
        assert make_buffer(mode) != changed
        assert make_buffer(mode) != make_buffer(mode, lookback=1)
        assert make_buffer("list") != make_buffer("numpy")
        assert make_buffer(mode) != 3
        assert repr(make_buffer(mode)).startswith(f"LookbackBuffer({mode}, len=4, lookback=2")

    def test_pickle_and_deepcopy_leave_spare_rows_behind(self, mode):
        buffer = make_buffer(mode)
        for value in range(16, 40):
            buffer.append(value)
        for twin in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
            assert twin == buffer
            assert twin._storage is None
            twin.set(0, at_indices=0)
            twin.append(1)
            assert (twin.get(0), twin.get(-1), buffer.get(0), len(buffer)) == (0, 1, 12, 28)

    def test_set(self, mode):
        buffer = make_buffer(mode)
        buffer.set(0, at_indices=-1)
        buffer.set(1, at_indices=-1, neg_index_as_lookback=True)
        buffer.set([2, 3], at_indices=slice(0, 2))
        buffer.set(np.array([4, 5]), at_indices=[-2, -6])
        assert plain(buffer.data) == [5, 1, 2, 3, 4, 0]
        buffer.set([6, 7, 8, 9])
        assert plain(buffer.data) == [5, 1, 6, 7, 8, 9]
        buffer.set([], at_indices=slice(2, 2))
        buffer.set([0, 1], at_indices=slice(-4, None, 2))
        assert plain(buffer.data) == [5, 1, 0, 7, 1, 9]

    def test_set_never_changes_the_length(self, mode):
        buffer = make_buffer(mode)
        with pytest.raises(ValueError, match="set: expected 4 items, one for each row, got 2"):
            buffer.set([1, 2])
        with pytest.raises(ValueError, match=r"set: .*(4 items|shape \(4,\)).*; the length is fixed"):
            buffer.set(np.array([1, 2]))
        with pytest.raises(IndexError, match="index 4 is outside of the buffer: 4 rows"):
            buffer.set(1, at_indices=4)
        with pytest.raises(IndexError, match="index -7 is outside"):
            buffer.set([1], at_indices=[-7])
        assert plain(buffer.data) == [10, 11, 12, 13, 14, 15]


class TestOneHot:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("fill", [0, 0.5])
    def test_discrete(self, mode, fill):
        data = [1, 3, 2]
        space = gym.spaces.Discrete(3, start=1)
        buffer = LookbackBuffer(data if mode == "list" else np.array(data), 0, space)
        got = np.array(buffer.get(slice(-4, 4), fill=fill, one_hot_discrete=True))
        blank = [fill] * 3
        np.testing.assert_array_equal(got, [blank, [1, 0, 0], [0, 0, 1], [0, 1, 0], blank])
        assert got.dtype == np.float32
        np.testing.assert_array_equal(buffer.get(-1, one_hot_discrete=True), [0, 1, 0])
        np.testing.assert_array_equal(buffer.get(7, fill=0, one_hot_discrete=True), [0, 0, 0])
        np.testing.assert_array_equal(np.array(buffer.get([1], one_hot_discrete=True)), [[0, 0, 1]])
        assert np.array(buffer.get(one_hot_discrete=True)).shape == (3, 3)

    @pytest.mark.parametrize("mode", MODES)
    def test_multi_discrete_inside_dict_and_tuple(self, mode):
        space = gym.spaces.Dict(
            m=gym.spaces.MultiDiscrete([2, 3]),
            t=gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))]),
        )
        items = [{"m": np.array([i, 2 - i]), "t": (i, np.full(2, i, np.float32))} for i in range(2)]
        buffer = LookbackBuffer(items, 0, space)
        if mode == "numpy":
            buffer.finalize()
        got = buffer.get(-1, one_hot_discrete=True)
        np.testing.assert_array_equal(got["m"], [0, 1, 0, 1, 0])
        np.testing.assert_array_equal(got["t"][0], [0, 1])
        np.testing.assert_array_equal(got["t"][1], [1, 1])
        blank = buffer.get(2, fill=0, one_hot_discrete=True)
        np.testing.assert_array_equal(blank["m"], np.zeros(5))
        np.testing.assert_array_equal(blank["t"][1], np.zeros(2))

    @pytest.mark.parametrize("mode", MODES)
    def test_values_outside_of_the_space_and_missing_spaces_are_refused(self, mode):
        buffer = make_buffer(mode, space=gym.spaces.Discrete(15))
        with pytest.raises(ValueError, match=r"outside of its Discrete space of size \[15\]"):
            buffer.get(one_hot_discrete=True)
        with pytest.raises(ValueError, match="one_hot_discrete=True needs the space"):
            make_buffer(mode).get(0, one_hot_discrete=True)
        buffer.space = gym.spaces.Dict(a=gym.spaces.Discrete(3))
        with pytest.raises(ValueError, match=r"not a dict with the space's keys \['a'\]"):
            buffer.get(0, one_hot_discrete=True)
        buffer.space = gym.spaces.Tuple([gym.spaces.Discrete(3)])
        with pytest.raises(ValueError, match="not a tuple of the space's 1 parts"):
            buffer.get(0, one_hot_discrete=True)

    def test_a_multi_discrete_table_is_flattened(self):
        space = gym.spaces.MultiDiscrete(np.array([[2, 2], [3, 1]]))
        buffer = LookbackBuffer(np.array([[[1, 0], [2, 0]]]), 0, space)
        np.testing.assert_array_equal(buffer.get(one_hot_discrete=True), [[0, 1, 1, 0, 0, 0, 1, 1]])


class TestFill:
    @pytest.mark.parametrize("mode", MODES)
    def test_numbers_spread_over_a_nested_item(self, mode):
        items = [{"a": np.ones(2, np.float32), "b": (np.int64(1),)} for _ in range(2)]
        buffer = LookbackBuffer(items, 1)
        if mode == "numpy":
            buffer.finalize()
        item = buffer.get(-3, fill=7)
        np.testing.assert_array_equal(item["a"], [7, 7])
        assert item["a"].dtype == np.float32
        assert item["b"][0] == 7
        given_item = buffer.get(-3, fill={"a": 1.5, "b": (2,)})
        np.testing.assert_array_equal(given_item["a"], [1.5, 1.5])
        assert given_item["b"][0] == 2
        with pytest.raises(ValueError, match=r"structure differs: expected dict with keys \['a', 'b'\]"):
            buffer.get(-3, fill={"a": 1.5})

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("fill", [0.5, -1, 256, np.nan, "x"])
    def test_values_that_the_column_cannot_hold_are_refused(self, mode, fill):
        data = [np.zeros(2, np.uint8)] * 2
        buffer = LookbackBuffer(data if mode == "list" else np.array(data))
        with pytest.raises(ValueError, match=r"does not fit the column: dtype uint8, row shape \(2,\)"):
            buffer.get(slice(-3, None), fill=fill)

    def test_an_empty_buffer_is_filled_after_its_space(self):
        space = gym.spaces.Dict(a=gym.spaces.Box(0, 1, (2,)), b=gym.spaces.Discrete(4))
        for buffer in (LookbackBuffer([], 0, space), LookbackBuffer([], 0, space)):
            item = buffer.get(-1, fill=1)
            np.testing.assert_array_equal(item["a"], [1, 1])
            assert item["b"] == 1
            buffer.finalize()
        assert LookbackBuffer().get(slice(-2, None), fill=3) == [3, 3]

    def test_text_is_widened(self):
        buffer = LookbackBuffer(np.array(["a", "b"]))
        assert buffer.get(slice(-3, 3), fill="long").tolist() == ["long", "a", "b", "long"]

    def test_infos_are_filled_with_the_value_itself(self):
        infos = InfoBuffer([{"a": 1}])
        assert infos.get(slice(-2, None), fill={}) == [{}, {"a": 1}]
        infos.finalize()
        assert infos.data == [{"a": 1}]


class TestNumpyMode:
    def test_slices_are_views_and_setters_write_through(self):
        column = np.arange(6.0)
        buffer = LookbackBuffer(column, 2)
        assert np.shares_memory(buffer.get(slice(-4, 2)), column)
        buffer.set(9, at_indices=0)
        buffer.set(np.array([7.0, 8.0]), at_indices=slice(-2, None))
        assert column.tolist() == [0, 1, 9, 3, 7, 8]

    def test_appending_neither_writes_into_given_arrays_nor_into_earlier_views(self):
        block = np.arange(10.0)
        buffer = LookbackBuffer(block[:3])
        buffer.append(100.0)
        assert block[3] == 3
        seen = buffer.get()
        buffer.pop()
        buffer.append(200.0)
        assert seen[-1] == 100
        assert buffer.get().tolist() == [0, 1, 2, 200]

    def test_appending_copies_rarely(self):
        buffer = LookbackBuffer(np.zeros((1, 3)))
        storages = set()
        for _ in range(1000):
            buffer.append(np.ones(3))
            storages.add(id(buffer._storage[1]))
        assert len(storages) < 12
        assert buffer.get().sum() == 3000

    @pytest.mark.parametrize(
        ("dtype", "value", "expected"),
        [
            (np.float32, 0.5, np.float32),
            (np.float32, 1, np.float32),
            (np.uint8, 1, np.uint8),
            (np.int64, 0.5, np.float64),
            (np.float32, np.float64(0.5), np.float64),
            (np.int64, np.array(3, np.int32), np.int64),
        ],
    )
    def test_appending_keeps_or_widens_the_dtype(self, dtype, value, expected):
        buffer = LookbackBuffer(np.zeros(2, dtype))
        buffer.append(value)
        assert buffer.data.dtype == expected
        assert buffer.get(-1) == value

    def test_the_first_row_decides_an_empty_column(self):
        empty = LookbackBuffer([])
        empty.finalize()
        empty.append(3)
        assert empty.data.dtype == np.int64
        empty = LookbackBuffer([])
        empty.finalize()
        empty.append({"a": np.zeros(2, np.float32)})
        assert empty.data["a"].shape == (1, 2)
        typed = LookbackBuffer(np.zeros((0, 2), np.float32))
        typed.append(np.array([1.0, 2.0], np.float32))
        assert typed.data.dtype == np.float32
        spaced = LookbackBuffer([], 0, gym.spaces.Box(0, 1, (2,)))
        spaced.finalize()
        assert spaced.data.shape == (0, 2)
        assert spaced.data.dtype == np.float32

    def test_items_of_another_shape_are_refused_when_appended(self):
        buffer = LookbackBuffer({"a": np.zeros((2, 3))})
        with pytest.raises(ValueError, match=r"rows have shape \(3,\), got an item of shape \(2,\)"):
            buffer.append({"a": np.zeros(2)})
        with pytest.raises(ValueError, match=r"structure differs: expected dict with keys \['a'\], got ndarray"):
            buffer.append(np.zeros(3))
        with pytest.raises(ValueError, match="rows have dtype float64, got an item of dtype <U1"):
            LookbackBuffer(np.zeros(2)).append("a")
        with pytest.raises(ValueError, match="300 does not fit a column of dtype uint8"):
            LookbackBuffer(np.zeros(2, np.uint8)).append(300)
        with pytest.raises(TypeError, match="must be numbers, bools or text to become an array, got dtype object"):
            LookbackBuffer(np.zeros(2)).append(None)

    def test_set_refuses_what_the_dtype_cannot_hold_and_then_writes_nothing(self):
        buffer = LookbackBuffer({"a": np.zeros(2), "b": np.zeros(2, np.uint8)})
        with pytest.raises(ValueError, match="values of dtype float64 do not fit a column of dtype uint8"):
            buffer.set({"a": np.ones(2), "b": np.array([0.5, 1.0])})
        assert buffer.data["a"].tolist() == [0, 0]
        buffer.set({"a": [1, 2], "b": [3, 4]}, at_indices=[1, 0])
        assert (buffer.data["a"].tolist(), buffer.data["b"].tolist()) == ([2, 1], [4, 3])
        with pytest.raises(ValueError, match="values of dtype <U2 do not fit a column of dtype <U1"):
            LookbackBuffer(np.array(["a"])).set("bb", at_indices=0)
        with pytest.raises(ValueError, match=r"set: expected data of shape \(0,\), got \(2,\)"):
            LookbackBuffer(np.zeros(3)).set(np.ones(2), at_indices=slice(1, 1))

    def test_nested_columns_pop_and_iterate(self):
        buffer = LookbackBuffer({"a": np.arange(3), "b": (np.arange(3) * 2,)})
        assert buffer.pop(0) == {"a": 0, "b": (0,)}
        assert list(buffer) == [{"a": 1, "b": (2,)}, {"a": 2, "b": (4,)}]


class TestListMode:
    def test_finalize_stacks_nested_items(self):
        buffer = LookbackBuffer([{"a": np.full(2, i), "b": (i, f"s{i}")} for i in range(3)], 1)
        buffer.finalize()
        assert buffer.data["a"].tolist() == [[0, 0], [1, 1], [2, 2]]
        assert buffer.data["b"][1].tolist() == ["s0", "s1", "s2"]
        assert len(buffer) == 2

    def test_items_that_cannot_be_stacked(self):
        with pytest.raises(ValueError, match=r"items of unequal shape cannot become one array: \(2,\), \(3,\)"):
            LookbackBuffer([np.zeros(2), np.zeros(3)]).finalize()
        with pytest.raises(ValueError, match=r"items of unequal shape .*: \(2,\), \(3,\), \(4,\)"):
            LookbackBuffer([np.zeros(3), np.zeros(2), np.zeros(4)]).finalize()  # as many numbers as in three of (3,)
        with pytest.raises(ValueError, match=r"structure differs: expected dict with keys \['a'\], got int"):
            LookbackBuffer([{"a": 1}, 2]).finalize()
        with pytest.raises(ValueError, match="structure differs: expected tuple of 1, got tuple of 2"):
            LookbackBuffer([(1,), (1, 2)]).finalize()
        with pytest.raises(TypeError, match="got dtype object"):
            LookbackBuffer([object()]).finalize()

    def test_columns_are_taken_apart(self):
        buffer = LookbackBuffer([{"a": 0}])
        buffer.extend({"a": np.arange(2)})
        buffer.set({"a": np.array([5, 6])}, at_indices=[0, 1])
        assert buffer.data == [{"a": 5}, {"a": 6}, {"a": 1}]
        with pytest.raises(TypeError, match="set: expected a list of 3 items, got int"):
            buffer.set(3)


def test_items_can_be_assigned() -> None:
    for data in ([0, 1, 2, 3], np.arange(4)):
        buffer = LookbackBuffer(data, lookback=1)
        buffer[0] = 10
        buffer[[1, -1]] = [20, 30]
        assert list(buffer.data) == [0, 10, 20, 30]
        buffer[:2] = [5, 6]
        assert list(buffer) == [5, 6, 30]
        with pytest.raises(IndexError, match="index 3 is outside"):
            buffer[3] = 0
