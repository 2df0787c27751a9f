"""Builds learners, in this process or in Ray actors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from runner.config.algorithms import AlgorithmConfig
from runner.config.callables import with_callables
from runner.config.errors import ConfigError, Problem
from runner.config.fields import names_of
from runner.config.imports import import_target
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.compilation import COMPILE_AUTO, compiles
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.config.user_code import is_bad_call, is_user_defined, place_of, problem_of
from runner.learners.collective import Collective
from runner.learners.learner import Learner
from runner.learners.loss import Loss
from runner.learners.on_policy_check import OnPolicyConsistencyCheck
from runner.learners.remote_learner_group import Learners, RemoteLearnerGroup
from runner.learners.trained_module import TrainedModule
from runner.learners.trained_network import TrainedNetwork
from runner.module_building import (
    BuiltModule,
    ModuleSpec,
    acting_modules,
    build_modules,
    learner_device,
    lookback_of,
    networks_of,
    on_device,
    weights_of,
)
from runner.modules.default_settings import default_settings
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import ALL_MODULES, member_of
from runner.modules.rl_module import RLModule
from runner.pipelines.raw_observations import raw_filters
from runner.pipelines.requirements import Requirements
from runner.streams import random_stream


def check_local_gpus(config: ExperimentConfig) -> None:
    """Raise `ConfigError` if the learner in this process needs more GPUs than this machine has."""
    asked, available = config.learners.num_gpus_per_learner, torch.cuda.device_count()
    if config.learners.num_learners == 0 and asked > available:
        what = "learners.num_gpus_per_learner exceeds the number of GPUs of this machine"
        raise ConfigError([Problem(what, "learners.num_gpus_per_learner", f"{asked:g}", f"up to {available}")])


def build_learner_group(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> Learners:
    """Make a learner for each module and its learner pipeline, in this process or in Ray actors.

    Raises:
        ConfigError: a part cannot be created, or a connector needs rows that go to other learners.
    """
    if config.learners.num_learners == 0:
        return build_local_learner_group(config, built_modules, Collective())
    _check_shared_out(config, built_modules)
    keeps_unsplit = any(built.learner.requires.needs_other_agents for built in built_modules.values())
    settings = (config.learners, lookback_of(config, built_modules), keeps_unsplit, config.ray.actor_start_timeout_s)
    acting = acting_modules(built_modules)
    specs = {module_id: built.spec for module_id, built in acting.items()}
    planned = PlannedLearners(config, specs, weights_of(built_modules))
    return RemoteLearnerGroup(planned, networks_of(built_modules), networks_of(acting), *settings)


def _check_shared_out(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> None:
    """Reject connectors that need all rows of a rollout that is split among learners."""
    if config.learners.num_learners == 1 or ENV_RUNNERS not in needs_of(config):
        return
    for module_id in config.multi_agent.trained_modules(list(built_modules)):
        for connector in built_modules[module_id].learner.single_connectors():
            if Requirements.of(connector).needs_all_rows:
                name = type(connector).__name__
                what = f"{name} needs all sampled rows, but several learners get only a part each"
                raise ConfigError([Problem(what, "learners.num_learners", str(config.learners.num_learners), "0 or 1")])


@default_settings()
def build_local_learner_group(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], collective: Collective
) -> Learner:
    """Make the learner of this process from its modules and pipelines."""
    named = config.multi_agent.modules_to_train
    pipelines = {module_id: built.learner for module_id, built in built_modules.items()}
    # External simulators may act with older weights or with a custom policy, and recorded steps come from another
    # policy. Replayed observations are standardised with newer statistics than when they were acted on.
    acting = acting_modules(built_modules)
    env_to_module = {module_id: built.env_to_module for module_id, built in acting.items()}
    uses_recorded_data = RECORDED_DATA in needs_of(config) or config.algorithm.recorded_buffers
    acts_itself = not config.env.is_external and not uses_recorded_data
    acts_on_the_same = acts_itself and not any(map(raw_filters, env_to_module.values()))
    is_checked = config.learners.check_on_policy_outputs and acts_on_the_same
    consistency_check = OnPolicyConsistencyCheck(env_to_module) if is_checked else None
    trained = list(built_modules) if named is None else named
    networks = _build_networks(config, built_modules, trained, collective)
    return Learner(networks, pipelines, trained, collective, consistency_check, networks_of(acting))


@dataclass(frozen=True)
class PlannedLearners:
    """Factory of learners of the same modules in another process, with the same parameters.

    Attributes:
        specs: specifications of the acting modules.
        weights: initial parameters of all modules.
    """

    config: ExperimentConfig
    specs: Mapping[str, ModuleSpec]
    weights: Mapping[str, npt.NDArray[np.float32]]

    def device(self) -> torch.device:
        """Return `learners.device` in this process."""
        return learner_device(on_device(self.config, self.config.learners.device))

    def __call__(self, collective: Collective) -> Learner:
        """Make the learner of a process."""
        here = on_device(self.config, self.config.learners.device)
        built_modules = build_modules(here, self.specs)
        for key, network in networks_of(built_modules).items():
            FlatParameters(network).load(self.weights[key])
        for built in built_modules.values():
            if collective.rank:  # the first learner uses the streams of a single learner
                make_stream = partial(_peers_stream, self.config.seed, built.spec, collective.rank)
                built.learner.give_streams(make_stream)
        return build_local_learner_group(self.config, built_modules, collective)


def _peers_stream(seed: int, spec: ModuleSpec, rank: int, name: str, position: int) -> np.random.Generator:
    return random_stream(seed, spec.name(name), position, rank)


def columns_of_learner(spec: ModuleSpec, module: RLModule) -> tuple[str, ...]:
    """Return the columns of a train batch that the module and the loss read."""
    loss = import_target(spec.algorithm.loss, "algorithm.loss", Loss)
    return tuple(dict.fromkeys((*module.learner_inputs, *loss.reads)))


def _build_networks(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], trained: Collection[str], collective: Collective
) -> dict[str, TrainedNetwork]:
    """Make one network for each module, including untrained modules, or one for all modules that share parameters."""
    alone = {module_id: built for module_id, built in built_modules.items() if built.together is None}
    networks = {module_id: _build_network(config, built, collective) for module_id, built in alone.items()}
    together = next(iter(built_modules.values())).together
    if together is None:
        return networks
    of_trained = [(member_of(together, id_), built_modules[id_]) for id_ in together if id_ in trained]
    modules = [_build_module(config, module, of_module, collective) for module, of_module in of_trained]
    return {ALL_MODULES: TrainedNetwork(together, modules, config.algorithm, collective), **networks}


def _build_network(config: ExperimentConfig, built: BuiltModule, collective: Collective) -> TrainedNetwork:
    module_id, algorithm = built.spec.module_id, built.spec.algorithm
    is_compiled = compiles(config) and module_id in config.multi_agent.trained_modules([module_id])
    if is_compiled and algorithm.microbatch_size is not None:
        what = f"learners.compile does not support microbatches (module {module_id})"
        raise ConfigError([Problem(what, "algorithm.microbatch_size", str(algorithm.microbatch_size), "null")])
    module = _build_module(config, built.module, built, collective)
    falls_back = config.learners.compile == COMPILE_AUTO
    return TrainedNetwork(built.module, [module], algorithm, collective, is_compiled, falls_back)


def _build_module(
    config: ExperimentConfig, module: RLModule, built: BuiltModule, collective: Collective
) -> TrainedModule:
    spec = built.spec
    stream, loss_stream = (random_stream(config.seed, spec.name(name), collective.rank) for name in ("learner", "loss"))
    loss = make_loss(spec.algorithm)
    return TrainedModule(spec.module_id, module, loss, spec.algorithm, stream, loss_stream, collective)


def make_loss(algorithm: AlgorithmConfig) -> Loss:
    """Make the loss of an algorithm.

    Raises:
        ConfigError: the target is not a loss, or its constructor fails.
    """
    loss_class = import_target(algorithm.loss, "algorithm.loss", Loss)
    try:
        loss: Loss = loss_class(_with_objects(algorithm))
    except Exception as error:
        if not is_user_defined(loss_class):
            raise
        problem = problem_of(error, "algorithm.loss")
        if is_bad_call(error):
            where = f"algorithm.loss, {place_of(loss_class, '__init__')}"
            problem = Problem(str(error), where, expected="__init__(self, config)")
        raise ConfigError([problem]) from error
    return loss


def _with_objects(algorithm: AlgorithmConfig) -> AlgorithmConfig:
    """Return the configuration with targets in the fields of a user's dataclass replaced by their objects."""
    shared = names_of(AlgorithmConfig)
    given = {name: getattr(algorithm, name) for name in names_of(type(algorithm)) if name not in shared}
    made = {
        name: with_callables(value, f"algorithm.{name}")
        for name, value in given.items()
        if isinstance(value, (dict, list))
    }
    changed = {name: value for name, value in made.items() if value != given[name]}
    return replace(algorithm, **changed) if changed else algorithm


def adapting_losses(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> list[str]:
    """Return the names of losses that adapt during training."""
    losses = [
        make_loss(built_modules[module_id].spec.algorithm)
        for module_id in config.multi_agent.trained_modules(list(built_modules))
    ]
    return [type(loss).__name__ for loss in losses if loss.adapts]
