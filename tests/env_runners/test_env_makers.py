"""Environments by class, function and id, and wrappers around them: what is made, and in which order."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from runner.config.errors import ConfigError
from runner.config.schemas import EnvConfig
from runner.env_runners.env_makers import make_environment, make_multi_agent_env, make_vector_env
from runner.env_runners.multi_agent_env import MultiAgentEnv
from runner.env_runners.vector_envs import BatchedEnvironments, SyncEnvironments
from runner.environments import MultiAgentCartPole

HERE = "tests.env_runners.test_env_makers"
NORMALIZE = "gymnasium.wrappers.NormalizeObservation"
NORMALIZE_ALL = "gymnasium.wrappers.vector.NormalizeObservation"
CARTPOLE = "CartPole-v1"


def make_one(id_: str = CARTPOLE, **others: Any) -> gym.Env[Any, Any]:
    return gym.make(id_, disable_env_checker=True, **others)


def make_all(num_envs: int) -> CartPoleVectorEnv:
    return CartPoleVectorEnv(num_envs)


def make_three() -> CartPoleVectorEnv:
    return CartPoleVectorEnv(3)


def make_agents(num_agents: int) -> MultiAgentEnv:
    return MultiAgentCartPole(num_agents)


def make_nothing() -> None: ...


def doubled(env: gym.Env[Any, Any], times: float = 2.0) -> gym.Env[Any, Any]:
    return gym.wrappers.TransformReward(env, lambda reward: reward * times)


class Plus(gym.RewardWrapper[Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], number: float) -> None:
        super().__init__(env)
        self._number = number

    def reward(self, reward: Any) -> float:
        return float(reward) + self._number


class Silent(MultiAgentEnv):
    """Takes the rewards of another environment away."""

    def __init__(self, env: MultiAgentEnv) -> None:
        self.env = env
        self.possible_agents = env.possible_agents
        self.observation_spaces, self.action_spaces = env.observation_spaces, env.action_spaces

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, actions: Any) -> Any:
        obs, _, *rest = self.env.step(actions)
        return obs, {}, *rest


def wrappers(*blocks: str | dict[str, Any]) -> list[dict[str, Any]]:
    return [block if isinstance(block, dict) else {"_target_": block} for block in blocks]


def message_of(config: EnvConfig, num_envs: int = 2, mode: str = "auto") -> str:
    with pytest.raises(ConfigError) as caught:
        make_vector_env(config, num_envs, mode, seed=0)
    return str(caught.value)


def test_functions_make_environments() -> None:
    one = make_vector_env(EnvConfig(_target_=f"{HERE}.make_one", env_config={"max_episode_steps": 7}), 2, "auto", 0)
    assert isinstance(one, SyncEnvironments)
    assert one.num_envs == 2
    together = make_vector_env(EnvConfig(_target_=f"{HERE}.make_all"), 5, "auto", 0)
    assert isinstance(together, BatchedEnvironments)
    assert together.num_envs == 5
    agents = make_multi_agent_env(EnvConfig(_target_=f"{HERE}.make_agents", env_config={"num_agents": 3}))
    assert len(agents.possible_agents) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            EnvConfig(_target_=f"{HERE}.make_three"),
            "made 3 sub-environments that are stepped together, expected 2",
        ),
        (EnvConfig(_target_=f"{HERE}.make_nothing"), "made NoneType, which is not an environment"),
        (EnvConfig(_target_=f"{HERE}.make_agents", env_config={"num_agents": 1}), "has several agents"),
        (EnvConfig(_target_=f"{HERE}.make_one", env_config={"id_": "Nothing-v0"}), "cannot be created: NameNotFound"),
        (EnvConfig(_target_="subprocess.call"), "is not a class or function of an installed package"),
        (EnvConfig(_target_=f"{HERE}.HERE"), "is not a subclass of gymnasium"),
        (
            EnvConfig(env=CARTPOLE, wrappers=wrappers(f"{HERE}.Plus")),
            "Plus cannot wrap CartPoleEnv: TypeError",
        ),
        (EnvConfig(env=CARTPOLE, wrappers=wrappers(f"{HERE}.make_nothing")), "takes 0 positional arguments"),
        (
            EnvConfig(env="Pendulum-v1", wrappers=wrappers(NORMALIZE_ALL)),
            "a gymnasium.Wrapper around sub-environments that are stepped one by one",
        ),
        (
            EnvConfig(_target_=f"{HERE}.make_all", wrappers=wrappers(NORMALIZE)),
            "a gymnasium.vector.VectorWrapper around sub-environments that are stepped together",
        ),
    ],
)
def test_what_cannot_be_made(config: EnvConfig, message: str) -> None:
    assert message in " ".join(message_of(config).split())


def test_wrappers_are_put_around_in_order() -> None:
    plus, times = {"_target_": f"{HERE}.Plus", "number": 3}, {"_target_": f"{HERE}.doubled", "times": 10}
    for blocks, reward in (([plus, times], 40.0), ([times, plus], 13.0)):
        envs = make_vector_env(EnvConfig(env=CARTPOLE, wrappers=blocks), 2, "auto", 0)
        assert isinstance(envs, SyncEnvironments)  # its batched implementation could not be wrapped one by one
        envs.reset(("env_runner", 0, 0))
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [reward, reward]


def test_wrappers_of_sub_environments_that_are_stepped_together() -> None:
    config = EnvConfig(env=CARTPOLE, wrappers=wrappers(NORMALIZE_ALL))
    env = make_environment(config, 3, "auto")
    assert isinstance(env, gym.wrappers.vector.NormalizeObservation)
    assert env.num_envs == 3


def test_wrappers_around_several_agents() -> None:
    config = EnvConfig(
        _target_=f"{HERE}.make_agents", env_config={"num_agents": 2}, wrappers=wrappers(f"{HERE}.Silent")
    )
    env = make_multi_agent_env(config)
    obs, _ = env.reset(seed=1)
    assert env.step(dict.fromkeys(obs, 0))[1] == {}
