"""Construction of the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from runner.callbacks import Callbacks
from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig
from runner.experiment.env_runner_builder import TRAINING
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.features import features_of
from runner.experiment.learner_builder import adapting_losses, build_learner_group
from runner.experiment.recorded_data_builder import build_recorded_data
from runner.experiment.replay_builder import build_replay_buffers
from runner.module_parts import ModuleParts
from runner.pipelines.raw_observations import Standardisation
from runner.plans import PlanContext, RunMetrics
from runner.plans.run_parts import RunParts
from runner.replay.replay_part import ReplayPart

if TYPE_CHECKING:
    from runner.offline.reading.recorded_source import RecordedSource


def build_run_parts(
    config: ExperimentConfig,
    module_parts: Mapping[str, ModuleParts],
    metrics: RunMetrics,
    callbacks: Callbacks,
    is_recording: bool = False,
    run_dir: Path | None = None,
    recorded: Mapping[str, RecordedSource] = MappingProxyType({}),
) -> RunParts:
    """Make the parts that the plan of an experiment needs.

    Args:
        config: configuration of the run.
        module_parts: module id -> parts of the module.
        metrics: counters of the run.
        callbacks: callbacks of the driver.
        is_recording: whether sampled episodes are recorded.
        run_dir: folder that env runners write to, or None if they write nothing.
        recorded: module id -> recorded data that `check_recorded_data` has opened.

    Raises:
        ConfigError: a part cannot be made.
    """
    needs = needs_of(config)
    with ExitStack() as made:
        learners = build_learner_group(config, module_parts)
        made.callback(learners.close)
        env_runners = recorded_data = None
        if ENV_RUNNERS in needs:
            env_runners = build_env_runner_group(config, TRAINING, module_parts, is_recording, run_dir)
            made.callback(env_runners.close)
        if RECORDED_DATA in needs:
            recorded_data = build_recorded_data(config, module_parts, recorded)
            made.callback(recorded_data.close)
        features = [feature.make_part(module_parts) for feature in features_of(config)]
        parts = RunParts(
            learners,
            metrics,
            callbacks,
            env_runners,
            recorded_data,
            _replay_parts(config, module_parts),
            features,
        )
        made.pop_all()  # nothing failed
    return parts


def _replay_parts(config: ExperimentConfig, module_parts: Mapping[str, ModuleParts]) -> list[ReplayPart]:
    buffers = build_replay_buffers(config, module_parts, may_be_remote=True)
    saves_experiences = config.checkpoint.save_replay_buffers == "full"
    settings = config.algorithm.replay_buffers
    return [ReplayPart(name, buffer, settings[name], saves_experiences) for name, buffer in buffers.items()]


def build_context(config: ExperimentConfig, module_parts: Mapping[str, ModuleParts], parts: RunParts) -> PlanContext:
    """Make the context of a plan that works with these parts."""
    pipelines = {module_id: of_module.env_to_module for module_id, of_module in module_parts.items()}
    return PlanContext(config, parts, adapting_losses(config, module_parts), Standardisation(pipelines))
