"""Base class of env runners, with the steps of sampling and evaluating for one or several agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from runner.closing import close_each
from runner.config.blocks import EPISODES
from runner.env_runners.acting_pass import ActingPass
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.evaluation_watch import EvaluationWatch
from runner.env_runners.listeners import BoolArray, Cut, EpisodeListener, IntArray, VectorStep, hooks_of, receiver_of
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.sample import Sample, Weights
from runner.episodes.columns import Rollout
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline, taken_metrics
from runner.rows.finished_episodes import FinishedEpisodes

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded

# Number of vector steps in an evaluation after which rows are freed.
EVALUATION_FRAGMENT = 256

Pipelines = tuple[EnvToModulePipeline, ModuleToEnvPipeline]


class SteppingEnvRunner(ABC):
    """Base class of env runners that step their environments.

    A call of `sample` does the following:

    1. `_begin` resets all sub-environments, only before the first sample and before each evaluation.
    2. `_act` runs the module and the module-to-env pipelines on the newest observations.
    3. `_step` steps the sub-environments, writes the rows, and runs the env-to-module pipelines for the next `_act`.
    4. After enough env steps, `_cut` removes the rows as fragments and checks them. `_sample_of` makes the sample.

    Listeners are called before resets, after 1 and 3, with each cut, and at the end.

    Args:
        env: the sub-environments.
        module: the module that acts.
        networks: key of weights -> the network with these parameters.
        pipelines: module id -> the pipelines around the module.
        identity: names the random streams and the episodes.
        listeners: follow the episodes, in this order.

    Attributes:
        module: the module that acts.
    """

    env: Any
    module: Any
    # Whether the names of random streams contain the module.
    _has_module_streams: ClassVar[bool]

    def __init__(
        self,
        env: Any,
        module: RLModule | MultiRLModule,
        networks: Mapping[str, nn.Module],
        pipelines: Mapping[str, Pipelines],
        identity: RunnerIdentity,
        listeners: Sequence[EpisodeListener] = (),
    ) -> None:
        self.env, self.module = env, module
        self._weights = {key: FlatParameters(network) for key, network in networks.items()}
        self._forward = ActingPass(module)
        self._pipelines = dict(pipelines)
        self._identity = identity
        self._listeners = tuple(listeners)
        self._before_reset = hooks_of(listeners, "before_reset")
        self._on_step = hooks_of(listeners, "on_step")
        self._all_envs: BoolArray = np.ones(env.num_envs, np.bool_)
        self._has_begun = False
        self._give_streams()

    def _give_streams(self) -> None:
        for module_id, pipelines in self._pipelines.items():
            self._identity.give_streams(pipelines, module_id if self._has_module_streams else None)

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
        """Take vector steps until at least `num_env_steps` env steps are made; see `FragmentSource.sample`."""
        self._use_policy(weights, shared_state, num_env_steps_sampled)
        self._reserve(num_env_steps)
        with self._acting_mode():
            self._begin_if_needed(explore, self._all_envs)
            while self._num_env_steps < num_env_steps:
                self._vector_step(explore, self._all_envs)
            cut = self._next_cut(weights_seq_no)
        return self._sample_of(cut)

    def _use_policy(
        self, weights: Weights | None, shared_state: Mapping[str, Any] | None, num_env_steps_sampled: int
    ) -> None:
        self._forward.check_default_device()
        if weights is not None:
            self.set_weights(weights)
        for module_id, (env_to_module, module_to_env) in self._pipelines.items():
            if shared_state:
                env_to_module.set_state(shared_state.get(module_id, {}))
            module_to_env.at_env_steps(num_env_steps_sampled)

    def _begin_if_needed(self, explore: bool, counted: BoolArray) -> None:
        if self._has_begun:
            return
        for listener in self._listeners:
            listener.begin()
        for before_reset in self._before_reset:
            before_reset(counted)
        step = self._begin(explore, counted)
        self._has_begun = True
        for on_step in self._on_step:
            on_step(step)

    def _vector_step(self, explore: bool, counted: BoolArray) -> VectorStep:
        """Act on the newest observations, and step all sub-environments; `counted` (N,) marks steps that count."""
        actions = self._act(explore)
        for before_reset in self._before_reset:
            before_reset(self._awaits_reset & counted)
        step = self._step(actions, explore, counted)
        for on_step in self._on_step:
            on_step(step)
        return step

    def _next_cut(self, weights_seq_no: int, quotas: EvaluationQuotas | None = None, with_outputs: bool = True) -> Cut:
        """Cut the rows so far, without `action_logp` if actions were greedy: it would be meaningless."""
        cut = self._cut(weights_seq_no, quotas, with_outputs)
        for listener in self._listeners:
            listener.on_cut(cut)
        return cut

    def _sample_of(self, cut: Cut) -> Sample:
        blocks = {module_id: fragment.block for module_id, fragment in cut.fragments.items() if len(fragment.block)}
        rollout = Rollout(blocks, cut.num_env_steps)
        metrics = taken_metrics(self._pipelines)
        for listener in self._listeners:
            metrics |= listener.on_sample(rollout)
        return Sample(
            rollout,
            self._finished_episodes([cut]),
            {module_id: env_to_module.get_state() for module_id, (env_to_module, _) in self._pipelines.items()},
            self.env.counts,
            connector_metrics=metrics,
            weights_seq_no=cut.weights_seq_no,
            aborted=cut.aborted,
        )

    def _finished_episodes(self, cuts: Sequence[Cut], quotas: EvaluationQuotas | None = None) -> FinishedEpisodes:
        finished, counted = self._collect_finished(cuts, quotas)
        for listener in self._listeners:
            finished = listener.complete(finished, counted)
        return finished

    # -- evaluating ------------------------------------------------------------------------------------------------

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
        """Run exactly `duration` entire episodes, or env steps, from fresh resets; see `EnvRunner.evaluate`."""
        self._use_policy(weights, shared_state, num_env_steps_sampled)
        quotas = EvaluationQuotas(duration, unit, self.env.num_envs)
        watch = EvaluationWatch(f"no episode of {self.env.num_envs} sub-environments has finished")
        self._restart()
        cuts: list[Cut] = []
        num_vector_steps = 0
        try:
            with self._acting_mode():
                self._begin_if_needed(explore, quotas.is_running)
                while (counted := quotas.is_running).any():
                    watch.look(bool(quotas.num_counted.any()))
                    step = self._vector_step(explore, counted)
                    quotas.count(step.is_reset, step.is_done, step.aborted)
                    num_vector_steps += 1
                    if num_vector_steps % EVALUATION_FRAGMENT == 0 or not quotas.is_running.any():
                        cut = self._next_cut(weights_seq_no, quotas, with_outputs=explore)
                        cut.fragments = {}  # frees the rows
                        cuts.append(cut)
        except BaseException:
            self._has_begun = False  # listeners keep episodes of these cuts, which are dropped
            raise
        return self._finished_episodes(cuts, quotas)

    def _restart(self) -> None:
        """Make the next call begin with fresh resets and the same random streams."""
        self._give_streams()
        self._has_begun = False
        for listener in self._listeners:
            listener.begin_evaluation()

    # -- stepping, which each kind of env runner implements ----------------------------------------------------------

    @property
    @abstractmethod
    def _num_env_steps(self) -> int:
        """Number of env steps since the newest cut."""

    @property
    @abstractmethod
    def _awaits_reset(self) -> BoolArray:
        """Whether (N,) the next vector step resets the sub-environment."""

    def _acting_mode(self) -> AbstractContextManager[Any]:
        """Return the context in which environments and pipelines run."""
        return nullcontext()

    @abstractmethod
    def _reserve(self, num_env_steps: int) -> None:
        """Allocate space for the rows of a fragment."""

    @abstractmethod
    def _begin(self, explore: bool, counted: BoolArray) -> VectorStep:
        """Reset all sub-environments, and prepare the first forward pass."""

    @abstractmethod
    def _act(self, explore: bool) -> Any:
        """Return the actions on the newest observations."""

    @abstractmethod
    def _step(self, actions: Any, explore: bool, counted: BoolArray) -> VectorStep:
        """Step the sub-environments, write the rows, and prepare the next forward pass."""

    @abstractmethod
    def _cut(self, weights_seq_no: int, quotas: EvaluationQuotas | None, with_outputs: bool) -> Cut:
        """Return the rows since the newest cut, checked."""

    @abstractmethod
    def _collect_finished(
        self, cuts: Sequence[Cut], quotas: EvaluationQuotas | None
    ) -> tuple[FinishedEpisodes, IntArray | None]:
        """Return the episodes that ended, and in an evaluation the indices of episodes that count."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return the state of everything but the listeners."""

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> Sequence[str]:
        """Restore a state of `_state`; return the ids of running episodes."""

    # -- state -----------------------------------------------------------------------------------------------------

    def receive(self, receiver: str, *announced: Any) -> None:
        """Pass an announcement of a part of the run to a receiver of the listeners."""
        receiver_of((listener.receivers for listener in self._listeners), receiver)(*announced)

    def set_weights(self, weights: Weights) -> None:
        """Use these parameters from now on: module id -> vector, or one vector of all modules together."""
        for key, parameters in self._weights.items():
            parameters.load(weights[key])

    def address(self) -> None:
        """Return None: environments are stepped here."""
        return None

    def pipelines_of(self, module_id: str) -> Pipelines:
        """Return the pipelines around a module."""
        return self._pipelines[module_id]

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights; empty before the first one."""
        if not self._has_begun:
            return {}
        return self._state() | {one.name: one.get_state() for one in self._listeners if one.name}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        if not state:
            return
        running = self._restore(state)
        self._has_begun = True
        for listener in self._listeners:
            listener.begin()
            listener.on_restored(running)
            if listener.name in state:
                listener.set_state(state[listener.name])

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded episodes."""
        reports: list[Recorded] = [report for listener in self._listeners if (report := listener.finish()) is not None]
        return sum(reports[1:], reports[0])

    def close(self) -> None:
        """Close the environments. Recorded episodes not yet written to a complete file are discarded."""
        close_each([*self._listeners, self.env])
