"""Builds the pipeline of recorded data, and the evaluation on held-out data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.offline_evaluation import off_policy_methods
from runner.config.operators import ENV_RUNNERS
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.experiment.learner_builder import columns_of_learner, make_loss
from runner.module_building import BuiltModule, ModuleSpec, build_module, has_several_agents, on_device
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.raw_observations import raw_filters
from runner.pipelines.requirements import Requirements

if TYPE_CHECKING:
    from runner.offline.evaluation.held_out import HeldOutAgents, HeldOutEvaluation
    from runner.offline.formats.selection import ModuleAgents
    from runner.offline.reading.recorded_source import RecordedSource
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.prelearner import PreLearnerParts

    HeldOut = HeldOutEvaluation | HeldOutAgents


def check_recorded_data(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]
) -> dict[str, RecordedSource]:
    """Reject experiments that cannot learn from recorded data, before Ray is started.

    Returns:
        Module id -> its data, for all modules that learn; see `preflight.check_recorded_data`. Data that only Ray or
        custom code can read is missing.

    Raises:
        ConfigError: a connector does not support recorded data, or the data is not valid.
    """
    learning = config.multi_agent.trained_modules(list(built_modules))
    found = {id_: _check_data_of(config, built_modules[id_], agents_read_for(built_modules, id_)) for id_ in learning}
    return {module_id: source for module_id, source in found.items() if source is not None}


def agents_read_for(built_modules: Mapping[str, BuiltModule], module_id: str) -> ModuleAgents | None:
    """Return the agents whose recorded episodes a module learns from; None with a single agent."""
    from runner.offline.formats.selection import ModuleAgents

    agents = built_modules[module_id].spec.agents
    if agents is None:
        return None
    others = [
        agent for id_, of_other in built_modules.items() if id_ != module_id for agent in of_other.spec.agents or ()
    ]
    return ModuleAgents(module_id, agents, tuple(others))


def _check_data_of(config: ExperimentConfig, built: BuiltModule, agents: ModuleAgents | None) -> RecordedSource | None:
    from runner.offline.training import preflight

    learning = _connectors_that_learn(built)
    if learning and ENV_RUNNERS in needs_of(config):
        what = f"{learning[0]} learns from sampled env steps, so its output for recorded steps would be outdated"
        expected = "connectors without a learned state, or a plan that learns only from Replay"
        raise ConfigError([Problem(what, "connectors.env_to_module", expected=expected)])
    readers = _connectors_that_read_the_module(built)
    if readers and config.offline.materialize_mapped_data:
        problem = Problem(
            f"{readers[0]} uses the module, so train batches that are made once would become outdated",
            where="offline.materialize_mapped_data",
            got="true",
            expected="false",
            fix="offline.materialize_data=true keeps the data in memory instead",
        )
        raise ConfigError([problem])
    source = preflight.check_recorded_data(config, built, agents)
    if learning and (source is None or source.may_be_endless):
        reason = "only Ray can read this data" if source is None else "a function that yields episodes may never end"
        what = f"{learning[0]} must learn from all recorded observations before training, but {reason}"
        expected = "files, without a function of Ray Data and without a custom pre-learner or data class"
        raise ConfigError([Problem(what, "connectors.env_to_module", str(config.offline.input_), expected)])
    return source


def build_recorded_data(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], recorded: Mapping[str, RecordedSource]
) -> OfflineData:
    """Make the pipelines of recorded data from the sources that `check_recorded_data` opened."""
    from runner.offline.training.data_of_modules import OfflineDataOfModules

    if DEFAULT_MODULE_ID in built_modules and built_modules[DEFAULT_MODULE_ID].spec.agents is None:
        return _build_pipeline(config, built_modules[DEFAULT_MODULE_ID], recorded.get(DEFAULT_MODULE_ID))
    pipelines = {
        id_: _build_pipeline(config, built_modules[id_], source, len(recorded)) for id_, source in recorded.items()
    }
    return OfflineDataOfModules(config, pipelines)


def _build_pipeline(
    config: ExperimentConfig, built: BuiltModule, recorded: RecordedSource | None, num_pipelines: int = 1
) -> OfflineData:
    from runner.offline.files.ray_data import set_up_ray_data
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.preflight import statistics_of
    from runner.offline.training.workers import ModuleBoard

    readers = _connectors_that_read_the_module(built)
    set_up_ray_data()
    if config.offline.offline_data_class is None:
        data = OfflineData(config, recorded, built.spec.module_id, num_pipelines)
    else:
        data = import_target(config.offline.offline_data_class, "offline.offline_data_class", OfflineData)(config)
    if _connectors_that_learn(built):
        assert recorded is not None  # check_recorded_data has rejected this case
        data.shared_state = {built.spec.module_id: statistics_of(recorded, built.env_to_module, built.module)}
    data.connect(PlannedModule(config, built.spec, data.shared_state), ModuleBoard() if readers else None)
    return data


def _connectors_that_learn(built: BuiltModule) -> list[str]:
    """Return the classes of connectors that learn from observations and change the observations in episodes."""
    raw = raw_filters(built.env_to_module).values()
    connectors = [one for one in built.env_to_module.single_connectors() if one.shares_state]
    return [type(connector).__name__ for connector in connectors if connector not in raw]


def _connectors_that_read_the_module(built: BuiltModule) -> list[str]:
    return [
        type(connector).__name__
        for connector in built.learner.single_connectors()
        if Requirements.of(connector).reads_module
    ]


@dataclass(frozen=True)
class PlannedModule:
    """Factory of the parts of a pre-learner, called in its worker process.

    Attributes:
        shared_state: module id -> connector name -> state learned from observations; it does not change any more.
    """

    config: ExperimentConfig
    spec: ModuleSpec
    shared_state: Mapping[str, Any]

    def with_shared_state(self, shared_state: Mapping[str, Any]) -> PlannedModule:
        """Return a copy with these states of connectors."""
        return replace(self, shared_state=shared_state)

    @property
    def observation_space(self) -> gym.Space[Any]:
        """The observation space of the environment."""
        return self.spec.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """The action space of the environment."""
        return self.spec.action_space

    def build(self) -> PreLearnerParts:
        """Make the module and the learner pipeline, on a GPU if `offline.map_batches_kwargs` requests one."""
        from runner.offline.training.prelearner import PreLearnerParts
        from runner.offline.training.workers import actor_options

        device = "auto" if actor_options(self.config.offline).get("num_gpus") else "cpu"
        built = build_module(on_device(self.config, device), self.spec)
        built.env_to_module.freeze()
        built.env_to_module.set_state(self.shared_state.get(self.spec.module_id, {}))
        columns = columns_of_learner(self.spec, built.module)
        return PreLearnerParts(built.module, built.env_to_module, built.learner, columns)


def build_held_out_evaluation(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> HeldOut | None:
    """Make the evaluation on held-out data, with separate modules; None if there is no such data.

    Raises:
        ConfigError: the data does not fit, or an off-policy estimate does not support several agents.
    """
    held_out = config.evaluation.offline_evaluation_input_
    if held_out is None:
        return None
    if has_several_agents({module_id: built.spec for module_id, built in built_modules.items()}):
        return _build_held_out_agents(config, built_modules)
    from runner.offline.evaluation.held_out import HeldOutEvaluation

    spec = built_modules[DEFAULT_MODULE_ID].spec
    return HeldOutEvaluation(config, build_module(config, spec), make_loss(spec.algorithm))


def _build_held_out_agents(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> HeldOutAgents:
    """Make an evaluation for each agent whose module is trained."""
    from runner.offline.evaluation.held_out import HeldOutAgents, HeldOutEvaluation, check_methods_of_agents
    from runner.offline.formats.selection import ModuleAgents

    check_methods_of_agents(off_policy_methods(config.evaluation))
    every = [agent for built in built_modules.values() for agent in built.spec.agents or ()]
    evaluations = {}
    for module_id in config.multi_agent.trained_modules(list(built_modules)):
        spec = built_modules[module_id].spec
        for agent in spec.agents or ():
            others = tuple(other for other in every if other != agent)
            own, loss = build_module(config, spec), make_loss(spec.algorithm)
            evaluations[agent] = HeldOutEvaluation(config, own, loss, ModuleAgents(module_id, (agent,), others))
    return HeldOutAgents(evaluations)
