"""Modules with the pipelines around them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from runner.config.schemas import ExperimentConfig
from runner.module_building.module_spec import ModuleSpec
from runner.modules.flat_parameters import FlatParameters, flat_values
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline, ModuleToEnvPipeline

M = TypeVar("M", bound="BuiltActingModule")


@dataclass(frozen=True)
class BuiltActingModule:
    """A module and the pipelines around it.

    Attributes:
        recorded: names of the extra model outputs in episodes.
        together: MultiRLModule that contains this module, from `multi_agent.multi_rl_module`, or None.
    """

    spec: ModuleSpec
    module: RLModule
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline
    recorded: tuple[str, ...]
    together: MultiRLModule | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class BuiltModule(BuiltActingModule):
    """A module with all of its pipelines, checked against each other and against the loss."""

    learner: LearnerConnectorPipeline


def acting_modules(built_modules: Mapping[str, M]) -> dict[str, M]:
    """Return the modules without auxiliary modules."""
    return {module_id: built for module_id, built in built_modules.items() if built.spec.trains_on is None}


def networks_of(built_modules: Mapping[str, BuiltActingModule]) -> dict[str, RLModule | MultiRLModule]:
    """Return the networks whose parameters are sent as one vector each.

    A network is one module, under its id, or all modules that are evaluated together, under `ALL_MODULES`.
    """
    return {
        module_id if built.together is None else ALL_MODULES: built.module if built.together is None else built.together
        for module_id, built in built_modules.items()
    }


def weights_of(built_modules: Mapping[str, BuiltActingModule]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the parameters of a run's modules in the form that env runners expect."""
    return {key: flat_values(network) for key, network in networks_of(built_modules).items()}


def weights_by_module(
    built_modules: Mapping[str, BuiltActingModule], weights: Mapping[str, npt.NDArray[np.float32]]
) -> Mapping[str, npt.NDArray[np.float32]]:
    """Split the parameters of a run by module. If `built_modules` are evaluated together, their MultiRLModule
    is loaded with the parameters.
    """
    together = next(iter(built_modules.values())).together
    if together is None:
        return weights
    FlatParameters(together).load(weights[ALL_MODULES])
    return {module_id: flat_values(module) for module_id, module in together.items()}


def encoding_doubts(built_modules: Mapping[str, BuiltActingModule]) -> list[str]:
    """Return distinct warnings about observations whose layout or image scale is ambiguous."""
    doubts = {
        doubt if built.spec.agents is None else f"{module_id}: {doubt}": None
        for module_id, built in built_modules.items()
        for encoder in built.module.modules()
        if isinstance(encoder, ObservationEncoder)
        for doubt in encoder.doubts
    }
    return list(doubts)


def reported_metrics(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> dict[str, str]:
    """Return metric -> meaning for all metrics that connectors report, except in learner pipelines of modules that are
    not updated.
    """
    trained = config.multi_agent.trained_modules(list(built_modules))
    names: dict[str, str] = {}
    for module_id, of_module in built_modules.items():
        acting = [of_module.env_to_module, of_module.module_to_env] if of_module.spec.trains_on is None else []
        learner = [of_module.learner] if module_id in trained else []
        for pipeline in (*acting, *learner):
            names |= pipeline.reported_metrics(module_id)
    return names


def lookback_of(config: ExperimentConfig, built_modules: Mapping[str, BuiltActingModule]) -> int:
    """Return the number of past steps that episodes keep: the configured number, or more if a connector needs more."""
    needed = [
        pipeline.requires.num_lookback
        for built in built_modules.values()
        for pipeline in (built.env_to_module, built.module_to_env)
    ]
    return max(config.env_runners.episode_lookback_horizon, *needed)
