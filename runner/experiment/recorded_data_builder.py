"""Construction of the pipeline of recorded data, and of the evaluation on held-out data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.experiment.learner_builder import columns_of_learner
from runner.learners.loss import Loss
from runner.module_parts import ModuleParts, ModulePlan, build_module_parts, has_several_agents, on_device
from runner.pipelines.piece import DEFAULT_MODULE_ID, ConnectorPiece

if TYPE_CHECKING:
    from runner.offline.evaluation.held_out import HeldOutEvaluation
    from runner.offline.reading.recorded_source import Source
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.prelearner import PreLearnerParts


def check_recorded_data(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> Source | None:
    """Refuse experiments that cannot learn from recorded data, before Ray is started.

    Returns:
        The data, see `preflight.check_recorded_data`.

    Raises:
        ConfigError: there are several agents, a piece does not go with recorded data, or the data are not good.
    """
    from runner.offline.training import preflight

    if has_several_agents({module_id: module_parts.plan for module_id, module_parts in parts.items()}):
        what = "recorded data of several agents cannot be learned from yet"
        raise ConfigError([Problem(what, "offline.input_", str(config.offline.input_), "a single-agent environment")])
    module_parts = parts[DEFAULT_MODULE_ID]
    for piece in module_parts.env_to_module.single_pieces():
        if type(piece).merge_states is not ConnectorPiece.merge_states and not getattr(piece, "leaves_raw", False):
            what = f"{type(piece).__name__} learns from env steps that are sampled, and this run samples none"
            allowed = "pieces without such a state; the same pieces act in evaluation and on recorded data"
            raise ConfigError([Problem(what, "connectors.env_to_module", allowed=allowed)])
    readers = _pieces_that_read_the_module(module_parts)
    if readers and config.offline.materialize_mapped_data:
        problem = Problem(
            f"{readers[0]} computes with the module; train batches that are made once would not follow its training",
            where="offline.materialize_mapped_data",
            got="true",
            allowed="false; offline.materialize_data=true keeps what is read in memory",
        )
        raise ConfigError([problem])
    return preflight.check_recorded_data(config, module_parts)


def build_recorded_data(config: ExperimentConfig, parts: ModuleParts, recorded: Source | None) -> OfflineData:
    """Make the pipeline of recorded data; `recorded` is what `check_recorded_data` has opened."""
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.workers import ModuleBoard, quiet_ray_data

    readers = _pieces_that_read_the_module(parts)
    quiet_ray_data()
    if config.offline.offline_data_class is None:
        data = OfflineData(config, recorded)
    else:
        data = import_target(config.offline.offline_data_class, "offline.offline_data_class", OfflineData)(config)
    data.connect(PlannedModule(config, parts.plan), ModuleBoard() if readers else None)
    return data


def _pieces_that_read_the_module(parts: ModuleParts) -> list[str]:
    return [type(piece).__name__ for piece in parts.learner.single_pieces() if piece.reads_module]


@dataclass(frozen=True)
class PlannedModule:
    """A plan that makes the parts of a pre-learner in the worker that it is sent to."""

    config: ExperimentConfig
    plan: ModulePlan

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Of the environment."""
        return self.plan.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Of the environment."""
        return self.plan.action_space

    def build(self) -> PreLearnerParts:
        """Make module and learner pipeline, on a GPU where `offline.map_batches_kwargs` asks for one."""
        from runner.offline.training.prelearner import PreLearnerParts

        device = "auto" if self.config.offline.map_batches_kwargs.get("num_gpus") else "cpu"
        parts = build_module_parts(on_device(self.config, device), self.plan)
        columns = columns_of_learner(self.plan, parts.module)
        return PreLearnerParts(parts.module, parts.env_to_module, parts.learner, columns)


def build_held_out_evaluation(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> HeldOutEvaluation | None:
    """Make the evaluation on held-out data, with a separate module; None if no such data are named.

    Raises:
        ConfigError: there are several agents, or the data do not fit.
    """
    held_out = config.evaluation.offline_evaluation_input_
    if held_out is None:
        return None
    if has_several_agents({module_id: module_parts.plan for module_id, module_parts in parts.items()}):
        what = "several agents cannot be evaluated on recorded data yet"
        allowed = "null, or a single-agent environment"
        raise ConfigError([Problem(what, "evaluation.offline_evaluation_input_", str(held_out), allowed)])
    from runner.offline.evaluation.held_out import HeldOutEvaluation

    plan = parts[DEFAULT_MODULE_ID].plan
    loss: Loss = import_target(plan.algorithm.loss, "algorithm.loss", Loss)(plan.algorithm)
    return HeldOutEvaluation(config, build_module_parts(config, plan), loss)
