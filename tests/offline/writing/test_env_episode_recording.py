"""Env episodes of several agents that are recorded are those that were sampled, against a naive loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.config.offline import OfflineConfig
from runner.env_runners.episode_recording import EnvEpisodeRecording
from runner.env_runners.listeners import EpisodeListener
from runner.episodes import SingleAgentEpisode, nested
from runner.experiment.trainer import Trainer
from runner.offline.codecs.layout import Spaces
from runner.offline.formats.selection import ModuleAgents
from runner.offline.reading.source import open_source
from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
from runner.offline.writing.recorder import Recorded
from runner.offline.writing.writer import EpisodeWriter
from tests.conftest import QUICK
from tests.env_runners.test_multi_agent_rows import StatefulAgentsEnv
from tests.support.coded_agents import AgentEpisode, CodedRun, EnvEpisode, make_coded_run, module_of

WRITTEN = {"action_dist_inputs", "action_logp", "weights_seq_no"}


def recording_run(seed: int, num_envs: int, num_agents: int, folder: Path, **options: Any) -> CodedRun:
    """A run whose env episodes are recorded in a folder."""
    output_max_rows_per_file = options.pop("output_max_rows_per_file", None)

    def listeners(envs: Any, module: Any) -> list[EpisodeListener]:
        recorder = recorder_of(envs[0], folder, output_max_rows_per_file=output_max_rows_per_file)
        return [EnvEpisodeRecording(recorder, "0-env_runner-0")]

    return make_coded_run(seed, num_envs, num_agents, 0, make_listeners=listeners, **options)


def recorder_of(env: Any, folder: Path, **options: Any) -> EnvEpisodeRecorder:
    spaces = {agent: Spaces(env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.possible_agents}
    config = OfflineConfig(output=str(folder), **options)
    return EnvEpisodeRecorder(EpisodeWriter(config, env_name="coded", agent_spaces=spaces))


def recorded_in(folder: Path, agents: Sequence[str]) -> dict[tuple[str, str], tuple[SingleAgentEpisode, list[int]]]:
    """(Env episode, agent) -> the agent's episode, and the env step of each observation."""
    columns = {name for path in folder.iterdir() for name in pq.read_schema(path).names}
    found = {}
    for agent in agents:
        if f"agents/{agent}/length" not in columns:
            continue
        others = tuple(other for other in agents if other != agent)
        source = open_source(
            OfflineConfig(input_=str(folder)), of_module=ModuleAgents(module_of(agent), (agent,), others)
        )
        for block in source.blocks():
            assert block.module_id == module_of(agent)
            assert block.agents is not None
            for chunk, episode in enumerate(block):
                first = int(block.first_obs_rows[chunk])
                env_t = block.agents.env_t[first : first + len(episode) + 1].tolist()
                assert block.agents.agent_ids[chunk] == agent
                key = block.agents.multi_agent_episode_ids[chunk], agent
                assert key not in found
                found[key] = episode, env_t
    return found


def assert_recorded(folder: Path, coded: CodedRun, episodes: dict[str, EnvEpisode], recorded: Recorded) -> None:
    """The files hold these env episodes, agent by agent, and no other."""
    table = pq.read_table(folder)
    assert sorted(table["eps_id"].to_pylist()) == sorted(episodes)
    assert recorded.report.episodes == len(episodes)
    assert recorded.report.steps == sum(episode.length for episode in episodes.values())
    names = ("eps_id", "length", "terminated", "truncated", "episode_return")
    for id_, length, terminated, truncated, total in zip(*(table[name].to_pylist() for name in names), strict=True):
        naive = episodes[id_]
        assert length == naive.length
        assert (terminated, truncated) == (naive.is_terminated, not naive.is_terminated)
        assert total == sum(sum(own.rewards) for own in naive.agents.values())
    found = recorded_in(folder, coded.envs[0].possible_agents)
    expected = {
        (id_, agent): own for id_, naive in episodes.items() for agent, own in naive.agents.items() if own.actions
    }
    assert sorted(found) == sorted(expected)
    for key, own in expected.items():
        assert_same(*found[key], own)


def assert_same(got: SingleAgentEpisode, env_t: list[int], expected: AgentEpisode) -> None:
    assert (got.id_, got.t_started, got.t) == (expected.id_, 0, len(expected.actions))
    assert (got.is_terminated, got.is_truncated) == (expected.terminated, expected.truncated)
    assert env_t == expected.env_t
    assert nested.equal(got.get_observations(), nested.stack(expected.obs))
    assert nested.equal(got.get_actions(), nested.stack(expected.actions))
    assert got.get_rewards().tolist() == expected.rewards
    assert [dict(info) for info in got.get_infos()] == expected.infos


