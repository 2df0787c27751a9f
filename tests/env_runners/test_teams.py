"""Rewards that teams share, against a naive loop, with agents that come and go; and who is in a team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runner.config.errors import ConfigError, RunFailure
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.teams import SharedRewards, agents_of_teams
from tests.support.coded_agents import ALL, CodedAgentsEnv

TEAMS = {"red": ["a0", "a2"], "blue": ["a[13]"]}
MEMBERS = {"red": ["a0", "a2"], "blue": ["a1", "a3"]}


def played(env: Any, seed: int) -> list[Any]:
    """What an episode returns, step by step."""
    steps: list[Any] = [env.reset(seed=seed)]
    ended: set[str] = set()
    acts = list(steps[0][0])
    while True:
        step = env.step(dict.fromkeys(acts, 0))
        steps.append(step)
        ended |= {agent for ends in step[2:4] for agent, is_end in ends.items() if is_end}
        acts = [agent for agent in step[0] if agent not in ended]
        if ALL in ended or not (env.num_steps < env.k * 100 + 100) or env.e == len(env._plan) - 1:
            return steps


@pytest.mark.parametrize("seed", range(12))
def test_members_that_run_get_the_mean(seed: int) -> None:
    plain, shared = CodedAgentsEnv(0, seed, 5), SharedRewards(CodedAgentsEnv(0, seed, 5), TEAMS)
    for _ in range(4):
        given, got = played(plain, 0), played(shared, 0)
        running, ended = set(given[0][0]), set[str]()
        for before, after in zip(given[1:], got[1:], strict=True):
            obs, rewards, terminateds, truncateds, _ = before
            running |= set(obs) - ended
            expected = dict(rewards)
            for members in MEMBERS.values():
                total = [rewards[agent] for agent in members if agent in rewards]
                sharers = [agent for agent in members if agent in running]
                if total and sharers:
                    for agent in members:
                        expected.pop(agent, None)
                    expected |= dict.fromkeys(sharers, sum(total) / len(sharers))
            assert after[1] == pytest.approx(expected)
            assert sum(after[1].values()) == pytest.approx(sum(rewards.values()))
            assert list(after[0]) == list(obs)
            for ends in (terminateds, truncateds):
                ended |= {agent for agent, is_end in ends.items() if is_end}
            running -= ended


def paying(convert: Callable[[float], Any]) -> SharedRewards:
    """Return shared rewards of an environment whose rewards are converted."""

    class Pays(CodedAgentsEnv):
        def _returned(self, planned: Any) -> Any:
            obs, rewards, *others = super()._returned(planned)
            return obs, {agent: convert(reward) for agent, reward in rewards.items()}, *others

    return SharedRewards(Pays(0, 1, 5), TEAMS)


def test_rewards_may_be_arrays_of_one_number() -> None:
    expected, got = played(paying(float), 0), played(paying(lambda reward: np.array([reward])), 0)
    for one, other in zip(got[1:], expected[1:], strict=True):
        assert {agent: np.asarray(reward).item() for agent, reward in one[1].items()} == other[1]


def test_a_reward_that_is_not_a_number() -> None:
    with pytest.raises(RunFailure, match=r"the environment's reward is not a number\n.* agent a\d"):
        played(paying(str), 0)


def test_what_is_no_agent_is_refused() -> None:
    env = CodedAgentsEnv(0, 0, 3)
    with pytest.raises(ConfigError, match="team red contains an unknown agent"):
        SharedRewards(env, {"red": ["a7"]})
    with pytest.raises(ConfigError, match="agent a1 is in several teams"):
        agents_of_teams({"red": ["a*"], "blue": ["a1"]}, ["a0", "a1"])


class Counter(MultiAgentEnv):
    """Counts steps, and can be asked for its state."""

    possible_agents = ("a", "b")

    def reset(self, **kwargs: Any) -> Any:
        self.t = 0
        return {"a": 0, "b": 0}, {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        return {"a": self.t}, {"a": 1.0, "b": 2.0}, {"b": True}, {}, {}

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t}

    def set_state(self, state: Any) -> None:
        self.t = state["t"]


def test_an_environment_goes_on_from_its_own_state() -> None:
    assert not hasattr(SharedRewards(CodedAgentsEnv(0, 0, 3), {}), "get_state")
    first, second = (SharedRewards(Counter(), {"all": ["*"]}) for _ in range(2))
    first.reset()
    assert first.step({})[1] == {"a": 1.5, "b": 1.5}
    second.reset()
    second.set_state(first.get_state())
    assert second.step({})[1] == first.step({})[1] == {"a": 3.0}, "b has finished"
    assert second.get_state() == first.get_state()
