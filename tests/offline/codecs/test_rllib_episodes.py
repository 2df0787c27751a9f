"""RLlib's episode files: chunks, lookback, nesting, spaces - and no pickle inside msgpack."""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium.spaces as gs
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock, LookbackOfChunks
from runner.offline.codecs.rllib_episodes import decode_by_module, read_spaces, recognises
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError, DataLocation

FILE = Path(__file__).parents[2] / "data" / "rllib_episodes" / "part-00000.parquet"
PLACE = DataLocation("part.parquet", 10)


def encode(value: Any) -> Any:
    """As the package msgpack-numpy encodes."""
    if isinstance(value, np.ndarray):
        kind = value.dtype.kind.encode() if value.dtype.kind in "OV" else b""
        data = pickle.dumps(value) if kind == b"O" else value.tobytes()
        return {b"nd": True, b"type": value.dtype.str, b"kind": kind, b"shape": value.shape, b"data": data}
    if isinstance(value, (np.bool_, np.number)):
        return {b"nd": False, b"type": value.dtype.str, b"data": value.tobytes()}
    return value


def decode_by_hand(value: Any) -> Any:
    if isinstance(value, dict) and b"nd" in value:
        array = np.frombuffer(value[b"data"], value[b"type"])
        return array.reshape(value[b"shape"]) if value[b"nd"] else array[0]
    if isinstance(value, dict):
        return {key: decode_by_hand(item) for key, item in value.items()}
    return [decode_by_hand(item) for item in value] if isinstance(value, list) else value


def buffer(data: Any, lookback: int = 0, finalized: bool = False, space: Any = None) -> dict[str, Any]:
    return {"data": data, "lookback": lookback, "finalized": finalized, "space": space}


def state(length: int = 3, lookback: int = 0, t_started: int = 0, **changes: Any) -> dict[str, Any]:
    rows = np.arange(lookback + length + 1, dtype=np.float32) + t_started - lookback
    obs, steps = [np.full(2, row, np.float32) for row in rows], rows[:-1]
    made = {
        "id_": "abc",
        "agent_id": None,
        "module_id": None,
        "multi_agent_episode_id": None,
        "observations": buffer(obs, lookback),
        "actions": buffer([np.int32(row) for row in steps], lookback),
        "rewards": buffer([float(row) for row in steps], lookback),
        "infos": buffer([{} for _ in rows], lookback),
        "extra_model_outputs": {"action_logp": buffer([np.float32(-row) for row in steps], lookback)},
        "is_terminated": False,
        "is_truncated": np.bool_(False),
        "t_started": t_started,
        "t": t_started + length,
        "_observation_space": None,
        "_action_space": None,
        "custom_data": {},
    }
    return made | changes


def table(*states: Any) -> pa.Table:
    return pa.table({"item": pa.array([msgpack.packb(one, default=encode) for one in states], pa.binary())})


def test_a_file_of_rllib() -> None:
    rows = pq.read_table(FILE)
    assert recognises(rows.schema)
    block = decode(rows)
    states = [decode_by_hand(msgpack.unpackb(item, strict_map_key=False)) for item in rows["item"].to_pylist()]
    assert len(block) == len(states) == 5
    for episode, expected in zip(block, states, strict=True):
        assert episode.id_ == expected["id_"]
        assert (episode.is_terminated, episode.is_truncated) == (expected["is_terminated"], expected["is_truncated"])
        assert (episode.t_started, episode.t) == (expected["t_started"], expected["t"])
        np.testing.assert_array_equal(episode.get_observations(), expected["observations"]["data"])
        np.testing.assert_array_equal(episode.get_actions(), expected["actions"]["data"])
        np.testing.assert_array_equal(episode.get_rewards(), expected["rewards"]["data"])
        for name, output in expected["extra_model_outputs"].items():
            np.testing.assert_array_equal(episode.get_extra_model_outputs(name), output["data"])
    dtypes = {name: str(column.dtype) for name, column in block.columns.items()}
    outputs = {"action_dist_inputs": "float32", "action_logp": "float32", "weights_seq_no": "int64"}
    assert dtypes == {"obs": "float32", "actions": "int32", "rewards": "float64", **outputs}
    assert block.lookback is None
    assert block.infos is None
    assert block.agents is None


