"""The unpickler reads what numpy writes, and nothing else: no global of a pickle is ever imported or called."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import struct
import sys
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as npst
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.offline.codecs.numpy_unpickler import PickleRefused, unpickle
from runner.offline.codecs.rllib_tables import unpickle_rows

PROTOCOLS = [2, 3, 4, 5]
DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    npst.unicode_string_dtypes(endianness="=", max_len=4),
    npst.byte_string_dtypes(max_len=4),
)


def items_of(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Values of a dtype; text without surrogates, which are refused, and without NULs at its end, which numpy drops."""
    if dtype.kind == "U":
        text = st.text(st.characters(exclude_categories=["Cs"]), max_size=dtype.itemsize // 4)
        return text.map(lambda value: value.rstrip("\0"))
    return npst.from_dtype(dtype)


ARRAYS = DTYPES.flatmap(
    lambda dtype: npst.arrays(
        dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), elements=items_of(dtype)
    )
)


def assert_same(read: Any, expected: Any) -> None:
    assert type(read) is type(expected)
    if isinstance(expected, dict):
        assert list(read) == list(expected)
        for key, item in expected.items():
            assert_same(read[key], item)
    elif isinstance(expected, (list, tuple)):
        assert len(read) == len(expected)
        for got, item in zip(read, expected, strict=True):
            assert_same(got, item)
    else:
        np.testing.assert_array_equal(read, expected)
        if isinstance(expected, (np.ndarray, np.generic)):
            assert read.dtype == expected.dtype.newbyteorder("=")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(array=ARRAYS)
def test_arrays_come_back_as_they_were(protocol: int, array: np.ndarray) -> None:
    assert_same(unpickle(pickle.dumps(array, protocol)), array)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(10)[::2],
        np.arange(3, dtype=">i2"),
        np.array(["a", "bc"], dtype=">U2"),
        np.arange(3) + 1j,
        np.float32(2),
        np.bool_(True),
        np.str_("text"),
        {"a": np.arange(2), "b": (np.arange(2.0), np.int8(1)), "c": [None, True, 1, 2.5, "x", b"y", 10**20, -1, 70000]},
        (np.arange(3), np.arange(3)),
        b"",
        {},
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_orders_scalars_and_nesting(protocol: int, value: Any) -> None:
    assert_same(unpickle(pickle.dumps(value, protocol)), value)


def test_names_of_numpy_before_version_2() -> None:
    for array in (np.arange(3.0), np.arange(6)[::2], np.float32(1)):
        for protocol in PROTOCOLS:
            old = pickle.dumps(array, protocol).replace(b"numpy._core", b"numpy.core")
            # lengths of text are stored before it
            old = old.replace(b"\x8c\x13numpy.core", b"\x8c\x12numpy.core").replace(
                b"\x8c\x16numpy.core", b"\x8c\x15numpy.core"
            )
            assert_same(unpickle(old), array)


def test_arrays_are_writable_and_own_their_data() -> None:
    array = unpickle(pickle.dumps(np.arange(3), 5))
    array[0] = 7
    assert array.flags.owndata or array.base.flags.owndata


