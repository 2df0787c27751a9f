"""Construction of the resources that the plan of an experiment works with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from runner.config.operators import ENV_RUNNERS, RECORDED_DATA
from runner.config.plans import needs_of
from runner.config.schemas import ExperimentConfig
from runner.experiment.curriculum_builder import build_curriculum
from runner.experiment.env_runner_builder import TRAINING
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.league_builder import build_league
from runner.experiment.learner_builder import adapting_losses, build_learner_group
from runner.experiment.recorded_data_builder import build_recorded_data
from runner.experiment.replay_builder import build_replay_buffers
from runner.module_parts import ModuleParts
from runner.pipelines.raw_observations import Standardisation
from runner.plans import Resources, RunMetrics

if TYPE_CHECKING:
    from runner.offline.reading.recorded_source import RecordedSource


def build_resources(
    config: ExperimentConfig,
    parts: Mapping[str, ModuleParts],
    run_metrics: RunMetrics,
    is_recording: bool = False,
    run_dir: Path | None = None,
    recorded: Mapping[str, RecordedSource] = MappingProxyType({}),
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
            recorded_data = build_recorded_data(config, parts, recorded)
        league = build_league(config, parts)
        made.pop_all()  # nothing failed
    resources = Resources(
        config,
        learners,
        run_metrics,
        env_runners,
        recorded_data,
        adapting_losses(config, parts),
        build_replay_buffers(config, parts, may_be_remote=True),
        Standardisation({module_id: of_module.env_to_module for module_id, of_module in parts.items()}),
    )
    resources.league = league
    resources.curriculum = build_curriculum(config)
    return resources
