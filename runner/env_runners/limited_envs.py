"""Environments of any kind with a limited number of env steps per episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from runner.config.errors import ConfigError, Problem, RunFailure
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv, MultiAgentWrapper, StepDicts
from runner.episodes import nested
from runner.rows.infos import Infos, info_of


def limited(env: Any, max_episode_steps: int) -> Any:
    """Return the environment with episodes of at most `max_episode_steps` env steps.

    Args:
        env: a `gymnasium.Env`, a `MultiAgentEnv`, or a `VectorEnv` of one sub-environment.
        max_episode_steps: env steps after which an episode is truncated, for all of its agents.

    Raises:
        ConfigError: several sub-environments only step together, so that single ones cannot be reset.
    """
    if isinstance(env, MultiAgentEnv):
        return LimitedMultiAgentEnv(env, max_episode_steps)
    if isinstance(env, gym.vector.VectorEnv):
        if env.num_envs > 1:
            what = (
                f"{type(env.unwrapped).__name__} cannot reset single sub-environments, as a limit of episodes requires"
            )
            raise ConfigError([Problem(what, "evaluation.max_episode_steps", str(max_episode_steps), "null")])
        env = OnlySubEnvironment(env)
    return gym.wrappers.TimeLimit(env, max_episode_steps)


class OnlySubEnvironment(gym.Env[Any, Any]):
    """The sub-environment of a `VectorEnv` of one, as an environment."""

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self.metadata, self.render_mode, self.spec = env.metadata, env.render_mode, env.spec
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        obs, infos = self._env.reset(seed=seed, options=options)
        return nested.take(obs, 0), _only_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one env step."""
        actions = nested.map_leaves(lambda leaf: np.asarray(leaf)[None], action)
        obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
        is_terminated, is_truncated = bool(terminateds[0]), bool(truncateds[0])
        return nested.take(obs, 0), float(rewards[0]), is_terminated, is_truncated, _only_info(infos)

    def render(self) -> Any:
        """Return the rendered image of the environment."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _only_info(infos: Infos) -> dict[str, Any]:
    try:
        return info_of(infos, 0)
    except RunFailure:  # a key without a value per sub-environment, which concerns only readers of infos
        return {}


class LimitedMultiAgentEnv(MultiAgentWrapper):
    """An environment whose episodes are truncated for all agents after a number of env steps.

    Args:
        env: the environment.
        max_episode_steps: env steps after which an episode is truncated.
    """

    def __init__(self, env: MultiAgentEnv, max_episode_steps: int) -> None:
        super().__init__(env)
        self._max_episode_steps = max_episode_steps
        self._num_steps = 0
        self._last_obs: AgentDict = {}  # of agents that have not finished

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        obs, infos = self._env.reset(seed=seed, options=options)
        self._num_steps, self._last_obs = 0, nested.map_leaves(np.copy, obs)
        return obs, infos

    def step(self, actions: AgentDict) -> StepDicts:
        """Take one env step; the last allowed step truncates the episode unless the environment ends it.

        Waiting agents then get their last observation again as the final one.
        """
        obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
        self._num_steps += 1
        self._last_obs |= nested.map_leaves(np.copy, obs)  # the environment may write into it in its next step
        ended = [agent for ends in (terminateds, truncateds) for agent, is_end in ends.items() if is_end]
        for agent in ended:
            self._last_obs.pop(agent, None)
        is_open = ALL_AGENTS in terminateds or ALL_AGENTS in truncateds
        is_over = terminateds.get(ALL_AGENTS) or (ended and not (self._last_obs or is_open))
        if self._num_steps >= self._max_episode_steps and not is_over:
            obs = {**self._last_obs, **obs}
            truncateds = {**truncateds, ALL_AGENTS: True}
        return obs, rewards, terminateds, truncateds, infos
