"""Build one module with its pipelines, and check them against each other and against the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch

from runner.config.blocks import ConnectorsConfig
from runner.config.callables import made_arguments, with_callables
from runner.config.errors import ConfigError, Problem, nearest_match
from runner.config.imports import import_target
from runner.config.list_patches import CONNECTORS_KEY, OF_ALGORITHM, OLD_CONNECTORS_KEY
from runner.config.operators import ENV_RUNNERS
from runner.config.plans.buffers import is_replayed
from runner.config.plans.needs import columns_added_by_plan, learns_from_replay_only, needs_of
from runner.config.plans.steps import read_plan
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import is_bad_call, is_user_defined, place_of, problem_of
from runner.learners.loss import Loss, find_misfit
from runner.module_building.built_module import BuiltActingModule, BuiltModule
from runner.module_building.module_checks import SUPER_FIRST, ModuleCheck, find_wrong_class
from runner.module_building.module_spec import ModuleSpec
from runner.modules.default_settings import default_settings
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTIONS, ACTIONS_FOR_ENV, STATE_OUT, Connector
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.module_to_env_connectors import acting_space
from runner.pipelines.pipeline import ConnectorPipeline, EnvToModulePipeline, LearnerConnectorPipeline
from runner.pipelines.pipeline_checks import find_unmatched_connector
from runner.pipelines.raw_observations import leave_raw
from runner.pipelines.requirements import Requirements
from runner.replay.replay_buffer import REPLAYED
from runner.streams import integer_seed, random_stream

_CPU = torch.device("cpu")


def build_acting_module(config: ExperimentConfig, spec: ModuleSpec) -> BuiltActingModule:
    """Make the module and the pipelines of an env runner.

    Raises:
        ConfigError: an edit names an unknown anchor; a connector cannot be created, does not support the spaces, or
            reads a column that nothing writes; the module cannot encode the observations.
    """
    spaces = spec.observation_space, spec.action_space
    edits = {name: _edits(config, spec, name) for name in ("env_to_module", "module_to_env")}
    with _errors_of(spec):
        env_to_module = env_to_module_pipeline(*spaces, _CPU, edits["env_to_module"], make_connector)
        module = _build_module(config, spec, env_to_module)
        if module.is_stateful or module.num_noise:  # known only now, because the pipeline determines the module's space
            needs = spec.module.max_seq_len if module.is_stateful else None, module.num_noise > 0
            env_to_module = env_to_module_pipeline(*spaces, _CPU, edits["env_to_module"], make_connector, *needs)
        if _learns_from_replay_only(config, spec.module_id):
            leave_raw(env_to_module)
        module_to_env = module_to_env_pipeline(
            *spaces,
            config.env.normalize_actions,
            config.env.clip_actions,
            edits["module_to_env"],
            make_connector,
            module.is_stateful,
            spec.agents is not None,
        )
    if _is_checked(config, module):
        _raise(ModuleCheck(module).acting())
    check_reads(module.inputs, env_to_module.check_order(()), f"module {spec.module._target_}", "env_to_module")
    acted = {*module_to_env.check_order(module.outputs), *module_to_env.requires.writes_per_fragment}
    recorded = tuple(sorted(acted - {ACTIONS, ACTIONS_FOR_ENV}))
    return BuiltActingModule(spec, module, env_to_module, module_to_env, recorded)


def build_module(config: ExperimentConfig, spec: ModuleSpec) -> BuiltModule:
    """Make the module on the learner's device, with its three pipelines; raises the errors of `build_acting_module`."""
    return _with_learner_pipeline(config, build_acting_module(config, spec))


def build_auxiliary_module(config: ExperimentConfig, spec: ModuleSpec, source: BuiltModule) -> BuiltModule:
    """Make a module that learns from the experiences of another one, with that module's pipelines for acting.

    Raises the errors of `build_acting_module`.
    """
    with _errors_of(spec):
        module = _build_module(config, spec, source.env_to_module)
    recorded = tuple(name for name in source.recorded if name != STATE_OUT)
    acting = BuiltActingModule(spec, module, source.env_to_module, source.module_to_env, recorded)
    return _with_learner_pipeline(config, acting)


def _learns_from_replay_only(config: ExperimentConfig, module_id: str) -> bool:
    """Return whether the experiences of a module are only replayed, also for auxiliary modules that train on them."""
    auxiliary = [id_ for id_, source in config.multi_agent.auxiliary_modules.items() if source == module_id]
    plan = read_plan(config.algorithm.plan)
    return all(learns_from_replay_only(plan, id_) for id_ in (module_id, *auxiliary))


def _is_replayed(config: ExperimentConfig, spec: ModuleSpec) -> bool:
    """Return whether a module may learn from a replay buffer, an auxiliary module from its source's experiences."""
    return any(is_replayed(module_id, config) for module_id in (spec.module_id, spec.trains_on) if module_id)


