"""Several agents as one: against a naive loop with agents that come and go; states, masks, games of matrices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from runner.config.schemas import EnvConfig
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.petting_zoo import as_multi_agent
from runner.environments import AgentsAsOne, InvestmentGame, MultiAgentCartPole, TwoStepGame
from runner.testing import check_environment
from tests.support.coded_agents import FLAT, CodedAgentsEnv, _naive_episode, plan_of

NUM_AGENTS = 4


@pytest.mark.parametrize("seed", range(25))
def test_each_step_is_the_agents_steps(seed: int) -> None:
    log: list[Any] = []
    inner = CodedAgentsEnv(0, seed, NUM_AGENTS, log=log)
    env = AgentsAsOne(inner)
    rng = np.random.default_rng(seed)
    for k in range(5):
        plan = plan_of(seed, NUM_AGENTS, 0, k)
        seen, infos = env.reset(seed=0)
        ended: set[int] = set()
        for e, step in enumerate(plan):
            is_last = e == len(plan) - 1
            if e:
                action = rng.integers(5, size=NUM_AGENTS)
                acts = [a for a in range(NUM_AGENTS) if seen["mask"][a]]
                seen, reward, terminated, truncated, infos = env.step(action)
                assert reward == sum(step.rewards.values())
                assert [entry[2:] for entry in log[len(log) - len(acts) :]] == [
                    (e - 1, f"a{a}", int(action[a])) for a in acts
                ], "the agents that were observed act, with their numbers"
            ended |= {*step.terminated, *step.truncated}
            for a in range(NUM_AGENTS):
                row = seen["agents"][a]
                assert (row[[1, 3]].tolist() == [a, e]) if a in step.seen else not row.any()
                assert seen["mask"][a] == (a in step.seen and (a not in ended)) or (is_last and a in step.seen)
            assert infos == inner._infos(step)
            if e:
                naive = _naive_episode(
                    inner, k, plan[: e + 1], {(k, step_, agent): 0 for _, kk, step_, agent, _ in log if kk == k}, "x"
                )
                assert (terminated or truncated) == naive.is_over == is_last
        assert not (terminated and truncated)
        flags = bool(plan[-1].all_terminated), bool(plan[-1].all_truncated)
        if any(flags):
            assert terminated == flags[0]


def test_a_truncated_episode_has_the_values_of_agents_that_would_go_on() -> None:
    class Limited(MultiAgentEnv):
        possible_agents = ("a", "b")
        observation_spaces = dict.fromkeys(("a", "b"), FLAT)
        action_spaces = dict.fromkeys(("a", "b"), gym.spaces.Discrete(2))

        def reset(self, **kwargs: Any) -> Any:
            return dict.fromkeys("ab", np.ones(5, np.float32)), {}

        def step(self, actions: Any) -> Any:
            return self.reset()[0], {}, {"a": True}, {"b": True}, {}

    env = AgentsAsOne(Limited())
    env.reset()
    seen, _, terminated, truncated, _ = env.step([0, 0])
    assert (terminated, truncated, seen["mask"].tolist()) == (False, True, [0, 1])


def test_an_agent_that_has_ended_is_forbidden_nothing() -> None:
    """Games give the last observation of who is out with a mask of zeros, and nobody asks for its action."""

    class LastManStanding(MultiAgentEnv):
        possible_agents = ("a", "b")
        observation_spaces = dict.fromkeys(
            ("a", "b"), gym.spaces.Dict(observation=FLAT, action_mask=gym.spaces.MultiBinary(2))
        )
        action_spaces = dict.fromkeys(("a", "b"), gym.spaces.Discrete(2))

        def reset(self, **kwargs: Any) -> Any:
            return {
                agent: {"observation": np.ones(5, np.float32), "action_mask": np.array([1, 0])} for agent in "ab"
            }, {}

        def step(self, actions: Any) -> Any:
            obs = self.reset()[0]
            obs["b"]["action_mask"] = np.zeros(2)
            return obs, {}, {"b": True, "__all__": False}, {}, {}

    env = AgentsAsOne(LastManStanding())
    assert env.reset()[0]["action_mask"].tolist() == [1, 0, 1, 0]
    seen = env.step([0, 0])[0]
    assert seen["mask"].tolist() == [1, 0]
    assert seen["action_mask"].tolist() == [1, 0, 1, 1]


class Masked(MultiAgentEnv):
    """Agents with masks, other spaces and other first actions; and a state."""

    possible_agents = ("a", "b")
    observation_spaces = {  # noqa: RUF012
        "a": gym.spaces.Dict(observation=gym.spaces.Discrete(3), action_mask=gym.spaces.MultiBinary(2)),
        "b": gym.spaces.Box(-1, 1, (2, 2), np.float32),
    }
    action_spaces = {"a": gym.spaces.Discrete(2), "b": gym.spaces.Discrete(3, start=5)}  # noqa: RUF012
    state_space = gym.spaces.Discrete(4)

    def reset(self, **kwargs: Any) -> Any:
        self.actions: list[Any] = []
        return self._obs(), {"a": {"state": 1, "more": 2}}

    def step(self, actions: Any) -> Any:
        self.actions.append(actions)
        return self._obs(), {"a": 1.0, "b": 2.0}, {"__all__": len(self.actions) == 2}, {}, {}

    def state(self) -> int:
        return len(self.actions)

    def _obs(self) -> Any:
        return {
            "b": np.full((2, 2), 0.5, np.float32),
            "a": {"observation": 2, "action_mask": np.array([0, 1], np.int8)},
        }


def test_observations_are_flattened_and_filled_up() -> None:
    inner = Masked()
    env = AgentsAsOne(inner)
    seen, infos = env.reset()
    assert seen["agents"].tolist() == [[0, 0, 1, 0], [0.5] * 4]
    assert seen["action_mask"].tolist() == [0, 1, 1, 1, 1]
    assert seen["state"].tolist() == [1, 0, 0, 0]
    assert infos == {"a": {"more": 2}}
    assert env.observation_space.contains(seen)
    seen, reward, *ends, _ = env.step(np.array([1, 2]))
    assert inner.actions == [{"a": 1, "b": 7}]
    assert (reward, ends, seen["state"].tolist()) == (3.0, [False, False], [0, 1, 0, 0])


class Numbered(MultiAgentEnv):
    """Agents with numbers as ids, and a state."""

    possible_agents: Any = (0, 1)
    observation_spaces: Any = dict.fromkeys((0, 1), FLAT)
    action_spaces: Any = dict.fromkeys((0, 1), gym.spaces.Discrete(2))
    state_space = gym.spaces.Discrete(4)

    def reset(self, **kwargs: Any) -> Any:
        return dict.fromkeys((0, 1), np.ones(5, np.float32)), {}

    def state(self) -> int:
        return 3


def test_agents_with_numbers_as_ids_have_a_state() -> None:
    seen, _ = AgentsAsOne(as_multi_agent(Numbered())).reset()
    assert seen["mask"].tolist() == [1, 1]
    assert seen["state"].tolist() == [0, 0, 0, 1]


def test_what_it_cannot_wrap_is_refused() -> None:
    with pytest.raises(TypeError, match="wraps a MultiAgentEnv, not CartPoleEnv"):
        AgentsAsOne(gym.make("CartPole-v1").unwrapped)  # type: ignore[arg-type]
    continuous = MultiAgentCartPole(1)
    continuous.action_spaces = {"agent_0": gym.spaces.Box(-1, 1, (1,))}
    with pytest.raises(TypeError, match="agent agent_0 has Box"):
        AgentsAsOne(continuous)


@pytest.mark.parametrize("name", ["TwoStepGame", "InvestmentGame"])
def test_games_keep_the_rules(name: str) -> None:
    check_environment(EnvConfig(_target_=f"runner.environments.{name}"), 100)
    wrapper = {"_target_": "runner.environments.AgentsAsOne"}
    check_environment(EnvConfig(_target_=f"runner.environments.{name}", wrappers=[wrapper]), 100)


def test_payoffs_of_the_two_step_game() -> None:
    found = {}
    for first in (0, 1):
        for one in (0, 1):
            for other in (0, 1):
                env = AgentsAsOne(TwoStepGame())
                env.reset()
                _, reward, terminated, truncated, _ = env.step([first, 1 - first])
                assert (reward, terminated, truncated) == (0, False, False)
                _, reward, terminated, truncated, _ = env.step([one, other])
                assert (terminated, truncated) == (True, False)
                found[first, one, other] = reward
    assert [found[0, *rest] for rest in ((0, 0), (0, 1), (1, 0), (1, 1))] == [7, 7, 7, 7]
    assert [found[1, *rest] for rest in ((0, 0), (0, 1), (1, 0), (1, 1))] == [0, 1, 1, 8]


def episode_of(choices: dict[str, int], num_waits: int) -> tuple[list[dict[str, Any]], list[float], list[Any]]:
    """Observations, rewards of agent_0, and states of an episode of the investment game."""
    env = InvestmentGame(num_waits)
    obs, infos = env.reset()
    seen, rewards, states, is_over = [obs], [], [infos["agent_0"]["state"]], False
    while not is_over:
        obs, reward, ends, _, infos = env.step(choices if len(rewards) == 0 else dict.fromkeys(choices, 1))
        seen.append(obs)
        rewards.append(reward["agent_0"])
        states.append(infos["agent_1"]["state"])
        is_over = ends["__all__"]
    return seen, rewards, states


def gae(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> float:
    """The advantage of the first action."""
    deltas = [r + gamma * after - before for r, (before, after) in zip(rewards, pairwise([*values, 0.0]), strict=True)]
    return sum((gamma * lambda_) ** t * delta for t, delta in enumerate(deltas))


@pytest.mark.parametrize("other", [0, 1])
def test_no_critic_of_own_observations_can_tell_that_investing_pays(other: int) -> None:
    """For any values of its own observations, the advantage of taking is the greater one, as the docstring says."""
    num_waits, gamma, lambda_ = 19, 1.0, 0.95
    invests, takes = (episode_of({"agent_0": own, "agent_1": other}, num_waits) for own in (1, 0))
    assert sum(invests[1]) - sum(takes[1]) == 0.5, "investing pays"
    for one, two in zip(invests[0], takes[0], strict=True):
        np.testing.assert_array_equal(one["agent_0"], two["agent_0"])  # so any critic of these has the same values
    rng = np.random.default_rng(0)
    for _ in range(10):
        values = rng.normal(scale=3, size=num_waits + 2).tolist()
        difference = gae(invests[1], values, gamma, lambda_) - gae(takes[1], values, gamma, lambda_)
        assert difference == pytest.approx(-0.5 + (gamma * lambda_) ** (num_waits + 1))
        assert difference < 0


def test_a_critic_of_both_observations_or_of_the_state_can() -> None:
    for own, other in ((0, 0), (0, 1), (1, 0), (1, 1)):
        seen, rewards, states = episode_of({"agent_0": own, "agent_1": other}, 3)
        assert sum(rewards) == pytest.approx((2 - own - other) / 2 + (own + other))
        for step in seen[1:]:
            assert step["agent_0"][1:].tolist() == [other == 0, other == 1]
            assert step["agent_1"][1:].tolist() == [own == 0, own == 1]
        assert [state[1:].tolist() for state in states[1:]] == [[own, other]] * 5
    with pytest.raises(ValueError, match="num_waits must be 0 or more"):
        InvestmentGame(-1)
