"""Builds the env runners of a role, and the recording of their episodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cluster.actor_group import ActorGroup, MakeCaller
from runner.cluster.actors import Caller, LocalActor, RemoteActor, Role
from runner.cluster.elastic_group import ElasticGroup, Size
from runner.cluster.pending_actors import count_places
from runner.cluster.placement import Placement
from runner.cluster.replaying_actor import ReplayingActor, ReplayRules
from runner.config.blocks import ASYNC
from runner.config.errors import ConfigError, Problem
from runner.config.operators import AsyncGradientsConfig
from runner.config.plans.needs import is_deterministic
from runner.config.plans.steps import read_plan, steps_of
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner_actor import EnvRunnerActor
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.sample_recording import SampleRecording
from runner.experiment.env_runner_builder import (
    EVALUATION,
    TRAINING,
    build_env_episode_recorder,
    build_env_runner,
    build_gradient_runner,
    build_recorder,
)
from runner.experiment.features import env_settings_of
from runner.experiment.ray_resources import other_actors, tasks_on_data
from runner.module_building import BuiltModule, ModuleSpec, has_several_agents
from runner.restarts import Restarts

if TYPE_CHECKING:
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.recorder import EpisodeRecorder

_RESTART_KEYS = (
    "env_runners.restart_failed_env_runners, env_runners.max_num_env_runner_restarts; env_runners.sample_timeout_s, "
    "evaluation.evaluation_sample_timeout_s"
)
_CALLS_PER_SNAPSHOT = 16


def build_env_runner_group(
    config: ExperimentConfig,
    role: str,
    built_modules: Mapping[str, BuiltModule],
    is_recording: bool = False,
    run_dir: Path | None = None,
) -> EnvRunnerGroup:
    """Make the env runners of a role: Ray actors, or one in this process if their number is 0 or `engine` is inline.

    Raises:
        ConfigError: the recording folder cannot be written, or already contains data.
    """
    is_evaluation = role == EVALUATION
    runners = config.env_runners
    num_remote = config.evaluation.evaluation_num_env_runners if is_evaluation else runners.min_env_runners
    specs = {module_id: built.spec for module_id, built in built_modules.items()}
    recording = None
    if is_recording:
        is_of_simulators = config.env.is_external and not is_evaluation
        file_list = _file_list(config, run_dir) if is_of_simulators else None
        _prepare_recording(config, specs, file_list)
        recording = _build_sample_recording(config, specs, file_list) if is_of_simulators else None
    pipelines = {module_id: built.env_to_module for module_id, built in built_modules.items()}
    build = build_gradient_runner if _computes_gradients(config) and not is_evaluation else build_env_runner
    make_runner = partial(build, config, specs, role, is_recording=is_recording, run_dir=run_dir)
    if num_remote == 0 or config.engine == "inline":
        num_local, make = max(1, num_remote), _recorded(partial(LocalActor, make_runner), recording)
        actors = ActorGroup(make, num_local, _title(role), _restarts(config))
        return EnvRunnerGroup(actors, pipelines, recording=recording, settings=_settings_of(config, num_local))
    import ray

    make = _recorded(_make_remote(config, role, num_remote, make_runner, is_recording), recording)
    if runners.is_elastic and not is_evaluation:
        actors, num_fixed = _elastic_group(config, make, _title(role)), None
    else:
        actors, num_fixed = ActorGroup(make, num_remote, _title(role), _restarts(config)), num_remote
    return EnvRunnerGroup(actors, pipelines, ray.put, recording, _settings_of(config, num_fixed))


def _title(role: str) -> str:
    return "evaluation runner" if role == EVALUATION else "env runner"


def _restarts(config: ExperimentConfig) -> Restarts:
    runners = config.env_runners
    return Restarts(runners.max_num_env_runner_restarts if runners.restart_failed_env_runners else 0, _RESTART_KEYS)


def _make_remote(
    config: ExperimentConfig, role: str, num_runners: int, make_runner: Callable[..., Any], is_recording: bool
) -> MakeCaller:
    """Return a function that makes Ray actors. Deterministic runs restore dead actors, unless they record data."""
    runners = config.env_runners
    timeout_s = None if config.env.is_external else runners.sample_timeout_s
    of_actors = Role(
        _title(role),
        EnvRunnerActor,
        Placement(runners.resources_per_env_runner, num_runners, runners.scheduling_strategy),
        config.evaluation.evaluation_sample_timeout_s if role == EVALUATION else timeout_s,
        config.ray.actor_start_timeout_s,
        is_interruptible=config.env.is_external,
    )
    device = "cuda" if runners.num_gpus_per_env_runner and not config.env.is_external else "cpu"
    make = partial(make_runner, device=device)
    if is_recording or not is_deterministic(config):  # a restored recorder would write rows twice
        return partial(RemoteActor, of_actors, make)
    replay = ReplayRules(1 if role == EVALUATION else _CALLS_PER_SNAPSHOT)
    return partial(ReplayingActor, of_actors, make, replay=replay)


def _recorded(make: MakeCaller, recording: SampleRecording | None) -> MakeCaller:
    """Discard the recorded open episodes of an env runner that is replaced."""
    if recording is None:
        return make

    def make_and_forget(index: int, generation: int) -> Caller:
        recording.forget(index)
        return make(index, generation)

    return make_and_forget


def _elastic_group(config: ExperimentConfig, make: MakeCaller, title: str) -> ElasticGroup:
    """Make a group that leaves capacity for other actors, and for tasks on recorded data."""
    from ray.util.placement_group import get_current_placement_group

    runners, on_data = config.env_runners, tasks_on_data(config)
    each = runners.resources_per_env_runner
    is_trial = get_current_placement_group() is not None  # a trial reserves resources for the fewest env runners
    most = runners.min_env_runners if is_trial else runners.max_env_runners
    size = Size(runners.min_env_runners, most, partial(count_places, each, others=on_data), first_call="address")
    num_first = max(size.fewest, count_places(each, most, other_actors(config) + on_data))
    return ElasticGroup(make, size, num_first, title, _restarts(config))


def _computes_gradients(config: ExperimentConfig) -> bool:
    steps = steps_of(read_plan(config.algorithm.plan))
    return any(
        step.is_function or isinstance(step.config, AsyncGradientsConfig) or step.base is AsyncGradientsConfig
        for step in steps
    )


def _settings_of(config: ExperimentConfig, num_runners: int | None) -> dict[str, Any]:
    """Return the settings that the state of env runners depends on; `num_runners` may be None (not fixed)."""
    runners, env = config.env_runners, asdict(config.env)
    if config.env.is_external:  # simulators also find their episodes at another address
        env |= {"host": "", "port": 0}
    del env["validate_observations"], env["max_replayed_steps"]  # they do not change episodes
    mode = runners.gym_env_vectorize_mode
    return {
        "computes_gradients": _computes_gradients(config),
        "env_runner_class": runners.env_runner_class,
        "teams": {name: list(members) for name, members in config.multi_agent.teams.items()},
        **env_settings_of(config),
        # With `auto`, this option makes the sub-environments sync.
        "restart_failed_sub_environments": runners.restart_failed_sub_environments and mode == "auto",
        "env": env,
        "num_env_runners": num_runners,
        "num_envs_per_env_runner": runners.num_envs_per_env_runner,
        "episode_lookback_horizon": runners.episode_lookback_horizon,
        "gym_env_vectorize_mode": "sync" if mode == ASYNC else mode,  # each can restore the other's state
    }


def _build_sample_recording(
    config: ExperimentConfig, specs: Mapping[str, ModuleSpec], file_list: FileList | None
) -> SampleRecording:
    """Make the recording of samples from simulators, which outlives the servers that they connect to."""
    name = secrets.token_hex(4)  # unique, because several runs may write to the same folder

    def make(index: int) -> EpisodeRecorder | EnvEpisodeRecorder:
        writer_id = f"{TRAINING}-{index}-{name}"
        if has_several_agents(specs):
            return build_env_episode_recorder(config, specs, writer_id, index, file_list)
        (spec,) = specs.values()
        return build_recorder(config, spec, writer_id, index, file_list)

    return SampleRecording(
        make,
        max(1, config.env_runners.min_env_runners),  # the number is fixed
        file_list,
    )


def _file_list(config: ExperimentConfig, run_dir: Path | None) -> FileList | None:
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.writer import locate_output

    location = locate_output(config.offline)
    if location is None:
        what = "samples from simulators must be recorded in files, because recording continues after a resume"
        method = config.offline.output_write_method
        raise ConfigError([Problem(what, "offline.output_write_method", method, "write_parquet, write_json, ...")])
    return None if run_dir is None else FileList(run_dir / "rllink" / "recorded.txt", location)


def _prepare_recording(config: ExperimentConfig, specs: Mapping[str, ModuleSpec], file_list: FileList | None) -> None:
    from runner.offline.writing.output_formats import check_env_episode_options
    from runner.offline.writing.writer import prepare_output

    if has_several_agents(specs):
        check_env_episode_options(config.offline)
    prepare_output(config.offline, () if file_list is None else file_list.paths)