def _with_learner_pipeline(config: ExperimentConfig, acting: BuiltActingModule) -> BuiltModule:
    """Add the learner pipeline, check it and the module, and move the module to the learner's device."""
    spec, module, device = acting.spec, acting.module, learner_device(config)
    loss = import_target(spec.algorithm.loss, "algorithm.loss", Loss)
    with _errors_of(spec):
        learner = learner_pipeline(
            acting.env_to_module.held_observation_space,
            acting.module_to_env.action_space,
            device,
            _edits(config, spec, "learner"),
            make_connector,
            (*acting.recorded, *(REPLAYED if _is_replayed(config, spec) else ())),
            spec.module.max_seq_len if module.is_stateful else None,
            # Steps that were not replayed are single steps, and all have the same weight.
            {name: dtype for name, dtype in REPLAYED.items() if name in loss.reads},
        )
    misfit = find_misfit(loss, module, spec.algorithm)
    if misfit is not None:
        raise ConfigError([misfit])
    if _is_checked(config, module):
        needs = {
            type(connector).__name__: Requirements.of(connector).needs for connector in learner.single_connectors()
        }
        _raise(ModuleCheck(module).learning({loss.__name__: loss.needs, **needs}))
    if isinstance(loss.reads, str):
        what = f"{loss.__name__}.reads is not a tuple of column names"
        raise ConfigError([Problem(what, place_of(loss), repr(loss.reads), f"({loss.reads!r},)")])
    reads = (*loss.reads, *module.learner_inputs, *(loss.sequences if module.is_stateful else ()))
    check_reads(reads, learner.check_order(columns_added_by_plan(config)), spec.algorithm.loss, "learner")
    _check_same_observations(acting, learner, may_augment=ENV_RUNNERS not in needs_of(config))
    learner.give_streams(lambda name, position: random_stream(config.seed, spec.name(name), position))
    module.to(device)
    return BuiltModule(**vars(acting), learner=learner)


def _check_same_observations(acting: BuiltActingModule, learner: LearnerConnectorPipeline, may_augment: bool) -> None:
    unmatched = find_unmatched_connector(
        acting.env_to_module.single_connectors(), learner.single_connectors(), may_augment
    )
    if unmatched is not None:
        raise ConfigError([unmatched])
    acts_on, learns_on = acting.env_to_module.observation_space, learner.observation_space
    if acts_on != learns_on and acting.spec.trains_on is not None:
        module_id, source = acting.spec.module_id, acting.spec.trains_on
        problem = Problem(
            f"module {module_id} would learn from different observations than {source} acts on",
            where=f"connectors.env_to_module, connectors.modules.{module_id}.learner",
            got=f"{learns_on} in the learner pipeline of {module_id}",
            expected=f"{acts_on}, as in the env_to_module pipeline",
            fix=f"add the same connectors to connectors.modules.{module_id}.learner",
        )
        raise ConfigError([problem])
    if acts_on != learns_on:
        problem = Problem(
            "the module would learn from different observations than it acts on",
            where="connectors.env_to_module, connectors.learner",
            got=f"{learns_on} in the learner pipeline",
            expected=f"{acts_on}, as in the env_to_module pipeline",
            fix="put WriteObservationsToEpisodes after the connectors of env_to_module, or add the same connectors to "
            "connectors.learner",
        )
        raise ConfigError([problem])


def _edits(config: ExperimentConfig, spec: ModuleSpec, pipeline: str) -> list[Mapping[str, Any]]:
    """Return the edits of a pipeline: first the edits of the algorithm, then of `connectors`.

    Edits for all modules, such as `connectors.learner`, do not apply to auxiliary modules.
    """
    connectors = config.connectors if spec.trains_on is None else ConnectorsConfig(modules=config.connectors.modules)
    return [*_algorithm_edits(spec, pipeline), *connectors.edits_of(spec.module_id, pipeline)]


def _algorithm_edits(spec: ModuleSpec, pipeline: str) -> Iterator[Mapping[str, Any]]:
    """Yield the algorithm's edits. An argument of a connector that has the name of an overridden field, such as gamma,
    takes this module's value.
    """
    overridden = {name: getattr(spec.algorithm, name) for name in spec.overridden}

    def with_overridden(value: Any) -> Any:
        return (
            {key: overridden.get(key, argument) for key, argument in value.items()}
            if isinstance(value, dict)
            else value
        )

    field = OF_ALGORITHM.get(pipeline)
    for edit in () if field is None else getattr(spec.algorithm, field):
        yield {key: with_overridden(value) for key, value in edit.items()}


@contextmanager
def _errors_of(spec: ModuleSpec) -> Iterator[None]:
    """Name the module in errors of its pipelines if there are several agents.

    A TypeError from `recompute_output_..._space`, which a connector raises if it does not support the spaces, is
    converted to a problem.
    """
    try:
        yield
    except ConfigError as error:
        of_module = f"module {spec.module_id}"
        if spec.agents is None or any(of_module in (one.where or "") for one in error.problems):
            raise
        problems = [replace(one, where=", ".join(filter(None, (one.where, of_module)))) for one in error.problems]
        raise ConfigError(problems) from error
    except TypeError as error:
        got = f"observations of {spec.observation_space}, actions of {spec.action_space}"
        where = "connectors" if spec.agents is None else f"connectors, module {spec.module_id}"
        raise ConfigError([Problem(str(error), where=where, got=got)]) from error


