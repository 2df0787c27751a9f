"""RLlib's episode files as they are written here: the same bytes mean the same to RLlib's reader and to ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import msgpack
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.errors import ConfigError
from runner.config.offline import OfflineConfig
from runner.episodes import nested
from runner.episodes.columns import Agents, ColumnBlock, concat_blocks
from runner.offline.codecs import rllib_episodes
from runner.offline.codecs.arrow_columns import info_to_json
from runner.offline.codecs.layout import Spaces, layout_of
from runner.offline.codecs.numpy_msgpack import read_space
from runner.offline.codecs.rllib_episode_states import describe_space, episodes_to_items
from runner.offline.writing.writer import EpisodeWriter, prepare_output
from tests.conftest import QUICK, Run
from tests.offline.blocks import ListedInfos, blocks, flat_block
from tests.offline.recorded import read, source_of

RECORDED = Path(__file__).parents[2] / "data" / "rllib_cartpole_episodes"
TIMES = ("_start_time", "_last_step_time")


def states_of(path: Path) -> list[dict[str, Any]]:
    return [msgpack.unpackb(item, strict_map_key=False) for item in pq.read_table(path)["item"].to_pylist()]


def through_items(block: ColumnBlock, spaces: Spaces | None = None) -> ColumnBlock:
    [again] = rllib_episodes.decode_by_module(episodes_to_items(block, layout_of(block, spaces, None)))
    return again


def assert_same_episodes(got: ColumnBlock, expected: ColumnBlock) -> None:
    """Everything is equal; rewards are 64-bit floats."""
    assert got.episode_ids == list(expected.episode_ids)
    for name in ("lengths", "is_terminated", "is_truncated", "t_started"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    assert got.columns.keys() == expected.columns.keys()
    widened = expected.with_columns({"rewards": expected.columns["rewards"].astype(np.float64)})
    for name, column in widened.columns.items():
        nested.map_leaves(assert_same_array, got.columns[name], column)


def assert_same_array(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_a_recording_of_rllib_is_written_as_it_was() -> None:
    """Read and written again, every state says what it said, but for when it was recorded."""
    paths = sorted(RECORDED.glob("*.parquet"))
    assert paths
    for path in paths:
        table = pq.read_table(path)
        spaces = rllib_episodes.read_spaces(table)
        [block] = rllib_episodes.decode_by_module(table)
        written = episodes_to_items(block, layout_of(block, spaces, None))
        assert written.schema == table.schema.remove_metadata()
        theirs = states_of(path)
        assert len(theirs) > 1
        for item, state in zip(written["item"].to_pylist(), theirs, strict=True):
            ours = msgpack.unpackb(item, strict_map_key=False)
            assert list(ours) == list(state)
            assert {key: ours[key] for key in ours if key not in TIMES} == {
                key: state[key] for key in state if key not in TIMES
            }


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_there_and_back(data: st.DataObject) -> None:
    block = data.draw(blocks(simple=True))
    items = episodes_to_items(block, layout_of(block, None, None))
    [again] = rllib_episodes.decode_by_module(items)
    assert_same_episodes(again, block)
    states = [msgpack.unpackb(item, strict_map_key=False) for item in items["item"].to_pylist()]
    assert [state["t"] for state in states] == (block.t_started + block.lengths).tolist()
    for chunk, length in enumerate(block.lengths.tolist()):
        given_infos = None if block.infos is None else block.infos.rows_of(chunk, length + 1)
        read = None if again.infos is None else again.infos.rows_of(chunk, length + 1)
        assert [bool(info) for info in given_infos or []] == [bool(info) for info in read or given_infos or []]


def test_infos_come_back() -> None:
    info = {"a": 1.5, "text": "x", "array": np.arange(3), "scalar": np.float32(2), "in": {"b": [True, None]}}
    block = flat_block([1, 1])
    rows: list[list[dict[str, Any]] | None] = [[{}, info], None]
    again = through_items(ColumnBlock(**{**vars(block), "infos": ListedInfos(rows)}))
    assert again.infos is not None
    assert [info_to_json(one) for one in again.infos.rows_of(0, 2) or []] == ["{}", info_to_json(info)]
    assert again.infos.rows_of(1, 2) is None
    odd = ListedInfos([[{}, {"object": RECORDED, np.str_("many"): 2**70, "pair": (1, 2), "text": np.str_("x")}], None])
    again = through_items(ColumnBlock(**{**vars(block), "infos": odd}))
    assert again.infos is not None
    assert again.infos.rows_of(0, 2) == [
        {},
        {"object": str(RECORDED), "many": str(2**70), "pair": [1, 2], "text": "x"},
    ]


def test_agents_are_named() -> None:
    block = flat_block([2, 3])
    agents = Agents(["left", "right"], ["env-0", "env-0"], np.concatenate([np.arange(3), np.arange(4)]))
    again = through_items(ColumnBlock(**{**vars(block), "agents": agents, "module_id": "pilot"}))
    assert again.agents is not None
    assert (again.module_id, list(again.agents.agent_ids)) == ("pilot", ["left", "right"])
    assert list(again.agents.multi_agent_episode_ids) == ["env-0", "env-0"]


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-1.0, np.array([1, np.inf], np.float32), (2,)),
        gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
        gym.spaces.Discrete(5, start=-2),
        gym.spaces.MultiDiscrete([3, 4]),
        gym.spaces.MultiBinary(4),
        gym.spaces.MultiBinary([2, 3]),
        gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0.0, 1.0)]),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Dict({"c": gym.spaces.MultiBinary(1)})}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_spaces_are_described(space: gym.Space[Any]) -> None:
    described = msgpack.unpackb(msgpack.packb(describe_space(space)))
    assert read_space(described) == space


def test_spaces_that_rllib_has_no_words_for() -> None:
    assert describe_space(gym.spaces.Sequence(gym.spaces.Discrete(2))) is None
    assert describe_space(gym.spaces.Tuple([gym.spaces.Text(3)])) is None
    assert describe_space(None) is None


def test_files_roll_over(tmp_path: Path) -> None:
    block = flat_block([4] * 9)
    config = OfflineConfig(output=str(tmp_path), output_episode_format="rllib", output_max_rows_per_file=4)
    prepare_output(config)
    spaces = Spaces(gym.spaces.Box(-9.0, 9.0, (4,)), gym.spaces.Discrete(2))
    with EpisodeWriter(config, spaces, "CartPole-v1") as writer:
        writer.add(block)
    report = writer.close()
    assert [len(states_of(Path(path))) for path in report.files] == [4, 4, 1]
    assert (report.episodes, report.steps) == (9, 36)
    source = source_of(tmp_path)
    assert (source.format.name, source.spaces) == ("rllib_episodes", spaces)
    assert_same_episodes(concat_blocks(list(source.blocks())), block)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_write_episodes": False}, "output_episode_format only applies to rows that are episodes"),
        ({"output_write_method": "write_json"}, "write_json can only write steps, not episodes"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare_output(OfflineConfig(output=str(tmp_path), output_episode_format="rllib", **options))


def test_record_and_convert(run_main: Run, tmp_path: Path) -> None:
    trained = run_main("+experiment=ppo_cartpole", *QUICK, "stop.training_iteration=1", "hydra.run.dir=run")
    assert trained.code == 0, trained.err
    five = ("record", "run", "evaluation.evaluation_duration=5", "evaluation.explore=true")
    for folder, options in (("rllib", ["offline.output_episode_format=rllib"]), ("ours", [])):
        outcome = run_main(*five, f"offline.output={folder}", *options)
        assert outcome.code == 0, outcome.err
    for folder in ("rllib", "ours"):
        outcome = run_main("convert", folder, f"from_{folder}")
        assert outcome.code == 0, outcome.err
    ours, rllibs = (read(tmp_path / f"from_{folder}") for folder in ("ours", "rllib"))
    assert_same_episodes(rllibs, ours)
    outcome = run_main("convert", "ours", "again", "offline.output_episode_format=rllib")
    assert "wrote  5 episodes, " in outcome.out
    assert "(rllib_episodes, 1 file, " in outcome.out
    wrong = run_main(*five, "offline.output=wrong", "offline.output_episode_format=rlib")
    assert wrong.code == 2
    assert "did you mean  rllib" in wrong.err