def test_spaces_of_a_file_of_rllib() -> None:
    spaces = read_spaces(pq.read_table(FILE))
    assert spaces.action == gs.Discrete(2)
    assert isinstance(spaces.observation, gs.Box)
    assert (spaces.observation.shape, spaces.observation.dtype) == ((4,), np.float32)
    np.testing.assert_allclose(spaces.observation.high[[0, 2]], [4.8, 0.41887903])


def test_chunks_keep_their_time_and_their_lookback() -> None:
    first, second = state(4), state(3, lookback=2, t_started=4, is_terminated=True)
    block = decode(table(first, second))
    assert block.t_started.tolist() == [0, 4]
    assert block.episode_ids == ["abc", "abc"]
    assert block.is_terminated.tolist() == [False, True]
    assert block.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 4, 5, 6, 7]
    assert block.columns["actions"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    chunk = block[1]
    assert chunk.rewards.lookback == 2
    assert chunk.get_observations([-2, -1], neg_index_as_lookback=True)[:, 0].tolist() == [2, 3]
    assert chunk.get_extra_model_outputs("action_logp").tolist() == [-4, -5, -6]
    values, there = block.history("actions", 2)
    assert values[block.first_obs_rows[1]].tolist() == [2, 3]
    assert there[block.first_obs_rows[1]].all()


@pytest.mark.parametrize("is_finalized", [False, True])
def test_nested_observations_and_actions(is_finalized: bool) -> None:
    rows = [{"position": np.full(3, i, np.float32), "parts": (np.int64(i), np.full((2, 2), i))} for i in range(4)]
    actions = [(np.int64(i), np.full(2, i)) for i in range(3)]
    columns = nested.stack(rows) if is_finalized else rows
    action_columns = nested.stack(actions) if is_finalized else actions
    one = state(3, observations=buffer(columns, 0, is_finalized), actions=buffer(action_columns, 0, is_finalized))
    block = decode(table(one, one))
    assert nested.equal(block.columns["obs"], nested.stack(rows + rows))
    assert nested.equal(block.columns["actions"], nested.stack(actions + actions))


def test_finalized_arrays_and_plain_numbers() -> None:
    arrays = state(
        3,
        observations=buffer(np.arange(8, dtype=np.uint8).reshape(4, 2), 0, True),
        actions=buffer(np.array([1, 0, 1]), 0, True),
        rewards=buffer(np.array([1.0, 2.0, 3.0]), 0, True),
        extra_model_outputs=None,
    )
    block = decode(table(arrays))
    assert block.columns["obs"].dtype == np.uint8
    assert block.columns["rewards"].tolist() == [1, 2, 3]
    numbers = state(3, observations=buffer([[0, 1], [2, 3], [4, 5], [6, 7]]), actions=buffer([1, 0, 1]))
    block = decode(table(numbers))
    assert block.columns["obs"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert block.columns["actions"].dtype == np.int64


def test_infos_are_kept_where_there_are_any() -> None:
    infos = [{}, {"x": np.float32(0.5), "deep": {"y": [1, 2]}}, {}, {"z": True}]
    block = decode(table(state(3), state(3, infos=buffer(infos)), state(2, lookback=1, infos=buffer(infos, 1))))
    assert block.infos is not None
    assert block.infos.rows_of(0, 4) is None
    assert block.infos.rows_of(1, 4) == infos
    assert block[2].get_infos() == infos[1:]


def test_agents_and_modules() -> None:
    one = state(2, agent_id="a0", module_id="m", multi_agent_episode_id="whole")
    block = decode(table(one, one | {"agent_id": 1}))
    assert block.agents is not None
    assert (block.module_id, list(block.agents.agent_ids)) == ("m", ["a0", "1"])
    assert list(block.agents.multi_agent_episode_ids) == ["whole", "whole"]
    theirs = decode_by_module(table(one, one | {"module_id": "other"}, one))
    assert [(block.module_id, len(block)) for block in theirs] == [("m", 2), ("other", 1)]


def test_chunks_without_a_step_are_left_out_and_counted() -> None:
    empty = state(0)
    counts = ReadCounts()
    block = decode(table(empty, state(2), state(0, lookback=2)), counts=counts)
    assert len(block) == 1
    assert counts == ReadCounts(trajectories_dropped=2)
    assert_refused(table(empty), "do not contain an episode with a step")


def decode(rows: pa.Table, *arguments: Any, **named: Any) -> ColumnBlock:
    """Return the episodes of the only module."""
    [block] = decode_by_module(rows, *arguments, **named)
    return block


def assert_refused(rows: pa.Table, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        decode(rows, PLACE)
    for word in ("part.parquet", *words):
        assert word in " ".join(str(caught.value).split())


def test_object_arrays_are_refused_and_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "was_here"

    class Call:
        def __reduce__(self) -> Any:
            return open, (str(mark), "w")

    objects = np.array([Call(), 1, 2, 3], object)
    for name in ("observations", "actions", "rewards", "infos"):
        assert_refused(table(state(3), state(3, **{name: buffer(objects, 0, True)})), "row 11", name, "object arrays")
    assert_refused(table(state(3, observations=buffer([objects] * 4))), "row 10", "observations", "object arrays")
    assert_refused(table(state(3, infos=buffer([{"x": objects}] * 4))), "infos", "object arrays")
    assert_refused(table(state(3, is_terminated=objects)), "is_terminated", "object arrays")
    records = np.zeros(4, [("a", "f4")])
    assert_refused(table(state(3, observations=buffer(records, 0, True))), "observations", "structured arrays")
    hidden = {b"nd": True, b"type": "|O", b"kind": b"", b"shape": [4], b"data": pickle.dumps(objects)}
    assert_refused(table(state(3, observations=buffer(hidden, 0, True))), "object arrays")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("observations"), "not an RLlib episode"),
        (lambda s: s["observations"]["data"].pop(), "observations"),
        (lambda s: s["observations"]["data"].__setitem__(2, np.zeros(3, np.float32)), "step 2 holds <f4 of shape [3]"),
        (lambda s: s["observations"]["data"].__setitem__(2, np.zeros(2)), "step 2 holds <f8"),
        (lambda s: s["observations"]["data"].__setitem__(2, None), "step 2 holds a NoneType"),
        (lambda s: s["observations"]["data"].__setitem__(0, "text"), "observations"),
        (lambda s: s["actions"]["data"].__setitem__(1, {"a": 1}), "step 1 holds a dict"),
        (lambda s: s["actions"].__setitem__("lookback", 1), "the fields of an episode are inconsistent"),
        (lambda s: s["rewards"].__setitem__("lookback", -1), "lookback of -1"),
        (lambda s: s["rewards"].__setitem__("lookback", "x"), "number of steps"),
        (lambda s: s["rewards"]["data"].__setitem__(1, float("nan")), "rewards[1]"),
        (lambda s: s["rewards"]["data"].__setitem__(1, "1"), "rewards"),
        (lambda s: s["rewards"]["data"].__setitem__(1, None), "NoneType"),
        (lambda s: s["rewards"]["data"].__setitem__(1, [1.0]), "unequal shape"),
        (lambda s: s.__setitem__("rewards", [1.0]), "a buffer with its data"),
        (lambda s: s.__setitem__("is_truncated", 3), "true or false"),
        (lambda s: s.__setitem__("t_started", -4), "time step"),
        (lambda s: s.__setitem__("t_started", "x"), "time step"),
        (lambda s: s.__setitem__("extra_model_outputs", [1]), "expected a dict"),
        (lambda s: s["infos"]["data"].pop(), "3 infos for 4 observations"),
    ],
)
def test_damaged_states_are_refused_with_row_and_field(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    wrong = state(3, infos=buffer([{"x": 1}] * 4))
    change(wrong)
    assert_refused(table(state(3), wrong), "row 11", "column item", words)


def test_encoded_arrays_that_lie_are_refused() -> None:
    good = encode(np.zeros(2, np.float32))
    for change in (
        {b"shape": [3]},
        {b"shape": [-1, -2]},
        {b"shape": [2**62, 0]},
        {b"shape": "x"},
        {b"type": "<f3"},
        {b"type": 4},
        {b"type": [["a", "<f4"]]},
        {b"data": b"1234567"},
        {b"data": "12345678"},
        {b"nd": "yes"},
        {b"kind": b"X"},
    ):
        for data in ([good | change] * 4, good | change | {b"shape": [2]} if b"shape" not in change else good | change):
            assert_refused(table(state(3, observations=buffer(data))), "row 10", "item.observations")


def test_rows_that_differ_are_refused() -> None:
    other = state(3, observations=buffer([np.zeros(3, np.float32)] * 4))
    assert_refused(table(state(3), other), "row 11", "column obs", "episodes differ")
    assert_refused(table(state(3), state(3, extra_model_outputs={})), "row 11", "only some episodes have action_logp")


def test_what_is_no_episode_is_refused() -> None:
    good = msgpack.packb(state(3), default=encode)
    for item in (good[:-20], good + b"x", b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"a": 1}), b"\x91" * 2000):
        assert_refused(pa.table({"item": [good, item]}), "row 11", "column item")
    assert_refused(pa.table({"item": [good, None]}), "row 11", "expected bytes")
    assert_refused(pa.table({"items": [good]}), "there is no column item")
    assert not recognises(pa.schema({"item": pa.int64()}))
    assert not recognises(pa.schema({"items": pa.binary()}))


