"""One env runner: N sub-environments stepped by a module, through the env-to-module and module-to-env pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from runner.config.blocks import EPISODES
from runner.config.errors import RunFailure
from runner.env_runners.acting_pass import ActingPass, array_of, sampling_mode
from runner.env_runners.episode_infos import EpisodeInfos
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.evaluation_watch import EvaluationWatch
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.mask_checks import check_masks
from runner.env_runners.observation_checks import ObservationChecks
from runner.env_runners.sample import Sample, Weights
from runner.env_runners.sample_recording import with_weights_seq_no
from runner.env_runners.vector_envs import SubEnvironments
from runner.episodes import nested
from runner.episodes.columns import OBS, Column, ColumnBlock, Rollout
from runner.episodes.spaces import blank_item
from runner.modules.flat_parameters import FlatParameters
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTIONS_FOR_ENV, DEFAULT_MODULE_ID
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline, taken_metrics
from runner.rows.finished_episodes import NONE_OUTSIDE, FinishedEpisodes
from runner.rows.lock_step_rows import EnvFragment, LockStepRows
from runner.rows.task_outcomes import CURRICULUM
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.callbacks import EpisodeCallbacks
    from runner.curriculum.tasked_episodes import TaskedEpisodes
    from runner.offline.writing.recorder import EpisodeRecorder, Recorded

# Vector steps of an evaluation after which rows are freed.
EVALUATION_FRAGMENT = 256


class SingleAgentEnvRunner:
    """Steps N sub-environments and returns what happened as column blocks.

    Args:
        env: the sub-environments.
        module: acts on the CPU; its weights come through `set_weights`.
        env_to_module, module_to_env: the pipelines around it.
        seed_name: `(role, index, generation)`; names all random streams of this runner within the run's seed.
        seed: of the run.
        num_lookback: past steps that chunks can see.
        validate_observations: of the `env` block.

    Attributes:
        recorder: of sampled or evaluated episodes; None: nothing is recorded.
        callbacks: that hear of episodes; None: none does.
        infos: takes numbers of finished episodes out of infos; None: no metric asks for any.
        tasks: of a curriculum; None: there is none.
    """

    def __init__(
        self,
        env: SubEnvironments,
        module: RLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        seed_name: tuple[str, int, int],
        seed: int,
        num_lookback: int,
        validate_observations: str = "warn",
    ) -> None:
        self.env = env
        self.module = module
        self.env_to_module = env_to_module
        self.module_to_env = module_to_env
        self._weights = FlatParameters(module)
        self._forward = ActingPass(module)
        self._seed_name = seed_name
        self._seed = seed
        self._checks = ObservationChecks(
            env.single_observation_space, env.num_envs, type(env).__name__, validate_observations
        )
        role, index, generation = seed_name
        prefix = f"{role}-{index}" if generation == 0 else f"{role}-{index}.{generation}"
        blank_obs, blank_action = blank_item(env.single_observation_space), blank_item(module.action_space)
        self._buffer = LockStepRows(env.num_envs, blank_obs, blank_action, f"{seed}-{prefix}", num_lookback)
        self._to_module: dict[str, Any] | None = None
        self.recorder: EpisodeRecorder | None = None
        self.callbacks: EpisodeCallbacks | None = None
        self.infos: EpisodeInfos | None = None
        self.tasks: TaskedEpisodes | None = None
        self._give_streams()

    def _give_streams(self) -> None:
        role, index, generation = self._seed_name
        for pipeline in (self.env_to_module, self.module_to_env):
            pipeline.give_streams(
                lambda name, position: random_stream(self._seed, f"{role}/{name}", index, generation, position)
            )

    # -- sampling --------------------------------------------------------------------------------------------------

    def sample(
        self,
        num_env_steps: int,
        explore: bool = True,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
        num_env_steps_sampled: int = 0,
    ) -> Sample:
        """Step until at least `num_env_steps` env steps are made; see `EnvRunner.sample`."""
        self._take_over(weights, shared_state, num_env_steps_sampled)
        buffer = self._buffer
        buffer.reserve(-(-num_env_steps // self.env.num_envs) + 1)
        with self._sampling_mode():
            self._start_if_needed(explore)
            while buffer.num_env_steps < num_env_steps:
                self._step(explore)
            fragment = self._cut_checked()
        if self.recorder is not None:
            self.recorder.add(with_weights_seq_no(raw_block(fragment), weights_seq_no))
            if fragment.broken_off:
                self.recorder.break_off(fragment.broken_off)
        rollout = Rollout({DEFAULT_MODULE_ID: fragment.block}, fragment.block.num_rows)
        reported = taken_metrics({DEFAULT_MODULE_ID: (self.env_to_module, self.module_to_env)})
        if self.callbacks is not None:
            self.callbacks.after_sample(rollout)
            reported |= self.callbacks.take_metrics()
        return Sample(
            rollout,
            fragment.finished,
            {DEFAULT_MODULE_ID: self.env_to_module.get_state()},
            self.env.counts,
            connector_metrics=reported,
            weights_seq_no=weights_seq_no,
            broken_off=fragment.broken_off,
        )

    def evaluate(
        self,
        duration: int,
        explore: bool = False,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
        num_env_steps_sampled: int = 0,
        unit: str = EPISODES,
    ) -> FinishedEpisodes:
        """Run exactly `duration` whole episodes, or env steps, from fresh resets; see `EnvRunner.evaluate`."""
        self._take_over(weights, shared_state, num_env_steps_sampled)
        quotas = EvaluationQuotas(duration, unit, self.env.num_envs)
        if self.callbacks is not None:
            self.callbacks.begin_evaluation(quotas.is_running)
        self._give_streams()
        self._to_module = None
        buffer = self._buffer
        parts: list[FinishedEpisodes] = []
        watch = EvaluationWatch(f"no episode of {self.env.num_envs} sub-environments has finished")
        with self._sampling_mode():
            self._start_if_needed(explore)
            while (is_running := quotas.is_running).any():
                watch.look(bool(quotas.num_counted.any()))
                if self.callbacks is not None:
                    self.callbacks.tell_of(is_running)
                is_step = ~buffer.awaits_reset
                self._step(explore)
                if self.env.broken_off:
                    quotas.break_off(self.env.broken_off, is_step)
                quotas.count(is_step, buffer.awaits_reset)
                if buffer.t == EVALUATION_FRAGMENT or not quotas.is_running.any():
                    fragment = self._cut_checked(with_outputs_per_fragment=explore)
                    if self.recorder is not None:
                        are_counted = quotas.are_counted(fragment.episode_numbers, fragment.env_of)
                        self.recorder.add(raw_block(fragment), are_counted)
                    parts.append(fragment.finished)
        if self.recorder is not None:
            self.recorder.drop_open()
        counted = quotas.counted(FinishedEpisodes.concatenated(parts))
        return counted if self.callbacks is None else replace(counted, reported=(self.callbacks.end_evaluation(),))

    def _sampling_mode(self) -> Any:
        pipelines = self.env_to_module, self.module_to_env
        return sampling_mode(self.env.environments, pipelines, self.callbacks is not None)

    def _cut_checked(self, with_outputs_per_fragment: bool = True) -> EnvFragment:
        """Return the fragment so far, checked; without `action_logp`, which says nothing, where actions were greedy."""

        def complete(columns: dict[str, Column]) -> None:
            if with_outputs_per_fragment:
                self.module_to_env.complete_fragment(columns, self.module)

        fragment = self._buffer.cut(complete)
        outside = check_fragment(fragment.block, fragment.raw_obs, self._checks)
        if self.tasks is not None:
            outcomes = {CURRICULUM: self.tasks.take(fragment.finished.returns)}
            finished = replace(fragment.finished, outcomes=outcomes)
            fragment = replace(fragment, finished=finished)
        if outside is NONE_OUTSIDE and self.infos is None:
            return fragment
        infos = {} if self.infos is None else self.infos.take()
        keys = () if self.infos is None else self.infos.known_keys(infos)
        return replace(fragment, finished=replace(fragment.finished, outside=outside, infos=infos, info_keys=keys))

    def _start_if_needed(self, explore: bool) -> None:
        if self._to_module is not None:
            return
        self._buffer.clear()
        if self.infos is not None:
            self.infos.clear()
        if self.tasks is not None:
            self.tasks.clear()
        if self.callbacks is not None:
            self.callbacks.before_first_reset()
        obs, infos = self.env.reset(self._seed_name)
        self._checks.check_shapes(obs, "reset")
        self._buffer.add_reset(obs, infos)
        self._to_module = self._run_env_to_module(explore)
        if self.callbacks is not None:
            self.callbacks.after_reset(self._buffer)

    def _step(self, explore: bool) -> None:
        """Take one vector step.

        `_to_module` was made right after the step before, so that a fragment's last observation has passed the pipeline
        when the fragment is cut, and no observation passes it twice.
        """
        assert self._to_module is not None
        batch = self.module_to_env(
            rl_module=self.module,
            batch=self._forward(self._to_module, explore),
            episodes=self._buffer,
            explore=explore,
            shared_data=self._shared_data,
        )
        actions = batch.pop(ACTIONS_FOR_ENV)
        if self.callbacks is not None:
            self.callbacks.before_step(self._buffer)
        try:
            obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        except RunFailure:
            self._check_newest(self._buffer.current_obs)  # a bad one made the action that made the step fail
            raise
        self._checks.check_shapes(obs, "step")
        if self.env.broken_off:
            self._break_off(self.env.broken_off)
        if self.infos is not None:
            self.infos.add_step(infos, ~self._buffer.awaits_reset, terminateds | truncateds)
        if self.tasks is not None:
            self.tasks.add_step(terminateds | truncateds)
        self._buffer.add_step(obs, rewards, terminateds, truncateds, infos, batch)
        self._to_module = self._run_env_to_module(explore)
        if self.callbacks is not None:  # connectors may have written the newest observation anew
            self.callbacks.after_step(self._buffer)

    def _break_off(self, envs: Sequence[int]) -> None:
        """Note that the newest vector step has made these sub-environments anew."""
        if self.callbacks is not None:
            self.callbacks.break_off(envs)
        if self.infos is not None:
            self.infos.break_off(envs)
        self._buffer.break_off(envs)

    def _run_env_to_module(self, explore: bool) -> dict[str, Any]:
        self._shared_data: dict[str, Any] = {}
        to_module = self.env_to_module(
            rl_module=self.module,
            batch={},
            episodes=self._buffer,
            explore=explore,
            shared_data=self._shared_data,
        )
        check_masks(self.module, to_module, ~self._buffer.awaits_reset, lambda row: f"sub-environment {row}")
        return to_module

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_newest(self, obs: Column) -> None:
        misfit = self._checks.find_misfit(obs)
        if misfit is not None and misfit.is_error:
            raise RunFailure(replace(misfit.problem, where=f"sub-environment {misfit.row}"))

    # -- state -----------------------------------------------------------------------------------------------------

    def use_tasks(self, odds: Mapping[str, float]) -> None:
        """Draw the tasks of new episodes with these probabilities."""
        assert self.tasks is not None
        self.tasks.use(odds)

    def set_weights(self, weights: Weights) -> None:
        """Act with these parameters (module id -> vector) from now on."""
        self._weights.load(weights[DEFAULT_MODULE_ID])

    def _take_over(
        self, weights: Weights | None, shared_state: Mapping[str, Any] | None, num_env_steps_sampled: int
    ) -> None:
        self._forward.look_at_settings()
        if weights is not None:
            self.set_weights(weights)
        if shared_state:
            self.env_to_module.set_state(shared_state.get(DEFAULT_MODULE_ID, {}))
        self.module_to_env.at_env_steps(num_env_steps_sampled)

    def address(self) -> None:
        """Return None: environments are stepped here."""

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights; empty before the first one."""
        if self._to_module is None:
            return {}
        return {
            "env": self.env.get_state(),
            "buffer": self._buffer.get_state(),
            "to_module": nested.map_leaves(array_of, self._to_module),
            "shared_data": self._shared_data,
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
            **({} if self.callbacks is None else {"callbacks": self.callbacks.get_state()}),
            **({} if self.infos is None else {"infos": self.infos.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        if not state:
            return
        self.env.set_state(state["env"])
        self._buffer.set_state(state["buffer"])
        self._to_module = nested.map_leaves(lambda rows: torch.from_numpy(np.array(rows)), dict(state["to_module"]))
        self._shared_data = dict(state["shared_data"])
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])
        if self.callbacks is not None and "callbacks" in state:
            self.callbacks.set_state(state["callbacks"])
        if self.infos is not None and "infos" in state:
            self.infos.set_state(state["infos"])

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around the module."""
        return self.env_to_module, self.module_to_env

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded episodes."""
        assert self.recorder is not None
        return self.recorder.close()

    def close(self) -> None:
        """Close the environments; recorded episodes that are in no whole file are dropped."""
        try:
            if self.recorder is not None:
                self.recorder.abort()
        finally:
            self.env.close()


def raw_block(fragment: EnvFragment) -> ColumnBlock:
    """Return the fragment's block with observations as the environment returned them, whatever the pipeline made.

    With a curriculum, it has the tasks of the episodes that ended.
    """
    block = fragment.block.with_columns({OBS: fragment.raw_obs})
    return replace(block, tasks=_tasks_of(fragment)) if fragment.finished.outcomes.get(CURRICULUM) else block


def _tasks_of(fragment: EnvFragment) -> list[str | None]:
    """Return the task of each chunk that ends an episode; None: it goes on."""
    finished, block = fragment.finished, fragment.block
    ended: dict[int, list[str]] = {}  # sub-environment -> tasks of its episodes, the newest first
    for n, outcome in zip(finished.env_of.tolist()[::-1], finished.outcomes[CURRICULUM][::-1], strict=True):
        ended.setdefault(n, []).append(outcome.task)
    is_done = (block.is_terminated | block.is_truncated).tolist()
    return [ended[n].pop() if done else None for n, done in zip(fragment.env_of.tolist(), is_done, strict=True)]
