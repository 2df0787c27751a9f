"""Several agents presented as one, and independent agents with separate environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv, StepDicts

Observation = dict[str, npt.NDArray[Any]]
_MASK = "action_mask"  # PettingZoo's key, next to `observation`


class AgentsAsOne(gym.Env[Observation, Any]):
    """A `MultiAgentEnv` of A agents as an environment of one agent, whose reward is the sum of theirs.

    An observation is a Dict:

    - `agents` (A, F) float32: each agent's observation, flattened and padded with zeros;
    - `mask` (A,) int8: whether the agent acts next;
    - `state` (S,) float32, flattened, if the environment has a `state`;
    - `action_mask` (sum of all numbers of actions,) int8, if agents' observations are {observation, action_mask}.

    An action (A,) contains each agent's action; entries of agents that do not act are ignored. The row of an absent
    agent is zero, and its action mask allows everything.

    Args:
        env: environment whose agents have Discrete actions. Its state is `state()`, in the space `state_space`.

    Raises:
        TypeError: `env` is not a `MultiAgentEnv`, or has other actions.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        if not isinstance(env, MultiAgentEnv):
            raise TypeError(f"AgentsAsOne wraps a MultiAgentEnv, not {type(env).__name__}")
        self._env: Any = env
        self.metadata = dict(env.metadata)
        self._agents = list(env.possible_agents)
        others = {agent: space for agent, space in env.action_spaces.items() if not _is_discrete(space)}
        for agent, space in others.items():
            raise TypeError(f"agent {agent} has {space} actions; expected Discrete")
        actions: list[Any] = [env.action_spaces[agent] for agent in self._agents]
        self._starts = [int(space.start) for space in actions]
        self._sizes = [int(space.n) for space in actions]
        self._spaces = {agent: _unmasked(env.observation_spaces[agent]) for agent in self._agents}
        self._has_masks = any(_is_masked(space) for space in env.observation_spaces.values())
        self._width = max(gym.spaces.flatdim(space) for space in self._spaces.values())
        self.action_space = gym.spaces.MultiDiscrete(self._sizes)
        self.observation_space: gym.spaces.Dict = self._observation_space()  # type: ignore[assignment]
        self._acting: list[str] = []
        self._running: set[str] = set()

    def _observation_space(self) -> gym.spaces.Dict:
        num_agents, state_space = len(self._agents), getattr(self._env, "state_space", None)
        parts: dict[str, gym.Space[Any]] = {
            "agents": gym.spaces.Box(-np.inf, np.inf, (num_agents, self._width), np.float32),
            "mask": gym.spaces.MultiBinary(num_agents),
        }
        if state_space is not None:
            parts["state"] = gym.spaces.Box(-np.inf, np.inf, (gym.spaces.flatdim(state_space),), np.float32)
        if self._has_masks:
            parts[_MASK] = gym.spaces.MultiBinary(sum(self._sizes))
        return gym.spaces.Dict(parts)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; its infos are dicts by agent."""
        obs, infos = self._env.reset(seed=seed, options=options)
        self._running = set(obs)
        return self._observe(obs, list(obs)), _infos_of(infos)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step the agents that act; the episode ends when the environment's does."""
        numbers = [int(number) for number in np.asarray(action).reshape(-1)]
        actions = {
            agent: numbers[place] + self._starts[place]
            for place, agent in enumerate(self._agents)
            if agent in self._acting
        }
        obs, rewards, terminateds, truncateds, infos = self._env.step(actions)
        self._running |= set(obs)
        terminated, truncated = ({id_ for id_, is_end in ends.items() if is_end} for ends in (terminateds, truncateds))
        ended = terminated | truncated
        self._running -= ended
        is_open = ALL_AGENTS in terminateds or ALL_AGENTS in truncateds
        is_over = ALL_AGENTS in ended or bool(ended and not self._running and not is_open)
        is_truncated = is_over and ALL_AGENTS not in terminated and bool(truncated)
        # If a limit ends the episode, agents that have not terminated would have continued.
        continues = [agent for agent in obs if agent in self._running or (is_truncated and agent not in terminated)]
        observed = self._observe(obs, continues)
        return observed, float(sum(rewards.values())), is_over and not is_truncated, is_truncated, _infos_of(infos)

    def _observe(self, obs: AgentDict, acting: list[str]) -> Observation:
        self._acting = acting
        rows = np.zeros((len(self._agents), self._width), np.float32)
        mask = np.array([agent in acting for agent in self._agents], np.int8)
        allowed = [np.ones(size, np.int8) for size in self._sizes]
        for place, agent in enumerate(self._agents):
            if agent in obs:
                seen = obs[agent]
                if _is_masked(self._env.observation_spaces[agent]):
                    own_mask, seen = np.asarray(seen[_MASK], np.int8), seen["observation"]
                    if agent in acting and own_mask.any():  # an ended agent may not have any allowed action
                        allowed[place] = own_mask
                flat: Any = gym.spaces.flatten(self._spaces[agent], seen)
                rows[place, : len(flat)] = flat
        observed: Observation = {"agents": rows, "mask": mask}
        if "state" in self.observation_space.spaces:
            observed["state"] = np.asarray(gym.spaces.flatten(self._env.state_space, self._env.state()), np.float32)
        if self._has_masks:
            observed[_MASK] = np.concatenate(allowed)
        return observed

    def render(self) -> Any:
        """Return the rendered image of the environment."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def _is_discrete(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Discrete)


def _is_masked(space: gym.Space[Any]) -> bool:
    return isinstance(space, gym.spaces.Dict) and set(space.spaces) == {"observation", _MASK}


def _unmasked(space: gym.Space[Any]) -> gym.Space[Any]:
    return space["observation"] if isinstance(space, gym.spaces.Dict) and _is_masked(space) else space


def _infos_of(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos by agent, without the state, which is part of the observation."""
    return {agent: rest for agent, info in infos.items() if (rest := {k: v for k, v in info.items() if k != "state"})}


