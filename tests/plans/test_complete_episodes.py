"""Whole episodes out of cut rollouts: no row is lost, doubled or shifted, also after a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from runner.env_runners.sample import Sample
from runner.episodes import nested
from runner.episodes.columns import Rollout, block_from_episodes
from runner.plans.complete_episodes import EpisodeAssembler
from tests.env_runners.test_multi_agent_rows import assert_same_episode, joined
from tests.episodes.test_columns import assert_same_chunk, episode_of
from tests.support.coded_agents import make_coded_run
from tests.support.coded_runs import coded_envs, coded_module, make_runner, naive_episodes, weights_of

ID = "default_policy"
fragments = given(
    num_envs=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
some = settings(max_examples=40, deadline=None, derandomize=True)


def sampled(num_envs: int, lengths: Sequence[int], steps: Sequence[int], kind: str = "sync") -> list[Rollout]:
    """Fragments of one runner, with infos and lookback."""
    env, _ = coded_envs(kind, num_envs, list(lengths))
    module = coded_module()
    runner = make_runner(env, module, num_lookback=2)
    return [runner.sample(count, True, weights_of(module), {}).rollout for count in steps]


def whole_chunks(rollouts: Sequence[Rollout]) -> list[Any]:
    """The chunks of all blocks."""
    return [chunk for rollout in rollouts for block in rollout.blocks.values() for chunk in block]


@fragments
@some
def test_episodes_are_as_a_naive_loop_collects_them(num_envs: int, lengths: list[int], steps: list[int]) -> None:
    rollouts = sampled(num_envs, lengths, steps)
    whole = EpisodeAssembler()
    given_back = [whole.add(rollout) for rollout in rollouts]
    chunks = [chunk for rollout in rollouts for chunk in rollout.blocks[ID]]
    actions = {
        tuple(int(number) for number in obs): int(action)
        for chunk in chunks
        for obs, action in zip(chunk.get_observations(), chunk.get_actions(), strict=False)
    }
    num_steps = {n: sum(len(chunk) for chunk in chunks if chunk.id_.split("-")[-2] == str(n)) for n in range(num_envs)}
    ended = [
        episode
        for n in range(num_envs)
        for episode in naive_episodes(n, lengths, num_steps[n], actions)  # type: ignore[arg-type]
        if episode.is_done
    ]
    got = {chunk.id_: chunk for chunk in whole_chunks(given_back)}
    assert sorted(got) == sorted(episode.id_ for episode in ended)
    for episode in ended:
        assert got[episode.id_].t_started == 0
        assert_same_chunk(got[episode.id_], episode)


@fragments
@some
def test_steps_are_counted_once_and_rows_are_in_order(num_envs: int, lengths: list[int], steps: list[int]) -> None:
    whole, num_added, num_given = EpisodeAssembler(), 0, 0
    for rollout in sampled(num_envs, lengths, steps):
        ended = whole.add(rollout)
        num_added += rollout.num_env_steps
        num_given += ended.num_env_steps
        rows = sum(block.num_rows for block in ended.blocks.values())
        held = sum(len(lengths) and int(np.sum(block["lengths"])) for block in whole.get_state()["running"].values())
        assert ended.num_env_steps == rows
        assert num_given + held == num_added
        for block in ended.blocks.values():
            assert len(set(block.episode_ids)) == len(block)
            assert (block.is_terminated | block.is_truncated).all()
            assert (block.t_started == 0).all()
            for chunk in block:
                assert np.diff(chunk.get_observations()[:, 1]).tolist() == [1.0] * len(chunk)


def assert_equal_rollouts(got: Rollout, expected: Rollout) -> None:
    assert (got.num_env_steps, got.skip_journal_records) == (expected.num_env_steps, expected.skip_journal_records)
    assert list(got.blocks) == list(expected.blocks)
    for chunk, other in zip(whole_chunks([got]), whole_chunks([expected]), strict=True):
        assert_same_chunk(chunk, other)
        assert chunk.agent_id == other.agent_id


def through_checkpoint(whole: EpisodeAssembler, folder: Path) -> EpisodeAssembler:
    save_checkpoint(folder, {"plan": whole.get_state()}, {})
    other = EpisodeAssembler()
    other.set_state(load_checkpoint(folder)[0]["plan"])
    return other


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
def test_a_checkpoint_goes_on_exactly(cut: int, tmp_path: Path) -> None:
    rollouts = sampled(3, [4, 11, 7], [5, 8, 3, 9, 12, 20])
    straight, whole = EpisodeAssembler(), EpisodeAssembler()
    expected = [straight.add(rollout) for rollout in rollouts]
    got = [whole.add(rollout) for rollout in rollouts[:cut]]
    whole = through_checkpoint(whole, tmp_path / "checkpoint")
    got += [whole.add(rollout) for rollout in rollouts[cut:]]
    for one, other in zip(got, expected, strict=True):
        assert_equal_rollouts(one, other)
    assert any(chunk.get_infos()[0] for chunk in whole_chunks(got))


class Unreadable:
    """Something that only this process knows."""


def test_any_object_in_infos_can_be_checkpointed(tmp_path: Path) -> None:
    episode = episode_of("a", 2, terminated=False)
    block = block_from_episodes([episode])

    class Infos:
        def rows_of(self, chunk: int, num_rows: int) -> list[dict[str, Any]]:
            return [{"thing": Unreadable()}] * num_rows

    running = replace(block, is_truncated=np.array([False]), infos=Infos())
    whole = EpisodeAssembler()
    assert whole.add(Rollout({ID: running}, 2)).blocks == {}
    through_checkpoint(whole, tmp_path / "checkpoint")


def test_chunks_of_several_runners_and_an_episode_in_several_rollouts() -> None:
    def part(id_: str, first: int, stop: int, is_done: bool) -> Any:
        episode = episode_of(id_, stop - first, first, terminated=is_done, t_started=first)
        episode.is_truncated = False
        return episode

    whole = EpisodeAssembler()
    first = block_from_episodes([part("a", 0, 2, False), part("b", 0, 1, True), part("c", 0, 3, False)])
    second = block_from_episodes([part("a", 2, 3, False), part("c", 3, 4, True), part("d", 0, 1, True)])
    third = block_from_episodes([part("e", 7, 9, True), part("a", 3, 5, True)])
    got = [whole.add(Rollout({ID: block}, block.num_rows)) for block in (first, second, third)]
    assert [rollout.blocks[ID].episode_ids for rollout in got] == [["b"], ["c", "d"], ["a", "e"]]
    assert [rollout.num_env_steps for rollout in got] == [1, 5, 7]
    joined_a, from_the_middle = got[2].blocks[ID]
    assert joined_a.get_observations()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert joined_a.get_rewards().tolist() == [0, 1, 2, 3, 4]
    assert joined_a.is_terminated
    assert (from_the_middle.t_started, len(from_the_middle)) == (7, 2)
    assert whole.get_state() == EpisodeAssembler().get_state()


def test_what_to_leave_out_on_resume_is_passed_on_with_held_chunks() -> None:
    block = block_from_episodes([episode_of("a", 2, terminated=False)])
    running = replace(block, is_truncated=np.array([False]))
    end = block_from_episodes([episode_of("a", 1, first=2, t_started=2)])
    whole = EpisodeAssembler()
    whole.add(Rollout({ID: running}, 2, ("one",)))
    assert whole.add(Rollout({ID: end}, 1, ("two", "one"))).skip_journal_records == ("one", "two")
    assert whole.add(Rollout({ID: end}, 1)).skip_journal_records == ()


@given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 4),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=6),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_several_agents(seed: int, num_envs: int, num_agents: int, steps: list[int]) -> None:
    coded = make_coded_run(seed, num_envs, num_agents, 1)
    samples: list[Sample] = [coded.runner.sample(count, True, coded.weights, {}) for count in steps]
    whole, num_given = EpisodeAssembler(), 0
    ended: dict[str, Any] = {}
    for sample in samples:
        rollout = whole.add(sample.rollout)
        num_given += rollout.num_env_steps
        for module_id, block in rollout.blocks.items():
            assert block.agents is not None
            assert len(block.agents.env_t) == nested.row_count(block.columns["obs"]) == block.num_rows + len(block)
            for chunk in block:
                assert chunk.module_id == module_id
                assert chunk.id_ == f"{chunk.multi_agent_episode_id}-{chunk.agent_id}"
                assert chunk.id_ not in ended
                ended[chunk.id_] = chunk
    chunks, _ = joined(samples)
    assert sorted(ended) == sorted(id_ for id_, chunk in chunks.items() if chunk.is_done)
    naive = coded.naive_agents()
    for id_, chunk in ended.items():
        assert_same_episode(chunk, naive[id_])
    assert num_given <= sum(sample.rollout.num_env_steps for sample in samples)
    state = whole.get_state()
    json.dumps([state["num_env_steps"], state["leave_out"]])
    assert num_given + state["num_env_steps"] == sum(sample.rollout.num_env_steps for sample in samples)
