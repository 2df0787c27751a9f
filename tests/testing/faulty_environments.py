"""Environments with one thing wrong each."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.env_runners.multi_agent_env import MultiAgentEnv
from tests.testing.changed_classes import changed


class Walk(gym.Env[Any, Any]):
    """Walks right or left at random; ends after `length` steps. Nothing is wrong with it."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._place, {}

    def step(self, action: Any) -> Any:
        self._t += 1
        self._place += np.float32(2 * int(np.sum(action)) - 1)
        return self.spoilt(self._place, 1.0, self._t >= self._length, False, {})

    def spoilt(self, *answer: Any) -> Any:
        """Return the answer of `step`, which derived classes spoil."""
        return answer


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("no licence")


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        raise ValueError("the motor is off")


class ReturnsNaN(Walk):
    def spoilt(self, obs: Any, *others: Any) -> Any:
        return np.array([0.0, np.nan], np.float32), *others


class ActsWithoutBounds(Walk):
    action_space = gym.spaces.Dict({"motor": gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})

    def step(self, action: Any) -> Any:
        return super().step(int(action["motor"][0] > 0))


class ShowsAMatrix(Walk):
    observation_space = gym.spaces.Box(0, 1, (20, 20), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((20, 20), np.float32), {}

    def spoilt(self, obs: Any, *others: Any) -> Any:
        return np.zeros((20, 20), np.float32), *others


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


HasNoSpace = changed(Walk, action_space=property())  # raises AttributeError
ResetsWithoutInfo = changed(Walk, reset=lambda self, **arguments: Walk.reset(self, **arguments)[0])
LeavesItsSpace = changed(Walk, observation_space=gym.spaces.Box(-2.0, 2.0, (2,), np.float32))
StepsWithFourValues = changed(Walk, spoilt=lambda self, *answer: (*answer[:3], answer[4]))
ReturnsOtherShapes = changed(Walk, spoilt=lambda self, obs, *others: (np.zeros(3, np.float32), *others))
ReturnsRaggedLists = changed(Walk, spoilt=lambda self, obs, *others: ([[1.0], [1.0, 2.0]], *others))
RewardsBeyondFloat32 = changed(Walk, spoilt=lambda self, obs, reward, *others: (obs, 1e39, *others))
RewardsWithInfinity = changed(Walk, spoilt=lambda self, obs, reward, *others: (obs, np.inf, *others))
RewardsWithText = changed(Walk, spoilt=lambda self, obs, reward, *others: (obs, "much", *others))
RewardsWithBools = changed(Walk, spoilt=lambda self, obs, reward, *others: (obs, True, *others))
EndsWithNumbers = changed(Walk, spoilt=lambda self, obs, reward, end, *others: (obs, reward, int(end), *others))
EndsWithArrays = changed(
    Walk, spoilt=lambda self, obs, reward, end, *others: (obs, reward, np.array([end, end]), *others)
)
NeverEnds = changed(Walk, spoilt=lambda self, obs, reward, end, *others: (obs, reward, False, *others))
DrawsFromElsewhere = changed(
    Walk, spoilt=lambda self, obs, reward, *others: (obs, float(np.random.default_rng().random()), *others)
)


# -- sub-environments that are stepped together ------------------------------------------------------------------------


class Walks(gym.vector.VectorEnv[Any, Any, Any]):
    """Walks that are stepped together, each ten steps long. Nothing is wrong with them."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    single_action_space = gym.spaces.Discrete(2)
    length = 10

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
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
        return self.spoilt(self.places.copy(), rewards, self.is_done.copy(), np.zeros(self.num_envs, bool), infos)

    def spoilt(self, *answer: Any) -> Any:
        """Return the answer of `step`, which derived classes spoil."""
        return answer


class RaisesTogether(Walks):
    def step(self, actions: Any) -> Any:
        raise ValueError("the motors are off")


class ObservesMore(Walks):
    single_observation_space = gym.spaces.Dict(place=Walks.single_observation_space)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = super().reset(seed=seed)
        return {"place": obs}, infos

    def spoilt(self, obs: Any, *others: Any) -> Any:
        return {"place": obs, "more": obs}, *others


class SpacesOfOne(Walks):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_space = self.single_observation_space


class SeededOnce(Walks):
    num_calls = 0

    def first_places(self, num: int) -> Any:
        self.num_calls += 1
        return super().first_places(num) + np.float32(self.num_calls > 16)


class ShowsFinalObservations(Walks):
    def spoilt(self, obs: Any, rewards: Any, ends: Any, truncateds: Any, infos: Any) -> Any:
        return obs, rewards, ends, truncateds, {"final_obs": obs, "_final_obs": ends} if ends.any() else infos


ResetsInTheSameStep = changed(Walks, metadata={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP})
ResetsInSecret = changed(Walks, spoilt=lambda self, obs, rewards, *others: (obs, np.ones(self.num_envs), *others))
EndsInResets = changed(
    Walks, spoilt=lambda self, obs, rewards, ends, *others: (obs, rewards, ends | (self.t == 0), *others)
)
RewardsAsLists = changed(Walks, spoilt=lambda self, obs, rewards, *others: (obs, [[one] for one in rewards], *others))
RewardsNaN = changed(Walks, spoilt=lambda self, obs, rewards, *others: (obs, rewards * np.nan, *others))
EndsAsNumbers = changed(
    Walks, spoilt=lambda self, obs, rewards, ends, *others: (obs, rewards, ends.astype(int), *others)
)
ObservesOne = changed(Walks, spoilt=lambda self, obs, *others: (obs[0], *others))
InfosOfOne = changed(Walks, spoilt=lambda self, *answer: (*answer[:-1], {"place": answer[-1]["place"][:1]}))
InfosWithoutMask = changed(Walks, spoilt=lambda self, *answer: (*answer[:-1], answer[-1] | {"_place": True}))
FourTogether = changed(Walks, spoilt=lambda self, *answer: answer[:4])
OneSeedForAll = changed(Walks, first_places=lambda self, num: np.repeat(Walks.first_places(self, 1), num, axis=0))
UnseededTogether = changed(
    Walks, first_places=lambda self, num: np.random.default_rng().uniform(-1, 1, (num, 2)).astype(np.float32)
)
NeverEndsTogether = changed(Walks, length=10**9)


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
        """Return the answer of `step`, which derived classes spoil."""
        return answer


class TruncatedUnseen(Passing):
    def spoilt(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, infos: Any) -> Any:
        if self.t == 3:
            del obs["left"]
            truncateds["left"] = True
        return obs, rewards, terminateds, truncateds, infos


class MoreOfAgent(Passing):
    def __init__(self) -> None:
        super().__init__()
        spaces = self.observation_spaces.items()
        self.observation_spaces = {agent: gym.spaces.Dict(place=space) for agent, space in spaces}

    def observe(self) -> Any:
        return {"place": super().observe(), "more": 1.0}


class RaisesWithAgents(Passing):
    def spoilt(self, *answer: Any) -> Any:
        raise ValueError("no ball")


class EndsOfAgentsAsNumbers(Passing):
    def spoilt(self, obs: Any, rewards: Any, terminateds: Any, *others: Any) -> Any:
        return obs, rewards, {agent: int(end) for agent, end in terminateds.items()}, *others


class AgentsWithoutBounds(Passing):
    def __init__(self) -> None:
        super().__init__()
        self.action_spaces["right"] = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class AgentWithoutSpace(Passing):
    def __init__(self) -> None:
        super().__init__()
        del self.action_spaces["right"]


def left_observes(value: Any) -> Any:
    """Return players of whom the left one observes `value` in the third step."""
    return changed(Passing, spoilt=lambda self, obs, *others: (obs | {"left": value} if self.t == 3 else obs, *others))


ResetsNobody = changed(Passing, reset=lambda self, **arguments: ({}, {}))
UnknownAgent = changed(Passing, spoilt=lambda self, obs, *others: (obs | {"middle": self.observe()}, *others))
UnknownReward = changed(Passing, spoilt=lambda self, obs, rewards, *others: (obs, {"middle": 1.0}, *others))
ComesBack = changed(
    Passing, spoilt=lambda self, obs, *others: (obs | {"left": self.observe()} if self.t == 8 else obs, *others)
)
OtherShape = left_observes(np.zeros(3, np.float32))
NaNOfAgent = left_observes(np.array([0.0, np.nan], np.float32))
LeavesSpaceOfAgent = left_observes(np.full(2, 7.0, np.float32))
RewardOfText = changed(Passing, spoilt=lambda self, obs, rewards, *others: (obs, {"left": "much"}, *others))
InfiniteReward = changed(
    Passing, spoilt=lambda self, obs, rewards, *others: (obs, {"left": np.inf} if self.t == 3 else rewards, *others)
)
RewardsTheEnded = changed(Passing, spoilt=lambda self, obs, rewards, *others: (obs, rewards | {"left": 0.0}, *others))
InfoOfText = changed(Passing, spoilt=lambda self, *answer: (*answer[:-1], {"left": "well"}))
InfoOfNobody = changed(Passing, spoilt=lambda self, *answer: (*answer[:-1], {"lef": {}}))
StandsStill = changed(Passing, length=10**9, spoilt=lambda self, obs, *others: ({}, *others))
FourDicts = changed(Passing, spoilt=lambda self, *answer: answer[:4])
NeverComes = changed(Passing, possible_agents=("left", "right", "guest"))
TwoNamesakes = changed(Passing, possible_agents=("left", "left"))
UnseededAgents = changed(Passing, observe=lambda self: np.random.default_rng().uniform(-1, 1, 2).astype(np.float32))
NeverEndsWithAgents = changed(Passing, length=10**9)
