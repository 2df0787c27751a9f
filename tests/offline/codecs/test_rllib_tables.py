"""RLlib's tables: packed columns and Ray's tensors become the numbers that were packed."""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.offline.codecs import rllib_tables
from runner.offline.codecs.step_columns import column_to_arrays
from runner.offline.files import data_error
from runner.offline.files.data_error import DataError, DataLocation

lz4_frame = pytest.importorskip("lz4.frame")

FILE = Path(__file__).parents[2] / "data" / "rllib_table" / "part-00000.parquet"
PLACE = DataLocation("part.parquet", 100)


def pack(value: Any, protocol: int = 5, **options: Any) -> str:
    """As RLlib packs."""
    return base64.b64encode(lz4_frame.compress(pickle.dumps(value, protocol), **options)).decode()


def by_hand(column: pa.ChunkedArray) -> np.ndarray:
    return np.array([pickle.loads(lz4_frame.decompress(base64.b64decode(text))) for text in column.to_pylist()])


def unpack(values: pa.Array) -> Any:
    return rllib_tables.unpack_column(pa.chunked_array([values]), PLACE.of("obs"))


def test_a_file_of_rllib() -> None:
    table = pq.read_table(FILE)
    for name in ("obs", "new_obs"):
        assert rllib_tables.is_packed(table[name])
        obs = rllib_tables.unpack_column(table[name], PLACE)
        assert (obs.dtype, obs.shape) == (np.float32, (table.num_rows, 4))
        np.testing.assert_array_equal(obs, by_hand(table[name]))
    logits = column_to_arrays(table["action_dist_inputs"], table.schema.field("action_dist_inputs"), PLACE)
    assert isinstance(logits, np.ndarray)
    assert (logits.dtype, logits.shape) == (np.float32, (table.num_rows, 2))
    np.testing.assert_array_equal(logits, table["action_dist_inputs"].to_pylist())
    assert not any(map(rllib_tables.is_packed, table.drop_columns(["obs", "new_obs"]).columns))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (4, 5, 3)])
@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "int64", "float16"])
def test_arrays_of_any_rank(shape: tuple[int, ...], dtype: str) -> None:
    rows = (np.random.default_rng(0).random((7, *shape)) * 9).astype(dtype)
    for column in (pa.array([pack(row) for row in rows]), pa.array([pack(row).encode() for row in rows])):
        values = unpack(column)
        assert values.dtype == rows.dtype
        assert np.array_equal(values, rows)


def test_dicts_and_tuples_become_nested_arrays() -> None:
    rows = [{"position": np.full(2, i, np.float32), "a/b": (np.int64(i), np.full((2, 2), i))} for i in range(3)]
    values = unpack(pa.array([pack(row) for row in rows]))
    assert values["position"].shape == (3, 2)
    assert values["a/b"][0].tolist() == [0, 1, 2]
    assert values["a/b"][1].tolist()[2] == [[2, 2], [2, 2]]


def test_frames_of_every_form() -> None:
    array = np.random.default_rng(0).random(3000)
    zeros = np.zeros(3000)
    options: list[dict[str, Any]] = [
        {},
        {"store_size": False},
        {"content_checksum": True},
        {"block_checksum": True},
        {"block_linked": False},
        {"block_size": lz4_frame.BLOCKSIZE_MAX64KB},
        {"compression_level": 9},
    ]
    for value in (array, zeros, np.arange(4)):
        texts = [pack(value, **option) for option in options]
        blobs = rllib_tables.unpack_bytes(texts, PLACE)
        assert blobs == [pickle.dumps(value, 5)] * len(options)


def test_large_frames_of_several_blocks() -> None:
    value = np.random.default_rng(0).integers(0, 255, 300_000, np.uint8)
    assert rllib_tables.unpack_bytes([pack(value, block_size=4)], PLACE) == [pickle.dumps(value, 5)]


