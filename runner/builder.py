"""Construction of env runners, modules and learners from a checked configuration."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.cluster import connected
from runner.config.compose import compose_experiment
from runner.config.errors import ConfigError, Problem
from runner.config.imports import import_target
from runner.config.module_ids import trained_modules
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA, AsyncGradientsConfig
from runner.config.plans import needs_of, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.config.validation import build_experiment_config
from runner.env_runners.env_makers import make_multi_agent_env, make_vector_env
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.gradient_runner import GradientRunner
from runner.env_runners.handles import LocalHandle, RemoteHandle
from runner.env_runners.multi_agent_env_runner import ActingModule, MultiAgentEnvRunner
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.protocol import EnvRunner
from runner.env_runners.sample_recording import SampleRecording
from runner.learners.acted_outputs import ActedOutputs
from runner.learners.joint_learner import JointLearner, ModuleLearning
from runner.learners.joint_learner_group import JointLearnerGroup
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
    join_modules,
    learner_device,
    networks_of,
    plan_modules,
    weights_of,
)
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import DEFAULT_MODULE_ID, ConnectorPiece
from runner.plans import Resources, RunMetrics
from runner.plans.operators.rollouts import env_steps_per_round
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.offline.evaluation.held_out import HeldOutEvaluation
    from runner.offline.reading.recorded_source import Source
    from runner.offline.training.offline_data import OfflineData
    from runner.offline.training.prelearner import PreLearnerParts
    from runner.offline.writing.file_list import FileList
    from runner.offline.writing.recorder import EpisodeRecorder
    from runner.rllink.env_runner import ExternalEnvRunner

TRAINING, EVALUATION = "env_runner", "evaluation"


def build_parts(config: ExperimentConfig) -> dict[str, ModuleParts]:
    """Module id -> network and pipelines."""
    return _build_all(config, plan_modules(config))


def _build_all(config: ExperimentConfig, plans: Mapping[str, ModulePlan]) -> dict[str, ModuleParts]:
    return join_modules(config, {module_id: build_module_parts(config, plan) for module_id, plan in plans.items()})


def make_env_runner(
    experiment: str, overrides: Sequence[str] = (), config_dir: str | Path | None = None, index: int = 0
) -> EnvRunner:
    """Make one env runner of `conf/experiment/<experiment>.yaml`, or of a file in `config_dir`, in this process.

    It acts with the parameters that a run begins with, until it is given others. Close it at the end.

    Args:
        experiment: name of the experiment.
        overrides: of single keys, as on the command line.
        config_dir: folder of one's own configuration.
        index: of the runner; runners of different indexes have different seeds.

    Raises:
        ConfigError: the configuration is wrong, or a part cannot be made.
    """
    folder = None if config_dir is None else Path(config_dir)
    config = build_experiment_config(compose_experiment([f"+experiment={experiment}", *overrides], folder))
    return build_env_runner(config, plan_modules(config), TRAINING, index, 0)


def build_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModulePlan],
    role: str,
    index: int,
    generation: int,
    is_recording: bool = False,
    run_dir: Path | None = None,
) -> EnvRunner:
    """Make an env runner with its modules and pipelines, in the process that will step it."""
    if config.env.is_external and role == TRAINING:
        return _build_external_env_runner(config, plans, (role, index, generation), run_dir, is_recording)
    is_evaluation = role == EVALUATION
    num_envs = (config.evaluation if is_evaluation else config.env_runners).num_envs_per_env_runner
    parts = join_modules(config, {module_id: build_acting_parts(config, plan) for module_id, plan in plans.items()})
    if is_evaluation:
        for module_parts in parts.values():
            module_parts.env_to_module.freeze()
            module_parts.module_to_env.freeze()
    seed_name = (role, index, 0 if is_evaluation else generation)  # evaluation always has the same seeds
    settings = (seed_name, config.seed, lookback_of(config, parts), config.env.observation_check)
    if has_several_agents(plans):
        envs = MultiAgentEnvironments(lambda: make_multi_agent_env(config.env), num_envs, config.seed)
        acting_modules = {module_id: _acting_module(module_parts) for module_id, module_parts in parts.items()}
        joined = {"together": parts[next(iter(parts))].together} if config.multi_agent.multi_rl_module else {}
        several: EnvRunner = _runner_class(config, MultiAgentEnvRunner)(envs, acting_modules, *settings, **joined)
        return several
    acting = parts[DEFAULT_MODULE_ID]
    env = make_vector_env(config.env, num_envs, config.env_runners.gym_env_vectorize_mode, config.seed)
    runner: Any = _runner_class(config, SingleAgentEnvRunner)(
        env, acting.module, acting.env_to_module, acting.module_to_env, *settings
    )
    if is_recording:
        runner.recorder = _build_recorder(config, acting.plan, f"{role}-{index}-{generation}")
    single: EnvRunner = runner
    return single


def _runner_class(config: ExperimentConfig, default: Any) -> Any:
    path, key = config.env_runners.env_runner_class, "env_runners.env_runner_class"
    found = default if path is None else import_target(path, key, EnvRunner)
    others = {SingleAgentEnvRunner, MultiAgentEnvRunner} - {default}
    if issubclass(found, tuple(others)):
        what = f"{path} steps environments of another kind than {config.env.name}"
        raise ConfigError([Problem(what, key, path, f"a subclass of {default.__name__}")])
    return found


def build_gradient_runner(
    config: ExperimentConfig, plans: Mapping[str, ModulePlan], role: str, index: int, generation: int, **options: Any
) -> GradientRunner:
    """Make an env runner that can compute gradients; the arguments are those of `build_env_runner`."""
    runner = build_env_runner(config, plans, role, index, generation, **options)
    here = _on_device(config, "cpu")
    return GradientRunner(runner, lambda: _group_of(here, _build_all(here, plans), Alone()))


def _build_external_env_runner(
    config: ExperimentConfig,
    plans: Mapping[str, ModulePlan],
    seed_name: tuple[str, int, int],
    run_dir: Path | None,
    is_recording: bool,
) -> ExternalEnvRunner:
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
    from runner.offline.codecs.layout import Spaces
    from runner.offline.writing.recorder import EpisodeRecorder
    from runner.offline.writing.writer import EpisodeWriter

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
    from runner.offline.training import preflight

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


def build_resources(
    config: ExperimentConfig,
    parts: Mapping[str, ModuleParts],
    run_metrics: RunMetrics,
    is_recording: bool = False,
    run_dir: Path | None = None,
    recorded: Source | None = None,
) -> Resources:
    """Make the resources that the plan of an experiment needs.

    `recorded` are the data that `check_recorded_data` has opened.

    Raises:
        ConfigError: a part cannot be made.
    """
    needs = needs_of(config)
    with ExitStack() as made:
        learners = build_learner_group(config, parts)
        made.callback(learners.close)
        env_runners = recorded_data = None
        if ENV_RUNNERS in needs:
            env_runners = build_env_runner_group(config, TRAINING, parts, is_recording, run_dir)
            made.callback(env_runners.close)
        if RECORDED_DATA in needs:
            recorded_data = build_recorded_data(config, parts[DEFAULT_MODULE_ID], recorded)
        made.pop_all()  # nothing failed
    return Resources(config, learners, run_metrics, env_runners, recorded_data, _adapting_losses(config, parts))


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


def is_held_out_read_by_ray(config: ExperimentConfig) -> bool:
    """Whether held-out data are read by a function of `ray.data`, which takes a cluster."""
    from runner.offline.reading.source import is_read_by_ray

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
        from runner.offline.training.prelearner import PreLearnerParts

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
    build = build_gradient_runner if _computes_gradients(config) and not is_evaluation else build_env_runner
    make_runner = partial(build, config, plans, role, is_recording=is_recording, run_dir=run_dir)
    title = "evaluation runner" if is_evaluation else "env runner"
    max_restarts = runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0
    recording = None
    if is_recording and config.env.is_external and not is_evaluation:
        recording = _build_sample_recording(config, plans, file_list)
    if num_remote == 0 or config.engine == "inline":
        make_local = partial(LocalHandle, make_runner)
        settings = _settings_of(config, max(1, num_remote))
        return EnvRunnerGroup(
            make_local, max(1, num_remote), pipelines, max_restarts, title, recording=recording, settings=settings
        )
    import ray

    sample_timeout_s = config.evaluation.evaluation_sample_timeout_s if is_evaluation else runners.sample_timeout_s
    make_remote = partial(
        RemoteHandle,
        make_runner,
        num_cpus=runners.num_cpus_per_env_runner,
        num_gpus=runners.num_gpus_per_env_runner,
        timeout_s=None if config.env.is_external and not is_evaluation else sample_timeout_s,
    )
    settings = _settings_of(config, num_remote)
    return EnvRunnerGroup(make_remote, num_remote, pipelines, max_restarts, title, ray.put, recording, settings)


def _adapting_losses(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> list[str]:
    """Return the names of losses that adapt to updates."""
    learnings = [_module_learning(config, parts[id_], Alone()) for id_ in trained_modules(config, list(parts))]
    return [type(learning.loss).__name__ for learning in learnings if learning.loss.adapts]


def _computes_gradients(config: ExperimentConfig) -> bool:
    steps = steps_of(read_plan(config.algorithm.plan))
    return any(
        step.is_function or isinstance(step.config, AsyncGradientsConfig) or step.base is AsyncGradientsConfig
        for step in steps
    )


def _settings_of(config: ExperimentConfig, num_runners: int) -> dict[str, Any]:
    """Return the settings that the state of env runners depends on."""
    runners, env = config.env_runners, asdict(config.env)
    if config.env.is_external:  # simulators find their episodes again at another address, too
        env |= {"host": "", "port": 0}
    del env["observation_check"]  # other checks, the same episodes
    # Only where they differ from the usual: states of release 0.1.0 have neither.
    others: dict[str, Any] = {"computes_gradients": True} if _computes_gradients(config) else {}
    if runners.env_runner_class is not None:
        others |= {"env_runner_class": runners.env_runner_class}
    return {
        **others,
        "env": env,
        "num_env_runners": num_runners,
        "num_envs_per_env_runner": runners.num_envs_per_env_runner,
        "episode_lookback_horizon": runners.episode_lookback_horizon,
        "gym_env_vectorize_mode": runners.gym_env_vectorize_mode,
    }


def _file_list(config: ExperimentConfig, run_dir: Path | None) -> FileList | None:
    from runner.offline.writing.file_list import FileList
    from runner.offline.writing.writer import locate_output

    return None if run_dir is None else FileList(run_dir / "rllink" / "recorded.txt", locate_output(config.offline))


def _prepare_recording(config: ExperimentConfig, plans: Mapping[str, ModulePlan], file_list: FileList | None) -> None:
    from runner.offline.writing.writer import prepare_output

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
    needs = needs_of(config)
    if ENV_RUNNERS in needs:
        num_runners += runners.num_env_runners
        asked_by.insert(0, "env_runners.num_env_runners")
    if config.engine == "inline":
        num_runners = 0
    num_cpus = num_runners * runners.num_cpus_per_env_runner + learners.num_learners * learners.num_cpus_per_learner
    num_gpus = num_runners * runners.num_gpus_per_env_runner + learners.num_learners * learners.num_gpus_per_learner
    if learners.num_learners:
        asked_by.append("learners.num_learners, num_cpus_per_learner, num_gpus_per_learner")
    if RECORDED_DATA in needs:
        from runner.offline.training.workers import resources_asked_for

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
    """Make a learner for each module, behind its learner pipeline: in this process, or in Ray actors.

    Raises:
        ConfigError: a part cannot be made, or a piece needs rows that other learners get.
    """
    if config.learners.num_learners == 0:
        return _group_of(config, parts, Alone())
    _check_shared_out(config, parts)
    keeps_whole = any(module_parts.learner.needs_other_agents for module_parts in parts.values())
    settings = (config.learners, lookback_of(config, parts), keeps_whole)
    return RemoteLearnerGroup(plan_learners(config, parts), networks_of(parts), *settings)


def _check_shared_out(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> None:
    """Refuse pieces that need all rows of a rollout that is shared out among learners."""
    if config.learners.num_learners == 1 or ENV_RUNNERS not in needs_of(config):
        return
    for module_id in trained_modules(config, list(parts)):
        for piece in parts[module_id].learner.single_pieces():
            if piece.needs_all_rows:
                what = f"{type(piece).__name__} needs all rows of what is sampled, and several learners get parts of it"
                raise ConfigError([Problem(what, "learners.num_learners", str(config.learners.num_learners), "0 or 1")])


def plan_learners(config: ExperimentConfig, parts: Mapping[str, ModuleParts]) -> PlannedLearners:
    """Plan learners of the same modules for other processes; `parts` have their first parameters."""
    plans = {module_id: module_parts.plan for module_id, module_parts in parts.items()}
    return PlannedLearners(config, plans, weights_of(parts))


def _group_of(config: ExperimentConfig, parts: Mapping[str, ModuleParts], peers: Peers) -> LearnerGroup:
    """Make the learners of this process from its modules and pipelines."""
    named = config.multi_agent.modules_to_train
    pipelines = {module_id: module_parts.learner for module_id, module_parts in parts.items()}
    # External simulators may act with older weights, or with a policy of their own.
    is_checked = config.learners.check_acted_outputs and not config.env.is_external
    env_to_module = {module_id: module_parts.env_to_module for module_id, module_parts in parts.items()}
    acted_outputs = ActedOutputs(env_to_module) if is_checked else None
    trained = list(parts) if named is None else named
    together = next(iter(parts.values())).together
    if together is not None:
        joint = _build_joint_learner(config, together, [parts[id_] for id_ in parts if id_ in trained], peers)
        return JointLearnerGroup(joint, pipelines, trained, peers, acted_outputs)
    learners = {module_id: _build_learner(config, module_parts, peers) for module_id, module_parts in parts.items()}
    return LearnerGroup(learners, pipelines, trained, peers, acted_outputs)


@dataclass(frozen=True)
class PlannedLearners:
    """A plan that makes the learners of one process there; `weights` are their first parameters."""

    config: ExperimentConfig
    plans: Mapping[str, ModulePlan]
    weights: Mapping[str, npt.NDArray[np.float32]]

    def device(self) -> torch.device:
        """Return `learners.device` in this process."""
        return learner_device(_on_device(self.config, self.config.learners.device))

    def __call__(self, peers: Peers) -> LearnerGroup:
        """Make a learner for each module, behind its learner pipeline."""
        here = _on_device(self.config, self.config.learners.device)
        parts = _build_all(here, self.plans)
        for key, network in networks_of(parts).items():
            FlatParameters(network).load(self.weights[key])
        for module_parts in parts.values():
            if peers.rank:  # the first learner has the streams of a learner alone
                make_stream = partial(_peers_stream, self.config.seed, module_parts.plan, peers.rank)
                module_parts.learner.give_streams(make_stream)
        return _group_of(self.config, parts, peers)


def _peers_stream(seed: int, plan: ModulePlan, rank: int, name: str, position: int) -> np.random.Generator:
    return random_stream(seed, plan.name(name), position, rank)


def _on_device(config: ExperimentConfig, device: str) -> ExperimentConfig:
    """Return the configuration of a process whose modules are on this device."""
    return replace(config, learners=replace(config.learners, num_learners=0, device=device))


def _columns_of_learner(plan: ModulePlan, module: RLModule) -> tuple[str, ...]:
    loss = import_target(plan.algorithm.loss, "algorithm.loss", Loss)
    return tuple(dict.fromkeys((*module.inputs, *loss.reads)))


def _build_learner(config: ExperimentConfig, parts: ModuleParts, peers: Peers) -> Learner:
    of_module = _module_learning(config, parts, peers)
    return Learner(parts.module, of_module.loss, of_module.config, of_module.stream, peers)


def _build_joint_learner(
    config: ExperimentConfig, together: MultiRLModule, trained: Sequence[ModuleParts], peers: Peers
) -> JointLearner:
    learnings = {parts.plan.module_id: _module_learning(config, parts, peers) for parts in trained}
    return JointLearner(together, learnings, config.algorithm, peers)


def _module_learning(config: ExperimentConfig, parts: ModuleParts, peers: Peers) -> ModuleLearning:
    plan, algorithm = parts.plan, parts.plan.algorithm
    loss: Loss = import_target(algorithm.loss, "algorithm.loss", Loss)(algorithm)
    loss.use_stream(random_stream(config.seed, plan.name("loss"), peers.rank))
    return ModuleLearning(loss, algorithm, random_stream(config.seed, plan.name("learner"), peers.rank))
