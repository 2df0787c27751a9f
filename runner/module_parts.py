"""The modules of an experiment: their agents, spaces, networks and pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_type_hints

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.config.algorithms import AlgorithmConfig
from runner.config.checks import convert
from runner.config.edit_lists import added_up
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.imports import import_target
from runner.config.module_ids import trained_modules
from runner.config.operators import ENV_RUNNERS
from runner.config.optimizer import with_overrides
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig, ModuleConfig, MultiAgentConfig
from runner.env_runners.env_makers import make_environment, sub_environments
from runner.env_runners.multi_agent_env import DeclaredAgents, MultiAgentEnv, agents_by_module, make_mapping
from runner.episodes.nested import StateError
from runner.episodes.spaces import space_from_dict
from runner.learners.loss import Loss, find_misfit
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.module_to_env_pieces import acting_space
from runner.pipelines.piece import ACTIONS, ACTIONS_FOR_ENV, DEFAULT_MODULE_ID, ConnectorPiece
from runner.pipelines.pipeline import (
    ConnectorPipeline,
    EnvToModulePipeline,
    LearnerConnectorPipeline,
    ModuleToEnvPipeline,
)
from runner.pipelines.pipeline_checks import find_unmatched_piece
from runner.streams import integer_seed, random_stream

Space = gym.Space[Any]
_CPU = torch.device("cpu")
B = TypeVar("B", ModuleConfig, AlgorithmConfig)
P = TypeVar("P", bound="ActingParts")


@dataclass(frozen=True)
class ModulePlan:
    """The plan of one module.

    Attributes:
        agents: ids of the agents that it acts for; None in runs with a single agent.
        observation_space, action_space: spaces of one agent in the environment.
        module, algorithm: blocks of the configuration with the overrides of this module.
        overridden: names of the overridden fields of `algorithm`.
    """

    module_id: str
    agents: tuple[str, ...] | None
    observation_space: Space
    action_space: Space
    module: ModuleConfig
    algorithm: AlgorithmConfig
    overridden: frozenset[str] = frozenset()

    def name(self, role: str) -> str:
        """Return the name of a random stream of this module."""
        return role if self.agents is None else f"{role}/{self.module_id}"


@dataclass(frozen=True)
class ActingParts:
    """A module and the pipelines around it.

    Attributes:
        recorded: names of the extra model outputs in episodes.
        together: the MultiRLModule that `multi_agent.multi_rl_module` names, with this module; None: none is named.
    """

    plan: ModulePlan
    module: RLModule
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline
    recorded: tuple[str, ...]
    together: MultiRLModule | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class ModuleParts(ActingParts):
    """All parts of a module, checked against each other and against the loss."""

    learner: LearnerConnectorPipeline


def networks_of(parts: Mapping[str, ActingParts]) -> dict[str, RLModule | MultiRLModule]:
    """Return the networks whose parameters travel as one vector each: the modules by id, or all of them together."""
    together = next(iter(parts.values())).together
    if together is not None:
        return {ALL_MODULES: together}
    return {module_id: module_parts.module for module_id, module_parts in parts.items()}


def weights_of(parts: Mapping[str, ActingParts]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the parameters of a run's modules, as env runners take them."""
    return {key: FlatParameters(network).to_numpy() for key, network in networks_of(parts).items()}


