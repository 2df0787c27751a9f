"""Construction of env runners, modules and learners from a checked configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.cluster import connected
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.metrics import learns_offline
from runner.config.schemas import ExperimentConfig
from runner.dataflow.experience import Experience
from runner.env_runners.env_makers import make_multi_agent_env, make_vector_env
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import LocalHandle, RemoteHandle
from runner.env_runners.multi_agent_env_runner import ActingModule, MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.sample_recording import SampleRecording
from runner.learners.acted_outputs import ActedOutputs
from runner.learners.learner import Learner
from runner.learners.learner_group import LearnerGroup
from runner.learners.loss import Loss
from runner.learners.peers import Alone, Peers
from runner.learners.remote_learner_group import Learners, RemoteLearnerGroup
from runner.module_parts import (
    ActingParts,
    ModuleParts,
    ModulePlan,
    build_acting_parts,
    build_module_parts,
    has_several_agents,
    learner_device,
    plan_modules,
)
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import DEFAULT_MODULE_ID, ConnectorPiece
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.offline.file_list import FileList
    from runner.offline.held_out import HeldOutEvaluation
    from runner.offline.prelearner import PreLearnerParts
    from runner.offline.recorder import EpisodeRecorder
    from runner.offline.source_stream import Source
    from runner.rllink.env_runner import ExternalEnvRunner

TRAINING, EVALUATION = "env_runner", "evaluation"

EnvRunner = SingleAgentEnvRunner | MultiAgentEnvRunner


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
    run_dir: Path | None = None,
) -> EnvRunner | ExternalEnvRunner:
    """Make an env runner with its modules and pipelines, in the process that will step it."""
    if config.env.is_external and role == TRAINING:
        return _build_external_env_runner(config, plans, (role, index, generation), run_dir, is_recording)
    is_evaluation = role == EVALUATION
    num_envs = (config.evaluation if is_evaluation else config.env_runners).num_envs_per_env_runner
    parts = {module_id: build_acting_parts(config, plan) for module_id, plan in plans.items()}
    if is_evaluation:
        for module_parts in parts.values():
            module_parts.env_to_module.freeze()
            module_parts.module_to_env.freeze()
    seed_name = (role, index, 0 if is_evaluation else generation)  # evaluation always has the same seeds
    num_lookback = lookback_of(config, parts)
    if has_several_agents(plans):
        envs = MultiAgentEnvironments(lambda: make_multi_agent_env(config.env), num_envs, config.seed)
        acting_modules = {module_id: _acting_module(module_parts) for module_id, module_parts in parts.items()}
        return MultiAgentEnvRunner(
            envs, acting_modules, seed_name, config.seed, num_lookback, config.env.observation_check
        )
    module_parts = parts[DEFAULT_MODULE_ID]
    env = make_vector_env(config.env, num_envs, config.env_runners.gym_env_vectorize_mode, config.seed)
    runner = SingleAgentEnvRunner(
        env,
        module_parts.module,
        module_parts.env_to_module,
        module_parts.module_to_env,
        seed_name,
        config.seed,
        num_lookback,
        config.env.observation_check,
    )
    if is_recording:
        runner.recorder = _build_recorder(config, module_parts.plan, f"{role}-{index}-{generation}")
    return runner


def _build_external_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModulePlan],
    seed_name: tuple[str, int, int],
    run_dir: Path | None,
    is_recording: bool,
) -> ExternalEnvRunner:
    from runner.dataflow.on_policy import env_steps_per_round
    from runner.rllink.env_runner import ExternalEnvRunner, Sampling

    parts = {module_id: build_acting_parts(config, plan) for module_id, plan in plans.items()}
    num_runners = max(1, config.env_runners.num_env_runners)
    sampling = Sampling(env_steps_per_round(config), num_runners, lookback_of(config, parts))
    journal_dir = None if run_dir is None else run_dir / "rllink"
    return ExternalEnvRunner(config, plans, seed_name, sampling, journal_dir, is_recording)


def _build_sample_recording(
    config: ExperimentConfig, plans: Mapping[str, ModulePlan], file_list: FileList | None
) -> SampleRecording:
    """Make the recording of simulators' samples, which outlives the servers that they are connected to."""
    (plan,) = plans.values()
    name = secrets.token_hex(4)  # differs from run to run, which may add to the same folder
    return SampleRecording(
        lambda index: _build_recorder(config, plan, f"{TRAINING}-{index}-{name}", file_list),
        max(1, config.env_runners.num_env_runners),
        file_list,
    )


