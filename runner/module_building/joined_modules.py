"""Build modules that depend on each other: they share agents, or belong to a MultiRLModule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import gymnasium as gym
import torch

from runner.config.callables import made_arguments
from runner.config.errors import ChoiceError, ConfigError, Problem
from runner.config.imports import import_target
from runner.config.plans.needs import columns_added_by_plan
from runner.config.schemas import ExperimentConfig
from runner.env_runners.teams import agents_of_teams
from runner.module_building.built_module import BuiltActingModule, BuiltModule
from runner.module_building.construction import (
    build_acting_module,
    build_auxiliary_module,
    build_module,
    check_reads,
)
from runner.module_building.module_spec import ModuleSpec, make_auxiliary_specs, make_module_specs
from runner.modules.default_settings import default_settings
from runner.modules.multi_rl_module import MultiRLModule, RunAgents
from runner.pipelines.requirements import Requirements
from runner.streams import integer_seed

Space = gym.Space[Any]
P = TypeVar("P", bound="BuiltActingModule")


def build_modules(config: ExperimentConfig, specs: Mapping[str, ModuleSpec] | None = None) -> dict[str, BuiltModule]:
    """Make the network and the pipelines of each module, by id, auxiliary modules last.

    Args:
        config: configuration of the run.
        specs: specifications of the acting modules, or None to make them.
    """
    specs = make_module_specs(config) if specs is None else specs
    acting = join_modules(config, {module_id: build_module(config, spec) for module_id, spec in specs.items()})
    return acting | build_auxiliary_modules(config, acting)


def build_auxiliary_modules(config: ExperimentConfig, acting: Mapping[str, BuiltModule]) -> dict[str, BuiltModule]:
    """Make the auxiliary modules of the configuration for the acting modules that they train on."""
    specs = make_auxiliary_specs(config, {module_id: built.spec for module_id, built in acting.items()})
    auxiliary = {id_: build_auxiliary_module(config, spec, acting[str(spec.trains_on)]) for id_, spec in specs.items()}
    if auxiliary:
        _give_agents({**acting, **auxiliary})
    return auxiliary


def build_acting_modules(config: ExperimentConfig, specs: Mapping[str, ModuleSpec]) -> dict[str, BuiltActingModule]:
    """Make the network of each module and the pipelines of an env runner, by id."""
    return join_modules(config, {module_id: build_acting_module(config, spec) for module_id, spec in specs.items()})


def check_acts_alone(config: ExperimentConfig, use: str) -> None:
    """Reject modules of a `MultiRLModule` that computes actions itself.

    Args:
        config: configuration of the run.
        use: for messages, a use that requires a module that acts alone, for example "be exported".

    Raises:
        ConfigError: the configuration names such a `MultiRLModule`.
    """
    block = config.multi_agent.multi_rl_module
    if block is None:
        return
    where, path = "multi_agent.multi_rl_module", str(block["_target_"])
    joined = import_target(path, where, MultiRLModule)
    for name in ("forward_inference", "forward_exploration"):
        if getattr(joined, name) is not getattr(MultiRLModule, name):
            what = f"a module of {joined.__name__} cannot {use}: {joined.__name__}.{name} computes its actions"
            expected = f"a class without its own {name}, whose modules act independently"
            raise ConfigError([Problem(what, where, path, expected)])


@default_settings()
def join_modules(config: ExperimentConfig, built_modules: Mapping[str, P]) -> dict[str, P]:
    """Pass the agents to connectors, and join the modules to the `MultiRLModule` of the configuration, if it names one.
    Return the modules, joined.

    The weights depend on the run's seed only, as for single modules. Parameters that only untrained modules use
    are frozen.

    Raises:
        ConfigError: the `MultiRLModule` cannot be created, or does not match the algorithm or the learner pipelines; or
            a connector needs other agents, but there is only one.
    """
    spaces = _give_agents(built_modules)
    block = config.multi_agent.multi_rl_module
    if not block:
        return dict(built_modules)
    where, path = "multi_agent.multi_rl_module", str(block["_target_"])
    positional, arguments = made_arguments(block, where)
    joined_class = import_target(path, where, MultiRLModule)
    modules = {module_id: built.module for module_id, built in built_modules.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, "multi_rl_module"))
        try:
            together: MultiRLModule = joined_class(modules, *positional, **arguments)
            together.use_agents(_run_agents(config, built_modules, spaces))
        except ChoiceError as error:
            raise ConfigError([error.problem(where)]) from error
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(str(error), where, path)]) from error
    together.freeze_untrained(config.multi_agent.trained_modules(list(built_modules)))
    together.to(next(next(iter(modules.values())).parameters()).device)
    _check_joined(config, together, built_modules)
    return {module_id: replace(built, together=together) for module_id, built in built_modules.items()}


def _run_agents(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltActingModule], spaces: Mapping[str, Space]
) -> RunAgents:
    spec = next(iter(built_modules.values())).spec
    return RunAgents(spaces, agents_of_teams(config.multi_agent.teams, list(spaces)), spec.state_space)


def _give_agents(built_modules: Mapping[str, BuiltActingModule]) -> dict[str, Space]:
    """Pass the agents to connectors; return agent id -> space of the observations in its episodes."""
    spaces = {
        agent: of_module.env_to_module.held_observation_space
        for of_module in built_modules.values()
        for agent in of_module.spec.agents or ()
    }
    for of_module in built_modules.values():
        learner = [of_module.learner] if isinstance(of_module, BuiltModule) else []
        for pipeline in (of_module.env_to_module, of_module.module_to_env, *learner):
            if spaces:
                pipeline.use_agents(spaces)
                continue
            unsupported = [
                type(connector).__name__
                for connector in pipeline.single_connectors()
                if Requirements.of(connector).needs_other_agents
            ]
            if unsupported:
                what = f"{unsupported[0]} reads the episodes of other agents, but the environment has only one"
                raise ConfigError([Problem(what, f"connectors.{pipeline.name}", fix="use a MultiAgentEnv")])
    return spaces


def _check_joined(
    config: ExperimentConfig, together: MultiRLModule, built_modules: Mapping[str, BuiltActingModule]
) -> None:
    name, optimizers = type(together).__name__, list(config.algorithm.optimizers)
    groups = list(together.parameter_groups())
    if len(optimizers) > 1 and sorted(groups) != sorted(optimizers):
        what = f"the parameter groups of {name} do not match the optimisers of the algorithm"
        expected = ", ".join(optimizers)
        raise ConfigError([Problem(what, "multi_agent.multi_rl_module", ", ".join(groups), expected)])
    for module_id, built in built_modules.items():
        if isinstance(built, BuiltModule):
            available = built.learner.check_order(columns_added_by_plan(config))
            check_reads(together.train_inputs, available, f"{name} of module {module_id}", "learner")
