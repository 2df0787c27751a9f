"""From a checked configuration to env runners, modules and learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.metrics import learns_offline
from runner.config.schemas import ExperimentConfig
from runner.dataflow.experience import Experience
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import EnvRunner, LocalHandle, RemoteHandle, ensure_ray
from runner.env_runners.multi_agent_env_runner import ActingModule, MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.vector_envs import make_multi_agent_env, make_vector_env
from runner.learners.learner import Learner
from runner.learners.learner_group import LearnerGroup
from runner.learners.loss import Loss
from runner.module_parts import (
    ActingParts,
    ModuleParts,
    ModulePlan,
    build_acting_parts,
    build_module_parts,
    is_multi_agent,
    learner_device,
    plan_modules,
)
from runner.pipelines.piece import DEFAULT_MODULE_ID
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.offline.prelearner import PreLearnerParts
    from runner.offline.recorder import EpisodeRecorder

TRAINING, EVALUATION = "env_runner", "evaluation"


def build_parts(config: ExperimentConfig) -> dict[str, ModuleParts]:
    """Module id -> network and pipelines."""
    return {module_id: build_module_parts(config, plan) for module_id, plan in plan_modules(config).items()}


def build_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModulePlan],
    role: str,
    index: int,
    generation: int,
    is_recording: bool = False,
) -> EnvRunner:
    """One env runner with everything it needs; runs in the process that will step it."""
    is_evaluation = role == EVALUATION
    num_envs = (config.evaluation if is_evaluation else config.env_runners).num_envs_per_env_runner
    parts = {module_id: build_acting_parts(config, plan) for module_id, plan in plans.items()}
    if is_evaluation:
        for own in parts.values():
            own.env_to_module.freeze()
            own.module_to_env.freeze()
    seed_name = (role, index, 0 if is_evaluation else generation)  # evaluation always has the same seeds
    num_lookback = lookback_of(config, parts)
    if is_multi_agent(config):
        envs = MultiAgentEnvironments(lambda: make_multi_agent_env(config.env), num_envs, config.seed)
        acting = {module_id: _acting_module(own) for module_id, own in parts.items()}
        return MultiAgentEnvRunner(envs, acting, seed_name, config.seed, num_lookback)
    own = parts[DEFAULT_MODULE_ID]
    env = make_vector_env(config.env, num_envs, config.env_runners.gym_env_vectorize_mode, config.seed)
    runner = SingleAgentEnvRunner(
        env, own.module, own.env_to_module, own.module_to_env, seed_name, config.seed, num_lookback
    )
    if is_recording:
        runner.recorder = _build_recorder(config, own.plan, f"{role}-{index}-{generation}")
    return runner


def _build_recorder(config: ExperimentConfig, plan: ModulePlan, writer_id: str) -> EpisodeRecorder:
    from runner.offline.layout import Spaces
    from runner.offline.recorder import EpisodeRecorder
    from runner.offline.writer import EpisodeWriter

    spaces = Spaces(plan.observation_space, plan.action_space)
    env_name = config.env.env or config.env._target_
    return EpisodeRecorder(EpisodeWriter(config.offline, spaces, env_name, writer_id))


def _acting_module(parts: ActingParts) -> ActingModule:
    return ActingModule(parts.module, parts.plan.agents or (), parts.env_to_module, parts.module_to_env)


def lookback_of(config: ExperimentConfig, parts: Mapping[str, ActingParts]) -> int:
    """Past steps that episodes keep: what the configuration says, or what a piece needs if that is more."""
    needed = [pipeline.num_lookback for own in parts.values() for pipeline in (own.env_to_module, own.module_to_env)]
    return max(config.env_runners.episode_lookback_horizon, *needed)


def build_experience(
    config: ExperimentConfig, parts: Mapping[str, ModuleParts], is_recording: bool = False
) -> Experience:
    """What the experiment learns from: recorded data if `offline` names some, else env runners."""
    if not learns_offline(config):
        return build_env_runner_group(config, TRAINING, parts, is_recording)
    if is_multi_agent(config):
        what = "recorded data of several agents cannot be learned from yet"
        raise ConfigError([Problem(what, "offline.input_", str(config.offline.input_), "a single-agent environment")])
    return _build_offline_data(config, parts[DEFAULT_MODULE_ID])


def _build_offline_data(config: ExperimentConfig, parts: ModuleParts) -> Experience:
    from runner.offline.offline_data import OfflineData
    from runner.offline.workers import ModuleBoard

    readers = [type(piece).__name__ for piece in parts.learner if piece.reads_module]
    if readers and config.offline.materialize_mapped_data:
        problem = Problem(
            f"{readers[0]} computes with the module; train batches that are made once would not follow its training",
            where="offline.materialize_mapped_data",
            got="true",
            allowed="false; offline.materialize_data=true keeps what is read in memory",
        )
        raise ConfigError([problem])
    data_class = OfflineData
    if config.offline.offline_data_class is not None:
        data_class = import_target(config.offline.offline_data_class, "offline.offline_data_class", OfflineData)
    data = data_class(config)
    data.connect(PlannedModule(config, parts.plan), learner_device(config), ModuleBoard() if readers else None)
    return data


@dataclass(frozen=True)
class PlannedModule:
    """Makes the parts of a pre-learner in the worker that it is sent to."""

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
        """Module and learner pipeline on the CPU."""
        from runner.offline.prelearner import PreLearnerParts

        on_cpu = replace(self.config, learners=replace(self.config.learners, device="cpu"))
        parts = build_module_parts(on_cpu, self.plan)
        loss = import_target(self.plan.algorithm.loss, "algorithm.loss", Loss)
        return PreLearnerParts(parts.module, parts.learner, tuple(dict.fromkeys((*parts.module.inputs, *loss.reads))))


def build_env_runner_group(
    config: ExperimentConfig, role: str, parts: Mapping[str, ModuleParts], is_recording: bool = False
) -> EnvRunnerGroup:
    """The env runners of a role: Ray actors, or in this process for 0 of them and for `engine: inline`.

    Raises:
        ConfigError: they shall record, but not to a folder that can be written and has no data.
    """
    if is_recording:
        _prepare_recording(config)
    runners = config.env_runners
    is_evaluation = role == EVALUATION
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.num_env_runners
    plans = {module_id: own.plan for module_id, own in parts.items()}
    pipelines = {module_id: own.env_to_module for module_id, own in parts.items()}
    make_runner = partial(build_env_runner, config, plans, role, is_recording=is_recording)
    title = "evaluation runner" if is_evaluation else "env runner"
    max_restarts = runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0
    if num_remote == 0 or config.engine == "inline":
        make_local = partial(LocalHandle, make_runner)
        return EnvRunnerGroup(make_local, max(1, num_remote), pipelines, max_restarts, title)
    import ray

    make_remote = partial(
        RemoteHandle,
        make_runner,
        num_cpus=runners.num_cpus_per_env_runner,
        num_gpus=runners.num_gpus_per_env_runner,
        timeout_s=config.evaluation.evaluation_sample_timeout_s if is_evaluation else runners.sample_timeout_s,
    )
    return EnvRunnerGroup(make_remote, num_remote, pipelines, max_restarts, title, ray.put)


def _prepare_recording(config: ExperimentConfig) -> None:
    from runner.offline.writer import prepare_output

    if is_multi_agent(config):
        what = "episodes of several agents cannot be recorded yet"
        raise ConfigError([Problem(what, "offline.output", config.offline.output, "null")])
    prepare_output(config.offline)


def start_ray(config: ExperimentConfig) -> bool:
    """Make sure of a Ray cluster where the configuration needs one; true when this call started it."""
    runners = config.env_runners
    is_offline = learns_offline(config)
    num_remote = config.evaluation.evaluation_num_env_runners + (0 if is_offline else runners.num_env_runners)
    if config.engine == "inline":
        num_remote = 0
    num_cpus, num_gpus = num_remote * runners.num_cpus_per_env_runner, num_remote * runners.num_gpus_per_env_runner
    if is_offline:
        from runner.offline.workers import resources_asked_for

        for_data = resources_asked_for(config.offline)
        num_cpus, num_gpus = num_cpus + for_data.num_cpus, num_gpus + for_data.num_gpus
    elif num_remote == 0:
        return False
    return ensure_ray(num_cpus, num_gpus)


def build_learner_group(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> LearnerGroup:
    """The learners, one a module, each with its learner pipeline before it."""
    learners = {module_id: _build_learner(config, own) for module_id, own in parts.items()}
    to_train = config.multi_agent.modules_to_train
    pipelines = {module_id: own.learner for module_id, own in parts.items()}
    return LearnerGroup(learners, pipelines, list(parts) if to_train is None else to_train)


def _build_learner(config: ExperimentConfig, parts: ModuleParts) -> Learner:
    plan, algorithm = parts.plan, parts.plan.algorithm
    loss: Loss = import_target(algorithm.loss, "algorithm.loss", Loss)(algorithm)
    loss.use_stream(random_stream(config.seed, plan.name("loss"), 0))
    return Learner(parts.module, loss, algorithm, random_stream(config.seed, plan.name("learner"), 0))