def described(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(zlib.compress(file.getvalue())).decode()


def test_spaces_of_every_kind() -> None:
    box = {"space": "box", "low": described(np.zeros((2, 3))), "high": described(np.ones((2, 3))), "shape": [2, 3]}
    plain = {
        "space": "dict",
        "spaces": {
            "box": box | {"dtype": "<f8"},
            "parts": {
                "space": "tuple",
                "spaces": [
                    {"space": "discrete", "n": 3, "start": 1},
                    {"space": "multi-discrete", "nvec": described(np.array([2, 3])), "dtype": "<i8"},
                    {"space": "multi-binary", "n": 4},
                ],
            },
        },
    }
    spaces = read_spaces(table(state(3, _observation_space=plain)))
    parts = gs.Tuple([gs.Discrete(3, start=1), gs.MultiDiscrete([2, 3]), gs.MultiBinary(4)])
    assert spaces.observation == gs.Dict({"box": gs.Box(0.0, 1.0, (2, 3), np.float64), "parts": parts})
    assert spaces.action is None
    assert read_spaces(table(state(3, _observation_space={"space": "simplex"}))).observation is None


def test_damaged_spaces_are_refused() -> None:
    objects = io.BytesIO()
    np.save(objects, np.array([print], object), allow_pickle=True)
    as_text = base64.b64encode(zlib.compress(objects.getvalue())).decode()
    for low in (as_text, "no base64", base64.b64encode(b"no zlib").decode(), 3, described(np.array(["a"]))):
        plain = {"space": "box", "low": low, "high": low, "shape": [1], "dtype": "<f4"}
        with pytest.raises(DataError, match="space is damaged"):
            read_spaces(table(state(3, _observation_space=plain)))
    with pytest.raises(DataError, match="space"):
        read_spaces(table(state(3, _action_space=[1])))


def test_lookback_rows_are_not_part_of_the_state_of_others() -> None:
    past = LookbackOfChunks([{}, {"obs": np.arange(2)}], np.array([0, 2]))
    assert past.rows_before("obs", np.array([1, 1]), np.array([1, 2])).tolist() == [1, 0]