def reported_metrics(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> dict[str, str]:
    """Return metric -> meaning of what the pieces of a run report; a pipeline of a module that is not updated is not
    called.
    """
    trained = trained_modules(config, list(parts))
    names: dict[str, str] = {}
    for module_id, of_module in parts.items():
        learner = [of_module.learner] if module_id in trained else []
        for pipeline in (of_module.env_to_module, of_module.module_to_env, *learner):
            names |= pipeline.reported_metrics(module_id)
    return names


def has_several_agents(plans: Mapping[str, ModulePlan]) -> bool:
    """Return whether the modules act for several agents of one environment."""
    return any(plan.agents is not None for plan in plans.values())


def plan_modules(config: ExperimentConfig) -> dict[str, ModulePlan]:
    """Plan the modules, by id; makes one environment to ask it for spaces and agents.

    Raises:
        ConfigError: an agent without a mapping, a module that no agent is mapped to, spaces that do not fit.
    """
    if config.env.agents is not None:
        return _plan_declared_agents(config, config.env.agents)
    if config.env.observation_space is not None:
        declared = _declared_space(config.env.observation_space, "env.observation_space")
        return _plan_single(config, declared, _declared_space(config.env.action_space, "env.action_space"))
    env = make_environment(config.env, 1, config.env_runners.gym_env_vectorize_mode)
    try:
        if isinstance(env, MultiAgentEnv):
            return _plan_agents(config, env)
        envs = sub_environments(env, lambda: env, 1, config.seed)  # refuses what cannot be stepped
        return _plan_single(config, envs.single_observation_space, envs.single_action_space)
    finally:
        env.close()


def _plan_single(config: ExperimentConfig, observation_space: Space, action_space: Space) -> dict[str, ModulePlan]:
    _check_no_agents_named(config)
    _check_module_ids(config, [DEFAULT_MODULE_ID])
    plan = ModulePlan(DEFAULT_MODULE_ID, None, observation_space, action_space, config.module, config.algorithm)
    return {DEFAULT_MODULE_ID: plan}


def _plan_declared_agents(config: ExperimentConfig, agents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModulePlan]:
    observations, actions = (
        {id_: _declared_space(spaces.get(name), f"env.agents.{id_}.{name}") for id_, spaces in agents.items()}
        for name in ("observation_space", "action_space")
    )
    return _plan_agents(config, DeclaredAgents(observations, actions))


def _declared_space(state: Mapping[str, Any] | None, where: str) -> Space:
    try:
        return space_from_dict(state, where)
    except StateError as error:
        allowed = "a space as in docs/rllink-spec.md: {space: box, low: -1, high: 1, shape: [3], dtype: float32}"
        raise ConfigError([Problem(str(error), where, str(state), allowed)]) from error


def _plan_agents(config: ExperimentConfig, agents_env: MultiAgentEnv | DeclaredAgents) -> dict[str, ModulePlan]:
    by_module = agents_by_module(agents_env, make_mapping(config.multi_agent.agent_to_module))
    _check_module_ids(config, list(by_module))
    return {
        module_id: ModulePlan(
            module_id,
            tuple(agents),
            agents_env.observation_spaces[agents[0]],
            agents_env.action_spaces[agents[0]],
            _with_fields(config.module, config.multi_agent.modules.get(module_id, {})),
            _with_fields(config.algorithm, _added_to_algorithm(config, module_id)),
            frozenset(_algorithm_overrides(config, module_id)),
        )
        for module_id, agents in by_module.items()
    }


def _check_no_agents_named(config: ExperimentConfig) -> None:
    if config.multi_agent != MultiAgentConfig():
        problem = Problem(
            f"multi_agent is set, but {config.env.name} has a single agent",
            allowed="env._target_: a MultiAgentEnv class",
        )
        raise ConfigError([problem])


def _with_fields(block: B, fields: Mapping[str, Any]) -> B:
    """Replace some fields of a block, converted as in any block."""
    annotations = get_type_hints(type(block))
    return replace(block, **{name: convert(value, annotations[name]) for name, value in fields.items()})


def _algorithm_overrides(config: ExperimentConfig, module_id: str) -> dict[str, Any]:
    return config.multi_agent.algorithm_config_overrides_per_module.get(module_id, {})


def _added_to_algorithm(config: ExperimentConfig, module_id: str) -> dict[str, Any]:
    """Return a module's overrides, those of learner pipeline and optimiser added to what all modules have."""
    fields = dict(_algorithm_overrides(config, module_id))
    if "learner_pipeline" in fields:
        fields["learner_pipeline"] = added_up(config.algorithm.learner_pipeline, fields["learner_pipeline"])
    if "optimizer" in fields:
        fields["optimizer"] = with_overrides(config.algorithm.optimizer, fields["optimizer"])
    return fields


def _check_module_ids(config: ExperimentConfig, module_ids: list[str]) -> None:
    multi_agent = config.multi_agent
    blocks = {
        "multi_agent.modules": multi_agent.modules,
        "multi_agent.modules_to_train": multi_agent.modules_to_train or (),
        "multi_agent.algorithm_config_overrides_per_module": multi_agent.algorithm_config_overrides_per_module,
        "connectors.modules": config.connectors.modules,
    }
    problems = [
        Problem(
            f"module {named} acts for no agent",
            where=block,
            got=named,
            allowed=", ".join(module_ids),
            nearest=nearest_match(named, module_ids),
        )
        for block, names in blocks.items()
        for named in names
        if named not in module_ids
    ]
    if problems:
        raise ConfigError(problems)


def build_acting_parts(config: ExperimentConfig, plan: ModulePlan) -> ActingParts:
    """Make the module and the pipelines of an env runner.

    Raises:
        ConfigError: an edit names an unknown anchor; a piece cannot be made, cannot use the spaces, or reads a column
            that nothing writes; the module cannot encode the observations.
    """
    spaces = plan.observation_space, plan.action_space
    edits = {name: config.connectors.edits_of(plan.module_id, name) for name in ("env_to_module", "module_to_env")}
    with _errors_of(plan):
        env_to_module = env_to_module_pipeline(*spaces, _CPU, edits["env_to_module"], make_piece)
        module = _build_module(config, plan, env_to_module)
        if module.is_stateful:
            max_seq_len = plan.module.max_seq_len
            env_to_module = env_to_module_pipeline(*spaces, _CPU, edits["env_to_module"], make_piece, max_seq_len)
        module_to_env = module_to_env_pipeline(
            *spaces,
            config.env.normalize_actions,
            config.env.clip_actions,
            edits["module_to_env"],
            make_piece,
            module.is_stateful,
            plan.agents is not None,
        )
    _check_reads(module.inputs, env_to_module.check_order(()), f"module {plan.module._target_}", "env_to_module")
    acted = {*module_to_env.check_order(module.outputs), *module_to_env.writes_per_fragment}
    recorded = tuple(sorted(acted - {ACTIONS, ACTIONS_FOR_ENV}))
    return ActingParts(plan, module, env_to_module, module_to_env, recorded)


def join_modules(config: ExperimentConfig, parts: Mapping[str, P]) -> dict[str, P]:
    """Return the parts, whose pieces know all agents, with the modules joined by the MultiRLModule that the
    configuration names, if it does.

    Its weights follow from the run's seed, as the modules' do. Parameters that only untrained modules use are frozen.

    Raises:
        ConfigError: it cannot be made, or does not fit to the algorithm or the learner pipelines; a piece needs other
            agents, and there is one.
    """
    _give_agents(parts)
    block = dict(config.multi_agent.multi_rl_module or {})
    if not block:
        return dict(parts)
    where, path = "multi_agent.multi_rl_module", block.pop("_target_")
    joined_class = import_target(path, where, MultiRLModule)
    modules = {module_id: module_parts.module for module_id, module_parts in parts.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, "multi_rl_module"))
        try:
            together: MultiRLModule = joined_class(modules, **block)
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(str(error), where, path)]) from error
    together.freeze_untrained(trained_modules(config, list(parts)))
    together.to(next(next(iter(modules.values())).parameters()).device)
    _check_joined(config, together, parts)
    return {module_id: replace(module_parts, together=together) for module_id, module_parts in parts.items()}


