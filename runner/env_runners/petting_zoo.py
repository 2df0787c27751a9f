"""Adapt other environments with several agents to `MultiAgentEnv`: PettingZoo's, and ids that are not strings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from runner.env_runners.env_states import has_own_state
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict, MultiAgentEnv, MultiAgentWrapper, StepDicts


def petting_zoo_kinds() -> tuple[type, ...]:
    """Return PettingZoo's base classes `ParallelEnv` and `AECEnv`; empty if PettingZoo has not been imported."""
    module = sys.modules.get("pettingzoo.utils.env")
    return () if module is None else (module.ParallelEnv, module.AECEnv)


def is_petting_zoo(env: Any) -> bool:
    """Return whether an object is an environment of PettingZoo's base classes."""
    return isinstance(env, petting_zoo_kinds())


def as_multi_agent(env: Any) -> Any:
    """Return PettingZoo environments as a `MultiAgentEnv`, and agent ids as strings; others are unchanged.

    Raises:
        ValueError: two agent ids result in the same string.
    """
    if is_petting_zoo(env):
        env = PettingZooAdapter(env)
    is_named = not isinstance(env, MultiAgentEnv) or all(isinstance(agent, str) for agent in env.possible_agents)
    return env if is_named else NamedAgents(env)


class PettingZooAdapter(MultiAgentEnv):
    """An environment of PettingZoo: a `ParallelEnv`, whose agents act together, or an `AECEnv` with one agent per step.

    Args:
        env: the environment.
        state: whether to put the environment's state into each agent's info, for critics that read it.

    Attributes:
        state_space: space of the state, or None if infos do not contain it.

    Raises:
        ValueError: the environment does not define a state or agents.
    """

    def __init__(self, env: Any, state: bool = False) -> None:
        self._env = env
        self._is_parallel = isinstance(env, petting_zoo_kinds()[0])
        self.metadata = {"render_fps": getattr(env, "metadata", {}).get("render_fps")}
        self.state_space = getattr(env, "state_space", None) if state else None
        if state and self.state_space is None:
            raise ValueError(f"{type(env).__name__} does not define state_space, so its state cannot be added to infos")
        if not getattr(env, "possible_agents", None):
            raise ValueError(f"{type(env).__name__} does not define possible_agents, the ids of all agents")
        self.possible_agents = list(env.possible_agents)
        with warnings.catch_warnings():
            # PettingZoo warns about classes that define the dicts but not the methods; both are supported here.
            warnings.simplefilter("ignore", UserWarning)
            self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
            self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
        if has_own_state(env):  # for exact resume
            self.get_state, self.set_state = env.get_state, self._restore

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        if self._is_parallel:
            obs, infos = self._env.reset(seed=seed, options=options)
            return dict(obs), self._with_state(obs, infos)
        self._env.reset(seed=seed, options=options)
        self._ended: set[str] = set()
        agent = self._env.agent_selection
        obs = {agent: self._env.observe(agent)}
        return obs, self._with_state(obs, {agent: self._env.infos[agent]})

    def step(self, actions: AgentDict) -> StepDicts:
        """Step all agents, or the agent whose turn it is."""
        if not self._is_parallel:
            return self._step_turn(actions)
        obs, rewards, terminateds, truncateds, infos = self._env.step(dict(actions))
        return dict(obs), dict(rewards), dict(terminateds), dict(truncateds), self._with_state(obs, infos)

    def _restore(self, state: Any) -> None:
        self._env.set_state(state)
        if not self._is_parallel:  # agents that have ended may still be listed, but were observed
            ends = self._env.terminations, self._env.truncations
            self._ended = {agent for agent in self._env.agents if any(flags[agent] for flags in ends)}

    def state(self) -> Any:
        """Return the environment's state."""
        return self._env.state()

    def _with_state(self, obs: AgentDict, infos: AgentDict) -> AgentDict:
        """Return the infos, with the state for each observed agent."""
        if self.state_space is None:
            return dict(infos)
        state = self.state()
        return {**infos, **{agent: {**infos.get(agent, {}), "state": state} for agent in obs}}

    def _step_turn(self, actions: AgentDict) -> StepDicts:
        """Step the agent whose turn it is; observe the next agent, and all agents whose episodes ended by the step."""
        env = self._env
        env.step(actions[env.agent_selection])
        rewards = {agent: float(env.rewards[agent]) for agent in env.agents}
        terminateds = {agent: bool(env.terminations[agent]) for agent in env.agents}
        truncateds = {agent: bool(env.truncations[agent]) for agent in env.agents}
        ended = [agent for agent in env.agents if terminateds[agent] or truncateds[agent]]
        obs = {agent: env.observe(agent) for agent in ended if agent not in self._ended}
        infos = {agent: dict(env.infos[agent]) for agent in ended}
        self._ended.update(ended)
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # PettingZoo removes ended agents one by one
        if env.agents:
            agent = env.agent_selection
            obs[agent], infos[agent] = env.observe(agent), dict(env.infos[agent])
        terminateds[ALL_AGENTS] = not env.agents and not any(truncateds.values())
        truncateds[ALL_AGENTS] = not env.agents and any(truncateds.values())
        return obs, rewards, terminateds, truncateds, self._with_state(obs, infos)

    def render(self) -> Any:
        """Return the environment's rendering, which is an image with `render_mode: rgb_array`."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class NamedAgents(MultiAgentWrapper):
    """Converts agent ids that are numbers or other objects to strings: agent 0 is `0`.

    Args:
        env: the environment.

    Raises:
        ValueError: two ids result in the same string.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        super().__init__(env)
        self._ids = {str(agent): agent for agent in env.possible_agents}
        if len(self._ids) < len(self.possible_agents):
            raise ValueError(f"agent ids are equal as strings: {self.possible_agents}; give each agent a unique name")
        self.possible_agents = list(self._ids)
        self.observation_spaces = _by_name(env.observation_spaces)
        self.action_spaces = _by_name(env.action_spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode."""
        answer: tuple[AgentDict, AgentDict] = _named(
            self._env.reset(seed=seed, **({"options": options} if options else {}))
        )
        return answer

    def step(self, actions: AgentDict) -> StepDicts:
        """Take one env step."""
        answer: StepDicts = _named(self._env.step({self._ids[name]: action for name, action in actions.items()}))
        return answer


def _named(answer: Any) -> Any:
    """Return the result of `reset` or `step` by agent names; invalid results are reported by the caller."""
    if not isinstance(answer, tuple):
        return answer
    return tuple(_by_name(part) if isinstance(part, dict) else part for part in answer)


def _by_name(by_id: Mapping[Any, Any]) -> AgentDict:
    return {str(agent): value for agent, value in by_id.items()}
