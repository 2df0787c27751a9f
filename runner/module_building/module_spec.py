"""Specifications of modules: agents, their spaces, and blocks of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

import gymnasium as gym

from runner.config.algorithms import AlgorithmConfig
from runner.config.checks import convert
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.list_patches import OF_ALGORITHM, added_up
from runner.config.multi_agent import fix_of_single_agent, needs_several_agents
from runner.config.optimizer import with_overrides
from runner.config.schemas import ExperimentConfig, ModuleConfig
from runner.env_runners.env_closing import close_environments
from runner.env_runners.env_makers import make_environment, sub_environments
from runner.env_runners.multi_agent_env import DeclaredAgents, MultiAgentEnv, agents_by_module, make_mapping
from runner.episodes.nested import StateError
from runner.episodes.spaces import space_from_dict
from runner.pipelines.connector import DEFAULT_MODULE_ID

Space = gym.Space[Any]
B = TypeVar("B", ModuleConfig, AlgorithmConfig)


@dataclass(frozen=True)
class ModuleSpec:
    """The specification of one module.

    Attributes:
        agents: ids of the agents that it acts for, or None in single-agent runs; empty for an auxiliary module.
        observation_space, action_space: spaces of one agent in the environment.
        module, algorithm: blocks of the configuration with the overrides of this module.
        overridden: names of the overridden fields of `algorithm`.
        state_space: space of the environment's state, which infos contain for critics, or None.
        trains_on: id of the module from whose experiences an auxiliary module learns; None for a module that acts.
    """

    module_id: str
    agents: tuple[str, ...] | None
    observation_space: Space
    action_space: Space
    module: ModuleConfig
    algorithm: AlgorithmConfig
    overridden: frozenset[str] = frozenset()
    state_space: Space | None = None
    trains_on: str | None = None

    def name(self, role: str) -> str:
        """Return the name of a random stream of this module."""
        return role if self.agents is None else f"{role}/{self.module_id}"


def has_several_agents(specs: Mapping[str, ModuleSpec]) -> bool:
    """Return whether the modules act for several agents of one environment."""
    return any(spec.agents is not None for spec in specs.values())


def make_module_specs(config: ExperimentConfig) -> dict[str, ModuleSpec]:
    """Return the specification of each acting module by id; makes one environment to read its spaces and agents.

    Raises:
        ConfigError: an agent does not have a module, or a module does not have agents, or the spaces of a module's
            agents differ.
    """
    if config.env.agents is not None:
        return _specs_of_declared_agents(config, config.env.agents)
    if config.env.observation_space is not None:
        declared = _declared_space(config.env.observation_space, "env.observation_space")
        return _single_spec(config, declared, _declared_space(config.env.action_space, "env.action_space"))
    env = make_environment(config.env, 1, config.env_runners.gym_env_vectorize_mode)
    try:
        if isinstance(env, MultiAgentEnv):
            return _specs_of_agents(config, env)
        envs = sub_environments(env, lambda: env, 1, config.seed)  # rejects environments that cannot be stepped
        return _single_spec(config, envs.single_observation_space, envs.single_action_space)
    finally:
        close_environments([env])


def make_auxiliary_specs(config: ExperimentConfig, acting: Mapping[str, ModuleSpec]) -> dict[str, ModuleSpec]:
    """Return the specification of each auxiliary module by id, with the spaces of the module that it trains on.

    Raises:
        ConfigError: a module of this id acts, or the module that it trains on does not exist.
    """
    problems = []
    for module_id, trains_on in config.multi_agent.auxiliary_modules.items():
        where = f"multi_agent.modules.{module_id}.trains_on"
        if module_id in acting:
            problems.append(Problem(f"{module_id} already acts for agents", where, module_id, "another id"))
        elif trains_on not in acting:
            nearest = nearest_match(trains_on, list(acting))
            problems.append(
                Problem(f"the module {trains_on} does not exist", where, trains_on, ", ".join(acting), nearest)
            )
    if problems:
        raise ConfigError(problems)
    return {
        module_id: replace(
            acting[trains_on],
            module_id=module_id,
            agents=(),
            module=_with_fields(config.module_defaults_of(module_id), config.multi_agent.module_fields(module_id)),
            algorithm=_with_fields(config.algorithm_of(module_id), _added_to_algorithm(config, module_id)),
            overridden=frozenset(_algorithm_overrides(config, module_id)),
            trains_on=trains_on,
        )
        for module_id, trains_on in config.multi_agent.auxiliary_modules.items()
    }


def _single_spec(config: ExperimentConfig, observation_space: Space, action_space: Space) -> dict[str, ModuleSpec]:
    _check_no_agents_named(config)
    _check_module_ids(config, [DEFAULT_MODULE_ID])
    spec = ModuleSpec(DEFAULT_MODULE_ID, None, observation_space, action_space, config.module, config.algorithm)
    return {DEFAULT_MODULE_ID: spec}


def _specs_of_declared_agents(
    config: ExperimentConfig, agents: Mapping[str, Mapping[str, Any]]
) -> dict[str, ModuleSpec]:
    observations, actions = (
        {id_: _declared_space(spaces.get(name), f"env.agents.{id_}.{name}") for id_, spaces in agents.items()}
        for name in ("observation_space", "action_space")
    )
    return _specs_of_agents(config, DeclaredAgents(observations, actions))


def _declared_space(state: Mapping[str, Any] | None, where: str) -> Space:
    try:
        return space_from_dict(state, where)
    except StateError as error:
        expected = "a space as in docs/reference/rllink.md: {space: box, low: -1, high: 1, shape: [3], dtype: float32}"
        raise ConfigError([Problem(str(error), where, str(state), expected)]) from error


def _specs_of_agents(config: ExperimentConfig, agents_env: MultiAgentEnv | DeclaredAgents) -> dict[str, ModuleSpec]:
    by_module = agents_by_module(agents_env, make_mapping(config.multi_agent.agent_to_module))
    _check_module_ids(config, list(by_module))
    return {
        module_id: ModuleSpec(
            module_id,
            tuple(agents),
            agents_env.observation_spaces[agents[0]],
            agents_env.action_spaces[agents[0]],
            _with_fields(config.module, config.multi_agent.module_fields(module_id)),
            _with_fields(config.algorithm_of(module_id), _added_to_algorithm(config, module_id)),
            frozenset(_algorithm_overrides(config, module_id)),
            getattr(agents_env, "state_space", None),
        )
        for module_id, agents in by_module.items()
    }


def _check_no_agents_named(config: ExperimentConfig) -> None:
    if needs_several_agents(config.multi_agent):
        problem = Problem(
            f"multi_agent is set, but {config.env.name} has a single agent",
            fix=fix_of_single_agent(config.multi_agent),
        )
        raise ConfigError([problem])


def _with_fields(block: B, fields: Mapping[str, Any]) -> B:
    """Replace some fields of a block, converted as in any block."""
    annotations = get_type_hints(type(block))
    return replace(block, **{name: convert(value, annotations[name]) for name, value in fields.items()})


def _algorithm_overrides(config: ExperimentConfig, module_id: str) -> dict[str, Any]:
    return config.multi_agent.algorithm_config_overrides_per_module.get(module_id, {})


def _added_to_algorithm(config: ExperimentConfig, module_id: str) -> dict[str, Any]:
    """Return a module's overrides; its edits of pipelines and its optimiser fields extend the common ones."""
    fields, algorithm = dict(_algorithm_overrides(config, module_id)), config.algorithm_of(module_id)
    for name in OF_ALGORITHM.values():
        if name in fields:
            fields[name] = added_up(getattr(algorithm, name), fields[name])
    if "optimizer" in fields:
        fields["optimizer"] = with_overrides(algorithm.optimizer, fields["optimizer"])
    return fields


def _check_module_ids(config: ExperimentConfig, module_ids: list[str]) -> None:
    multi_agent = config.multi_agent
    module_ids = [*module_ids, *multi_agent.auxiliary_modules]
    blocks = {
        "multi_agent.modules": multi_agent.modules,
        "multi_agent.modules_to_train": multi_agent.modules_to_train or (),
        "multi_agent.algorithm_config_overrides_per_module": multi_agent.algorithm_config_overrides_per_module,
        "connectors.modules": config.connectors.modules,
    }
    problems = [
        Problem(
            f"module {named} is not mapped to any agent",
            where=block,
            got=named,
            expected=", ".join(module_ids),
            nearest=nearest_match(named, module_ids),
        )
        for block, names in blocks.items()
        for named in names
        if named not in module_ids
    ]
    if problems:
        raise ConfigError(problems)
