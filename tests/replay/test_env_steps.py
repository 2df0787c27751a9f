"""Replay in step: the rows of all agents of an env step come together, with agents that come, wait and go."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.config.errors import RunFailure
from runner.episodes import nested
from runner.episodes.columns import Rollout
from runner.pipelines.cross_agent_connectors import observations_of_agents
from runner.replay import ReplayBuffer
from runner.streams import random_stream
from tests.replay.test_replay_buffer import rollout_of
from tests.support.coded_agents import code_of, make_coded_run

EnvStep = tuple[int, int, int]  # sub-environment, its episode, env step


def in_step(capacity: int, n_step: Any = 1) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, n_step=n_step, gamma=0.5, replay_mode="lockstep")
    buffer.use_stream(random_stream(0, "test"))
    return buffer


def step_of(obs: Any) -> tuple[EnvStep, str]:
    """The env step and the agent of an observation."""
    n, a, _, e, k = code_of(obs)
    return (n, k, e), f"a{a}"


def check_sample(rollout: Rollout, acted: dict[EnvStep, set[str]], spaces: dict[str, Any], num_draws: int) -> None:
    draws: dict[str, list[tuple[EnvStep, str]]] = defaultdict(list)
    for block in rollout.blocks.values():
        assert block.agents is not None
        for chunk, episode in enumerate(block):
            env_step, agent = step_of(episode.get_observations(0))
            draws[block.agents.multi_agent_episode_ids[chunk]].append((env_step, agent))
            assert block.agents.agent_ids[chunk] == agent
            assert block.agents.env_t[2 * chunk] == env_step[2]
            assert block.agents.env_t[2 * chunk + 1] >= code_of(episode.get_observations(-1))[3]
        observed, mask = observations_of_agents(block, rollout.blocks, spaces)
        for row, env_t in enumerate(block.agents.env_t.tolist()):
            (n, k, now), _ = step_of(nested.take(block.columns["obs"], row - row % 2))
            for place, agent in enumerate(spaces):
                if mask[row, place]:
                    seen, _ = step_of(nested.take(observed[agent], row))
                    is_late = row % 2 and seen[2] < env_t  # an agent that ends unseen shows its last observation
                    assert seen[:2] == (n, k)
                    assert seen[2] == env_t or is_late
                elif row % 2 == 0:
                    assert agent not in acted[n, k, now]
    assert len(draws) == num_draws
    for together in draws.values():
        env_steps = {env_step for env_step, _ in together}
        assert len(env_steps) == 1
        assert sorted(agent for _, agent in together) == sorted(acted[env_steps.pop()])


@settings(max_examples=40, deadline=None)
# The only agent of an env step comes after a later env step of the others.
@example(seed=1, num_envs=3, num_agents=2, fragments=[1, 1, 1, 5, 1], capacity=1000, n_step=1)
@given(
    seed=st.integers(0, 10_000),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 5),
    fragments=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    capacity=st.sampled_from([8, 20, 60, 1000]),
    n_step=st.sampled_from([1, 3, [1, 3]]),
)
def test_agents_are_replayed_in_step(
    seed: int, num_envs: int, num_agents: int, fragments: list[int], capacity: int, n_step: Any
) -> None:
    run = make_coded_run(seed, num_envs, num_agents, 0)
    env: Any = run.envs[0]
    spaces = {agent: env.observation_spaces[agent] for agent in env.possible_agents}
    buffer, acted = in_step(capacity, n_step), defaultdict[EnvStep, set[str]](set)
    for length in fragments:
        rollout = run.runner.sample(length, True, run.weights, {}).rollout
        buffer.add(rollout)
        for block in rollout.blocks.values():
            for episode in block:
                for number in range(len(episode)):
                    env_step, agent = step_of(episode.get_observations(number))
                    acted[env_step].add(agent)
        assert len(buffer) <= min(capacity, len(acted))
        if capacity == 1000:
            assert len(buffer) == len(acted)
    if len(buffer) == 0:
        with pytest.raises((ValueError, RunFailure), match=r"an empty buffer|does not hold an env step"):
            buffer.sample(20)
        return
    try:
        replayed = buffer.sample(20)
    except RunFailure:
        assert capacity < 1000
        return
    assert replayed.rollout.num_env_steps == 20
    check_sample(replayed.rollout, acted, spaces, 20)
    again = in_step(capacity, n_step)
    again.set_state(buffer.get_state())
    for one, other in zip(
        again.sample(10).rollout.blocks.values(), buffer.sample(10).rollout.blocks.values(), strict=True
    ):
        np.testing.assert_equal(dict(one.columns), dict(other.columns))
        assert one.agents is not None
        assert other.agents is not None
        np.testing.assert_array_equal(one.agents.env_t, other.agents.env_t)
    rollout = run.runner.sample(9, True, run.weights, {}).rollout
    for one_buffer in (again, buffer):
        one_buffer.add(rollout)
    assert len(again) == len(buffer)


def test_every_env_step_is_equally_likely() -> None:
    run = make_coded_run(5, 2, 3, 0)
    buffer = in_step(1000)
    for _ in range(4):
        buffer.add(run.runner.sample(6, True, run.weights, {}).rollout)
    assert buffer.env_steps is not None
    counts = np.bincount(buffer.env_steps.draw(20_000, random_stream(0, "test")), minlength=len(buffer))
    assert len(counts) == len(buffer)
    assert abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


def test_env_episodes_that_have_left_are_forgotten() -> None:
    run = make_coded_run(5, 3, 2, 0)
    buffer = in_step(20)
    for _ in range(200):
        buffer.add(run.runner.sample(10, True, run.weights, {}).rollout)
    assert len(buffer.get_state()["env_steps"]["episodes"]) <= 64 + 2 * 20


def test_a_single_agent_is_not_replayed_in_step() -> None:
    with pytest.raises(RunFailure, match="the experiences of module default_policy do not name their agents"):
        in_step(20).add(rollout_of("a"))
