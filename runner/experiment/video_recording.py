"""Records videos of complete episodes of a policy in one sub-environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from runner.callbacks import Callbacks
from runner.config.blocks import ASYNC
from runner.config.errors import ConfigError
from runner.config.schemas import ExperimentConfig
from runner.env_runners.env_runner import SingleAgentEnvRunner
from runner.env_runners.multi_agent_env_runner import MultiAgentEnvRunner
from runner.env_runners.rendered_envs import rendered
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.sample import Weights
from runner.experiment.env_runner_builder import EVALUATION, build_stepping_env_runner
from runner.module_building import ModuleSpec
from runner.rows.finished_episodes import FinishedEpisodes
from runner.videos import Camera, VideoFile, check_installed, render_mode


class VideoRecorder:
    """Records episodes of one sub-environment as videos, always with the same seeds; greedily unless
    `evaluation.explore` is set.

    Args:
        config: configuration of the run.
        specs: module id -> its specification.
        is_window: whether to show the episodes in a window instead of recording them.

    Raises:
        ConfigError: the environment cannot be created with a render mode.
        RunFailure: the environment does not render images.
        UserError: a package that writes videos is not installed.
    """

    def __init__(self, config: ExperimentConfig, specs: Mapping[str, ModuleSpec], is_window: bool = False) -> None:
        self._explore = config.evaluation.explore
        if not is_window:
            check_installed()
        rendering = _rendering(config, render_mode(is_window))
        self._camera = Camera()
        callbacks = Callbacks([] if is_window else [self._camera], is_evaluation=True)
        identity = RunnerIdentity(EVALUATION, 0, 0, config.seed)
        try:
            made = build_stepping_env_runner(rendering, specs, identity, callbacks=callbacks)
        except ConfigError as error:
            expected = (
                "an environment whose constructor takes render_mode, which evaluation.video and `runner play` need"
            )
            raise ConfigError(
                [replace(problem, expected=problem.expected or expected) for problem in error.problems]
            ) from error
        self._runner = cast(SingleAgentEnvRunner | MultiAgentEnvRunner, made)
        if not is_window:
            self._check_pictures()

    def _check_pictures(self) -> None:
        try:
            self._runner.env.reset((EVALUATION, 0, 0))
            self._camera.on_episode_start()  # fail early if the environment does not render pictures
        except BaseException:
            self.close()
            raise

    def record(
        self,
        paths: Sequence[Path],
        num_episodes: int,
        weights: Weights,
        shared_state: Mapping[str, Any],
        num_env_steps_sampled: int,
    ) -> FinishedEpisodes:
        """Run complete episodes, one after the other, and write their images to each of `paths`.

        Raises:
            UserError: a file cannot be written.
        """
        with ExitStack() as files:
            self._camera.videos = [files.enter_context(VideoFile(path, self._camera.fps)) for path in paths]
            episodes: FinishedEpisodes = self._runner.evaluate(
                num_episodes,
                self._explore,
                weights,
                shared_state,
                num_env_steps_sampled=num_env_steps_sampled,
            )
        return episodes

    def close(self) -> None:
        """Close the environment."""
        self._runner.close()


def _rendering(config: ExperimentConfig, mode: str) -> ExperimentConfig:
    env = rendered(config.env, mode)
    is_named, mode_of_run = config.env._target_ is None, config.env_runners.gym_env_vectorize_mode
    env_runners = replace(config.env_runners, env_runner_class=None)
    if is_named or mode_of_run == ASYNC:  # gymnasium's batched implementations render differently
        env_runners = replace(env_runners, gym_env_vectorize_mode="sync", env_step_timeout_s=None)
    evaluation = replace(config.evaluation, num_envs_per_env_runner=1)
    return replace(config, env=env, env_runners=env_runners, evaluation=evaluation, metrics={}, callbacks=[])
