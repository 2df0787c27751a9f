"""SampleBatches of the old stack: JSON lines plain and packed, several episodes a batch, several batches an episode."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runner.config.offline import OfflineConfig
from runner.episodes.columns import ColumnBlock
from runner.offline.codecs.sample_batches import decode, read_tables, recognises, recognises_schema
from runner.offline.codecs.trajectories import ReadCounts
from runner.offline.files.data_error import DataError, DataLocation
from runner.offline.formats.selection import ModuleAgents
from runner.offline.reading.recorded_source import RecordedSource
from runner.offline.reading.source import open_source

lz4_frame = pytest.importorskip("lz4.frame")

DATA = Path(__file__).parents[2] / "data" / "sample_batches"
PLACE = DataLocation("out.json", 5, unit="line")


def pack(value: Any) -> str:
    return base64.b64encode(lz4_frame.compress(pickle.dumps(value, 5))).decode()


def unpack(text: str) -> Any:
    return pickle.loads(lz4_frame.decompress(base64.b64decode(text)))


def batch(start: int, stop: int, eps_id: int | None = 1, end: str = "", **changes: Any) -> dict[str, Any]:
    """Steps [start, stop) of an episode whose observation is [t, -t], action t % 2, reward t."""
    t = list(range(start, stop))
    flags = [False] * (len(t) - 1)
    made: dict[str, Any] = {
        "type": "SampleBatch",
        "obs": [[float(i), -float(i)] for i in t],
        "new_obs": [[i + 1.0, -i - 1.0] for i in t],
        "actions": [i % 2 for i in t],
        "rewards": [float(i) for i in t],
        "terminateds": [*flags, end == "T"],
        "truncateds": [*flags, end == "U"],
        "t": t,
        "action_logp": [-0.5] * len(t),
        "advantages": [1.0] * len(t),
    }
    if eps_id is not None:
        made["eps_id"] = [eps_id] * len(t)
    made |= changes
    return {name: value for name, value in made.items() if value is not None}


def lines(*batches: Any) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in batches).encode()


def read(content: bytes, counts: ReadCounts | None = None) -> ColumnBlock:
    ((table, place),) = read_tables(io.BytesIO(content), DataLocation("out.json", unit="line"))
    return decode(table, place, counts)


def observations(block: ColumnBlock) -> list[list[float]]:
    return [episode.get_observations()[:, 0].tolist() for episode in block]


def test_a_packed_file_of_rllib() -> None:
    content = (DATA / "lz4.json").read_bytes()
    assert recognises(content[:200])
    expected = json.loads(content)
    block = read(content)
    (episode,) = block
    obs, new_obs = unpack(expected["obs"]), unpack(expected["new_obs"])
    np.testing.assert_array_equal(episode.get_observations(), np.concatenate((obs, new_obs[-1:])))
    assert block.columns["obs"].dtype == np.float32
    assert episode.get_actions().tolist() == expected["actions"]
    assert episode.get_rewards().tolist() == expected["rewards"]
    assert episode.get_extra_model_outputs("action_logp").tolist() == expected["action_logp"]
    assert (episode.id_, episode.t_started, len(episode)) == ("2", 0, 473)
    assert (episode.is_terminated, episode.is_truncated) == (True, False)


def test_a_plain_file_of_rllib() -> None:
    content = (DATA / "plain.json").read_bytes()
    expected = json.loads(content)
    (episode,) = read(content)
    np.testing.assert_array_equal(episode.get_observations(), [*expected["obs"], expected["new_obs"][-1]])
    assert (episode.id_, episode.t_started, len(episode), episode.is_terminated) == ("2", 373, 100, True)


def test_several_episodes_in_a_batch_and_several_batches_an_episode() -> None:
    first, second = batch(0, 3, 8), batch(3, 5, 8, "T")
    both = {name: column if name == "type" else column + batch(0, 2, 9)[name] for name, column in second.items()}
    block = read(lines(first, both, batch(2, 3, 9, "U")))
    assert observations(block) == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert block.episode_ids == ["8", "9"]
    assert (block.is_terminated.tolist(), block.is_truncated.tolist()) == ([True, False], [False, True])
    assert set(block.columns) == {"obs", "actions", "rewards", "action_logp"}


def test_what_goes_on_elsewhere_stays_open() -> None:
    block = read(lines(batch(3, 5)))
    assert (block.t_started.tolist(), block.is_terminated.tolist(), block.is_truncated.tolist()) == (
        [3],
        [False],
        [False],
    )


def test_dones_are_terminations() -> None:
    old = batch(0, 3, terminateds=None, truncateds=None, new_obs=None, dones=[False, False, True])
    counts = ReadCounts()
    block = read(lines(old), counts)
    assert observations(block) == [[0, 1, 2, 2]]
    assert block.is_terminated.tolist() == [True]
    assert counts == ReadCounts(final_obs_repeated=1)
    cut = read(lines(old | {"dones": [0, 0, 0]}), counts)
    assert (observations(cut), cut.is_truncated.tolist()) == ([[0, 1, 2]], [True])
    assert counts == ReadCounts(final_obs_repeated=1, final_steps_dropped=1)


def test_without_ids_batches_and_unrolls_are_cut() -> None:
    plain = batch(0, 4, None, t=None, truncateds=[False, True, False, False], unroll_id=[0, 0, 0, 1])
    block = read(lines(plain, plain))
    assert observations(block) == [[0, 1, 2], [2, 3], [3, 4]] * 2
    assert block.is_truncated.tolist() == [True, False, False] * 2


def test_agents_of_one_episode_are_told_apart() -> None:
    pair = batch(0, 2, 7)
    both = {name: column if name == "type" else column * 2 for name, column in pair.items()}
    block = read(lines(both | {"agent_index": [0, 0, 1, 1]}))
    assert block.episode_ids == ["7/0", "7/1"]


def test_infos_and_columns_per_sequence() -> None:
    infos = [{"x": 1, "deep": {"y": [1.5]}}, {}, {"z": "a"}]
    more = {"infos": infos, "state_in_0": [[0.0]], "seq_lens": [3], "vf_preds": [1.0, 2.0, 3.0]}
    (episode,) = read(lines(batch(0, 3, **more)))
    assert episode.get_infos() == [*infos, {}]
    assert sorted(episode.extra_model_outputs) == ["action_logp", "vf_preds"]
    (packed,) = read(lines(batch(0, 3, infos=pack(infos))))
    assert packed.get_infos() == [*infos, {}]
    (empty,) = read(lines(batch(0, 3, infos=[{}, {}, {}])))
    assert empty.get_infos() == [{}] * 4


def test_batches_of_one_policy_among_several_agents() -> None:
    multi = {"type": "MultiAgentBatch", "count": 3, "policy_batches": {"default_policy": batch(0, 3)}}
    assert recognises(lines(multi))
    assert observations(read(lines(multi, multi | {"policy_batches": {"default_policy": batch(3, 4, end="T")}}))) == [
        [0, 1, 2, 3, 4]
    ]
    assert_refused(lines(multi | {"policy_batches": {"a": [1]}}), "does not contain a SampleBatch")
    assert_refused(lines(multi | {"policy_batches": 3}), "mixed")
    two = multi | {"policy_batches": {"a": batch(0, 3), "b": batch(0, 3)}}
    assert_refused(lines(two), "from several policies, but the experiment has a single agent", "a, b")
    assert_refused(lines(multi, batch(0, 3)), "line 6", "only some batches have", "policy_batches")


def test_batches_of_several_policies_are_read_for_one_of_them(tmp_path: Path) -> None:
    def multi(**policies: Any) -> dict[str, Any]:
        return {"type": "MultiAgentBatch", "count": 3, "policy_batches": policies}

    wide = batch(0, 2, 3, end="T", obs=[[0.0] * 3] * 2, new_obs=[[0.0] * 3] * 2)
    pair = {name: column if name == "type" else column * 2 for name, column in batch(5, 7, 2, end="T").items()}
    first, second = batch(0, 3, agent_index=[0] * 3), batch(3, 4, end="T", agent_index=[0])
    content = lines(multi(a=first, b=wide), multi(a=second), multi(a=pair | {"agent_index": [0, 0, 1, 1]}))
    path = tmp_path / "batches.json"
    path.write_bytes(content)

    def source_of(policy: str) -> RecordedSource:
        return open_source(OfflineConfig(input_=str(path)), of_module=ModuleAgents(policy, ("agent_0",)))

    (a,) = source_of("a").blocks()
    assert observations(a) == [[0, 1, 2, 3, 4], [5, 6, 7], [5, 6, 7]]
    assert a.episode_ids == ["1/0", "2/0", "2/1"]
    (b,) = source_of("b").blocks()
    assert (b.module_id, b.lengths.tolist(), b.columns["obs"].shape) == ("b", [2], (3, 3))
    with pytest.raises(DataError, match=r"no rows for module c: these MultiAgentBatches do not have a policy"):
        source_of("c")
    path.write_bytes(lines(batch(0, 3)))
    with pytest.raises(DataError, match="these SampleBatches come from a single agent, but the experiment has several"):
        source_of("a")


def test_tables_of_bounded_size_with_their_first_line() -> None:
    content = lines(*(batch(0, 3, eps_id) for eps_id in range(10)))
    size = content.index(b"\n") + 1
    tables = list(read_tables(io.BytesIO(content), DataLocation("out.json", unit="line"), max_bytes=3 * size))
    assert [(place.row, table.num_rows) for table, place in tables] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    whole = read_tables(io.BytesIO(content + b"\n\n"), max_bytes=1 << 30)
    assert [table.num_rows for table, _ in whole] == [10]
    assert list(read_tables(io.BytesIO(b"\n \n"))) == []


def test_lines_longer_than_what_is_read_at_once() -> None:
    content = lines(batch(0, 60_000), batch(60_000, 60_001, end="T"))
    assert len(content) > 2**22
    tables = list(read_tables(io.BytesIO(content), max_bytes=1))
    assert [table.num_rows for table, _ in tables] == [1, 1]


def test_columns_that_change_their_type_are_tables_of_their_own() -> None:
    mixed = lines(batch(0, 2), batch(2, 4, obs=pack(np.zeros((2, 2)))), batch(4, 6, end="T"))
    tables = list(read_tables(io.BytesIO(mixed)))
    assert [(place.row, decode(table).num_rows) for table, place in tables] == [(0, 2), (1, 2), (2, 2)]


def test_tables_with_a_batch_a_row() -> None:
    rows = [batch(0, 3), batch(3, 4, end="T")]
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    assert recognises_schema(table.schema)
    assert observations(decode(table)) == [[0, 1, 2, 3, 4]]
    assert not recognises_schema(
        pa.schema({"obs": pa.list_(pa.float32()), "actions": pa.int64(), "rewards": pa.float64()})
    )
    assert not recognises(b'{"obs": [1]}')
    assert not recognises(b"\x89HDF")


def test_the_last_of_two_columns_of_one_name_counts() -> None:
    content = lines(batch(0, 3)).replace(b'"type"', b'"rewards": [7.0], "type"', 1)
    assert read(content).columns["rewards"].tolist() == [0, 1, 2]


def decode_all(content: bytes) -> list[ColumnBlock]:
    return [decode(table, place) for table, place in read_tables(io.BytesIO(content), PLACE)]


def assert_refused(content: bytes, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        decode_all(content)
    for word in ("out.json", *words):
        assert word in " ".join(str(caught.value).split())


def test_broken_lines_are_refused_with_their_number() -> None:
    good = lines(batch(0, 3))
    assert_refused(good + good[:-30], "line 6", "not valid JSON", "truncated")
    assert_refused(good + b'{"obs": [1, }\n' + good, "line 6", "not valid JSON")
    assert_refused(good + b"[1, 2]\n", "line 6", "not a JSON object", "list")
    assert_refused(good + b"\n" + b"3\n", "line 7", "not a JSON object")
    assert_refused(b"\x00\xff\n", "line 5", "not valid JSON")
    assert_refused(b"null\n", "line 5", "not a JSON object")
    assert_refused(b"[" * 100_000 + b"\n", "line 5", "not valid JSON")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"obs": None, "observations": [1]}, "the column obs of a SampleBatch is missing"),
        ({"rewards": None}, "the column rewards of a SampleBatch is missing"),
        ({"rewards": [1.0, 2.0]}, "the same length"),
        ({"rewards": [1.0, float("nan"), 2.0]}, "a reward is not finite"),
        ({"rewards": ["a", "b", "c"]}, "one number per step"),
        ({"rewards": [[1.0], [1.0], [1.0]]}, "one number per step"),
        ({"actions": [0, 1]}, "the same length"),
        ({"obs": [[1.0], [1.0, 2.0], [1.0]]}, "shape"),
        ({"obs": [[1.0], None, [1.0]]}, "missing"),
        ({"new_obs": [[1.0], [1.0], [1.0]]}, "next observations and observations differ"),
        ({"new_obs": [1.0, 1.0, 1.0]}, "next observations and observations differ"),
        ({"new_obs": pack({"a": np.zeros((3, 2))})}, "next observations and observations differ"),
        ({"obs": 3}, "a list with an item for each step"),
        ({"obs": pack(np.zeros((2, 2)))}, "the same length"),
        ({"obs": pack(np.zeros(3))[:-8]}, "damaged"),
        ({"obs": pack(np.array([None, 1, 2], object))}, "object"),
        ({"obs": pack(print)}, "print"),
        ({"obs": pack("text")}, "does not contain arrays"),
        ({"terminateds": [0, 2, 0]}, "true or false"),
        ({"t": [0.5, 1.5, 2.5]}, "integers"),
        ({"eps_id": [[1], [1], [1]]}, "one id per step"),
        ({"infos": pack([print])}, "print"),
        ({"infos": [{}]}, "an info for each step"),
        ({"vf_preds": [{"a": 1}, 2, 3]}, "vf_preds"),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, Any], words: str) -> None:
    assert_refused(lines(batch(0, 3, **changes)), words)


def test_batches_that_do_not_fit_are_refused_with_their_line() -> None:
    good = batch(0, 3, obs=pack(np.zeros((3, 2), np.float32)))
    assert_refused(lines(good, good | {"obs": pack(np.zeros((3, 3), np.float32))}), "line 6", "column obs", "(3,)")
    assert_refused(lines(good, good | {"obs": pack({"a": np.zeros((3, 2))})}), "line 6", "column obs", "differ")
    short = batch(0, 3)
    assert_refused(
        lines(short, {name: value for name, value in short.items() if name != "action_logp"}), "line", "action_logp"
    )
