"""The protocol of environments with several agents, and the mapping of agents to modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import gymnasium as gym

from runner.config.callables import made_arguments
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.imports import import_target
from runner.episodes.columns import DEFAULT_MODULE_ID

# Key of terminateds and truncateds that ends the episode for all agents.
ALL_AGENTS = "__all__"
_WHERE = "multi_agent.agent_to_module"

Space = gym.Space[Any]
AgentDict = dict[str, Any]
StepDicts = tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]


class MultiAgentEnv:
    """Base class of environments whose agents may join, act, wait and leave.

    All data are dicts by agent id. An agent acts in the next step exactly if `reset` or `step` returns its observation;
    otherwise it waits. Rewards may come for any agent that has not finished.

    Attributes:
        possible_agents: ids of all agents that may appear.
        observation_spaces, action_spaces: agent id -> space.
        metadata: as in gymnasium; `render_fps` is the number of frames per second of a video.
    """

    metadata: Mapping[str, Any] = MappingProxyType({})
    possible_agents: Sequence[str] = ()
    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[AgentDict, AgentDict]:
        """Start an episode; return observations of the agents that act first, and infos."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    def step(self, actions: AgentDict) -> StepDicts:
        """Take one env step.

        Args:
            actions: actions of exactly the agents that were observed last and have not finished.

        Returns:
            Observations, rewards, terminateds, truncateds, infos. The key `__all__` of terminateds or truncateds ends
            the episode; so does the end of the last agent. An agent's info belongs to its observation, or to its end if
            it terminates without an observation. Other infos are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step")

    def render(self) -> Any:
        """Return an image (height, width, 3) of uint8 if made with `render_mode="rgb_array"`, for videos."""
        raise NotImplementedError(f"{type(self).__name__} does not define render")

    def close(self) -> None:
        """Free the resources of the environment."""


class MultiAgentWrapper(MultiAgentEnv):
    """Base class of wrappers: attributes that the wrapper does not define are looked up in the environment.

    Args:
        env: the environment.
    """

    def __init__(self, env: MultiAgentEnv) -> None:
        self._env = env
        self.possible_agents, self.metadata = list(env.possible_agents), env.metadata

    def __getattr__(self, name: str) -> Any:
        if "_env" not in self.__dict__:  # during a copy
            raise AttributeError(name)
        return getattr(self._env, name)

    def render(self) -> Any:
        """Return the rendered image of the environment."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class AgentMapping:
    """Maps agents to modules. Write a subclass and name it in `multi_agent.agent_to_module._target_`."""

    def __call__(self, agent_id: str) -> str:
        """Return the id of the module that acts for the agent, the same in each call."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class PatternMapping(AgentMapping):
    """A mapping by name or pattern (`*`, `?`, `[abc]`); an exact name counts before the first pattern that matches.

    Args:
        patterns: agent id or pattern -> module id, in which `{agent}` is replaced by the agent's id.
    """

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = dict(patterns)

    def __call__(self, agent_id: str) -> str:
        """Return the module of the agent.

        Raises:
            ConfigError: no name or pattern matches.
        """
        matches = [pattern for pattern in self._patterns if fnmatchcase(agent_id, pattern)]
        if agent_id in self._patterns or matches:
            pattern = agent_id if agent_id in self._patterns else matches[0]
            return self._patterns[pattern].replace("{agent}", agent_id)
        problem = Problem(
            f"no module is mapped to agent {agent_id}",
            where=_WHERE,
            got=", ".join(f"{pattern}: {module_id}" for pattern, module_id in self._patterns.items()),
            expected=f"an entry that matches {agent_id}, for example '*': {DEFAULT_MODULE_ID}",
            nearest=nearest_match(agent_id, list(self._patterns)),
        )
        raise ConfigError([problem])


def make_mapping(block: Mapping[str, Any]) -> AgentMapping:
    """Return the mapping of a configuration block; an empty one maps all agents to `default_policy`."""
    if "_target_" in block:
        mapping_class = import_target(block["_target_"], f"{_WHERE}._target_", AgentMapping)
        positional, arguments = made_arguments(block, _WHERE)
        try:
            mapping: AgentMapping = mapping_class(*positional, **arguments)
        except Exception as error:  # a user's class may raise anything
            what = f"the mapping {block['_target_']} cannot be created: {type(error).__name__}: {error}"
            raise ConfigError([Problem(what, _WHERE, str(arguments))]) from error
        return mapping
    return PatternMapping(block or {"*": DEFAULT_MODULE_ID})


@dataclass(frozen=True)
class DeclaredAgents:
    """Agents of external simulators: agent id -> observation space, and agent id -> action space."""

    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]

    @property
    def possible_agents(self) -> list[str]:
        """The ids of all agents."""
        return list(self.observation_spaces)


def agents_by_module(env: MultiAgentEnv | DeclaredAgents, mapping: AgentMapping) -> dict[str, list[str]]:
    """Return module id -> the agents it acts for, in the order of `possible_agents`.

    Raises:
        ConfigError: an agent does not have a mapping or a space, or the spaces of a module's agents differ.
    """
    owner = type(env).__name__
    if not env.possible_agents:
        raise ConfigError(
            [Problem(f"{owner} does not define possible_agents", "env", expected="the ids of all agents")]
        )
    by_module: dict[str, list[str]] = {}
    for agent in env.possible_agents:
        for name in ("observation_spaces", "action_spaces"):
            if agent not in getattr(env, name, {}):
                raise ConfigError([Problem(f"{owner}.{name} does not contain a space for agent {agent}", "env")])
        by_module.setdefault(_module_of(agent, mapping), []).append(agent)
    for module_id, agents in by_module.items():
        _check_same_spaces(env, module_id, agents)
    return by_module


def _module_of(agent: str, mapping: AgentMapping) -> str:
    try:
        module_id = mapping(agent)
    except ConfigError:
        raise
    except Exception as error:  # a user's mapping may raise anything
        what = f"{type(mapping).__name__} raised {type(error).__name__} for agent {agent}: {error}"
        raise ConfigError([Problem(what, _WHERE)]) from error
    if not isinstance(module_id, str) or not module_id:
        what = f"{type(mapping).__name__} does not map agent {agent} to a module id"
        raise ConfigError([Problem(what, _WHERE, repr(module_id), "the id of a module, a string")])
    return module_id


def _check_same_spaces(env: MultiAgentEnv | DeclaredAgents, module_id: str, agents: Sequence[str]) -> None:
    for name in ("observation_spaces", "action_spaces"):
        spaces: Mapping[str, Space] = getattr(env, name)
        for agent in agents[1:]:
            if spaces[agent] != spaces[agents[0]]:
                problem = Problem(
                    f"the agents of module {module_id} differ in their {name}",
                    where=_WHERE,
                    got=f"{agents[0]} {spaces[agents[0]]}, {agent} {spaces[agent]}",
                    fix="give agents with other spaces a separate module",
                )
                raise ConfigError([problem])
