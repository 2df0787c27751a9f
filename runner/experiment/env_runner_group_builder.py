"""Construction of the env runners of a role, and of the recording of their episodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cluster.capacity import count_places
from runner.cluster.placement import Placement
from runner.config.blocks import ASYNC
from runner.config.curriculum import read_tasks
from runner.config.errors import ConfigError, Problem
from runner.config.operators import AsyncGradientsConfig
from runner.config.plans import is_deterministic, read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.env_runners.elastic_env_runner_group import ElasticEnvRunnerGroup, Size
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.handles import LocalHandle, RemoteHandle
from runner.env_runners.restorable_handle import RestorableHandle
from runner.env_runners.sample_recording import SampleRecorder, SampleRecording
from runner.experiment.env_runner_builder import (
    EVALUATION,
    TRAINING,
    build_env_episode_recorder,
    build_env_runner,
    build_gradient_runner,
    build_recorder,
)
from runner.experiment.ray_resources import other_actors, tasks_on_data
from runner.module_parts import ModuleParts, ModuleSpec, has_several_agents

if TYPE_CHECKING:
    from runner.offline.writing.output_files import FileList


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
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.min_env_runners
    plans = {module_id: module_parts.spec for module_id, module_parts in parts.items()}
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

    device = "cuda" if runners.num_gpus_per_env_runner and not config.env.is_external else "cpu"
    make_remote = partial(
        _handle_class(config, is_evaluation, is_recording),
        partial(make_runner, device=device),
        placement=Placement(runners.resources_per_env_runner, num_remote, runners.scheduling_strategy),
        timeout_s=_sample_timeout_s(config, is_evaluation),
        start_timeout_s=config.ray.actor_start_timeout_s,
    )
    if runners.is_elastic and not is_evaluation:
        others, on_data = other_actors(config), tasks_on_data(config)
        size = _size_of(config, on_data)
        num_first = max(size.fewest, count_places(runners.resources_per_env_runner, size.most, others + on_data))
        settings = _settings_of(config, None)
        return ElasticEnvRunnerGroup(
            make_remote, size, num_first, pipelines, max_restarts, title, ray.put, settings=settings
        )
    settings = _settings_of(config, num_remote)
    return EnvRunnerGroup(make_remote, num_remote, pipelines, max_restarts, title, ray.put, recording, settings)


def _handle_class(config: ExperimentConfig, is_evaluation: bool, is_recording: bool) -> Callable[..., RemoteHandle]:
    """Return a class of handles that keeps what the plan promises; files of recorded data would have rows twice."""
    if is_recording or not is_deterministic(config):
        return RemoteHandle
    return partial(RestorableHandle, calls_per_snapshot=1) if is_evaluation else RestorableHandle


def _sample_timeout_s(config: ExperimentConfig, is_evaluation: bool) -> float | None:
    if is_evaluation:
        return config.evaluation.evaluation_sample_timeout_s
    return None if config.env.is_external else config.env_runners.sample_timeout_s


def _size_of(config: ExperimentConfig, on_data: Sequence[Mapping[str, float]]) -> Size:
    """Return the size of an elastic group, which leaves a place for tasks on recorded data."""
    from ray.util.placement_group import get_current_placement_group

    runners = config.env_runners
    is_trial = get_current_placement_group() is not None  # places of a trial are reserved, for the fewest
    most = runners.min_env_runners if is_trial else runners.max_env_runners
    count = partial(count_places, runners.resources_per_env_runner, others=on_data)
    return Size(runners.min_env_runners, most, count)


def _computes_gradients(config: ExperimentConfig) -> bool:
    steps = steps_of(read_plan(config.algorithm.plan))
    return any(
        step.is_function or isinstance(step.config, AsyncGradientsConfig) or step.base is AsyncGradientsConfig
        for step in steps
    )


def _settings_of(config: ExperimentConfig, num_runners: int | None) -> dict[str, Any]:
    """Return the settings that the state of env runners depends on; None: their number is not fixed."""
    runners, env = config.env_runners, asdict(config.env)
    if config.env.is_external:  # simulators find their episodes again at another address, too
        env |= {"host": "", "port": 0}
    del env["validate_observations"], env["max_replayed_steps"]  # other checks, the same episodes
    mode = runners.gym_env_vectorize_mode
    return {
        "computes_gradients": _computes_gradients(config),
        "env_runner_class": runners.env_runner_class,
        "tasks": {name: asdict(task) for name, task in read_tasks(config.curriculum).items()},
        "teams": {name: list(members) for name, members in config.multi_agent.teams.items()},
        "league": {"modules": list(config.league.modules), "fixed": dict(config.league.fixed)},
        # With `auto`, it makes the sub-environments sync.
        "restart_failed_sub_environments": runners.restart_failed_sub_environments and mode == "auto",
        "env": env,
        "num_env_runners": num_runners,
        "num_envs_per_env_runner": runners.num_envs_per_env_runner,
        "episode_lookback_horizon": runners.episode_lookback_horizon,
        "gym_env_vectorize_mode": "sync" if mode == ASYNC else mode,  # they go on from each other's states
    }


def _build_sample_recording(
    config: ExperimentConfig, plans: Mapping[str, ModuleSpec], file_list: FileList | None
) -> SampleRecording:
    """Make the recording of simulators' samples, which outlives the servers that they are connected to."""
    name = secrets.token_hex(4)  # differs from run to run, which may add to the same folder

    def make(index: int) -> SampleRecorder:
        writer_id = f"{TRAINING}-{index}-{name}"
        if has_several_agents(plans):
            return build_env_episode_recorder(config, plans, writer_id, index, file_list)
        (plan,) = plans.values()
        return build_recorder(config, plan, writer_id, index, file_list)

    return SampleRecording(
        make,
        max(1, config.env_runners.min_env_runners),  # it is fixed
        file_list,
    )


def _file_list(config: ExperimentConfig, run_dir: Path | None) -> FileList | None:
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.writer import locate_output

    location = locate_output(config.offline)
    if location is None:
        what = "what simulators send is recorded over interrupts and resumes, for which it must be in files"
        method = config.offline.output_write_method
        raise ConfigError([Problem(what, "offline.output_write_method", method, "write_parquet, write_json, ...")])
    return None if run_dir is None else FileList(run_dir / "rllink" / "recorded.txt", location)


def _prepare_recording(config: ExperimentConfig, plans: Mapping[str, ModuleSpec], file_list: FileList | None) -> None:
    from runner.offline.writing.output_formats import check_env_episode_options
    from runner.offline.writing.writer import prepare_output

    if has_several_agents(plans):
        check_env_episode_options(config.offline)
    prepare_output(config.offline, () if file_list is None else file_list.paths)