def _build_recorder(
    config: ExperimentConfig, plan: ModulePlan, writer_id: str, file_list: FileList | None = None
) -> EpisodeRecorder:
    from runner.offline.layout import Spaces
    from runner.offline.recorder import EpisodeRecorder
    from runner.offline.writer import EpisodeWriter

    spaces = Spaces(plan.observation_space, plan.action_space)
    env_name = config.env.name
    return EpisodeRecorder(EpisodeWriter(config.offline, spaces, env_name, writer_id, file_list))


def _acting_module(parts: ActingParts) -> ActingModule:
    return ActingModule(parts.module, parts.plan.agents or (), parts.env_to_module, parts.module_to_env)


def lookback_of(config: ExperimentConfig, parts: Mapping[str, ActingParts]) -> int:
    """Return how many past steps episodes keep: the configured number, or the larger need of a piece."""
    needed = [
        pipeline.num_lookback
        for module_parts in parts.values()
        for pipeline in (module_parts.env_to_module, module_parts.module_to_env)
    ]
    return max(config.env_runners.episode_lookback_horizon, *needed)


def check_recorded_data(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> Source | None:
    """Refuse experiments that cannot learn from recorded data, before Ray is started.

    Returns:
        The data, see `preflight.check_recorded_data`.

    Raises:
        ConfigError: there are several agents, a piece does not go with recorded data, or the data are not good.
    """
    from runner.offline import preflight

    if has_several_agents({module_id: module_parts.plan for module_id, module_parts in parts.items()}):
        what = "recorded data of several agents cannot be learned from yet"
        raise ConfigError([Problem(what, "offline.input_", str(config.offline.input_), "a single-agent environment")])
    module_parts = parts[DEFAULT_MODULE_ID]
    for piece in module_parts.env_to_module.single_pieces():
        if type(piece).merge_states is not ConnectorPiece.merge_states:
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


def _pieces_that_read_the_module(parts: ModuleParts) -> list[str]:
    return [type(piece).__name__ for piece in parts.learner.single_pieces() if piece.reads_module]


def build_experience(
    config: ExperimentConfig,
    parts: Mapping[str, ModuleParts],
    is_recording: bool = False,
    run_dir: Path | None = None,
) -> Experience:
    """Make the source of experience: recorded data if `offline` names some, else env runners."""
    if not learns_offline(config):
        return build_env_runner_group(config, TRAINING, parts, is_recording, run_dir)
    return _build_offline_data(config, parts[DEFAULT_MODULE_ID])


def _build_offline_data(config: ExperimentConfig, parts: ModuleParts) -> Experience:
    from runner.offline.offline_data import OfflineData
    from runner.offline.workers import ModuleBoard, quiet_ray_data

    readers = _pieces_that_read_the_module(parts)
    data_class = OfflineData
    if config.offline.offline_data_class is not None:
        data_class = import_target(config.offline.offline_data_class, "offline.offline_data_class", OfflineData)
    quiet_ray_data()
    data = data_class(config)
    data.connect(PlannedModule(config, parts.plan), ModuleBoard() if readers else None)
    return data


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
    from runner.offline.held_out import HeldOutEvaluation

    plan = parts[DEFAULT_MODULE_ID].plan
    loss: Loss = import_target(plan.algorithm.loss, "algorithm.loss", Loss)(plan.algorithm)
    return HeldOutEvaluation(config, build_module_parts(config, plan), loss)


def is_held_out_read_by_ray(config: ExperimentConfig) -> bool:
    """Whether held-out data are read by a function of `ray.data`, which takes a cluster."""
    from runner.offline.source import is_read_by_ray

    return config.evaluation.offline_evaluation_input_ is not None and is_read_by_ray(config.offline)


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
        from runner.offline.prelearner import PreLearnerParts

        device = "auto" if self.config.offline.map_batches_kwargs.get("num_gpus") else "cpu"
        parts = build_module_parts(_on_device(self.config, device), self.plan)
        columns = _columns_of_learner(self.plan, parts.module)
        return PreLearnerParts(parts.module, parts.env_to_module, parts.learner, columns)


def build_env_runner_group(
    config: ExperimentConfig,
    role: str,
    parts: Mapping[str, ModuleParts],
    is_recording: bool = False,
    run_dir: Path | None = None,
) -> EnvRunnerGroup:
    """Make the env runners of a role: Ray actors; in this process where their number is 0 or `engine` is inline.

    Raises:
        ConfigError: the folder to record in cannot be written, or has data.
    """
    is_evaluation = role == EVALUATION
    file_list = None
    runners = config.env_runners
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.num_env_runners
    plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
    if is_recording:
        file_list = _file_list(config, run_dir) if config.env.is_external and not is_evaluation else None
        _prepare_recording(config, plans, file_list)
    pipelines = {module_id: module_parts.env_to_module for module_id, module_parts in parts.items()}
    make_runner = partial(build_env_runner, config, plans, role, is_recording=is_recording, run_dir=run_dir)
    title = "evaluation runner" if is_evaluation else "env runner"
    max_restarts = runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0
    recording = None
    if is_recording and config.env.is_external and not is_evaluation:
        recording = _build_sample_recording(config, plans, file_list)
    if num_remote == 0 or config.engine == "inline":
        make_local = partial(LocalHandle, make_runner)
        return EnvRunnerGroup(make_local, max(1, num_remote), pipelines, max_restarts, title, recording=recording)
    import ray

    sample_timeout_s = config.evaluation.evaluation_sample_timeout_s if is_evaluation else runners.sample_timeout_s
    make_remote = partial(
        RemoteHandle,
        make_runner,
        num_cpus=runners.num_cpus_per_env_runner,
        num_gpus=runners.num_gpus_per_env_runner,
        timeout_s=None if config.env.is_external and not is_evaluation else sample_timeout_s,
    )
    return EnvRunnerGroup(make_remote, num_remote, pipelines, max_restarts, title, ray.put, recording)


def _file_list(config: ExperimentConfig, run_dir: Path | None) -> FileList | None:
    from runner.offline.file_list import FileList
    from runner.offline.writer import locate_output

    return None if run_dir is None else FileList(run_dir / "rllink" / "recorded.txt", locate_output(config.offline))


def _prepare_recording(config: ExperimentConfig, plans: Mapping[str, ModulePlan], file_list: FileList | None) -> None:
    from runner.offline.writer import prepare_output

    if has_several_agents(plans):
        what = "episodes of several agents cannot be recorded yet"
        raise ConfigError([Problem(what, "offline.output", config.offline.output, "null")])
    prepare_output(config.offline, () if file_list is None else file_list.paths)


def check_local_gpus(config: ExperimentConfig) -> None:
    """Raise `ConfigError` where the learner in this process asks for more GPUs than this machine has."""
    asked, available = config.learners.num_gpus_per_learner, torch.cuda.device_count()
    if config.learners.num_learners == 0 and asked > available:
        what = "the learner in this process asks for more GPUs than this machine has"
        raise ConfigError([Problem(what, "learners.num_gpus_per_learner", f"{asked:g}", f"up to {available}")])


@contextmanager
def ray_cluster(config: ExperimentConfig, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a Ray cluster if the configuration needs one; `note` is told about it, see `connected`.

    Raises:
        ConfigError: the cluster can never give the resources that the configuration asks for.
    """
    runners, learners, evaluation = config.env_runners, config.learners, config.evaluation
    num_runners = evaluation.evaluation_num_env_runners
    asked_by = ["evaluation.evaluation_num_env_runners", "env_runners.num_cpus_per_env_runner, num_gpus_per_env_runner"]
    if not learns_offline(config):
        num_runners += runners.num_env_runners
        asked_by.insert(0, "env_runners.num_env_runners")
    if config.engine == "inline":
        num_runners = 0
    num_cpus = num_runners * runners.num_cpus_per_env_runner + learners.num_learners * learners.num_cpus_per_learner
    num_gpus = num_runners * runners.num_gpus_per_env_runner + learners.num_learners * learners.num_gpus_per_learner
    if learners.num_learners:
        asked_by.append("learners.num_learners, num_cpus_per_learner, num_gpus_per_learner")
    if learns_offline(config):
        from runner.offline.workers import resources_asked_for

        for_data = resources_asked_for(config.offline)
        num_cpus, num_gpus = num_cpus + for_data.num_cpus, num_gpus + for_data.num_gpus
        asked_by.append("offline.map_batches_kwargs (pre-learners, and one CPU to read)")
    elif is_held_out_read_by_ray(config):
        num_cpus += 1
        asked_by.append("evaluation.offline_evaluation_input_ (one CPU to read)")
    elif num_runners == learners.num_learners == 0:
        yield
        return
    with connected(config.ray, num_cpus, num_gpus, ", ".join(asked_by), note):
        yield


def build_learner_group(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> Learners:
    """Make a learner for each module, behind its learner pipeline: in this process, or in Ray actors."""
    named = config.multi_agent.modules_to_train
    to_train = list(parts) if named is None else named
    pipelines = {module_id: module_parts.learner for module_id, module_parts in parts.items()}
    # External simulators may act with older weights, or with a policy of their own.
    is_checked = config.learners.check_acted_outputs and not config.env.is_external
    acted_outputs = (
        ActedOutputs({id_: module_parts.env_to_module for id_, module_parts in parts.items()}) if is_checked else None
    )
    if config.learners.num_learners == 0:
        learners = {
            module_id: _build_learner(config, module_parts, Alone()) for module_id, module_parts in parts.items()
        }
        return LearnerGroup(learners, pipelines, to_train, acted_outputs=acted_outputs)
    plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
    modules = {module_id: module_parts.module for module_id, module_parts in parts.items()}
    reads = {
        module_id: _columns_of_learner(module_parts.plan, module_parts.module)
        for module_id, module_parts in parts.items()
    }
    weights = {module_id: module_parts.weights() for module_id, module_parts in parts.items()}
    make_learners = PlannedLearners(config, plans, weights, tuple(to_train))
    return RemoteLearnerGroup(make_learners, modules, pipelines, to_train, reads, config.learners, acted_outputs)


@dataclass(frozen=True)
class PlannedLearners:
    """A plan that makes the learners of one process in its actor; `weights` are their first parameters."""

    config: ExperimentConfig
    plans: Mapping[str, ModulePlan]
    weights: Mapping[str, npt.NDArray[np.float32]]
    to_train: tuple[str, ...]

    def device(self) -> torch.device:
        """Return `learners.device` in this process."""
        return learner_device(_on_device(self.config, self.config.learners.device))

    def __call__(self, peers: Peers) -> LearnerGroup:
        """Make a learner for each module, without pipelines."""
        here = _on_device(self.config, self.config.learners.device)
        parts = {module_id: build_module_parts(here, plan) for module_id, plan in self.plans.items()}
        for module_id, module_parts in parts.items():
            FlatParameters(module_parts.module).load(self.weights[module_id])
        learners = {
            module_id: _build_learner(self.config, module_parts, peers) for module_id, module_parts in parts.items()
        }
        return LearnerGroup(learners, {}, self.to_train, peers)


def _on_device(config: ExperimentConfig, device: str) -> ExperimentConfig:
    """Return the configuration of a process whose modules are on this device."""
    return replace(config, learners=replace(config.learners, num_learners=0, device=device))


def _columns_of_learner(plan: ModulePlan, module: RLModule) -> tuple[str, ...]:
    loss = import_target(plan.algorithm.loss, "algorithm.loss", Loss)
    return tuple(dict.fromkeys((*module.inputs, *loss.reads)))


def _build_learner(config: ExperimentConfig, parts: ModuleParts, peers: Peers) -> Learner:
    plan, algorithm = parts.plan, parts.plan.algorithm
    loss: Loss = import_target(algorithm.loss, "algorithm.loss", Loss)(algorithm)
    loss.use_stream(random_stream(config.seed, plan.name("loss"), peers.rank))
    return Learner(parts.module, loss, algorithm, random_stream(config.seed, plan.name("learner"), peers.rank), peers)
