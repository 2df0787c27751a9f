"""Environments with one thing wrong each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import MultiAgentEnv


class Walk(gym.Env[Any, Any]):
    """Walks right or left at random; ends after `length` steps. Nothing is wrong with it."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._place += np.float32(2 * int(np.sum(action)) - 1)
        return self._place, 1.0, self._t >= self._length, False, {}


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("no licence")


class ResetsWithoutInfo(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class StepsWithFourValues(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        raise ValueError("the motor is off")


class ReturnsOtherShapes(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.zeros(3, np.float32), *others


class LeavesItsSpace(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)


class ReturnsNaN(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.array([0.0, np.nan], np.float32), *others


class RewardsWithInfinity(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, np.inf, *others


class EndsWithNumbers(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), truncated, info


class NeverEnds(Walk):
    def __init__(self) -> None:
        super().__init__(10**9)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class DrawsFromElsewhere(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, float(np.random.default_rng().random()), *others


class ActsWithoutBounds(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Dict({"motor": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})

    def step(self, action: Any) -> Any:
        return super().step(int(action["motor"][0] > 0))


class HasNoSpace(Walk):
    def __init__(self) -> None:
        super().__init__()
        del self.action_space


class ReturnsRaggedLists(Walk):
    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return [[1.0], [1.0, 2.0]], *others


class RewardsWithText(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, "much", *others


class EndsWithArrays(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, np.array([terminated, terminated]), truncated, info


class RewardsWithBools(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *others = super().step(action)
        return obs, True, *others


class FailsInItsSecondEpisode(Walk):
    num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.num_episodes += 1
        if self.num_episodes == 2:
            raise RuntimeError("only once")
        return super().reset(seed=seed)


class FailsWhenMadeThreeTimes(Walk):
    """Fails in the measurement, which is made with the third environment."""

    num_made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).num_made += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.num_made == 3:
            raise RuntimeError("only twice")
        return super().reset(seed=seed)


# -- sub-environments that are stepped together ------------------------------------------------------------------------


class Walks(gym.vector.VectorEnv[Any, Any, Any]):
    """Walks that are stepped together, each ten steps long. Nothing is wrong with them."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    length = 10

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self.stream = np.random.default_rng(seed)
        self.t, self.is_done = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        self.places = self.first_places(self.num_envs)
        return self.places.copy(), {}

    def first_places(self, num: int) -> Any:
        return self.stream.uniform(-1, 1, (num, 2)).astype(np.float32)

    def step(self, actions: Any) -> Any:
        is_reset = self.is_done
        self.places = self.places + np.where(is_reset, 0, 2 * actions - 1)[:, None].astype(np.float32)
        self.places[is_reset] = self.first_places(int(is_reset.sum()))
        self.t = np.where(is_reset, 0, self.t + 1)
        self.is_done = self.t == self.length
        infos = {"place": self.places[:, 0], "_place": np.ones(self.num_envs, bool)}
        rewards = np.where(is_reset, 0.0, 1.0)
        return self.places.copy(), rewards, self.is_done.copy(), np.zeros(self.num_envs, bool), infos


class ResetsInTheSameStep(Walks):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012


class ResetsInSecret(Walks):
    def step(self, actions: Any) -> Any:
        obs, _, *others = super().step(actions)
        return obs, np.ones(self.num_envs), *others


class EndsInResets(Walks):
    def step(self, actions: Any) -> Any:
        is_reset = self.is_done
        obs, rewards, terminateds, *others = super().step(actions)
        return obs, rewards, terminateds | is_reset, *others


class ShowsFinalObservations(Walks):
    def step(self, actions: Any) -> Any:
        *others, infos = super().step(actions)
        return *others, {"final_obs": others[0], "_final_obs": others[2]} if others[2].any() else infos


class RewardsAsLists(Walks):
    def step(self, actions: Any) -> Any:
        obs, rewards, *others = super().step(actions)
        return obs, [[reward] for reward in rewards], *others


class RewardsNaN(Walks):
    def step(self, actions: Any) -> Any:
        obs, rewards, *others = super().step(actions)
        return obs, rewards * np.nan, *others


class EndsAsNumbers(Walks):
    def step(self, actions: Any) -> Any:
        obs, rewards, terminateds, *others = super().step(actions)
        return obs, rewards, terminateds.astype(int), *others


class ObservesOne(Walks):
    def step(self, actions: Any) -> Any:
        obs, *others = super().step(actions)
        return obs[0], *others


class ObservesMore(Walks):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_observation_space = gym.spaces.Dict(place=self.single_observation_space)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = super().reset(seed=seed)
        return {"place": obs}, infos

    def step(self, actions: Any) -> Any:
        obs, *others = super().step(actions)
        return {"place": obs, "more": obs}, *others


class InfosOfOne(Walks):
    def step(self, actions: Any) -> Any:
        *others, infos = super().step(actions)
        return *others, {"place": infos["place"][:1]}


class InfosWithoutMask(Walks):
    def step(self, actions: Any) -> Any:
        *others, infos = super().step(actions)
        return *others, infos | {"_place": True}


class RaisesTogether(Walks):
    def step(self, actions: Any) -> Any:
        raise ValueError("the motors are off")


class FourTogether(Walks):
    def step(self, actions: Any) -> Any:
        return super().step(actions)[:4]


class SpacesOfOne(Walks):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_space = self.single_observation_space


class OneSeedForAll(Walks):
    def first_places(self, num: int) -> Any:
        return np.repeat(super().first_places(1), num, axis=0)


class SeededOnce(Walks):
    num_calls = 0

    def first_places(self, num: int) -> Any:
        self.num_calls += 1
        return super().first_places(num) + np.float32(self.num_calls > 16)


class UnseededTogether(Walks):
    def first_places(self, num: int) -> Any:
        return np.random.default_rng().uniform(-1, 1, (num, 2)).astype(np.float32)


class NeverEndsTogether(Walks):
    length = 10**9


# -- several agents ----------------------------------------------------------------------------------------------------


class Passing(MultiAgentEnv):
    """Two players, of whom the left one leaves after six of ten steps. Nothing is wrong with it."""

    possible_agents = ("left", "right")
    length = 10

    def __init__(self) -> None:
        self.observation_spaces = {a: gym.spaces.Box(-1.0, 1.0, (2,), np.float32) for a in self.possible_agents}
        self.action_spaces: dict[str, gym.Space[Any]] = {a: gym.spaces.Discrete(2) for a in self.possible_agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.stream, self.t = np.random.default_rng(seed), 0
        return {agent: self.observe() for agent in ("left", "right")}, {}

    def observe(self) -> Any:
        return self.stream.uniform(-1, 1, 2).astype(np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        obs = {agent: self.observe() for agent in actions}
        terminateds = {"left": self.t == 6} if "left" in actions else {}
        ends = {**terminateds, "__all__": self.t == self.length}
        return self.spoilt(obs, {"right": 1.0}, ends, {"__all__": False}, {"right": {"t": self.t}})

    def spoilt(self, *answer: Any) -> Any:
        """Do what is wrong."""
        return answer


class ResetsNobody(Passing):
    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        return {}, {}


class UnknownAgent(Passing):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return obs | {"middle": self.observe()}, *others


class UnknownReward(Passing):
    def spoilt(self, obs: Any, rewards: Any, *others: Any) -> Any:
        return obs, {"middle": 1.0}, *others


class ComesBack(Passing):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return (obs | {"left": self.observe()} if self.t == 8 else obs), *others


class TruncatedUnseen(Passing):
    def spoilt(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any) -> Any:
        if self.t == 3:
            del obs["left"]
            truncateds["left"] = True
        return obs, rewards, terminateds, truncateds, infos


class OtherShape(Passing):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return obs | {"left": np.zeros(3, np.float32)} if self.t == 3 else obs, *others


class MoreOfAgent(Passing):
    def __init__(self) -> None:
        super().__init__()
        spaces = self.observation_spaces.items()
        self.observation_spaces = {agent: gym.spaces.Dict(place=space) for agent, space in spaces}

    def observe(self) -> Any:
        return {"place": super().observe(), "more": 1.0}


class NaNOfAgent(Passing):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return obs | {"left": np.array([0.0, np.nan], np.float32)} if self.t == 3 else obs, *others


class LeavesSpaceOfAgent(Passing):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return obs | {"left": np.full(2, 7.0, np.float32)} if self.t == 3 else obs, *others


class RewardOfText(Passing):
    def spoilt(self, obs: Any, rewards: Any, *others: Any) -> Any:
        return obs, {"left": "much"}, *others


class InfiniteReward(Passing):
    def spoilt(self, obs: Any, rewards: Any, *others: Any) -> Any:
        return obs, {"left": np.inf} if self.t == 3 else rewards, *others


class InfoOfText(Passing):
    def spoilt(self, *answer: Any) -> Any:
        return *answer[:-1], {"left": "well"}


class InfoOfNobody(Passing):
    def spoilt(self, *answer: Any) -> Any:
        return *answer[:-1], {"lef": {}}


class StandsStill(Passing):
    length = 10**9

    def spoilt(self, obs: Any, *others: Any) -> Any:
        return {}, *others


class RaisesWithAgents(Passing):
    def spoilt(self, *answer: Any) -> Any:
        raise ValueError("no ball")


class FourDicts(Passing):
    def spoilt(self, *answer: Any) -> Any:
        return answer[:4]


class NeverComes(Passing):
    possible_agents = ("left", "right", "guest")


class EndsOfAgentsAsNumbers(Passing):
    def spoilt(self, obs: Any, rewards: Any, terminateds: Any, *others: Any) -> Any:
        return obs, rewards, {agent: int(end) for agent, end in terminateds.items()}, *others


class RewardsTheEnded(Passing):
    def spoilt(self, obs: Any, rewards: Any, *others: Any) -> Any:
        return obs, rewards | {"left": 0.0}, *others


class UnseededAgents(Passing):
    def observe(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class NeverEndsWithAgents(Passing):
    length = 10**9


class AgentsWithoutBounds(Passing):
    def __init__(self) -> None:
        super().__init__()
        self.action_spaces["right"] = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class TwoNamesakes(Passing):
    possible_agents = ("left", "left")


class AgentWithoutSpace(Passing):
    def __init__(self) -> None:
        super().__init__()
        del self.action_spaces["right"]


class ShowsAMatrix(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 1, (20, 20), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((20, 20), np.float32), {}

    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.zeros((20, 20), np.float32), *others
