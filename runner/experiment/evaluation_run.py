"""Evaluates a policy, without the parts that only training needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runner.callbacks import Callbacks
from runner.checkpoints.folder import shared_state_in
from runner.config.schemas import ExperimentConfig
from runner.experiment.build import build_metrics, check_features_and_output
from runner.experiment.evaluator import Evaluator
from runner.experiment.features import features_of
from runner.experiment.learner_builder import build_learner_group, check_local_gpus
from runner.experiment.notes import Notes
from runner.experiment.ray_resources import ray_cluster
from runner.experiment.recorded_data_builder import build_held_out_evaluation
from runner.module_building import acting_modules, build_modules
from runner.plans import Result
from runner.plans.run_parts import RunParts
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded


class EvaluationRun:
    """Evaluates a policy, new or from a checkpoint. Makes no plan, training env runners or replay buffers.

    Args:
        config: configuration of the run, complete and checked. The evaluation records episodes if `offline.output`
            names a folder.

    Raises:
        ConfigError: a part cannot be built (environment, pipeline, module, held-out data, cluster resources).
    """

    def __init__(self, config: ExperimentConfig) -> None:
        torch.set_num_threads(config.learners.torch_num_threads)
        check_local_gpus(config)
        notes = Notes(None)
        built_modules = build_modules(config)
        acting = acting_modules(built_modules)
        metrics = build_metrics(config, built_modules, notes)
        check_features_and_output(config, acting)
        # Only the resources of the evaluation are counted.
        without_plan = replace(config, algorithm=replace(config.algorithm, plan=[]))
        with ExitStack() as resources:
            resources.enter_context(ray_cluster(without_plan, notes.inform))
            held_out = build_held_out_evaluation(config, acting)
            is_recording = config.offline.output is not None
            self._evaluator = Evaluator(config, acting, held_out, notes.warn, is_recording)
            resources.callback(self._evaluator.close)
            learners = build_learner_group(config, built_modules)
            resources.callback(learners.close)
            features = [feature.make_part(acting) for feature in features_of(config)]
            self._parts = RunParts(learners, metrics, Callbacks([]), features=features)
            self._resources = resources.pop_all()

    def set_policy(self, state: Mapping[str, Any]) -> None:
        """Use the policy of a checkpoint: its parameters, and the connector states that env runners share. Schedules of
        exploration and losses continue from the env steps of the run.

        Args:
            state: see `load_checkpoint`.

        Raises:
            ConfigError: the state belongs to another network.
        """
        learners, metrics = self._parts.learners, self._parts.metrics
        learners.set_state(state[learners.name])
        metrics.num_env_steps_sampled_lifetime = int(state[metrics.name]["num_env_steps_sampled_lifetime"])
        self._parts = replace(self._parts, stored_shared_state=shared_state_in(state))

    def evaluate(self, num_episodes: int | None = None) -> Result:
        """Evaluate exactly `num_episodes` complete episodes, always with the same seeds, and return their metrics.

        Args:
            num_episodes: number of episodes, or None for the configured duration, in episodes or env steps.
        """
        return self._evaluator.evaluate(self._parts, num_episodes)

    def evaluate_offline(self) -> Result:
        """Evaluate the policy on the held-out recorded data that the configuration names, and return metrics."""
        return self._evaluator.evaluate_offline(self._parts)

    def record_videos(self, paths: Sequence[Path], num_episodes: int) -> FinishedEpisodes:
        """Record videos of complete episodes, or show them in a window; see `Evaluator.record_videos`."""
        return self._evaluator.record_videos(self._parts, paths, num_episodes)

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded episodes; call it after `evaluate`.

        Raises:
            RunFailure: recorded episodes could not be written.
        """
        env_runners = self._evaluator.env_runners
        assert env_runners is not None
        return env_runners.finish_recording()

    def close(self) -> None:
        """Close environments and runners, and leave the Ray cluster if it was joined or started here."""
        self._resources.close()

    def __enter__(self) -> EvaluationRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
