"""From a checked configuration to env runners, pipelines, modules and learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import torch

from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import LocalHandle, RemoteHandle, ensure_ray
from runner.env_runners.vector_envs import make_vector_env
from runner.learners.learner import Learner
from runner.learners.learner_group import LearnerGroup
from runner.modules.rl_module import RLModule
from runner.pipelines.defaults import env_to_module_pipeline, learner_pipeline, module_to_env_pipeline
from runner.pipelines.piece import ACTIONS, ACTIONS_FOR_ENV, DEFAULT_MODULE_ID, ConnectorPiece
from runner.pipelines.pipeline import EnvToModulePipeline, LearnerConnectorPipeline, ModuleToEnvPipeline
from runner.streams import integer_seed, random_stream

Space = gym.Space[Any]
_CPU = torch.device("cpu")
TRAINING, EVALUATION = "env_runner", "evaluation"


@dataclass(frozen=True)
class EnvPipelines:
    """The two pipelines around the module of an env runner. `recorded`: the extra model outputs that they leave."""

    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline
    recorded: tuple[str, ...]


@dataclass(frozen=True)
class Pipelines(EnvPipelines):
    """The three pipelines of an experiment, checked against each other and against the loss."""

    learner: LearnerConnectorPipeline


def spaces_of(config: ExperimentConfig) -> tuple[Space, Space]:
    """Observation and action space of one sub-environment."""
    env = make_vector_env(config.env, 1, config.env_runners.gym_env_vectorize_mode, config.seed)
    spaces = env.single_observation_space, env.single_action_space
    env.close()
    return spaces


def build_pipelines(config: ExperimentConfig, spaces: tuple[Space, Space]) -> Pipelines:
    """The default pipelines with the edits of the configuration.

    Raises:
        ConfigError: an unknown anchor, a piece that cannot be made or cannot use the spaces, or one that reads what
            nothing writes.
    """
    env_pipelines = build_env_pipelines(config, spaces)
    action_space = env_pipelines.module_to_env.action_space
    with _space_errors(spaces):
        learner = learner_pipeline(
            env_pipelines.env_to_module.observation_space,
            action_space,
            learner_device(config),
            [*config.algorithm.learner_pipeline, *config.connectors.learner],
            make_piece,
            env_pipelines.recorded,
        )
    loss = import_target(config.algorithm.loss, "algorithm.loss")
    _check_loss_reads(loss.reads, set(learner.check_order(())), config.algorithm.loss)
    learner.give_streams(lambda name, position: random_stream(config.seed, name, position))
    return Pipelines(**vars(env_pipelines), learner=learner)


def build_env_pipelines(config: ExperimentConfig, spaces: tuple[Space, Space]) -> EnvPipelines:
    """The pipelines of an env runner; raises as `build_pipelines` does."""
    edits = config.connectors
    with _space_errors(spaces):
        env_to_module = env_to_module_pipeline(*spaces, _CPU, edits.env_to_module, make_piece)
        module_to_env = module_to_env_pipeline(
            *spaces, config.env.normalize_actions, config.env.clip_actions, edits.module_to_env, make_piece
        )
    env_to_module.check_order(())
    module_class = import_target(config.module._target_, "module._target_", RLModule)
    acted = {*module_to_env.check_order(module_class.outputs), *module_to_env.writes_per_fragment}
    return EnvPipelines(env_to_module, module_to_env, tuple(sorted(acted - {ACTIONS, ACTIONS_FOR_ENV})))


@contextmanager
def _space_errors(spaces: tuple[Space, Space]) -> Iterator[None]:
    """A piece that cannot use the spaces raises TypeError from its `recompute_output_..._space`."""
    try:
        yield
    except TypeError as error:
        got = f"observations of {spaces[0]}, actions of {spaces[1]}"
        raise ConfigError([Problem(str(error), where="connectors", got=got)]) from error


def _check_loss_reads(reads: tuple[str, ...], available: set[str], loss: str) -> None:
    missing = [column for column in reads if column not in available]
    if missing:
        problem = Problem(
            f"{loss} reads {', '.join(missing)}, which no piece of the learner pipeline writes",
            where="algorithm.learner_pipeline, connectors.learner",
            allowed=", ".join(sorted(available)),
        )
        raise ConfigError([problem])


def make_piece(block: Mapping[str, Any]) -> ConnectorPiece:
    """A piece of a YAML block `{_target_: dotted path, arguments}`."""
    arguments = dict(block)
    path = arguments.pop("_target_")
    piece_class = import_target(path, "connectors", ConnectorPiece)
    try:
        piece: ConnectorPiece = piece_class(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"{path} cannot be made: {error}", "connectors", str(arguments))]) from error
    return piece


def build_module(config: ExperimentConfig, env_to_module: EnvToModulePipeline, action_space: Space) -> RLModule:
    """The module for the spaces between the pipelines; its weights follow from the run's seed alone."""
    module_class = import_target(config.module._target_, "module._target_", RLModule)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer_seed(config.seed, "module"))
        try:
            module: RLModule = module_class(env_to_module.observation_space, action_space, config.module)
        except (TypeError, ValueError) as error:
            raise ConfigError([Problem(str(error), where="module", got=config.module._target_)]) from error
    if module.is_stateful:  # acting without its memory would go wrong without a word
        raise ConfigError([Problem("modules with memory are not supported", "module", config.module._target_)])
    return module