class SeparateAgents(MultiAgentEnv):
    """Independent agents `agent_0`, `agent_1`, ...; the episode ends when the last agent's episode has ended.

    Args:
        envs: the environment of each agent.
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(len(envs))]
        self._envs = dict(zip(self.possible_agents, envs, strict=True))
        self._running: list[str] = []
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start all agents; agent k has the seed `seed + k`."""
        self._running = list(self.possible_agents)
        obs = {
            agent: env.reset(seed=None if seed is None else (seed + number) % 2**31)[0]
            for number, (agent, env) in enumerate(self._envs.items())
        }
        return obs, {}

    def step(self, actions: AgentDict) -> StepDicts:
        """Step the agents that have not ended."""
        obs, rewards, terminateds, truncateds = {}, {}, {}, {}
        for agent in self._running:
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent], _ = self._envs[agent].step(
                actions[agent]
            )
        self._running = [agent for agent in self._running if not (terminateds[agent] or truncateds[agent])]
        return obs, rewards, terminateds, truncateds, {}

    def render(self) -> npt.NDArray[np.uint8]:
        """Return an image of all environments, one above the other."""
        return np.concatenate([np.asarray(env.render()) for env in self._envs.values()])

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs.values():
            env.close()


class MultiAgentPendulum(SeparateAgents):
    """Each agent swings up a separate pendulum, by one continuous action, in 200 steps.

    Args:
        num_agents: number of agents `agent_0`, `agent_1`, ...
        render_mode: gymnasium's render mode of each pendulum.
    """

    def __init__(self, num_agents: int = 2, render_mode: str | None = None) -> None:
        super().__init__(
            [gym.make("Pendulum-v1", disable_env_checker=True, render_mode=render_mode) for _ in range(num_agents)]
        )
