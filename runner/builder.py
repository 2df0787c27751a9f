"""From a checked configuration to env runners, modules and learners."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import EnvRunner, LocalHandle, RemoteHandle, ensure_ray
from runner.env_runners.multi_agent_env_runner import ActingModule, MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.vector_envs import make_multi_agent_env, make_vector_env
from runner.learners.learner import Learner
from runner.learners.learner_group import LearnerGroup
from runner.module_parts import (
    ActingParts,
    ModuleParts,
    ModulePlan,
    build_acting_parts,
    build_module_parts,
    is_multi_agent,
    plan_modules,
)
from runner.pipelines.piece import DEFAULT_MODULE_ID
from runner.streams import random_stream

TRAINING, EVALUATION = "env_runner", "evaluation"


def build_parts(config: ExperimentConfig) -> dict[str, ModuleParts]:
    """Module id -> network and pipelines."""
    return {module_id: build_module_parts(config, plan) for module_id, plan in plan_modules(config).items()}


def build_env_runner(
    config: ExperimentConfig, plans: Mapping[str, ModulePlan], role: str, index: int, generation: int
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
    return SingleAgentEnvRunner(
        env, own.module, own.env_to_module, own.module_to_env, seed_name, config.seed, num_lookback
    )


def _acting_module(parts: ActingParts) -> ActingModule:
    return ActingModule(parts.module, parts.plan.agents or (), parts.env_to_module, parts.module_to_env)


def lookback_of(config: ExperimentConfig, parts: Mapping[str, ActingParts]) -> int:
    """Past steps that episodes keep: what the configuration says, or what a piece needs if that is more."""
    needed = [pipeline.num_lookback for own in parts.values() for pipeline in (own.env_to_module, own.module_to_env)]
    return max(config.env_runners.episode_lookback_horizon, *needed)


def build_env_runner_group(config: ExperimentConfig, role: str, parts: Mapping[str, ModuleParts]) -> EnvRunnerGroup:
    """The env runners of a role: Ray actors, or in this process for 0 of them and for `engine: inline`."""
    runners = config.env_runners
    is_evaluation = role == EVALUATION
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.num_env_runners
    plans = {module_id: own.plan for module_id, own in parts.items()}
    pipelines = {module_id: own.env_to_module for module_id, own in parts.items()}
    make_runner = partial(build_env_runner, config, plans, role)
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


def start_ray(config: ExperimentConfig) -> bool:
    """Make sure of a Ray cluster where the configuration needs one; true when this call started it."""
    num_remote = config.env_runners.num_env_runners + config.evaluation.evaluation_num_env_runners
    if num_remote == 0 or config.engine == "inline":
        return False
    runners = config.env_runners
    return ensure_ray(num_remote * runners.num_cpus_per_env_runner, num_remote * runners.num_gpus_per_env_runner)


def build_learner_group(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> LearnerGroup:
    """The learners, one a module, each with its learner pipeline before it."""
    learners = {module_id: _build_learner(config, own) for module_id, own in parts.items()}
    to_train = config.multi_agent.modules_to_train
    pipelines = {module_id: own.learner for module_id, own in parts.items()}
    return LearnerGroup(learners, pipelines, list(parts) if to_train is None else to_train)


def _build_learner(config: ExperimentConfig, parts: ModuleParts) -> Learner:
    algorithm = parts.plan.algorithm
    loss = import_target(algorithm.loss, "algorithm.loss")(algorithm)
    return Learner(parts.module, loss, algorithm, random_stream(config.seed, parts.plan.name("learner"), 0))
