"""One env runner: steps N sub-environments with a module, through its env-to-module and module-to-env pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from runner.config.errors import RunFailure
from runner.env_runners.acting_pass import array_of, run_user_code
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.listeners import BoolArray, Cut, EpisodeListener, IntArray, VectorStep
from runner.env_runners.mask_checks import check_masks
from runner.env_runners.observation_checks import ObservationChecks
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.stepping_env_runner import SteppingEnvRunner
from runner.env_runners.vector_envs import SubEnvironments
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import blank_item
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTIONS_FOR_ENV, DEFAULT_MODULE_ID, Batch
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.rows.finished_episodes import NONE_OUTSIDE, FinishedEpisodes
from runner.rows.lock_step_rows import LockStepRows


class SingleAgentEnvRunner(SteppingEnvRunner):
    """Steps N sub-environments and returns column blocks.

    Args:
        env: the sub-environments.
        module: acts on the CPU; `set_weights` sets its weights.
        env_to_module, module_to_env: the pipelines around the module.
        identity: names the random streams and the episodes.
        num_lookback: number of past steps that chunks can see.
        validate_observations: the option of the `env` block.
        listeners: follow the episodes, in this order.
    """

    env: SubEnvironments
    module: RLModule
    _has_module_streams = False

    def __init__(
        self,
        env: SubEnvironments,
        module: RLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        identity: RunnerIdentity,
        num_lookback: int,
        validate_observations: str = "warn",
        listeners: Sequence[EpisodeListener] = (),
    ) -> None:
        self.env_to_module, self.module_to_env = env_to_module, module_to_env
        pipelines = {DEFAULT_MODULE_ID: (env_to_module, module_to_env)}
        super().__init__(env, module, {DEFAULT_MODULE_ID: module}, pipelines, identity, listeners)
        has_callbacks = any(listener.runs_user_code for listener in listeners)
        self._can_infer = not (has_callbacks or run_user_code(env.environments, pipelines[DEFAULT_MODULE_ID]))
        self._checks = ObservationChecks(
            env.single_observation_space, env.num_envs, type(env).__name__, validate_observations
        )
        blank_obs, blank_action = blank_item(env.single_observation_space), blank_item(module.action_space)
        self._rows = LockStepRows(env.num_envs, blank_obs, blank_action, identity.id_prefix, num_lookback)
        self._to_module: dict[str, Any] = {}
        self._shared_data: dict[str, Any] = {}

    # -- stepping --------------------------------------------------------------------------------------------------

    @property
    def _num_env_steps(self) -> int:
        return self._rows.num_env_steps

    @property
    def _awaits_reset(self) -> BoolArray:
        awaits_reset: BoolArray = self._rows.awaits_reset
        return awaits_reset

    def _acting_mode(self) -> AbstractContextManager[Any]:
        mode: AbstractContextManager[Any] = torch.inference_mode(self._can_infer)
        return mode

    def _reserve(self, num_env_steps: int) -> None:
        self._rows.reserve(-(-num_env_steps // self.env.num_envs) + 1)

    def _begin(self, explore: bool, counted: BoolArray) -> VectorStep:
        rows = self._rows
        rows.clear()
        obs, infos = self.env.reset(self._identity.seed_name)
        self._checks.check_shapes(obs, "reset")
        try:
            rows.add_reset(obs, infos)
        except ValueError:
            self._checks.check(obs, "reset")
            raise
        self._run_env_to_module(explore)
        return VectorStep(self._all_envs, ~self._all_envs, counted, rows, infos=infos)

    def _act(self, explore: bool) -> Batch:
        """Return the outputs of the module and the module-to-env pipeline for the newest observations.

        The batch was made right after the previous step. So a fragment's last observation has passed the pipeline when
        the fragment is cut, and no observation passes it twice.
        """
        return self.module_to_env(
            rl_module=self.module,
            batch=self._forward(self._to_module, explore),
            episodes=self._rows,
            explore=explore,
            shared_data=self._shared_data,
        )

    def _step(self, actions: Batch, explore: bool, counted: BoolArray) -> VectorStep:
        rows, env = self._rows, self.env
        try:
            obs, rewards, terminateds, truncateds, infos = env.step(actions.pop(ACTIONS_FOR_ENV))
        except RunFailure:
            self._check_newest(rows.current_obs)  # an invalid observation may have caused the error
            raise
        self._checks.check_shapes(obs, "step")
        is_reset = rows.awaits_reset
        aborted: Sequence[int] = ()
        if env.recreated:
            aborted = [n for n in env.recreated if not is_reset[n]]
            rows.abort(aborted)
        try:
            rows.add_step(obs, rewards, terminateds, truncateds, infos, actions)
        except ValueError:
            self._checks.check(obs, "step")
            raise
        self._run_env_to_module(explore)
        return VectorStep(is_reset, rows.awaits_reset, counted, rows, aborted, infos)

    def _run_env_to_module(self, explore: bool) -> None:
        """Make the batch of the next forward pass."""
        self._shared_data = {}
        self._to_module = self.env_to_module(
            rl_module=self.module,
            batch={},
            episodes=self._rows,
            explore=explore,
            shared_data=self._shared_data,
        )
        check_masks(self.module, self._to_module, ~self._rows.awaits_reset, lambda row: f"sub-environment {row}")

    def _check_newest(self, obs: Column) -> None:
        misfit = self._checks.find_misfit(obs)
        if misfit is not None and misfit.is_error:
            raise RunFailure(replace(misfit.problem, where=f"sub-environment {misfit.row}"))

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _cut(self, weights_seq_no: int, quotas: EvaluationQuotas | None, with_outputs: bool) -> Cut:
        def complete(columns: dict[str, Column]) -> None:
            if with_outputs:
                self.module_to_env.complete_fragment(columns, self.module)

        fragment = self._rows.cut(complete)
        outside = check_fragment(fragment.block, fragment.raw_obs, self._checks)
        finished, num_env_steps = fragment.finished, fragment.block.num_rows
        if outside is not NONE_OUTSIDE:
            finished = replace(finished, outside=outside)
        fragments = {DEFAULT_MODULE_ID: fragment}
        return Cut(fragments, num_env_steps, weights_seq_no, quotas, finished, aborted=fragment.aborted)

    def _collect_finished(
        self, cuts: Sequence[Cut], quotas: EvaluationQuotas | None
    ) -> tuple[FinishedEpisodes, IntArray | None]:
        if quotas is None:
            (cut,) = cuts
            return cut.finished, None
        return quotas.counted(FinishedEpisodes.concatenated([cut.finished for cut in cuts]))

    # -- state -----------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "env": self.env.get_state(),
            "buffer": self._rows.get_state(),
            "to_module": nested.map_leaves(array_of, self._to_module),
            "shared_data": self._shared_data,
            "env_to_module": self.env_to_module.get_state(),
            "module_to_env": self.module_to_env.get_state(),
        }

    def _restore(self, state: Mapping[str, Any]) -> Sequence[str]:
        self.env.set_state(state["env"])
        self._rows.set_state(state["buffer"])
        self._to_module = nested.map_leaves(lambda rows: torch.from_numpy(np.array(rows)), dict(state["to_module"]))
        self._shared_data = dict(state["shared_data"])
        self.env_to_module.set_state(state["env_to_module"])
        self.module_to_env.set_state(state["module_to_env"])
        return self._rows.running_ids()
