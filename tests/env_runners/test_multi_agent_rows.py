"""Sampling with several agents, against a naive loop: no row is lost, doubled, shifted or given to another agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.config.errors import RunFailure
from runner.config.info_metrics import InfoMetric
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.sample import Sample
from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ColumnBlock, concat_rollouts
from runner.pipelines.connector import Connector
from tests.support.coded_agents import (
    AgentEpisode,
    CodedAgentsEnv,
    CodedRun,
    EnvEpisode,
    code_of,
    make_coded_run,
    module_of,
)

runs = given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 5),
    fragments=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    lookback=st.integers(0, 3),
    explore=st.booleans(),
)
some_runs = settings(max_examples=20, deadline=None, derandomize=True)


class Watcher(Connector):
    """Notes what every view of a running episode shows, and the histories."""

    def __init__(self, lookback: int) -> None:
        self.lookback = lookback
        self.views: list[SingleAgentEpisode] = []
        self.histories: list[tuple[Any, str, int, Any, Any]] = []

    def __call__(self, *, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        views = list(episodes)
        assert len(views) == len(episodes)
        self.views += [_frozen(view) for view in views]
        for column in ("obs", "actions", "rewards"):
            for length in range(1, self.lookback + (column == "obs") + 1):
                values, is_there = episodes.history(column, length)
                keys = [(view.id_, view.t) for view in views]
                self.histories.append((keys, column, length, values, is_there))
        return batch


def _frozen(view: SingleAgentEpisode) -> SingleAgentEpisode:
    """The view with copies of what it shows now."""
    for buffer in (view.observations, view.actions, view.rewards):
        buffer.data = nested.map_leaves(np.copy, buffer.data)
    return view


def run(
    seed: int, num_envs: int, num_agents: int, fragments: Sequence[int], lookback: int, explore: bool
) -> tuple[CodedRun, list[Sample]]:
    coded = make_coded_run(seed, num_envs, num_agents, lookback)
    samples = []
    for steps in fragments:
        before = sum(env.num_steps for env in coded.envs)
        sample = coded.runner.sample(steps, explore, coded.weights, {})
        made = sum(env.num_steps for env in coded.envs) - before
        assert sample.rollout.num_env_steps == made
        assert steps <= made < steps + num_envs
        samples.append(sample)
    return coded, samples


def joined(samples: Sequence[Sample]) -> tuple[dict[str, SingleAgentEpisode], dict[str, list[int]]]:
    """Agent episode id -> all its chunks in one, and the env step of each observation."""
    whole: dict[str, SingleAgentEpisode] = {}
    env_t: dict[str, list[int]] = {}
    for sample in samples:
        for module_id, block in sample.rollout.blocks.items():
            assert block.module_id == module_id
            assert len(block) > 0
            for number, chunk in enumerate(block):
                times = _env_t_of(block, number)
                assert chunk.module_id == module_id == module_of(str(chunk.agent_id))
                assert chunk.id_ == f"{chunk.multi_agent_episode_id}-{chunk.agent_id}"
                if chunk.id_ in whole:
                    assert env_t[chunk.id_][-1] == times[0]
                    env_t[chunk.id_] += times[1:]
                    whole[chunk.id_].concat_episode(chunk)
                else:
                    assert chunk.t_started == 0
                    whole[chunk.id_], env_t[chunk.id_] = chunk, times
    return whole, env_t


def _env_t_of(block: ColumnBlock, chunk: int) -> list[int]:
    assert block.agents is not None
    first = int(block.first_obs_rows[chunk])
    return [int(t) for t in block.agents.env_t[first : first + int(block.lengths[chunk]) + 1]]


@runs
@example(seed=1, num_envs=2, num_agents=5, fragments=[1] * 25, lookback=0, explore=True)
@example(seed=2, num_envs=3, num_agents=4, fragments=[2, 3, 1, 60], lookback=3, explore=True)
@example(seed=1, num_envs=2, num_agents=5, fragments=[7, 5] * 6, lookback=2, explore=True)
@some_runs
def test_fragments_hold_what_a_naive_loop_collects(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    coded, samples = run(seed, num_envs, num_agents, fragments, lookback, explore)
    naive = coded.naive()
    check_chunks(coded, samples)
    check_lookback(coded, samples, lookback)
    check_returns(naive, samples)
    check_that_rewards_are_conserved(naive, samples)


def check_chunks(coded: CodedRun, samples: Sequence[Sample]) -> None:
    """All chunks of an id, joined, are the agent's episode."""
    whole, env_t = joined(samples)
    naive = {id_: own for id_, own in coded.naive_agents().items() if own.actions}
    assert sorted(whole) == sorted(naive)
    for id_, expected in naive.items():
        assert_same_episode(whole[id_], expected)
        assert env_t[id_] == expected.env_t


