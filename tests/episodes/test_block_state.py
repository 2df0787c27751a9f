"""Rollouts as plain values: through a checkpoint on disk they are what they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.checkpoints import load_checkpoint, save_checkpoint
from runner.episodes import nested
from runner.episodes.block_state import rollout_from_state, rollout_to_state
from runner.episodes.columns import Rollout, block_from_episodes, concat_rollouts
from tests.episodes.test_columns import assert_same_chunk, episode_of
from tests.support.coded_agents import make_coded_run
from tests.support.coded_runs import coded_envs, coded_module, make_runner, weights_of

ID = "default_policy"
some = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def through_disk(rollout: Rollout, folder: Path) -> Rollout:
    save_checkpoint(folder, {"rollout": rollout_to_state(rollout)}, {})
    return rollout_from_state(load_checkpoint(folder)[0]["rollout"])


def assert_equal(got: Rollout, expected: Rollout) -> None:
    assert (got.num_env_steps, got.skip_journal_records) == (expected.num_env_steps, expected.skip_journal_records)
    assert list(got.blocks) == list(expected.blocks)
    for module_id, block in expected.blocks.items():
        other = got.blocks[module_id]
        assert list(other.columns) == list(block.columns)
        for name, column in block.columns.items():
            same = nested.map_leaves(lambda leaf: (leaf.dtype, leaf.shape, leaf.tobytes()), column)
            assert nested.map_leaves(lambda leaf: (leaf.dtype, leaf.shape, leaf.tobytes()), other.columns[name]) == same
        for chunk, expected_chunk in zip(other, block, strict=True):
            assert chunk.get_infos() == expected_chunk.get_infos()
            if block.agents is None:  # the others have nested observations, which are compared above
                assert_same_chunk(chunk, expected_chunk)
            for name in ("agent_id", "multi_agent_episode_id", "module_id"):
                assert getattr(chunk, name) == getattr(expected_chunk, name)
        if block.agents is not None:
            assert other.agents is not None
            np.testing.assert_array_equal(other.agents.env_t, block.agents.env_t)


@given(
    num_envs=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    steps=st.lists(st.integers(1, 15), min_size=1, max_size=3),
    num_lookback=st.integers(0, 3),
    skip_journal_records=st.lists(st.sampled_from(["0.0:1-2", "1.0:7-7"]), unique=True),
)
@some
def test_fragments_with_lookback_and_infos(
    tmp_path: Path,
    num_envs: int,
    lengths: list[int],
    steps: list[int],
    num_lookback: int,
    skip_journal_records: list[str],
) -> None:
    env, _ = coded_envs("sync", num_envs, lengths)
    module = coded_module()
    runner = make_runner(env, module, num_lookback=num_lookback)
    rollouts = [runner.sample(count, True, weights_of(module), {}).rollout for count in steps]
    for rollout in (*rollouts, concat_rollouts(rollouts)):
        rollout = replace(rollout, skip_journal_records=tuple(skip_journal_records))
        got = through_disk(rollout, tmp_path / "one")
        assert_equal(got, rollout)
        assert_equal(through_disk(got, tmp_path / "two"), rollout)


@given(seed=st.integers(0, 10_000), num_envs=st.integers(1, 2), num_agents=st.integers(1, 3), steps=st.integers(1, 12))
@some
def test_several_agents(tmp_path: Path, seed: int, num_envs: int, num_agents: int, steps: int) -> None:
    coded = make_coded_run(seed, num_envs, num_agents, 1)
    for _ in range(2):
        rollout = coded.runner.sample(steps, True, coded.weights, {}).rollout
        assert_equal(through_disk(rollout, tmp_path / "one"), rollout)


def test_nested_columns(tmp_path: Path) -> None:
    block = block_from_episodes([episode_of("a", 2), episode_of("b", 3, terminated=False)])
    obs = {"one": np.arange(7, dtype=np.float32), "two": (np.arange(14).reshape(7, 2), np.ones((7, 1), np.uint8))}
    columns = {**block.columns, "obs": obs, "actions": (np.arange(5), {"x": np.zeros((5, 2), np.bool_)})}
    rollout = Rollout({ID: replace(block, columns=columns, infos=None)}, 5)
    got = through_disk(rollout, tmp_path / "one").blocks[ID].columns
    for name in ("obs", "actions"):
        same = nested.map_leaves(lambda leaf: (leaf.dtype, leaf.tolist()), columns[name])
        assert nested.map_leaves(lambda leaf: (leaf.dtype, leaf.tolist()), got[name]) == same


@pytest.mark.parametrize(
    ("info", "kept"),
    [
        ({"n": 1, "t": (1, 2.5), "s": "x", "none": None, "deep": {"list": [True]}}, None),
        ({"n": 1, "numbers": {1: 2}}, None),
        ({"n": 1, 2: 3, "$array": "x"}, None),
        ({"n": 1, "object": object(), "objects": np.array([None]), "texts": np.array(["a"])}, {"n": 1}),
        ({"number": np.float32(0.5)}, {"number": 0.5}),
    ],
)
def test_of_infos_what_a_checkpoint_can_hold_is_kept(info: Any, kept: Any, tmp_path: Path) -> None:
    class Infos:
        def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]] | None:
            return None if chunk == 1 else [info] * num_rows

    block = replace(block_from_episodes([episode_of("a", 2), episode_of("b", 1)]), infos=Infos())
    got = through_disk(Rollout({ID: block}, 3), tmp_path / "one").blocks[ID]
    assert got.infos is not None
    assert got.infos.rows_of(0, 3) == [info if kept is None else kept] * 3
    assert got.infos.rows_of(1, 2) is None


def test_arrays_in_infos_are_kept(tmp_path: Path) -> None:
    class Infos:
        def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]]:
            return [{"state": np.arange(3.0) + row} for row in range(num_rows)]

    block = replace(block_from_episodes([episode_of("a", 2)]), infos=Infos())
    got = through_disk(Rollout({ID: block}, 2), tmp_path / "one").blocks[ID][0]
    assert [info["state"].tolist() for info in got.get_infos()] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_rows_of_a_checkpoint_can_be_written(tmp_path: Path) -> None:
    """Connectors of learner pipelines may write to what they get."""
    block = block_from_episodes([episode_of("a", 2)])
    got = through_disk(Rollout({ID: block}, 2), tmp_path / "one").blocks[ID]
    got.columns["rewards"][0] = 3.0
    assert got.columns["rewards"][0] == 3.0
