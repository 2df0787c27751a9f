"""The parts of a module: its network and the pipelines around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runner.config.schemas import ExperimentConfig
from runner.module_building.module_spec import ModuleSpec
from runner.modules.flat_parameters import FlatParameters, flat_values
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.modules.observation_encoder import ObservationEncoder
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline, ModuleToEnvPipeline


@dataclass(frozen=True)
class ActingModule:
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
class BuiltModule(ActingModule):
    """All parts of a module, checked against each other and against the loss."""

    learner: LearnerConnectorPipeline


def networks_of(parts: Mapping[str, ActingModule]) -> dict[str, RLModule | MultiRLModule]:
    """Return the networks whose parameters are sent as one vector each: the modules by id, or all modules joined."""
    together = next(iter(parts.values())).together
    if together is not None:
        return {ALL_MODULES: together}
    return {module_id: module_parts.module for module_id, module_parts in parts.items()}


def weights_of(parts: Mapping[str, ActingModule]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the parameters of a run's modules in the form that env runners expect."""
    return {key: FlatParameters(network).to_numpy() for key, network in networks_of(parts).items()}


def weights_by_module(
    parts: Mapping[str, ActingModule], weights: Mapping[str, npt.NDArray[np.float32]]
) -> Mapping[str, npt.NDArray[np.float32]]:
    """Split the parameters of a run by module. If `parts` are evaluated together, their MultiRLModule
    is loaded with the parameters.
    """
    together = next(iter(parts.values())).together
    if together is None:
        return weights
    FlatParameters(together).load(weights[ALL_MODULES])
    return {module_id: flat_values(module) for module_id, module in together.items()}


def encoding_doubts(parts: Mapping[str, ActingModule]) -> list[str]:
    """Return distinct warnings about observations whose layout or image scale is ambiguous."""
    doubts = {
        doubt if module_parts.spec.agents is None else f"{module_id}: {doubt}": None
        for module_id, module_parts in parts.items()
        for encoder in module_parts.module.modules()
        if isinstance(encoder, ObservationEncoder)
        for doubt in encoder.doubts
    }
    return list(doubts)


def reported_metrics(config: ExperimentConfig, parts: Mapping[str, BuiltModule]) -> dict[str, str]:
    """Return metric -> meaning for all metrics that connectors report, except in learner pipelines of modules that are
    not updated.
    """
    trained = config.multi_agent.trained_modules(list(parts))
    names: dict[str, str] = {}
    for module_id, of_module in parts.items():
        learner = [of_module.learner] if module_id in trained else []
        for pipeline in (of_module.env_to_module, of_module.module_to_env, *learner):
            names |= pipeline.reported_metrics(module_id)
    return names


def lookback_of(config: ExperimentConfig, parts: Mapping[str, ActingModule]) -> int:
    """Return the number of past steps that episodes keep: the configured number, or more if a connector needs more."""
    needed = [
        pipeline.requires.num_lookback
        for module_parts in parts.values()
        for pipeline in (module_parts.env_to_module, module_parts.module_to_env)
    ]
    return max(config.env_runners.episode_lookback_horizon, *needed)