def assert_same_episode(got: SingleAgentEpisode, expected: AgentEpisode) -> None:
    """Rows and flags; `got` starts at the first step."""
    assert (got.t_started, got.t) == (0, len(expected.actions))
    assert (got.is_terminated, got.is_truncated) == (expected.terminated, expected.truncated), got.id_
    assert nested.equal(got.get_observations(), nested.stack(expected.obs))
    assert nested.equal(got.get_actions(), nested.stack(expected.actions))
    assert got.get_rewards().tolist() == expected.rewards
    assert got.get_infos() == expected.infos
    assert set(got.extra_model_outputs) == {"action_dist_inputs", "action_logp"}


def check_lookback(coded: CodedRun, samples: Sequence[Sample], lookback: int) -> None:
    """A chunk sees the steps just before it, with all their columns."""
    naive = coded.naive_agents()
    for sample in samples:
        for block in sample.rollout.blocks.values():
            for chunk in block:
                past = chunk.rewards.lookback
                assert past == min(lookback, chunk.t_started)
                assert_shows(chunk, naive[chunk.id_], past)
                for name in ("action_dist_inputs", "action_logp"):
                    assert len(chunk.extra_model_outputs[name].data) == past + len(chunk)
                logits = chunk.extra_model_outputs["action_dist_inputs"].data
                assert (logits.max(-1) == 2).all(), "rows of zeros: no module made them"


def assert_shows(view: SingleAgentEpisode, expected: AgentEpisode, past: int) -> None:
    """A view or chunk has the rows of the naive episode, its lookback too."""
    rows = slice(view.t_started - past, view.t)
    obs = expected.obs[rows.start : rows.stop + 1]
    assert nested.equal(view.observations.data, nested.stack(obs))
    if past + len(view):
        assert nested.equal(view.actions.data, nested.stack(expected.actions[rows]))
    assert view.rewards.data.tolist() == expected.rewards[rows]


def check_returns(naive: Sequence[Sequence[EnvEpisode]], samples: Sequence[Sample]) -> None:
    """Returns and lengths are those of whole episodes, in all, by agent and by module."""
    number_of = [0] * len(naive)
    for sample in samples:
        finished = sample.finished
        by_agent: dict[str, list[float]] = {}
        by_module: dict[str, list[float]] = {}
        for n, episode_return, length in zip(finished.env_of, finished.returns, finished.lengths, strict=True):
            expected = naive[n][number_of[n]]
            number_of[n] += 1
            assert expected.is_over
            assert length == expected.length
            assert episode_return == sum(expected.returns.values())
            for agent, own in expected.returns.items():
                by_agent.setdefault(agent, []).append(own)
                by_module.setdefault(module_of(agent), []).append(own)
        assert {agent: sorted(own) for agent, own in finished.by_agent.items()} == {
            agent: sorted(own) for agent, own in by_agent.items()
        }
        assert {id_: sorted(own) for id_, own in finished.by_module.items()} == {
            id_: sorted(own) for id_, own in by_module.items()
        }
    for n, episodes in enumerate(naive):  # none is missing
        assert number_of[n] == sum(episode.is_over for episode in episodes)


