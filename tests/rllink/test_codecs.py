"""Properties of the codecs: frames, MessagePack, array blocks, and episodes in all their forms."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from typing import Any

import gymnasium as gym
import msgpack
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS
from runner.rllink.arrays import Block, SpaceCodec, number_column
from runner.rllink.client.frames import FrameError, FrameReader, compressed, decompressed, frame
from runner.rllink.client.packing import DTYPES, block, pack, unpack
from runner.rllink.judgement import RewardBound
from runner.rllink.messages import decode_request
from runner.rllink.open_episodes import OpenEpisodes
from runner.rllink.received_episodes import join_chunks
from runner.rllink.receiving import AgentSpaces, Receiver
from tests.rllink.test_check import SPACES

QUICK = settings(max_examples=80, deadline=None)


# -- frames ------------------------------------------------------------------------------------------------------------


def _read(reader: FrameReader) -> list[bytes]:
    bodies = []
    while (body := reader.next_body()) is not None:
        bodies.append(body)
    return bodies


@given(
    st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 2000), max_size=20), st.booleans(), st.data()
)
@QUICK
def test_frames_are_the_same_wherever_they_are_cut(
    bodies: list[bytes], cuts: list[int], is_large: bool, data: st.DataObject
) -> None:
    reader = FrameReader()
    reader.is_large_granted = is_large
    frames = [
        b"+%015d%b" % (len(body), body) if is_large and data.draw(st.booleans()) else frame(body) for body in bodies
    ]
    stream = b"".join(frames)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    got = []
    for start, stop in itertools.pairwise(edges):
        reader.feed(stream[start:stop])
        got += _read(reader)
    assert got == bodies
    assert not reader.is_within_frame
    assert reader.num_bytes == 0


@given(st.binary(max_size=64), st.integers(1, 7))
@QUICK
def test_any_bytes_are_frames_or_a_frame_error(data: bytes, size: int) -> None:
    reader = FrameReader(max_body_bytes=50)
    got: list[bytes] = []
    code = None
    try:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            got += _read(reader)
    except FrameError as error:
        code = error.code
    assert code in (None, "bad_header", "too_large")
    assert code or sum(map(len, got)) + 8 * len(got) + reader.num_bytes == len(data)
    assert all(len(body) <= 50 for body in got)


@given(st.binary(max_size=5000))
@QUICK
def test_compressed_and_back(body: bytes) -> None:
    packed = compressed(body)
    assert packed == body if len(body) <= 1024 else decompressed(packed, 5000) == body


@given(st.binary(max_size=200))
@QUICK
def test_any_bytes_are_gzip_or_a_frame_error(body: bytes) -> None:
    with pytest.raises(FrameError, match="gzip"):
        decompressed(b"\x1f\x8b\x08" + body, 1000)


# -- MessagePack -------------------------------------------------------------------------------------------------------


def _is_no_block(value: dict[str, Any]) -> bool:
    return value.keys() != {"dtype", "shape", "data"}


_FLOATS = st.floats(allow_nan=False)
_INTEGERS = st.integers(-(2**63), 2**64 - 1)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _INTEGERS, _FLOATS, st.text(max_size=40), st.binary(max_size=300)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=20), st.dictionaries(st.text(max_size=5), parts, max_size=20).filter(_is_no_block)
    ),
    max_leaves=30,
)


@given(_VALUES)
@QUICK
def test_our_msgpack_is_everybodys(value: Any) -> None:
    assert msgpack.unpackb(pack(value)) == value
    assert msgspec.msgpack.decode(pack(value)) == value
    assert unpack(pack(value)) == value
    assert unpack(msgpack.packb(value)) == value


@given(st.floats(width=32, allow_nan=False))
@QUICK
def test_floats_of_four_bytes_are_read(value: float) -> None:
    assert unpack(msgpack.packb(value, use_single_float=True)) == value


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_sizes_at_the_edges_of_their_codes(size: int) -> None:
    for value in ("x" * size, b"x" * size, [None] * size, {str(key): 0 for key in range(size)}):
        assert msgpack.unpackb(pack(value)) == value
        assert unpack(msgpack.packb(value)) == value


@given(st.binary(max_size=100))
@QUICK
def test_any_bytes_are_msgpack_or_a_value_error(data: bytes) -> None:
    try:
        unpack(data)
    except ValueError:
        return
    msgpack.unpackb(data, strict_map_key=False)  # what we can read others can


@given(_VALUES, st.integers(0, 1000), st.integers(0, 255))
@QUICK
def test_msgpack_with_a_byte_that_is_wrong(value: Any, place: int, byte: int) -> None:
    data = bytearray(pack(value))
    data[place % len(data)] = byte
    with contextlib.suppress(ValueError):
        unpack(bytes(data))


def test_msgpack_that_is_too_deep() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        unpack(b"\x91" * 10_000 + b"\xc0")


# -- array blocks ------------------------------------------------------------------------------------------------------

_SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple)


@given(st.sampled_from(DTYPES), _SHAPES, st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
@QUICK
def test_blocks_there_and_back(
    dtype: str, shape: tuple[int, ...], seed: int, is_big_endian: bool, is_strided: bool
) -> None:
    rng = np.random.default_rng(seed)
    raw = rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    array = np.frombuffer(raw, dtype).reshape(shape)
    if dtype == "|b1":
        array = rng.integers(0, 2, shape).astype(bool)
    if is_big_endian:
        array = array.astype(array.dtype.newbyteorder(">"))
    if is_strided:
        array = array.repeat(2, axis=-1)[..., ::2]
    sent = pack({"a": array})
    ours = unpack(sent)["a"]
    theirs = msgspec.msgpack.Decoder(dict[str, Block]).decode(sent)["a"].array()
    for got in (ours, theirs):
        assert got.dtype.str == dtype
        assert got.shape == shape
        assert got.tobytes() == array.astype(dtype).tobytes()


def test_arrays_without_axes_are_numbers() -> None:
    assert unpack(pack([np.array(1.5, ">f4"), np.array(3, ">u2"), np.array(True)])) == [1.5, 3, True]


@pytest.mark.parametrize("dtype", ["O", "c8", "U3", "S3", "M8[s]", "m8[s]", "f16", "V4"])
def test_other_dtypes_are_not_sent(dtype: str) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        block(np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"])
@given(value=st.integers(-(2**63), 2**64 - 1))
@settings(max_examples=30, deadline=None)
def test_integers_never_wrap_around(dtype: str, value: int) -> None:
    source = np.dtype("<i8") if value < 0 or value < 2**63 else np.dtype("<u8")
    sent = Block(source.str, [1], memoryview(np.array([value], source).tobytes()))
    try:
        column = number_column(sent, np.dtype(dtype))
    except ValueError:
        return
    assert column.tolist() == [value]


# -- episodes ----------------------------------------------------------------------------------------------------------


def _episodes(obs_space: gym.Space[Any], action_space: gym.Space[Any], lengths: list[int], seed: int) -> list[Any]:
    obs_space.seed(seed)
    action_space.seed(seed)
    rng = np.random.default_rng(seed)
    return [
        {
            "obs": [obs_space.sample() for _ in range(length + 1)],
            "actions": [action_space.sample() for _ in range(length)],
            "rewards": rng.normal(size=length).astype(np.float32),
            "is_terminated": bool(rng.integers(2)),
            "is_truncated": False,
        }
        for length in lengths
    ]


def _columns(episodes: list[Any]) -> dict[str, Any]:
    def joined(name: str) -> Any:
        return nested.stack([item for episode in episodes for item in episode[name]])

    return {
        "lengths": np.array([len(episode["rewards"]) for episode in episodes]),
        "obs": joined("obs"),
        "actions": joined("actions"),
        "rewards": np.concatenate([episode["rewards"] for episode in episodes]),
        "is_terminated": np.array([episode["is_terminated"] for episode in episodes]),
        "is_truncated": np.array([episode["is_truncated"] for episode in episodes]),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "b":
        return np.asarray(value, np.int8).tolist()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _received(agent: AgentSpaces, body: bytes, body_format: str) -> Any:
    request = decode_request(body, body_format)  # type: ignore[arg-type]
    receiver = Receiver({None: agent}, RewardBound())
    message = receiver.receive(request, body_format, OpenEpisodes("c", 10), 1)  # type: ignore[arg-type]
    return join_chunks(message.parts, ()).block, message.num_env_steps


@given(SPACES, SPACES, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_all_forms_of_episodes_are_the_same_block(
    obs_space: gym.Space[Any], action_space: gym.Space[Any], lengths: list[int], seed: int
) -> None:
    agent = AgentSpaces("m", SpaceCodec(obs_space), SpaceCodec(action_space), 1, lambda column: column)
    episodes = _episodes(obs_space, action_space, lengths, seed)
    lists = {"type": "EPISODES", "episodes": _plain(episodes)}
    columns = {"type": "EPISODES", "columns": _columns(episodes)}
    flags = {name: columns["columns"][name].tolist() for name in ("is_terminated", "is_truncated")}  # type: ignore[index]
    plain_columns = {"type": "EPISODES", "columns": {**_plain(columns["columns"]), **flags}}
    blocks = [
        _received(agent, json.dumps(lists).encode(), "json"),
        _received(agent, pack(lists), "msgpack"),
        _received(agent, pack({"type": "EPISODES", "episodes": episodes}), "msgpack"),
        _received(agent, pack(columns), "msgpack"),
        _received(agent, pack(plain_columns), "msgpack"),
    ]
    first, num_env_steps = blocks[0]
    assert num_env_steps == sum(lengths)
    assert first.lengths.tolist() == lengths
    for name, space in ((OBS, obs_space), (ACTIONS, action_space)):
        sent = nested.stack([item for episode in episodes for item in episode[name]])
        assert nested.equal(first.columns[name], _typed(sent, space))
    for other, steps in blocks[1:]:
        assert steps == num_env_steps
        assert other.lengths.tolist() == lengths
        assert other.is_terminated.tolist() == first.is_terminated.tolist()
        for name in (OBS, ACTIONS, "rewards"):
            assert nested.equal(other.columns[name], first.columns[name])


def _typed(column: Any, space: gym.Space[Any]) -> Any:
    """The column with the dtypes of the space: samples of Discrete are of other ones."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _typed(column[key], part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_typed(values, part) for values, part in zip(column, space.spaces, strict=True))
    return np.asarray(column, space.dtype)


@given(SPACES, st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_items_there_and_back(space: gym.Space[Any], seed: int) -> None:
    space.seed(seed)
    item = _typed(space.sample(), space)
    codec = SpaceCodec(space)
    for body_format, encode in (("json", msgspec.json.encode), ("msgpack", pack)):
        got = codec.item(encode(codec.to_wire(item, body_format)), body_format)
        assert nested.equal(got, item)


def test_floats_of_blocks_keep_their_bits() -> None:
    values = np.array([0.1, -0.0, 1e-45, 3.4e38], "<f4")
    sent = unpack(pack({"a": values}))["a"]
    assert struct.pack("<4f", *sent) == values.tobytes()