def check_reads(reads: tuple[str, ...], available: tuple[str, ...], reader: str, pipeline: str) -> None:
    """Raise `ConfigError` if a module or loss reads a column that is not available after the pipeline of this name."""
    missing = [column for column in dict.fromkeys(reads) if column not in available]
    if missing:
        field = OF_ALGORITHM.get(pipeline)
        problem = Problem(
            f"{reader} reads {', '.join(missing)}, which no connector of the {pipeline} pipeline writes",
            where=f"connectors.{pipeline}" if field is None else f"algorithm.{field}, connectors.{pipeline}",
            expected=", ".join(sorted(available)),
            nearest=nearest_match(missing[0], available),
        )
        raise ConfigError([problem])


def make_connector(block: Mapping[str, Any], where: str) -> Connector:
    """Make a connector from a block `{_target_: dotted path, arguments}`, one of the `connectors` of a pipeline.

    Args:
        block: block of the connector.
        where: name of its pipeline in messages.

    Raises:
        ConfigError: the connector cannot be created.
    """
    path = block["_target_"]
    connector_class = import_target(path, where, Connector)
    names = (CONNECTORS_KEY, OLD_CONNECTORS_KEY) if issubclass(connector_class, ConnectorPipeline) else ()
    key = next((name for name in names if name in block), None)
    positional, arguments = made_arguments({name: value for name, value in block.items() if name != key}, where)
    if key is not None:
        is_old = OLD_CONNECTORS_KEY in signature(connector_class).parameters
        connectors = [make_connector(connector, where) for connector in block[key]]
        arguments[OLD_CONNECTORS_KEY if is_old else CONNECTORS_KEY] = connectors
    try:
        connector: Connector = connector_class(*positional, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"{path} cannot be created: {error}", where, str(arguments))]) from error
    return connector


@default_settings()
def _build_module(config: ExperimentConfig, spec: ModuleSpec, env_to_module: EnvToModulePipeline) -> RLModule:
    """Make the module for the spaces between the pipelines; its weights depend on the run's seed only."""
    module_class = import_target(spec.module._target_, "module._target_", RLModule)
    where = "module" if spec.agents is None else f"module {spec.module_id}"
    module_config = replace(spec.module, model_config=with_callables(spec.module.model_config, "module.model_config"))
    spaces = env_to_module.observation_space, acting_space(spec.action_space, config.env.normalize_actions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, spec.name("module")))
        try:
            module: RLModule = module_class(*spaces, module_config)
        except (TypeError, ValueError) as error:
            raise ConfigError([_unmade_module(error, where, spec.module._target_, module_class)]) from error
        except Exception as error:
            if not is_user_defined(module_class):
                raise
            raise ConfigError([_unmade_module(error, where, spec.module._target_, module_class)]) from error
    wrong = find_wrong_class(module, acts=spec.trains_on is None) if is_user_defined(module_class) else None
    if wrong is not None:
        raise ConfigError([wrong])
    return module


def _unmade_module(error: Exception, where: str, path: str, module_class: type[RLModule]) -> Problem:
    """Describe the reason why a module cannot be created; for user-defined classes, name the line that raised the
    error."""
    if not is_user_defined(module_class):
        return Problem(str(error), where, path)
    problem = problem_of(error, where)
    if is_bad_call(error):
        expected = "__init__(self, observation_space, action_space, config)"
        return Problem(str(error), f"{where}, {place_of(module_class, '__init__')}", expected=expected)
    is_early = "before Module.__init__() call" in str(error)  # from torch's message
    what = f"{module_class.__name__} cannot be created: {problem.what}"
    return replace(problem, what=what, fix=SUPER_FIRST if is_early else problem.fix)


def _is_checked(config: ExperimentConfig, module: RLModule) -> bool:
    """Return whether a module's passes are checked: only user-defined modules that do not depend on other modules."""
    return is_user_defined(type(module)) and not config.multi_agent.multi_rl_module


def _raise(problems: Iterator[Problem]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        raise ConfigError(found)


def learner_device(config: ExperimentConfig) -> torch.device:
    """Return the device of modules in this process, given by `learners.device`; `auto` is a GPU if there is one.

    If learners are remote, modules in this process are used only to build the pipelines, and stay on the CPU.
    """
    name = config.learners.device if config.learners.num_learners == 0 else "cpu"
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        reason = "" if text.startswith("Expected one of") else f": {text}"  # torch lists all known device types
        problem = Problem(
            f"this machine does not have a device {name}{reason}", "learners.device", name, "auto, cpu, cuda, cuda:1, …"
        )
        raise ConfigError([problem]) from error
    return device


def on_device(config: ExperimentConfig, device: str) -> ExperimentConfig:
    """Return a configuration whose modules are on this device."""
    return replace(config, learners=replace(config.learners, num_learners=0, device=device))