def check_that_rewards_are_conserved(naive: Sequence[Sequence[EnvEpisode]], samples: Sequence[Sample]) -> None:
    """An agent's rows sum up to its return."""
    in_rows: dict[tuple[str, str], float] = {}
    for sample in samples:
        for block in sample.rollout.blocks.values():
            for chunk in block:
                key = str(chunk.multi_agent_episode_id), str(chunk.agent_id)
                in_rows[key] = in_rows.get(key, 0.0) + float(chunk.get_rewards().sum())
    for n, episodes in enumerate(naive):
        for k, episode in enumerate(episodes):
            for agent, expected in episode.returns.items():
                acted = agent in episode.agents and episode.agents[agent].actions
                if episode.is_over and acted:  # rewards of agents that never acted belong to no step
                    assert in_rows[f"0-env_runner-0-{n}-{k}", agent] == expected


@runs
@example(seed=3, num_envs=2, num_agents=4, fragments=[3] * 12, lookback=2, explore=True)
@settings(some_runs, max_examples=10)
def test_running_episodes_and_their_histories(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    watchers = Watcher(lookback), Watcher(lookback)
    coded = make_coded_run(seed, num_envs, num_agents, lookback, [watchers[0]], [watchers[1]])
    for steps in fragments:
        coded.runner.sample(steps, explore, coded.weights, {})
    naive = coded.naive_agents()
    for watcher in watchers:
        for view in watcher.views:
            expected = naive[view.id_]
            assert code_of(view.get_observations(-1))[2] == view.t
            assert view.rewards.lookback == min(lookback, view.t_started)
            assert_shows(view, expected, view.rewards.lookback)
            is_end = view.t == len(expected.actions)
            flags = (expected.terminated, expected.truncated) if is_end else (False, False)
            assert (view.is_terminated, view.is_truncated) == flags
            assert view.agent_id == view.id_.rpartition("-")[2]
        for keys, column, length, values, is_there in watcher.histories:
            for row, (id_, t) in enumerate(keys):
                assert_history(naive[id_], t, column, length, nested.take(values, row), is_there[row])


def assert_history(own: AgentEpisode, t: int, column: str, length: int, values: Any, is_there: Any) -> None:
    """Of the agent at its time step t."""
    items = {"obs": own.obs[: t + 1], "actions": own.actions[:t], "rewards": own.rewards[:t]}[column][-length:]
    assert is_there.tolist() == [False] * (length - len(items)) + [True] * len(items)
    if items:
        assert nested.equal(nested.take(values, slice(length - len(items), None)), nested.stack(list(items)))
    for leaf in nested.leaves(nested.take(values, slice(0, length - len(items)))):
        assert not leaf.any()


@runs
@settings(some_runs, max_examples=8)
def test_histories_of_chunks(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    coded, samples = run(seed, num_envs, num_agents, fragments, lookback, explore)
    naive = coded.naive_agents()
    rollout = concat_rollouts([sample.rollout for sample in samples])
    for block in rollout.blocks.values():
        for column in ("obs", "actions", "rewards"):
            for length in range(1, lookback + (column == "obs") + 1):
                values, is_there = block.history(column, length)
                row = 0
                for chunk, steps in enumerate(block.lengths.tolist()):
                    for t in range(steps + 1):
                        at = int(block.t_started[chunk]) + t
                        own = naive[block.episode_ids[chunk]]
                        assert_history(own, at, column, length, nested.take(values, row), is_there[row])
                        row += 1


@runs
@settings(some_runs, max_examples=8)
def test_an_interrupted_runner_goes_on(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], lookback: int, explore: bool
) -> None:
    _, expected = run(seed, num_envs, num_agents, fragments, lookback, explore)
    first = make_coded_run(seed, num_envs, num_agents, lookback)
    half = len(fragments) // 2
    for steps in fragments[:half]:
        first.runner.sample(steps, explore, first.weights, {})
    second = gone_on(first, make_coded_run(seed, num_envs, num_agents, lookback))
    for number, steps in enumerate(fragments[half:], start=half):
        assert_same_sample(second.runner.sample(steps, explore, second.weights, {}), expected[number], number > half)


def test_an_interruption_at_any_step() -> None:
    """Between the end of an episode and the reset of its sub-environment, too."""
    has_met_end = False
    coded = make_coded_run(9, 1, 3, 1)
    for _ in range(25):
        coded.runner.sample(1, True, coded.weights, {})
        has_met_end |= coded.runner.get_state()["env"]["is_done"][0]
        second = gone_on(coded, make_coded_run(9, 1, 3, 1))
        expected = coded.runner.sample(1, True, coded.weights, {})
        assert_same_sample(second.runner.sample(1, True, second.weights, {}), expected, has_infos=False)
    assert has_met_end


@pytest.mark.parametrize("num_lookback", [0, 1])
def test_a_run_that_goes_on_has_the_state_of_a_straight_one(num_lookback: int) -> None:
    coded = make_coded_run(8, 2, 4, num_lookback)
    for _ in range(12):
        coded.runner.sample(7, True, coded.weights, {})
        second = gone_on(coded, make_coded_run(8, 2, 4, num_lookback))
        for run in (coded, second):
            run.runner.sample(7, True, run.weights, {})
        np.testing.assert_equal(second.runner.get_state()["modules"], coded.runner.get_state()["modules"])


def gone_on(first: CodedRun, second: CodedRun) -> CodedRun:
    """The second runner with the state of the first."""
    for mine, theirs in zip(second.envs, first.envs, strict=True):
        mine.k = max(theirs.k, 0) - 1  # its reset begins the same episode, which other environments know by its seed
    second.runner.set_state(first.runner.get_state())
    return second


def test_a_runner_whose_sample_failed_goes_on_from_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forgets what it had sampled before the failure."""

    def make() -> CodedRun:
        infos = AgentInfos([InfoMetric("x", ("x",))], {f"a{a}": module_of(f"a{a}") for a in range(4)}, 2)
        return make_coded_run(8, 2, 4, 1, make_listeners=lambda *_: [infos])

    straight, failed = make(), make()
    step, calls = failed.envs[1].step, iter(range(20))

    def break_at_last(actions: dict[str, Any]) -> Any:
        if next(calls, None) is None:
            raise ValueError("the arm has left its rail")
        return step(actions)

    monkeypatch.setattr(failed.envs[1], "step", break_at_last)
    with pytest.raises(RunFailure, match="the arm has left its rail"):
        failed.runner.sample(100, True, failed.weights, {})
    monkeypatch.undo()
    straight.runner.sample(7, True, straight.weights, {})
    gone_on(straight, failed)
    for _ in range(4):
        got, expected = (run.runner.sample(7, True, run.weights, {}) for run in (failed, straight))
        assert_same_sample(got, expected, has_infos=False)


class StatefulAgentsEnv(CodedAgentsEnv):
    """Says itself what it needs to go on, so that no action is repeated."""

    def get_state(self) -> dict[str, Any]:
        return {"k": self.k, "e": self.e, "own_t": dict(self._own_t), "acts": list(self._acts)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.k = state["k"] - 1
        self.reset()
        self.e, self._acts = state["e"], state["acts"]
        self._own_t.update(state["own_t"])


def test_an_environment_with_a_state_of_its_own_is_not_replayed() -> None:
    first, second = (make_coded_run(8, 2, 4, 1, make_env=StatefulAgentsEnv) for _ in range(2))
    for _ in range(3):
        first.runner.sample(7, True, first.weights, {})
    state = first.runner.get_state()
    expected = first.runner.sample(20, True, first.weights, {})
    second.runner.set_state(state)
    assert not second.log
    assert_same_sample(second.runner.sample(20, True, second.weights, {}), expected, has_infos=False)


def assert_same_sample(got: Sample, expected: Sample, has_infos: bool) -> None:
    """Everything is the same; infos of observations before the interruption are no part of a state."""
    assert got.rollout.num_env_steps == expected.rollout.num_env_steps
    assert list(got.rollout.blocks) == list(expected.rollout.blocks)
    np.testing.assert_equal(vars(got.finished), vars(expected.finished))
    for module_id, block in expected.rollout.blocks.items():
        same = got.rollout.blocks[module_id]
        assert nested.equal(dict(same.columns), dict(block.columns))
        assert list(same.episode_ids) == list(block.episode_ids)
        for name in ("lengths", "is_terminated", "is_truncated", "t_started"):
            np.testing.assert_array_equal(getattr(same, name), getattr(block, name))
        for mine, theirs in zip(same, block, strict=True):
            assert nested.equal(mine.observations.data, theirs.observations.data)
            if has_infos:
                assert mine.get_infos() == theirs.get_infos()


@pytest.mark.parametrize(("num_episodes", "num_envs"), [(1, 3), (5, 2), (7, 3), (4, 4)])
def test_evaluation_runs_its_quota_of_every_sub_environment(num_episodes: int, num_envs: int) -> None:
    coded = make_coded_run(5, num_envs, 4, 1)
    finished = coded.runner.evaluate(num_episodes, False, coded.weights, {})
    quotas = [num_episodes // num_envs + (n < num_episodes % num_envs) for n in range(num_envs)]
    assert np.bincount(finished.env_of, minlength=num_envs).tolist() == quotas
    naive = coded.naive()
    expected = [episode for n, quota in enumerate(quotas) for episode in naive[n][:quota]]
    assert finished.returns.tolist() == [sum(episode.returns.values()) for episode in expected]
    assert finished.lengths.tolist() == [episode.length for episode in expected]
    for agent in {agent for episode in expected for agent in episode.returns}:
        own = [episode.returns[agent] for episode in expected if agent in episode.returns]
        assert finished.by_agent[agent].tolist() == own


@pytest.mark.parametrize(("num_steps", "num_envs"), [(1, 3), (40, 2), (101, 3)])
def test_evaluation_of_env_steps(num_steps: int, num_envs: int) -> None:
    coded = make_coded_run(5, num_envs, 4, 1)
    finished = coded.runner.evaluate(num_steps, False, coded.weights, {}, unit="env_steps")
    naive = coded.naive()
    expected = []
    for n in range(num_envs):
        left = num_steps // num_envs + (n < num_steps % num_envs)
        for episode in naive[n]:
            left -= episode.length
            if left >= 0 and episode.is_over:
                expected.append((n, episode))
    assert finished.env_of.tolist() == [n for n, _ in expected]
    assert finished.returns.tolist() == [sum(episode.returns.values()) for _, episode in expected]
    assert finished.lengths.tolist() == [episode.length for _, episode in expected]
    assert num_steps < 10 or len(expected) > 1


def test_an_evaluation_longer_than_a_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_coded_run(6, 2, 4, 1)
    expected = whole.runner.evaluate(9, True, whole.weights, {})
    monkeypatch.setattr("runner.env_runners.stepping_env_runner.EVALUATION_FRAGMENT", 3)
    in_parts = make_coded_run(6, 2, 4, 1)
    np.testing.assert_equal(vars(in_parts.runner.evaluate(9, True, in_parts.weights, {})), vars(expected))


def test_a_new_fragment_leaves_the_blocks_before_it_alone() -> None:
    coded = make_coded_run(7, 2, 4, 3)
    coded.runner.sample(9, True, coded.weights, {})
    blocks = coded.runner.sample(9, True, coded.weights, {}).rollout.blocks
    before = {id_: nested.map_leaves(np.copy, dict(block.columns)) for id_, block in blocks.items()}
    past = {id_: [nested.map_leaves(np.copy, e.observations.data) for e in block] for id_, block in blocks.items()}
    coded.runner.sample(40, True, coded.weights, {})
    for id_, block in blocks.items():
        assert nested.equal(dict(block.columns), before[id_])
        assert all(nested.equal(e.observations.data, rows) for e, rows in zip(block, past[id_], strict=True))
