"""Observations of all agents of an env step, against a naive loop over the chunks, with agents that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.config.errors import ConfigError, RunFailure
from runner.episodes import MultiAgentEpisode, nested
from runner.episodes.columns import ColumnBlock, Rollout, concat_rollouts
from runner.episodes.rollout_parts import split_rollout
from runner.pipelines import (
    AddObservationsOfAllAgentsToTrainBatch,
    AddOneTsToEpisodesAndTruncate,
    AddStatesFromInfosToTrainBatch,
    Connector,
    ConnectorPipeline,
    EnvToModuleConnector,
)
from runner.pipelines.cross_agent_connectors import observations_of_agents
from tests.support.coded_agents import CodedAgentsEnv, CodedRun, code_of, make_coded_run
from tests.support.configs import config_from

Seen = dict[tuple[str, int, str], Any]


def rollout_of(run: CodedRun, fragments: list[int]) -> Rollout:
    return concat_rollouts([run.runner.sample(n, True, run.weights, {}).rollout for n in fragments])


def spaces_of(run: CodedRun) -> dict[str, Any]:
    env: Any = run.envs[0]
    return {agent: env.observation_spaces[agent] for agent in env.possible_agents}


def seen_by(blocks: Mapping[str, ColumnBlock]) -> Seen:
    """(env episode, env step, agent) -> observation."""
    seen: Seen = {}
    for block in blocks.values():
        row = 0
        for chunk, length in enumerate(block.lengths):
            assert block.agents is not None
            for _ in range(int(length) + 1):
                key = (block.agents.multi_agent_episode_ids[chunk], int(block.agents.env_t[row]))
                seen[*key, block.agents.agent_ids[chunk]] = nested.take(block.columns["obs"], row)
                row += 1
    return seen


def keys_of(block: ColumnBlock) -> list[tuple[str, int]]:
    assert block.agents is not None
    ids = np.repeat(np.array(block.agents.multi_agent_episode_ids, object), block.lengths + 1)
    return list(zip(ids, block.agents.env_t.tolist(), strict=True))


def assert_as_naive(
    asked: ColumnBlock, blocks: Mapping[str, ColumnBlock], spaces: dict[str, Any], observed: Any, mask: Any
) -> None:
    seen = seen_by(blocks)
    assert list(observed) == list(spaces)
    for row, (episode, env_t) in enumerate(keys_of(asked)):
        for place, agent in enumerate(spaces):
            obs = nested.take(observed[agent], row)
            expected = seen.get((episode, env_t, agent))
            assert mask[row, place] == (expected is not None)
            if expected is None:
                assert not any(np.any(leaf) for leaf in nested.leaves(obs))
            else:
                assert nested.equal(obs, expected)
                assert code_of(expected)[3] <= env_t  # the last one is repeated for an agent that ends unseen


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 5),
    fragments=st.lists(st.integers(1, 12), min_size=1, max_size=4),
)
def test_each_row_has_what_all_agents_saw(seed: int, num_envs: int, num_agents: int, fragments: list[int]) -> None:
    run = make_coded_run(seed, num_envs, num_agents, 0)
    blocks, spaces = rollout_of(run, fragments).blocks, spaces_of(run)
    for asked in blocks.values():
        observed, mask = observations_of_agents(asked, blocks, spaces)
        assert len(mask) == asked.num_rows + len(asked)
        assert_as_naive(asked, blocks, spaces, observed, mask)
        assert mask.any(1).all(), "each row's agent saw something"


def test_the_rows_of_a_part_find_the_agents_of_the_whole() -> None:
    run = make_coded_run(3, 3, 4, 0)
    rollout, spaces = rollout_of(run, [30]), spaces_of(run)
    for part in split_rollout(rollout, 3, 0):
        for asked in part.blocks.values():
            assert_as_naive(asked, rollout.blocks, spaces, *observations_of_agents(asked, rollout.blocks, spaces))


@pytest.mark.parametrize("has_bootstrap_rows", [False, True])
def test_the_connector_has_the_rows_of_its_batch(has_bootstrap_rows: bool) -> None:
    run = make_coded_run(3, 2, 3, 0)
    blocks, spaces = rollout_of(run, [30]).blocks, spaces_of(run)
    connector = AddObservationsOfAllAgentsToTrainBatch()
    nested_pipeline = ConnectorPipeline([connector])
    assert nested_pipeline.requires.needs_other_agents
    nested_pipeline.use_agents(spaces)
    for asked in blocks.values():
        batch: dict[str, Any] = {}
        if has_bootstrap_rows:
            batch = AddOneTsToEpisodesAndTruncate()(rl_module={}, batch=batch, episodes=asked)
        batch = connector(rl_module={}, batch=batch, episodes=asked, episodes_of_modules=blocks)
        observed, mask = observations_of_agents(asked, blocks, spaces)
        is_step = (
            np.ones(len(mask), bool)
            if has_bootstrap_rows
            else ~np.isin(np.arange(len(mask)), asked.first_obs_rows + asked.lengths)
        )
        np.testing.assert_array_equal(batch["agents_mask"], mask[is_step])
        own = batch["agents_mask"][np.arange(is_step.sum()), batch["agent_index"]]
        assert own.all(), "the row's own agent saw something"
        whose = [agent for agent, length in zip(_ids(asked), asked.lengths + 1, strict=True) for _ in range(length)]
        assert [list(spaces)[number] for number in batch["agent_index"]] == np.array(whose)[is_step].tolist()
        for agent, column in batch["obs_of_agents"].items():
            assert nested.equal(column, nested.take(observed[agent], is_step))


def _ids(block: ColumnBlock) -> list[str]:
    assert block.agents is not None
    return list(block.agents.agent_ids)


class WithState(CodedAgentsEnv):
    """Tells in each info which env step of which episode it is."""

    def _infos(self, planned: Any) -> dict[str, Any]:
        return {f"a{a}": {"state": np.array([self.n, self.k, self.e])} for a in planned.seen}


@pytest.mark.parametrize("has_bootstrap_rows", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_each_row_has_the_state_of_its_env_step(has_bootstrap_rows: bool, seed: int) -> None:
    run = make_coded_run(seed, 2, 4, 0, make_env=WithState)
    connector = AddStatesFromInfosToTrainBatch()
    for blocks in (rollout_of(run, [n]).blocks for n in (7, 13)):
        connector.use_agents(spaces_of(run))
        for asked in blocks.values():
            batch: dict[str, Any] = {}
            if has_bootstrap_rows:
                batch = AddOneTsToEpisodesAndTruncate()(rl_module={}, batch=batch, episodes=asked)
            batch = connector(rl_module={}, batch=batch, episodes=asked, episodes_of_modules=blocks)
            row = 0
            assert asked.agents is not None
            for chunk, length in enumerate(asked.lengths.tolist()):
                n, k = map(int, asked.agents.multi_agent_episode_ids[chunk].split("-")[-2:])
                first = int(asked.first_obs_rows[chunk])
                codes = [code_of(nested.take(asked.columns["obs"], first + t)) for t in range(length + 1)]
                for code in codes if has_bootstrap_rows else codes[:-1]:
                    # the last observation is repeated, with its state, for an agent that ends unseen
                    assert batch["state"][row].tolist() == [n, k, code[3]]
                    assert list(spaces_of(run))[batch["agent_index"][row]] == _ids(asked)[chunk]
                    row += 1
            assert row == len(batch["state"])


def test_an_info_without_a_state_is_told() -> None:
    run = make_coded_run(0, 2, 4, 0)
    blocks, connector = rollout_of(run, [10]).blocks, AddStatesFromInfosToTrainBatch()
    connector.use_agents(spaces_of(run))
    with pytest.raises(RunFailure, match="an info lacks `state`, which a critic reads"):
        connector(rl_module={}, batch={}, episodes=blocks["m0"], episodes_of_modules=blocks)


class Listener(Connector):
    """Notes which observations the running episodes of all modules show, at each call."""

    def __init__(self) -> None:
        self.heard: list[dict[str, list[list[int]]]] = []

    def __call__(self, *, batch: Any, episodes_of_modules: Any = None, **kwargs: Any) -> Any:
        assert episodes_of_modules is not None
        self.heard.append(
            {
                module_id: [code_of(nested.take(rows.current_obs, row)) for row in range(len(rows))]
                for module_id, rows in episodes_of_modules.items()
            }
        )
        return batch


def test_connectors_of_env_pipelines_see_the_running_episodes_of_all_modules() -> None:
    listener, late_listener = Listener(), Listener()
    run = make_coded_run(5, 2, 4, 0, env_to_module=[listener], module_to_env=[late_listener])
    run.runner.sample(20, True, run.weights, {})
    assert len(late_listener.heard) > 20
    for heard in (*listener.heard, *late_listener.heard):
        assert set(heard) == {"m0", "m1"}
        by_env: dict[int, set[tuple[int, int]]] = {}
        for code in (code for codes in heard.values() for code in codes):
            by_env.setdefault(code[0], set()).add((code[3], code[4]))
        assert all(len(steps) == 1 for steps in by_env.values()), "all modules are at the same env step"


def test_a_learner_connector_may_ask_for_multi_agent_episodes() -> None:
    run = make_coded_run(5, 2, 4, 0)
    rollout = rollout_of(run, [20])
    episodes = Connector.multi_agent_episodes(rollout.blocks)
    assert all(isinstance(episode, MultiAgentEpisode) for episode in episodes)
    assert sum(one.agent_steps() for one in episodes) == sum(block.num_rows for block in rollout.blocks.values())


class Curious(EnvToModuleConnector):
    """Asks for what only learner connectors are given."""

    def __call__(self, *, batch: Any, episodes_of_modules: Any = None, **kwargs: Any) -> Any:
        self.multi_agent_episodes(episodes_of_modules)
        return batch


class Careful(Connector):
    """Asks for them where there are blocks."""

    def __call__(self, *, batch: Any, episodes: Any = None, episodes_of_modules: Any = None, **kwargs: Any) -> Any:
        if isinstance(episodes, ColumnBlock):
            self.multi_agent_episodes(episodes_of_modules)
        return batch


def test_an_env_connector_that_asks_for_multi_agent_episodes_is_refused() -> None:
    run = make_coded_run(5, 2, 4, 0, env_to_module=[Curious()])
    with pytest.raises(RunFailure, match="available in learner pipelines only"):
        run.runner.sample(20, True, run.weights, {})

    def check(connector: str) -> None:
        edit = f"connectors.env_to_module=[{{append: {{_target_: {__name__}.{connector}}}}}]"
        config_from("+experiment=ppo_multi_agent_cartpole", edit)

    check("Careful")
    with pytest.raises(
        ConfigError, match=r"Curious needs multi_agent_episodes, which exist in learner pipelines\s+only"
    ):
        check("Curious")


def test_one_agent_has_no_others() -> None:
    from runner.module_building import build_modules

    connector = "{append: {_target_: runner.pipelines.AddObservationsOfAllAgentsToTrainBatch}}"
    config = config_from("+experiment=ppo_cartpole", f"connectors.learner=[{connector}]")
    with pytest.raises(ConfigError, match="reads the episodes of other agents, but the environment has only one"):
        build_modules(config)