def _give_agents(parts: Mapping[str, ActingParts]) -> None:
    spaces = {
        agent: of_module.env_to_module.held_observation_space
        for of_module in parts.values()
        for agent in of_module.plan.agents or ()
    }
    for of_module in parts.values():
        learner = [of_module.learner] if isinstance(of_module, ModuleParts) else []
        for pipeline in (of_module.env_to_module, of_module.module_to_env, *learner):
            if spaces:
                pipeline.use_agents(spaces)
                continue
            lonely = [type(piece).__name__ for piece in pipeline.single_pieces() if piece.needs_other_agents]
            if lonely:
                what, allowed = f"{lonely[0]} reads the episodes of other agents, and there is one", "a MultiAgentEnv"
                raise ConfigError([Problem(what, f"connectors.{pipeline.name}", allowed=allowed)])


def _check_joined(config: ExperimentConfig, together: MultiRLModule, parts: Mapping[str, ActingParts]) -> None:
    name, optimizers = type(together).__name__, list(config.algorithm.optimizers)
    groups = list(together.parameter_groups())
    if len(optimizers) > 1 and sorted(groups) != sorted(optimizers):
        what = f"the optimisers of the algorithm step other parameter groups than {name} has"
        allowed = f"{name}.parameter_groups with {', '.join(optimizers)}"
        raise ConfigError([Problem(what, "multi_agent.multi_rl_module", ", ".join(groups), allowed)])
    for module_id, module_parts in parts.items():
        if isinstance(module_parts, ModuleParts):
            available = module_parts.learner.check_order(())
            _check_reads(together.train_inputs, available, f"{name} of module {module_id}", "learner_pipeline")


def build_module_parts(config: ExperimentConfig, plan: ModulePlan) -> ModuleParts:
    """Make the module on the learner's device, with its three pipelines; raises as `build_acting_parts` does."""
    acting_parts = build_acting_parts(config, plan)
    device = learner_device(config)
    edits = [*_algorithm_edits(plan), *config.connectors.edits_of(plan.module_id, "learner")]
    with _errors_of(plan):
        learner = learner_pipeline(
            acting_parts.env_to_module.held_observation_space,
            acting_parts.module_to_env.action_space,
            device,
            edits,
            make_piece,
            acting_parts.recorded,
            plan.module.max_seq_len if acting_parts.module.is_stateful else None,
        )
    loss = import_target(plan.algorithm.loss, "algorithm.loss", Loss)
    misfit = find_misfit(loss, acting_parts.module, plan.algorithm)
    if misfit is not None:
        raise ConfigError([misfit])
    where = "learner_pipeline, connectors.learner"
    _check_reads((*loss.reads, *acting_parts.module.inputs), learner.check_order(()), plan.algorithm.loss, where)
    _check_same_observations(acting_parts, learner, may_augment=ENV_RUNNERS not in needs_of(config))
    learner.give_streams(lambda name, position: random_stream(config.seed, plan.name(name), position))
    acting_parts.module.to(device)
    return ModuleParts(**vars(acting_parts), learner=learner)


