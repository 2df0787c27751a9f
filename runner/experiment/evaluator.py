"""Evaluates the current policy of a run in complete episodes and on held-out data, and records videos of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.closing import close_each
from runner.config.blocks import ENV_STEPS
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner_group import EnvRunnerGroup
from runner.env_runners.evaluation_watch import reporting
from runner.env_runners.limited_envs import limited
from runner.env_runners.sample import Weights
from runner.experiment.env_runner_builder import EVALUATION
from runner.experiment.env_runner_group_builder import build_env_runner_group
from runner.experiment.video_recording import VideoRecorder
from runner.interrupts import Interrupted
from runner.module_building import BuiltModule
from runner.pipelines.custom_metrics import merged_metrics
from runner.plans import Result
from runner.plans.episode_metrics import episode_metrics, mean_returns_by_id, reduced_infos, returns_by_kind
from runner.plans.run_parts import RunParts
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.experiment.recorded_data_builder import HeldOut


@dataclass(frozen=True)
class EvaluatedPolicy:
    """The policy to evaluate.

    Attributes:
        weights: module id -> vector of parameters.
        shared_state: module id -> state of connectors that runners share.
        num_env_steps_sampled: number of env steps that the run has sampled.
    """

    weights: Weights
    shared_state: Mapping[str, Any]
    num_env_steps_sampled: int

    @classmethod
    def of(cls, parts: RunParts) -> EvaluatedPolicy:
        """Return the current policy."""
        return cls(parts.get_weights(), parts.shared_state, parts.num_env_steps)


class Evaluator:
    """Evaluates the policy of a run. Builds its env runners on first use.

    Args:
        config: configuration of the run.
        built_modules: module id -> network and pipelines.
        held_out: evaluates on recorded data, or None.
        warn: shows a line to the user.
        is_recording: whether evaluated episodes are recorded.

    Attributes:
        env_runners: env runners of evaluations, or None before the first one.
        held_out: evaluates on recorded data.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        built_modules: Mapping[str, BuiltModule],
        held_out: HeldOut | None,
        warn: Callable[[str], None],
        is_recording: bool = False,
    ) -> None:
        self.env_runners: EnvRunnerGroup | None = None
        self.held_out = held_out
        self._config, self._built_modules = _with_limited_episodes(config), built_modules
        self._is_recording = is_recording
        self._warn = warn
        self._has_warned_of_no_end = self._has_reported = False
        self._video_recorder: VideoRecorder | None = None

    def build_env_runners(self) -> EnvRunnerGroup:
        """Return the env runners; build them on first use."""
        if self.env_runners is None:
            self.env_runners = build_env_runner_group(self._config, EVALUATION, self._built_modules, self._is_recording)
        return self.env_runners

    def evaluate(
        self,
        parts: RunParts,
        num_episodes: int | None = None,
        wait: Callable[[], FinishedEpisodes] | None = None,
    ) -> Result:
        """Evaluate exactly `num_episodes` complete episodes, always with the same seeds, and return their metrics.

        Args:
            parts: parts of the run, which hold the policy.
            num_episodes: number of episodes, or None for the configured duration, in episodes or env steps.
            wait: returns the episodes of an evaluation that was submitted before, or None to submit one.
        """
        with parts.metrics.clocked() as clock, reporting(self._report_once):
            episodes = self._run(parts, num_episodes, wait)
        settings = self._config.evaluation
        num_env_steps = int(episodes.lengths.sum())
        if num_episodes is None and settings.evaluation_duration_unit == ENV_STEPS:
            num_env_steps = settings.evaluation_duration
            self._warn_of_no_end(len(episodes.returns))
        result = episode_metrics(
            "evaluation/env_runners",
            episodes.returns,
            episodes.lengths,
            len(episodes.returns),
            num_env_steps,
            episodes.outside.count,
        )
        parts.metrics.warn_of(episodes.outside)
        parts.metrics.warn_of_missing_infos(episodes.infos, episodes.info_keys)
        result |= reduced_infos("evaluation/env_runners", parts.metrics.of_infos, episodes.infos)
        result |= {f"evaluation/{name}": reduced.result for name, reduced in merged_metrics(episodes.reported).items()}
        result |= mean_returns_by_id("evaluation/env_runners", dict(returns_by_kind(episodes)))
        result |= parts.evaluation_metrics(episodes.outcomes)
        result |= {"timers/evaluation": clock.seconds, "time_total_s": parts.metrics.time_total_s}
        parts.callbacks.call("on_evaluate_end", result=result)
        return result

    def _run(
        self, parts: RunParts, num_episodes: int | None, wait: Callable[[], FinishedEpisodes] | None
    ) -> FinishedEpisodes:
        """Run an evaluation or wait for one. If it is interrupted, restore the earlier state of the callbacks."""
        callbacks = parts.callbacks
        starts = wait is None and callbacks.overrides_any("on_evaluate_start")
        before = copy.deepcopy(callbacks.get_state()) if starts else []
        try:
            return (wait or self.submit(parts, num_episodes))()
        except Interrupted:
            callbacks.set_state(before)
            self.abandon()
            raise

    def _report_once(self, text: str) -> None:
        if not self._has_reported:
            self._has_reported = True
            self._warn(text)

    def submit(
        self, parts: RunParts, num_episodes: int | None = None, repeated: EvaluatedPolicy | None = None
    ) -> Callable[[], FinishedEpisodes]:
        """Start an evaluation, and return a function that waits for its episodes.

        Args:
            parts: parts of the run, which hold the policy.
            num_episodes: see `evaluate`.
            repeated: the policy of an interrupted evaluation, or None for the current policy.
        """
        if repeated is None:
            parts.callbacks.call("on_evaluate_start")
        policy = repeated or EvaluatedPolicy.of(parts)
        runners, settings = self.build_env_runners(), self._config.evaluation
        runners.set_weights(policy.weights)
        runners.use_shared_state(policy.shared_state)
        for part in parts:
            part.announce_to(runners, is_evaluation=True)
        num_sampled = policy.num_env_steps_sampled
        if num_episodes is not None:
            return runners.submit_evaluation(num_episodes, settings.explore, num_sampled)
        duration, unit = settings.evaluation_duration, settings.evaluation_duration_unit
        return runners.submit_evaluation(duration, settings.explore, num_sampled, unit)

    def _warn_of_no_end(self, num_episodes: int) -> None:
        """Warn once about an evaluation that was too short for an episode to end."""
        if num_episodes or self._has_warned_of_no_end:
            return
        self._has_warned_of_no_end = True
        hint = "without a complete episode, the evaluation cannot report a return; raise evaluation.evaluation_duration"
        self._warn(f"{self._config.evaluation.no_end_text}: {hint}")

    def evaluate_offline(self, parts: RunParts) -> Result:
        """Evaluate the policy on held-out recorded data (`evaluation.offline_evaluation_...`), and return metrics.

        Args:
            parts: parts of the run, which hold the policy.
        """
        if self.held_out is None:
            raise ValueError("evaluate_offline needs held-out data, but evaluation.offline_evaluation_input_ is null")
        metrics = parts.metrics
        with metrics.clocked() as clock:
            state = parts.learners.get_state()
            result: Result = dict(self.held_out.evaluate(state, parts.shared_state, parts.num_env_steps))
        return result | {"timers/offline_evaluation": clock.seconds, "time_total_s": metrics.time_total_s}

    def record_videos(self, parts: RunParts, paths: Sequence[Path], num_episodes: int) -> FinishedEpisodes:
        """Record videos of complete episodes of the current policy.

        Args:
            parts: parts of the run, which hold the policy.
            paths: .mp4 or .gif files, which all show the same episodes; if empty, a window shows the episodes.
            num_episodes: number of episodes in each file.

        Raises:
            ConfigError: the environment does not render images.
            UserError: a file cannot be written.
        """
        recorder, metrics = self.make_video_recorder(is_window=not paths), parts.metrics
        weights, num_sampled = parts.get_weights(), metrics.num_env_steps_sampled_lifetime
        with metrics.clocked(), reporting(self._report_once):
            return recorder.record(paths, num_episodes, weights, parts.shared_state, num_sampled)

    def make_video_recorder(self, is_window: bool = False) -> VideoRecorder:
        """Return the object that records or shows episodes; create it on first use.

        Raises:
            ConfigError: the environment does not render images.
        """
        if self._video_recorder is None:
            specs = {module_id: of_module.spec for module_id, of_module in self._built_modules.items()}
            self._video_recorder = VideoRecorder(self._config, specs, is_window)
        return self._video_recorder

    def abandon(self) -> None:
        """Close the env runners without waiting for them; the next evaluation builds new ones."""
        if self.env_runners is not None:
            runners, self.env_runners = self.env_runners, None
            runners.actors.abandon()

    def close(self) -> None:
        """Close environments and env runners."""
        close_each([self.env_runners, self._video_recorder])


def _with_limited_episodes(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration of an evaluation, with `evaluation.max_episode_steps` as the limit of episodes."""
    limit = config.evaluation.max_episode_steps
    if limit is None:
        return config
    wrapper = {"_target_": f"{limited.__module__}.{limited.__qualname__}", "max_episode_steps": limit}
    return replace(config, env=replace(config.env, wrappers=[*config.env.wrappers, wrapper]))