def assert_refused(values: list[Any], *words: str, type_: Any = None) -> None:
    with pytest.raises(DataError) as caught:
        unpack(pa.array(values, type_))
    text = str(caught.value)
    for word in ("part.parquet", "column obs", *words):
        assert word in text


GOOD = pack(np.zeros(4, np.float32))


def test_damage_is_refused_with_file_row_and_column() -> None:
    assert_refused([GOOD, GOOD, None], "row 102", "damaged")
    assert_refused([GOOD, GOOD[:-9]], "row 101", "damaged")
    assert_refused([GOOD, GOOD[:-8]], "row 101", "damaged")
    assert_refused([GOOD, "no base64!"], "row 101", "base64")
    assert_refused([GOOD, ""], "row 101")
    assert_refused([GOOD, base64.b64encode(b"no frame of LZ4, but long enough").decode()], "row 101", "LZ4")
    assert_refused([GOOD, pack(np.zeros(5, np.float32))], "row 101", "shape (5,)", "shape (4,)")
    assert_refused([GOOD, pack(np.zeros(4))], "row 101", "float64", "float32")
    frame = base64.b64decode(GOOD)
    claims = frame[:6] + (2**40).to_bytes(8, "little") + frame[14:]
    assert_refused([GOOD, base64.b64encode(claims).decode()], "row 101", "packed bytes hold more than")
    longer = frame[:6] + (len(frame) + 1).to_bytes(8, "little") + frame[14:]
    assert_refused([GOOD, base64.b64encode(longer).decode()], "row 101", "damaged")
    for at in range(4, len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 0x15
        with contextlib.suppress(DataError):
            rllib_tables.unpack_column(pa.chunked_array([[base64.b64encode(changed).decode()]]), PLACE)


def test_objects_are_refused_and_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "was_here"

    class Call:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    assert_refused([GOOD, pack(Call())], "row 101", "system")
    assert_refused([pack(Call()), GOOD], "row 100", "system")
    assert_refused([GOOD, pack(np.array([Call()], object))], "row 101", "object")
    assert_refused([pack({"a": np.zeros(2), "b": Call()})], "row 100", "system")
    assert not mark.exists()


def test_text_is_left_alone() -> None:
    for column in (pa.array(["BCJ", "x"]), pa.array([1.0, 2.0]), pa.nulls(2, pa.string()), pa.array([], pa.string())):
        assert not rllib_tables.is_packed(pa.chunked_array([column]))


def tensor_field(name: str, type_: pa.DataType, shape: bytes) -> pa.Field:
    keys = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2", b"ARROW:extension:metadata": shape}
    return pa.field(name, type_, metadata=keys)


def test_tensors_have_the_shape_in_their_metadata() -> None:
    values = pa.array([[1, 2, 3, 4, 5, 6]] * 2, pa.large_list(pa.int16()))
    for shape in (b"[2, 3]", pickle.dumps((2, 3), 5)):  # Ray 2.49 to 2.54 pickled it
        field = tensor_field("obs", values.type, shape)
        tensors = column_to_arrays(values, field, PLACE)
        assert isinstance(tensors, np.ndarray)
        assert tensors.dtype == np.int16
        assert tensors.tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2


@pytest.mark.parametrize("shape", [b"[2, 2]", b"[2", b'"x"', b"[-1]", pickle.dumps(os.system, 5)])
def test_tensors_with_a_wrong_shape_are_refused(shape: bytes) -> None:
    values = pa.array([[1, 2, 3, 4, 5, 6]] * 2, pa.large_list(pa.int16()))
    with pytest.raises(DataError, match="column obs"):
        column_to_arrays(values, tensor_field("obs", values.type, shape), PLACE.of("obs"))


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(data_error.importlib, "import_module", no_module)
    with pytest.raises(
        DataError, match=r"the package lz4, which is not installed[\s\S]*fix +pip install -e '\.\[offline\]'"
    ):
        rllib_tables.unpack_column(pq.read_table(FILE)["obs"], PLACE)
