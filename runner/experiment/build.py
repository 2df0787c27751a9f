"""Builds a run: its parts, in the order of their dependencies, and its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from runner.callbacks import Callbacks
from runner.config.declared_metrics import with_evaluation
from runner.config.info_metrics import read_info_metrics
from runner.config.metrics import check_metric_names, producible_metrics, uses_gpus
from runner.config.offline import OfflineConfig
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans.needs import needs_of
from runner.config.schemas import ExperimentConfig
from runner.experiment.env_runner_builder import TRAINING
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.evaluation_schedule import EvaluationSchedule
from runner.experiment.evaluator import Evaluator
from runner.experiment.features import features_of
from runner.experiment.learner_builder import adapting_losses, build_learner_group, check_local_gpus
from runner.experiment.loaded_modules import LoadedModule, load_modules, shared_states
from runner.experiment.notes import Notes
from runner.experiment.ray_resources import is_held_out_read_by_ray, ray_cluster
from runner.experiment.recorded_data_builder import build_held_out_evaluation, build_recorded_data, check_recorded_data
from runner.experiment.recorded_replay import RecordedReplay, open_recorded_replay
from runner.experiment.replay_builder import build_replay_buffers
from runner.experiment.replay_memory import BufferMemory, measure_replay
from runner.module_building import BuiltModule, acting_modules, build_modules, encoding_doubts, reported_metrics
from runner.pipelines.connector import DEFAULT_MODULE_ID
from runner.pipelines.raw_observations import Standardisation
from runner.plans import PlanContext, RunMetrics, make_plan
from runner.plans.plan import Plan
from runner.plans.run_parts import RunParts
from runner.replay.replay_part import ReplayPart

if TYPE_CHECKING:
    from runner.experiment.recorded_data_builder import HeldOut
    from runner.offline.reading.recorded_source import RecordedSource
    from runner.tracking.run_info import Context


@dataclass(frozen=True)
class BuiltRun:
    """A run that is ready to train. See also the attributes of `Trainer`.

    Attributes:
        evaluations: the part that evaluates the policy during training.
        inputs: arguments of `recorded_data_set` for each source of recorded data.
        resources: closes the parts, and leaves the Ray cluster.
    """

    built_modules: Mapping[str, BuiltModule]
    loaded_modules: Sequence[LoadedModule]
    replay_memory: Sequence[BufferMemory]
    evaluations: EvaluationSchedule
    parts: RunParts
    plan: Plan
    addresses: Sequence[str]
    inputs: Sequence[tuple[RecordedSource | None, OfflineConfig, Context]]
    resources: ExitStack


def build_run(
    config: ExperimentConfig,
    callbacks: Callbacks,
    notes: Notes,
    loads_modules: bool = True,
    run_dir: Path | None = None,
) -> BuiltRun:
    """Check the configuration against environments, data and cluster, then build the run.

    The arguments are the same as in `Trainer`, plus its callbacks and notes.

    Raises:
        ConfigError: a part cannot be built, or replay buffers take more memory than there is.
    """
    torch.set_num_threads(config.learners.torch_num_threads)
    check_local_gpus(config)
    built_modules = build_modules(config)
    acting = acting_modules(built_modules)
    loaded = load_modules(config, built_modules) if loads_modules else []
    metrics = build_metrics(config, built_modules, notes)
    for doubt in encoding_doubts(built_modules):
        notes.warn(doubt)
    check_metrics(config, built_modules, callbacks)
    replay_memory = measure_replay(config, built_modules)
    recorded = check_recorded_data(config, acting) if RECORDED_DATA in needs_of(config) else {}
    replay = open_recorded_replay(config, built_modules)
    reads_by_ray = is_held_out_read_by_ray(config)  # other mistakes are reported before Ray starts
    held_out = None if reads_by_ray else build_held_out_evaluation(config, acting)
    check_features_and_output(config, acting)
    if RECORDED_DATA in needs_of(config):
        notes.inform(_text_of_reading(config, recorded))
    with ExitStack() as resources:
        resources.enter_context(ray_cluster(config, notes.inform))
        if reads_by_ray:
            held_out = build_held_out_evaluation(config, acting)
        evaluator = Evaluator(config, acting, held_out, notes.warn)
        evaluations = EvaluationSchedule(config.evaluation, evaluator)
        parts = _build_run_parts(config, built_modules, metrics, callbacks, evaluations, run_dir, recorded)
        resources.callback(parts.close)
        if config.evaluation.video:  # report environments that do not render images before training
            evaluator.make_video_recorder()
        return BuiltRun(
            built_modules=built_modules,
            loaded_modules=loaded,
            replay_memory=replay_memory,
            evaluations=evaluations,
            parts=parts,
            addresses=[] if parts.env_runners is None else parts.env_runners.addresses(),
            plan=_begin(config, built_modules, parts, replay, loaded),
            inputs=list(_inputs(config, parts, replay, held_out)),
            resources=resources.pop_all(),
        )


def _begin(
    config: ExperimentConfig,
    built_modules: Mapping[str, BuiltModule],
    parts: RunParts,
    replay: RecordedReplay | None,
    loaded: Sequence[LoadedModule],
) -> Plan:
    """Make the plan. Before it, fill the replay buffers with recorded steps, and send the policy to the env runners."""
    pipelines = {module_id: of_module.env_to_module for module_id, of_module in built_modules.items()}
    standardisation = Standardisation(pipelines, config.multi_agent.auxiliary_modules)
    context = PlanContext(config, parts, adapting_losses(config, built_modules), standardisation)
    if replay is not None:
        replay.fill(context.replay_buffers, built_modules[DEFAULT_MODULE_ID])
    parts.broadcast_policy(shared_states(loaded) if loaded else {})
    parts.begin()
    return make_plan(context)


def build_metrics(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], notes: Notes) -> RunMetrics:
    """Make the counters, timers and running means of a run."""
    of_infos = read_info_metrics(config, _agents_of(built_modules))
    smoothing = config.env_runners.metrics_num_episodes_for_smoothing
    samples_episodes, has_gpus = ENV_RUNNERS in needs_of(config), uses_gpus(config)
    return RunMetrics(smoothing, samples_episodes, notes.warn, of_infos, config.env.name, has_gpus)


def check_metrics(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule], callbacks: Callbacks) -> None:
    """Check the metrics that `stop`, the checkpoint rule and sweeps name; see `check_metric_names`."""
    of_connectors = reported_metrics(config, built_modules)
    of_callbacks = with_evaluation(callbacks.reported_metrics, config)
    check_metric_names(config, producible_metrics(config, _agents_of(built_modules), of_connectors) | of_callbacks)


def _agents_of(built_modules: Mapping[str, BuiltModule]) -> dict[str, tuple[str, ...]]:
    return {id_: of_module.spec.agents for id_, of_module in built_modules.items() if of_module.spec.agents}


def check_features_and_output(config: ExperimentConfig, built_modules: Mapping[str, BuiltModule]) -> None:
    """Check the features of a run, and the options of Ray's writers, before processes are started.

    Raises:
        ConfigError: a feature does not fit the modules, or an option of the recording is wrong.
    """
    for feature in features_of(config):
        feature.check({module_id: of_module.spec for module_id, of_module in built_modules.items()})
    if config.offline.is_written_by_ray:
        from runner.offline.writing.output_formats import check_output_options

        check_output_options(config.offline)


def _text_of_reading(config: ExperimentConfig, recorded: Mapping[str, RecordedSource]) -> str:
    from runner.offline.reading.source import start_text  # imports the libraries of recorded data

    return start_text(config, next(iter(recorded.values()), None))


def _inputs(
    config: ExperimentConfig, parts: RunParts, replay: RecordedReplay | None, held_out: HeldOut | None
) -> Iterator[tuple[RecordedSource | None, OfflineConfig, Context]]:
    if parts.recorded_data is not None:
        yield parts.recorded_data.source, config.offline, "training"
    if replay is not None:
        yield replay.source, config.offline, "training"
    if held_out is not None:
        yield held_out.source, held_out.source.config, "evaluation"


def _build_run_parts(
    config: ExperimentConfig,
    built_modules: Mapping[str, BuiltModule],
    metrics: RunMetrics,
    callbacks: Callbacks,
    evaluations: EvaluationSchedule,
    run_dir: Path | None,
    recorded: Mapping[str, RecordedSource],
) -> RunParts:
    """Make the parts that the plan needs; if one cannot be created, close the others."""
    needs, acting = needs_of(config), acting_modules(built_modules)
    with ExitStack() as made:
        made.callback(evaluations.close)
        takes_all_room = RECORDED_DATA in needs or config.env_runners.is_elastic  # Ray Data, or elastic env runners
        if takes_all_room and config.evaluation.evaluation_interval and config.evaluation.evaluation_num_env_runners:
            evaluations.evaluator.build_env_runners()
        learners = build_learner_group(config, built_modules)
        made.callback(learners.close)
        env_runners = recorded_data = None
        if ENV_RUNNERS in needs:
            is_recording = config.offline.output is not None
            env_runners = build_env_runner_group(config, TRAINING, acting, is_recording, run_dir)
            made.callback(env_runners.close)
        if RECORDED_DATA in needs:
            recorded_data = build_recorded_data(config, acting, recorded)
            made.callback(recorded_data.close)
        features = [feature.make_part(acting) for feature in features_of(config)]
        buffers = build_replay_buffers(config, built_modules, may_be_remote=True)
        settings, saves_all = config.algorithm.replay_buffers, config.checkpoint.save_replay_buffers == "full"
        replay = [ReplayPart(name, buffer, settings[name], saves_all) for name, buffer in buffers.items()]
        others = [*features, evaluations]
        parts = RunParts(learners, metrics, callbacks, env_runners, recorded_data, replay, others)
        made.pop_all()  # nothing failed
    return parts