def learner_device(config: ExperimentConfig) -> torch.device:
    """The device that `learners.device` names; `auto` is a GPU where there is one."""
    name = config.learners.device
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = Problem(f"the device {name} is not there: {error}", where="learners.device", got=name)
        raise ConfigError([problem]) from error
    return device


def build_env_runner(config: ExperimentConfig, role: str, index: int, generation: int) -> SingleAgentEnvRunner:
    """One env runner with everything it needs; runs in the process that will step it."""
    is_evaluation = role == EVALUATION
    num_envs = (config.evaluation if is_evaluation else config.env_runners).num_envs_per_env_runner
    env = make_vector_env(config.env, num_envs, config.env_runners.gym_env_vectorize_mode, config.seed)
    pipelines = build_env_pipelines(config, (env.single_observation_space, env.single_action_space))
    if is_evaluation:
        pipelines.env_to_module.freeze()
        pipelines.module_to_env.freeze()
    return SingleAgentEnvRunner(
        env,
        build_module(config, pipelines.env_to_module, env.single_action_space),
        pipelines.env_to_module,
        pipelines.module_to_env,
        (role, index, 0 if is_evaluation else generation),  # evaluation always has the same seeds
        config.seed,
        config.env_runners.episode_lookback_horizon,
    )


def build_env_runner_group(config: ExperimentConfig, role: str, pipelines: EnvPipelines) -> EnvRunnerGroup:
    """The env runners of a role: Ray actors, or in this process for 0 of them and for `engine: inline`."""
    runners = config.env_runners
    is_evaluation = role == EVALUATION
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.num_env_runners
    make_runner = partial(build_env_runner, config, role)
    title = "evaluation runner" if is_evaluation else "env runner"
    max_restarts = runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0
    if num_remote == 0 or config.engine == "inline":
        make_local = partial(LocalHandle, make_runner)
        return EnvRunnerGroup(make_local, max(1, num_remote), pipelines.env_to_module, max_restarts, title)
    import ray

    make_remote = partial(
        RemoteHandle,
        make_runner,
        num_cpus=runners.num_cpus_per_env_runner,
        num_gpus=runners.num_gpus_per_env_runner,
        timeout_s=config.evaluation.evaluation_sample_timeout_s if is_evaluation else runners.sample_timeout_s,
    )
    return EnvRunnerGroup(make_remote, num_remote, pipelines.env_to_module, max_restarts, title, ray.put)


def start_ray(config: ExperimentConfig) -> bool:
    """Make sure of a Ray cluster where the configuration needs one; true when this call started it."""
    num_remote = config.env_runners.num_env_runners + config.evaluation.evaluation_num_env_runners
    if num_remote == 0 or config.engine == "inline":
        return False
    runners = config.env_runners
    return ensure_ray(num_remote * runners.num_cpus_per_env_runner, num_remote * runners.num_gpus_per_env_runner)


def build_learner_group(config: ExperimentConfig, pipelines: Pipelines) -> LearnerGroup:
    """The learners, with the learner pipeline before them."""
    action_space = pipelines.module_to_env.action_space
    module = build_module(config, pipelines.env_to_module, action_space).to(learner_device(config))
    loss = import_target(config.algorithm.loss, "algorithm.loss")(config.algorithm)
    learner = Learner(module, loss, config.algorithm, random_stream(config.seed, "learner", 0))
    return LearnerGroup({DEFAULT_MODULE_ID: learner}, pipelines.learner)