def naive_by_id(coded: CodedRun, prefix: str = "0-env_runner-0") -> dict[str, EnvEpisode]:
    """Id -> each env episode that is over."""
    return {
        f"{prefix}-{n}-{k}": episode
        for n, episodes in enumerate(coded.naive())
        for k, episode in enumerate(episodes)
        if episode.is_over
    }


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 5),
    fragments=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    explore=st.booleans(),
    rows_per_file=st.none() | st.integers(1, 4),
)
@example(seed=1, num_envs=2, num_agents=5, fragments=[1] * 25, explore=True, rows_per_file=3)
@example(seed=2, num_envs=3, num_agents=4, fragments=[60, 60], explore=False, rows_per_file=None)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_what_is_recorded_is_what_a_naive_loop_collects(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], explore: bool, rows_per_file: int | None
) -> None:
    with TemporaryDirectory() as folder:
        coded = recording_run(seed, num_envs, num_agents, Path(folder), output_max_rows_per_file=rows_per_file)
        for steps in fragments:
            coded.runner.sample(steps, explore, coded.weights, {})
        recorded = coded.runner.finish_recording()
        episodes = naive_by_id(coded)
        if episodes:
            assert_recorded(Path(folder), coded, episodes, recorded)
        assert recorded.report.episodes == len(episodes)


@pytest.mark.parametrize(("explore", "outputs"), [(True, WRITTEN), (False, WRITTEN - {"action_logp"})])
@pytest.mark.parametrize(("duration", "unit"), [(7, "episodes"), (40, "env_steps")])
def test_an_evaluation_records_the_episodes_that_count(
    tmp_path: Path, duration: int, unit: str, explore: bool, outputs: set[str]
) -> None:
    coded = recording_run(3, 2, 4, tmp_path)
    counted = coded.runner.evaluate(duration, explore, coded.weights, {}, unit=unit)
    recorded = coded.runner.finish_recording()
    assert recorded.report.episodes == len(counted.returns) > 2
    assert recorded.num_unfinished == 0
    lengths = dict(zip(*(pq.read_table(tmp_path)[name].to_pylist() for name in ("eps_id", "length")), strict=True))
    assert sorted(lengths.values()) == sorted(counted.lengths.tolist())
    naive = naive_by_id(coded)
    assert_recorded(tmp_path, coded, {id_: naive[id_] for id_ in lengths}, recorded)
    for episode, _ in recorded_in(tmp_path, coded.envs[0].possible_agents).values():
        assert set(episode.extra_model_outputs) == outputs


def test_a_run_that_goes_on_leaves_out_what_it_has_seen_the_end_of_only(tmp_path: Path) -> None:
    before = make_coded_run(5, 2, 4, 0, make_env=StatefulAgentsEnv)
    after = recording_run(5, 2, 4, tmp_path, make_env=StatefulAgentsEnv)
    before.runner.sample(9, True, before.weights, {})
    done = before.runner.env.is_done
    running = {f"0-env_runner-0-{n}-{env.k}" for n, env in enumerate(before.envs) if not done[n]}
    after.runner.set_state(before.runner.get_state())
    after.runner.sample(60, True, after.weights, {})
    recorded = after.runner.finish_recording()
    ids = set(pq.read_table(tmp_path)["eps_id"].to_pylist())
    assert not running & ids
    assert recorded.num_incomplete == len(running) > 0
    assert recorded.num_unfinished <= 2
    assert recorded.report.episodes == len(ids) > 5


def record_a_run(folder: Path, *overrides: str) -> dict[str, Any]:
    options = [f"offline.output={folder}", "env_runners.num_env_runners=2", *QUICK, *overrides]
    with Trainer.from_experiment("ppo_multi_agent_cartpole", options) as trainer:
        for _ in range(2):
            trainer.train()
        recorded = trainer.finish_recording()
    assert recorded is not None
    return {path.rpartition("/")[2]: pq.read_table(path) for path in recorded.report.files}


@pytest.mark.ray
def test_the_same_is_recorded_here_and_on_ray(tmp_path: Path, ray_cluster: None) -> None:
    here = record_a_run(tmp_path / "here", "engine=inline")
    there = record_a_run(tmp_path / "there")
    assert sorted(here) == sorted(there) == [f"episodes-env_runner-{n}-0-000000.parquet" for n in (0, 1)]
    for name, table in here.items():
        assert table.equals(there[name], check_metadata=True)
        assert table.num_rows > 3
