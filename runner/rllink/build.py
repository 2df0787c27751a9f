"""Builds the env runner for external simulators."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.callbacks import build_callbacks
from runner.config.plans.training_ratio import env_steps_per_round
from runner.config.schemas import ExperimentConfig
from runner.env_runners.observation_checks import ObservationChecks
from runner.env_runners.runner_identity import RunnerIdentity
from runner.episodes.spaces import space_to_dict
from runner.module_building import BuiltActingModule, ModuleSpec, build_acting_module, lookback_of
from runner.rllink.arrays import SpaceCodec
from runner.rllink.client_judges import ClientJudges
from runner.rllink.env_episodes import SampledEnvEpisodes
from runner.rllink.env_runner import ExternalEnvRunner
from runner.rllink.inference import FileMakers, ModuleInference, Versions
from runner.rllink.journal import Journal, NoJournal
from runner.rllink.messages import AgentSpaces, widened
from runner.rllink.module_intake import ModuleIntake, actions_to_module
from runner.rllink.recording_notes import EnvRecordingNotes, RecordingNotes
from runner.rllink.sample_listeners import ClientTasks, OutsideCount, ReceivedCallbacks, SampleListener
from runner.rllink.server import Server
from runner.rllink.service import Service
from runner.rllink.weights_files import OnnxFile, SafetensorsFile


def build_external_env_runner(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    identity: RunnerIdentity,
    tasks: Mapping[str, Any],
    journal_dir: Path | None = None,
    is_recording: bool = False,
) -> ExternalEnvRunner:
    """Make the env runner to which external simulators connect.

    Args:
        config: configuration of the run, with `env.port`.
        specs: module id -> its specification.
        identity: names the random streams; the runner of index i listens on `env.port` + i.
        tasks: name -> content of the tasks that simulators draw for their episodes.
        journal_dir: folder that stores accepted messages, or None to store nothing.
        is_recording: whether samples contain the data that recording needs.
    """
    num_runners = max(1, config.env_runners.min_env_runners)  # the number is fixed
    built_modules = {module_id: build_acting_module(config, spec) for module_id, spec in specs.items()}
    num_lookback = lookback_of(config, built_modules)
    for module_id, built in built_modules.items():
        _place(built, module_id, identity, num_runners)
    versions = Versions(config.rllink.num_kept_weights, _file_makers(config, specs))
    intakes = {
        module_id: ModuleIntake(
            build_acting_module(config, spec), build_acting_module(config, spec), versions, num_lookback
        )
        for module_id, spec in specs.items()
    }
    agents = _agents(config, specs, built_modules)
    judges = ClientJudges(config)
    service = Service(
        config.rllink,
        _description(config, built_modules, num_runners),
        agents,
        versions,
        {module_id: ModuleInference(built, num_lookback) for module_id, built in built_modules.items()},
        _journal(config, identity, journal_dir),
        tasks,
        judges.bound,
    )
    env_episodes = SampledEnvEpisodes({agent: spaces.module_id for agent, spaces in agents.items()})
    listeners = _listeners(config, specs, identity, service, is_recording)
    server = _serve(config, service, identity.index)  # last, because it listens until it is closed
    return ExternalEnvRunner(server, built_modules, intakes, env_episodes, judges, listeners)


def _place(built: BuiltActingModule, module_id: str, identity: RunnerIdentity, num_runners: int) -> None:
    """Give the pipelines their random streams and the index of the env runner."""
    pipelines = built.env_to_module, built.module_to_env
    identity.give_streams(pipelines, module_id)
    for pipeline in pipelines:
        pipeline.use_env_runner(identity.index, num_runners)
    if built.spec.agents is not None:
        built.module_to_env.remove("ModuleToAgentUnmapping")


def _file_makers(config: ExperimentConfig, specs: Mapping[str, ModuleSpec]) -> FileMakers:
    return {
        "onnx": {module_id: OnnxFile(config, spec) for module_id, spec in specs.items()},
        "safetensors": {module_id: SafetensorsFile(config, spec) for module_id, spec in specs.items()},
    }


def _journal(config: ExperimentConfig, identity: RunnerIdentity, folder: Path | None) -> Journal:
    if folder is None:
        return NoJournal()
    name = f"{identity.index}.{identity.generation}"
    return Journal(folder, name, config.checkpoint.keep_last, config.rllink.skip_journal_records)


def _listeners(
    config: ExperimentConfig,
    specs: Mapping[str, ModuleSpec],
    identity: RunnerIdentity,
    service: Service,
    is_recording: bool,
) -> list[SampleListener]:
    listeners: list[SampleListener] = []
    if service.tasks:
        listeners.append(ClientTasks(service.use_tasks))
    counted = _observation_checks(config, specs, "warn")
    if counted:
        listeners.append(OutsideCount(counted))
    listeners.append(ReceivedCallbacks(build_callbacks(config, is_evaluation=False), identity.index))
    if is_recording:
        listeners.append(EnvRecordingNotes() if service.has_agents else RecordingNotes())
    return listeners


def _serve(config: ExperimentConfig, service: Service, index: int) -> Server:
    assert config.env.port is not None
    port = config.env.port + index if config.env.port else 0
    return Server(config.rllink, service, config.env.host, port, f"{index}-{secrets.token_hex(3)}")


def _agents(
    config: ExperimentConfig, specs: Mapping[str, ModuleSpec], built_modules: Mapping[str, BuiltActingModule]
) -> dict[str | None, AgentSpaces]:
    """Return agent id -> spaces, with the key None in runs with a single agent."""
    bounds = _observation_checks(config, specs, "error")
    # Unless actions are scaled or clipped, modules may choose actions outside of the space.
    has_action_bounds = bool(bounds) and (config.env.normalize_actions or config.env.clip_actions)
    agents: dict[str | None, AgentSpaces] = {}
    for module_id, built in built_modules.items():
        action_space, owner = built.spec.action_space, f"module {module_id}"
        action_bounds = ObservationChecks(widened(action_space), 1, owner, "error") if has_action_bounds else None
        spaces = AgentSpaces(
            module_id,
            SpaceCodec(built.spec.observation_space),
            SpaceCodec(action_space),
            built.module.action_dist.num_inputs,
            actions_to_module(built.module_to_env, module_id),
            bounds.get(module_id),
            action_bounds,
        )
        agents |= dict.fromkeys(_agents_of(built), spaces)
    return agents


def _agents_of(built: BuiltActingModule) -> Sequence[str | None]:
    return [None] if built.spec.agents is None else built.spec.agents


def _observation_checks(
    config: ExperimentConfig, specs: Mapping[str, ModuleSpec], mode: str
) -> dict[str, ObservationChecks]:
    """Return module id -> checks of observations; empty unless `env.validate_observations` is this mode."""
    chosen = config.env.validate_observations
    if ("error" if chosen == "auto" else chosen) != mode:
        return {}
    return {
        module_id: ObservationChecks(spec.observation_space, 1, f"module {module_id}", mode)
        for module_id, spec in specs.items()
    }


def _description(
    config: ExperimentConfig, built_modules: Mapping[str, BuiltActingModule], num_runners: int
) -> dict[str, Any]:
    """Return the content of SET_CONFIG."""
    asked = config.rllink.env_steps_per_sample
    per_message = max(1, -(-env_steps_per_round(config, num_runners) // (8 * num_runners)))
    description: dict[str, Any] = {
        "env_steps_per_sample": per_message if isinstance(asked, str) else asked,
        "force_on_policy": config.rllink.force_on_policy,
    }
    agents: dict[str, Any] = {}
    for module_id, built in built_modules.items():
        spaces = {
            "observation_space": space_to_dict(built.spec.observation_space),
            "action_space": space_to_dict(built.spec.action_space),
        }
        if built.spec.agents is None:
            return description | spaces
        agents |= {agent: {"module": module_id, **spaces} for agent in built.spec.agents}
    return description | {"agents": agents}