def _check_same_observations(acting_parts: ActingParts, learner: LearnerConnectorPipeline, may_augment: bool) -> None:
    unmatched = find_unmatched_piece(acting_parts.env_to_module.single_pieces(), learner.single_pieces(), may_augment)
    if unmatched is not None:
        raise ConfigError([unmatched])
    acts_on, learns_on = acting_parts.env_to_module.observation_space, learner.observation_space
    if acts_on != learns_on:
        problem = Problem(
            "the module would learn on other observations than it acts on",
            where="connectors.env_to_module, connectors.learner",
            got=f"{learns_on} in the learner pipeline",
            allowed=f"{acts_on}, as after env_to_module: put WriteObservationsToEpisodes after the pieces there, "
            "or the same pieces into connectors.learner",
        )
        raise ConfigError([problem])


def _algorithm_edits(plan: ModulePlan) -> Iterator[Mapping[str, Any]]:
    """Yield the algorithm's edits; a piece's argument with the name of an overridden field (gamma, for example) takes
    this module's value.
    """
    overridden = {name: getattr(plan.algorithm, name) for name in plan.overridden}

    def with_overridden(value: Any) -> Any:
        return (
            {key: overridden.get(key, argument) for key, argument in value.items()}
            if isinstance(value, dict)
            else value
        )

    for edit in plan.algorithm.learner_pipeline:
        yield {key: with_overridden(value) for key, value in edit.items()}


@contextmanager
def _errors_of(plan: ModulePlan) -> Iterator[None]:
    """Name the module in errors of its pipelines, where there are several agents.

    The TypeError of a piece that cannot use the spaces, from `recompute_output_..._space`, becomes a problem.
    """
    try:
        yield
    except ConfigError as error:
        of_module = f"module {plan.module_id}"
        if plan.agents is None or any(of_module in (one.where or "") for one in error.problems):
            raise
        problems = [replace(one, where=", ".join(filter(None, (one.where, of_module)))) for one in error.problems]
        raise ConfigError(problems) from error
    except TypeError as error:
        got = f"observations of {plan.observation_space}, actions of {plan.action_space}"
        where = "connectors" if plan.agents is None else f"connectors, module {plan.module_id}"
        raise ConfigError([Problem(str(error), where=where, got=got)]) from error


def _check_reads(reads: tuple[str, ...], available: tuple[str, ...], reader: str, where: str) -> None:
    missing = [column for column in dict.fromkeys(reads) if column not in available]
    if missing:
        pipeline = "learner" if "learner" in where else where
        problem = Problem(
            f"{reader} reads {', '.join(missing)}, which no piece of the {pipeline} pipeline writes",
            where="algorithm.learner_pipeline, connectors.learner" if "learner" in where else f"connectors.{where}",
            allowed=", ".join(sorted(available)),
        )
        raise ConfigError([problem])


def make_piece(block: Mapping[str, Any]) -> ConnectorPiece:
    """Make a piece from a block `{_target_: dotted path, arguments}`; the `pieces` of a pipeline are such blocks."""
    arguments = dict(block)
    path = arguments.pop("_target_")
    piece_class = import_target(path, "connectors", ConnectorPiece)
    if issubclass(piece_class, ConnectorPipeline) and "pieces" in arguments:
        arguments["pieces"] = [make_piece(piece) for piece in arguments["pieces"]]
    try:
        piece: ConnectorPiece = piece_class(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"{path} cannot be made: {error}", "connectors", str(arguments))]) from error
    return piece


def _build_module(config: ExperimentConfig, plan: ModulePlan, env_to_module: EnvToModulePipeline) -> RLModule:
    """Make the module for the spaces between the pipelines; its weights follow from the run's seed alone."""
    module_class = import_target(plan.module._target_, "module._target_", RLModule)
    where = "module" if plan.agents is None else f"module {plan.module_id}"
    spaces = env_to_module.observation_space, acting_space(plan.action_space, config.env.normalize_actions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, plan.name("module")))
        try:
            module: RLModule = module_class(*spaces, plan.module)
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(str(error), where=where, got=plan.module._target_)]) from error
    return module


def learner_device(config: ExperimentConfig) -> torch.device:
    """Return the device of modules in this process, as `learners.device` says; `auto` is a GPU if there is one.

    Where learners are remote, modules in this process only serve the pipelines, on the CPU.
    """
    name = config.learners.device if config.learners.num_learners == 0 else "cpu"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = Problem(f"there is no device {name}: {error}", where="learners.device", got=name)
        raise ConfigError([problem]) from error
    return device