@given(st.lists(npst.arrays(np.float32, (3,)), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_many_rows_are_what_each_is(arrays: list[np.ndarray], choose: random.Random) -> None:
    views = [choose.choice([array, array[::-1], np.asfortranarray(array)]) for array in arrays]
    blobs = [pickle.dumps(view, choose.choice(PROTOCOLS)) for view in views]
    np.testing.assert_array_equal(unpickle_rows(blobs), np.array([pickle.loads(blob) for blob in blobs]))


@pytest.mark.parametrize(
    "rows",
    [
        [np.zeros((0, 2)), np.zeros((0, 2))],
        [np.array([True, False]), np.array([False, False])],
        [np.array(["ab"]), np.array(["c "])],
        [np.array(1.5), np.array(2.5)],
        [np.arange(6, dtype=">i4").reshape(2, 3)] * 3,
        [np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3)],
    ],
)
def test_rows_of_other_kinds(rows: list[np.ndarray]) -> None:
    np.testing.assert_array_equal(unpickle_rows([pickle.dumps(row, 5) for row in rows]), np.stack(rows))


def test_rows_that_are_dicts_become_nested_columns() -> None:
    rows = [{"a": np.arange(2) + i, "b": (np.float32(i), np.full(3, i))} for i in range(4)]
    columns = unpickle_rows([pickle.dumps(row, 5) for row in rows])
    np.testing.assert_array_equal(columns["a"], np.arange(2) + np.arange(4)[:, None])
    np.testing.assert_array_equal(columns["b"][1], np.repeat(np.arange(4)[:, None], 3, axis=1))


@pytest.mark.parametrize(
    ("other", "words"),
    [(np.zeros(3, np.float32), "shape"), (np.zeros(4), "float64"), ({"a": np.zeros(4)}, "row 0 is float32 of shape")],
)
def test_rows_that_do_not_fit_are_refused_with_their_number(other: Any, words: str) -> None:
    good = pickle.dumps(np.zeros(4, np.float32), 5)
    with pytest.raises(PickleRefused, match=words) as caught:
        unpickle_rows([good, good, pickle.dumps(other, 5), good])
    assert caught.value.row == 2


# --- what must not be read ------------------------------------------------------------------------


class Call:
    """Pickles as a call of something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


class Stateful:
    """Pickles as an instance whose `__setstate__` gets the state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return Stateful, (), self.state

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("was called")


def marked(path: Path) -> str:
    return f"{sys.executable} -c 'open({str(path)!r}, \"w\")'"


@pytest.mark.parametrize("protocol", range(6))
def test_calls_are_refused_by_name(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "was_here"
    for value in (
        Call(os.system, marked(mark)),
        Call(eval, f"open({str(mark)!r}, 'w')"),
        Call(exec, f"open({str(mark)!r}, 'w')"),
        Call(open, str(mark), "w"),
        Call(__import__, "antigravity"),
        [1, {"a": (Call(os.system, marked(mark)),)}],
        np.array([Call(os.system, marked(mark)), 1], object),
        {"obs": np.arange(3), "infos": Call(os.system, marked(mark))},
    ):
        with pytest.raises(PickleRefused, match=r"system|eval|exec|open|import|object|opcode|protocol"):
            unpickle(pickle.dumps(value, protocol))
    assert not mark.exists()
    assert "antigravity" not in sys.modules


def test_the_name_of_what_it_asks_for_is_in_the_message() -> None:
    with pytest.raises(PickleRefused, match=r"the pickle uses (posix|nt)\.system, which is not allowed"):
        unpickle(pickle.dumps(Call(os.system, "true"), 5))


class Matrix(np.ndarray):
    """A subclass."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "value",
    [
        Stateful({"a": 1}),
        np.array([None, 1], object),
        np.array([[1, 2], [3]], object),
        np.zeros(2, [("a", "f4")]),
        np.array(["2020"], "M8[D]"),
        np.array([1], "m8[s]"),
        np.arange(3).view(Matrix),
        np.ma.masked_array([1, 2], [0, 1]),
        np.dtype("f4"),
        np.ndarray,
        np.array(["a"], np.dtypes.StringDType()),
        np.float64,
        print,
        io.BytesIO(b"x"),
        {1, 2},
        frozenset([1]),
        1j,
        slice(1),
        Path("x"),
        {(1, 2): 3},
        {None: 3},
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_else_is_refused(protocol: int, value: Any) -> None:
    with pytest.raises(PickleRefused):
        unpickle(pickle.dumps(value, protocol))


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def global_(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


DTYPE = global_("numpy", "dtype")
F4 = DTYPE + text("f4") + b"\x89\x88\x87R"
FROM_BUFFER = global_("numpy._core.numeric", "_frombuffer")
SHELL = global_("numpy._core.multiarray", "_reconstruct") + global_("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
HUGE = struct.pack("<Q", 2**60)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        # globals of modules that are allowed for other names
        (global_("numpy", "load"), "numpy.load"),
        (global_("numpy", "fromfile"), "numpy.fromfile"),
        (global_("numpy._core.multiarray", "fromfile"), "fromfile"),
        (global_("numpy.lib.npyio", "load"), "load"),
        (global_("numpy.testing._private.utils", "runstring"), "runstring"),
        (global_("numpy", "dtype.__class__"), "dtype.__class__"),
        (global_("_codecs", "decode"), "_codecs.decode"),
        (b"cos\nsystem\n", "os.system"),
        (b"c__builtin__\neval\n", "eval"),
        (b"K\x01K\x02\x93", "an unnamed global"),
        # other ways to objects
        (b"(ios\nsystem\n", "INST"),
        (text("x") + b"Q", "BINPERSID"),
        (b"Px\n", "PERSID"),
        (b"\x82\x01", "EXT1"),
        (F4 + b")\x81", "NEWOBJ"),
        (F4 + b")}\x92", "NEWOBJ_EX"),
        (b"(" + F4 + b"o", "OBJ"),
        (b"\x97", "NEXT_BUFFER"),
        (b"\x98", "READONLY_BUFFER"),
        (b"]\x8f", "EMPTY_SET"),
        # calls of what is allowed, with arguments that are not
        (DTYPE + text("O8") + b"\x89\x88\x87R", "object"),
        (DTYPE + text("f4,O8") + b"\x89\x88\x87R", "f4,O8"),
        (DTYPE + text("V8") + b"\x89\x88\x87R", "V8"),
        (DTYPE + text("U0") + b"\x89\x88\x87R", "U0"),
        (DTYPE + text("U999999999999") + b"\x89\x88\x87R", "U999"),
        (DTYPE + b"}\x89\x88\x87R", "wrong arguments of dtype"),
        (DTYPE + F4 + b"\x85R", "wrong arguments of dtype"),
        (DTYPE + b"]R", "other than a numpy constructor"),
        (global_("numpy", "ndarray") + b"K\x02\x85R", "ndarray"),
        (text("f4") + b")R", "other than a numpy constructor"),
        (FROM_BUFFER + b"(C\x04abcd" + F4 + b"K\x02\x85" + text("C") + b"tR", "4 bytes for float32"),
        (FROM_BUFFER + b"(C\x04abcd" + F4 + b"J\xff\xff\xff\xff\x85" + text("C") + b"tR", "not a tuple of sizes"),
        (FROM_BUFFER + b"(C\x04abcd" + F4 + b"K\x01\x85" + text("A") + b"tR", "neither C nor F"),
        (FROM_BUFFER + b"(C\x04abcd" + F4 + b"K\x01\x85" + text("K") + b"K\x05\x85tR", "permutation"),
        (FROM_BUFFER + b"(C\x04abcd" + F4 + b"K\x01\x85" + text("K") + text("a") + b"\x85tR", "permutation"),
        (FROM_BUFFER + b"(C\x00" + F4 + b"\x8a\x08" + HUGE + b"K\x00\x86" + text("C") + b"tR", "of shape"),
        (FROM_BUFFER + b"(" + text("abcd") + F4 + b"K\x01\x85" + text("C") + b"tR", "wrong arguments"),
        (SHELL + b"(K\x01K\x01\x85" + F4 + b"\x89]tb", "object arrays"),
        (SHELL, "is not data"),
        (SHELL + b"}b", "state of something"),
        (
            SHELL + b"(K\x01K\x01\x85" + F4 + b"\x89C\x04abcdtb(K\x01K\x01\x85" + F4 + b"\x89C\x04abcdtb",
            "state of something",
        ),
        (SHELL + b"(K\x01K\x01\x85\x8c\x02f4\x89C\x04abcdtb", "wrong state"),
        (F4 + b"(K\x03" + text("|") + b"NNNK\x08K\x08K?tb", "f4 with 8 bytes"),
        (F4 + b"(K\x03" + text("<") + F4 + b"NNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb", "structured"),
        (F4 + b"(K\x04" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00}tb", "structured"),
        (F4 + b"}b", "state of something"),
        (DTYPE + b"}b", "state of something"),
        (DTYPE + b"N}" + text("shape") + b"N" + b"s\x86b", "state of something"),
        (b"}}b", "state of something"),
        (global_("_codecs", "encode") + text("x") + text("utf-16") + b"\x86R", "utf-16"),
        (global_("_codecs", "encode") + b"C\x01x" + text("latin1") + b"\x86R", "wrong arguments"),
        # damage, and what asks for much memory
        (b"\x96" + HUGE, "damaged"),
        (b"B\xff\xff\xff\xff", "damaged"),
        (b"X\xff\xff\xff\xff", "damaged"),
        (b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7e", "is undefined"),
        (b"h\x05", "is undefined"),
        (b"NN", "more than one value"),
        (b"(N", "more than one value"),
        (b"t", "truncated"),
        (b"R", "truncated"),
        (b"(\x85", "truncated"),
        (b"b", "truncated"),
        (b"]N", "more than one value"),
        (b"Na", "damaged"),
        (b"](Nt}u", "damaged"),
        (b"}(Nu", "damaged"),
        (b"}" + F4 + b"Ns", "keys of dicts"),
        (b"\x8c\x02\xff\xfe", "damaged"),
        (b"cos", "truncated"),
        (b"]" * 200 + b"a" * 199, "deeper"),
        (b"]q\x00h\x00a", "used twice"),
        (b"]q\x00" + b"(" + b"h\x00" * 10 + b"t" * 5, "used twice"),
        (b"}q\x00h\x00\x86", "used twice"),
        (b"N\x85\x85q\x00h\x00\x86", "used twice"),
        (b"\xff", "0xff"),
    ],
)
def test_crafted_pickles_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(PickleRefused, match=words):
        unpickle(b"\x80\x05" + body + b".")


def test_values_that_no_dtype_has_are_refused() -> None:
    for array, old, new in (
        (np.array([True, False, True]), b"\x01\x00\x01", b"\x01\x00\x02"),
        (np.array(["ab"]), b"a\0\0\0b\0\0\0", b"a\0\0\0b\0\x11\0"),
        (np.array(["ab"]), b"a\0\0\0b\0\0\0", b"a\0\0\0\0\xd8\0\0"),
    ):
        for protocol in (3, 4, 5):
            with pytest.raises(PickleRefused, match=r"neither 0 nor 1|not valid Unicode"):
                unpickle(pickle.dumps(array, protocol).replace(old, new))


def test_repeating_stored_bytes_is_limited() -> None:
    data = b"\x80\x05(B" + struct.pack("<I", 2**16) + bytes(2**16) + b"q\x00" + b"h\x00" * 1000 + b"t."
    with pytest.raises(PickleRefused, match="repeats more bytes"):
        unpickle(data)


@pytest.mark.parametrize("protocol", [0, 1, 6, 255])
def test_other_protocols_are_refused(protocol: int) -> None:
    with pytest.raises(PickleRefused, match=f"protocol {protocol}"):
        unpickle(b"\x80" + bytes([protocol]) + b"N.")


def test_files_of_numpy_are_no_pickles() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}], object), allow_pickle=True)
    with pytest.raises(PickleRefused):
        unpickle(file.getvalue())


@pytest.mark.parametrize("size", [0, 1, 2, 11, 50, 100, -1])
def test_truncated_pickles_are_refused(size: int) -> None:
    for protocol in PROTOCOLS:
        blob = pickle.dumps({"a": np.arange(9), "b": [np.float32(1)]}, protocol)
        with pytest.raises(PickleRefused):
            unpickle(blob[:size])


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) in (str, int) and is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in "biufcSU"
    return value is None or type(value) in (bool, int, float, str, bytes)


def test_damaged_pickles_give_plain_data_or_are_refused() -> None:
    choose = random.Random(0)
    values = [np.arange(4, dtype="f4"), np.array(["ab"]), {"a": np.arange(3)[::2], "b": (np.float32(1), [1, None])}]
    seeds = [pickle.dumps(value, protocol) for value in values for protocol in PROTOCOLS]
    opcodes = b"(NJKMGX\x8cCB)t\x85\x86\x87]ae}su\x94qhrjcRb\x93\x80\x95\x88\x89\x8a\x8d\x8e\x96.\x81\x82PQio"
    for _ in range(6_000):
        blob = bytearray(choose.choice(seeds))
        for _ in range(choose.randint(1, 4)):
            at = choose.randrange(len(blob))
            match choose.randrange(4):
                case 0:
                    blob[at] = choose.randrange(256)
                case 1:
                    blob[at] = choose.choice(opcodes)
                case 2:
                    blob[at:at] = bytes([choose.choice(opcodes)])
                case 3:
                    part = choose.choice(seeds)
                    start = choose.randrange(len(part))
                    blob[at:at] = part[start : start + choose.randint(1, 40)]
        with contextlib.suppress(PickleRefused):
            assert is_plain(unpickle(bytes(blob)))
