"""One env runner for environments with several agents: N sub-environments, and for each module its own pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from runner.config.blocks import EPISODES
from runner.env_runners.acting_pass import ActingPass
from runner.env_runners.agent_episodes import AgentEpisodes
from runner.env_runners.agent_infos import AgentInfos
from runner.env_runners.env_runner import EVALUATION_FRAGMENT
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.evaluation_watch import EvaluationWatch
from runner.env_runners.module_runner import ActingModule, ModuleRunner
from runner.env_runners.multi_agent_env import AgentDict
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments
from runner.env_runners.running_agents import FinishedEpisode, RunningAgents
from runner.env_runners.sample import Sample, Weights
from runner.env_runners.sample_recording import with_weights_seq_no
from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline, taken_metrics
from runner.rows.agent_rows import env_episode_id
from runner.rows.finished_episodes import EndedEpisode, FinishedEpisodes, OutsideObservations
from runner.rows.fragments import Fragment
from runner.rows.matches import LEAGUE
from runner.rows.task_outcomes import CURRICULUM
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.callbacks import EpisodeCallbacks
    from runner.curriculum.tasked_episodes import TaskedEpisodes
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.recorder import Recorded


class MultiAgentEnvRunner:
    """Steps N environments with several agents and returns what happened, a column block for each module.

    Args:
        env: the sub-environments.
        modules: module id -> the module with its agents and pipelines.
        seed_name: `(role, index, generation)`; names all random streams of this runner within the run's seed.
        seed: of the run.
        num_lookback: past steps that chunks can see.
        validate_observations: of the `env` block.
        together: evaluates the modules; its weights travel as one vector. None: each by itself, with its weights.

    Attributes:
        module: of all agents, which evaluates theirs.
        callbacks: that hear of env episodes; None: none does.
        infos: takes numbers of finished episodes out of infos; None: no metric asks for any.
        recorder: of whole env episodes; None: nothing is recorded.
        tasks: of a curriculum; None: there is none.
    """

    def __init__(
        self,
        env: MultiAgentEnvironments,
        modules: Mapping[str, ActingModule],
        seed_name: tuple[str, int, int],
        seed: int,
        num_lookback: int,
        validate_observations: str = "warn",
        together: MultiRLModule | None = None,
    ) -> None:
        self.env = env
        by_id = {module_id: acting.module for module_id, acting in modules.items()}
        self.module = MultiRLModule(by_id) if together is None else together
        networks: Mapping[str, nn.Module] = by_id if together is None else {ALL_MODULES: together}
        self._weights = {key: FlatParameters(network) for key, network in networks.items()}
        self._forward = ActingPass(self.module)
        self._seed_name = seed_name
        self._seed = seed
        role, index, generation = seed_name
        prefix = f"{role}-{index}" if generation == 0 else f"{role}-{index}.{generation}"
        self._id_prefix = f"{seed}-{prefix}"
        self._modules = {
            module_id: ModuleRunner(module_id, acting, env, self._id_prefix, num_lookback, validate_observations)
            for module_id, acting in modules.items()
        }
        self._all_rows = {module_id: runner.rows for module_id, runner in self._modules.items()}
        self._agents = RunningAgents(env, {module_id: acting.agents for module_id, acting in modules.items()})
        self._episodes = AgentEpisodes(env, self._agents, self._all_rows, self._id_prefix)
        self.callbacks: EpisodeCallbacks | None = None
        self.infos: AgentInfos | None = None
        self.recorder: EnvEpisodeRecorder | None = None
        self.tasks: TaskedEpisodes | None = None
        self._has_started = False
        self._finished: list[FinishedEpisode] = []
        self._outside: list[OutsideObservations] = []
        self._give_streams()

    def _give_streams(self) -> None:
        role, index, generation = self._seed_name
        for module_id, runner in self._modules.items():
            for pipeline in (runner.acting.env_to_module, runner.acting.module_to_env):
                make = partial(self._stream, f"{role}/{module_id}", index, generation)
                pipeline.give_streams(make)

    def _stream(self, role: str, index: int, generation: int, name: str, position: int) -> np.random.Generator:
        return random_stream(self._seed, f"{role}/{name}", index, generation, position)

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
        num_steps = 0
        self._start_if_needed(explore)
        while num_steps < num_env_steps:
            num_steps += int(np.count_nonzero(self._step(explore)))
        cut = self._cut()
        if self.recorder is not None:
            self.recorder.add(raw_blocks(cut, weights_seq_no), self._recorded_ends(self._finished))
        states = {module_id: runner.acting.env_to_module.get_state() for module_id, runner in self._modules.items()}
        finished, self._finished = self._finished, []
        rollout = Rollout({module_id: one.block for module_id, one in cut.items() if len(one.block)}, num_steps)
        reported = taken_metrics({module_id: self.pipelines_of(module_id) for module_id in self._modules})
        if self.callbacks is not None:
            self.callbacks.after_sample(rollout)
            reported |= self.callbacks.take_metrics()
        return Sample(
            rollout,
            self._summary(finished),
            states,
            connector_metrics=reported,
            weights_seq_no=weights_seq_no,
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
        self._give_streams()
        self._has_started, self._finished = False, []
        num_vector_steps = num_recorded = 0
        watch = EvaluationWatch(f"no episode of {self.env.num_envs} sub-environments has finished")
        if self.callbacks is not None:
            self.callbacks.begin_evaluation(quotas.is_running)
        if self.infos is not None:
            self.infos.clear()
        self._start_if_needed(explore)
        while (is_running := quotas.is_running).any():
            watch.look(bool(quotas.num_counted.any()))
            if self.callbacks is not None:
                self.callbacks.tell_of(is_running)
            num_finished = len(self._finished)
            is_step = self._step(explore)
            quotas.count(is_step, self._ended_since(num_finished))
            num_vector_steps += 1
            if num_vector_steps % EVALUATION_FRAGMENT == 0 or not quotas.is_running.any():
                cut = self._cut(with_outputs_per_fragment=explore)
                if self.recorder is not None:
                    self._record(cut, weights_seq_no, self._finished[num_recorded:], quotas)
                    num_recorded = len(self._finished)
        if self.recorder is not None:
            self.recorder.drop_open()
        finished, self._finished = self._finished, []
        counted = self._summary([finished[place] for place in quotas.chosen([episode.env for episode in finished])])
        return counted if self.callbacks is None else replace(counted, reported=(self.callbacks.end_evaluation(),))

    def _ended_since(self, num_finished: int) -> npt.NDArray[np.bool_]:
        """Return whether (N,) a sub-environment's episode has ended since so many had."""
        has_ended = np.zeros(self.env.num_envs, np.bool_)
        has_ended[[episode.env for episode in self._finished[num_finished:]]] = True
        return has_ended

    def _cut(self, with_outputs_per_fragment: bool = True) -> dict[str, Fragment]:
        """Return the fragment of each module."""
        cut = {module_id: runner.cut(with_outputs_per_fragment) for module_id, runner in self._modules.items()}
        self._outside += [outside for _, outside in cut.values()]
        return {module_id: fragment for module_id, (fragment, _) in cut.items()}

    def _record(
        self,
        cut: Mapping[str, Fragment],
        weights_seq_no: int,
        finished: Sequence[FinishedEpisode],
        quotas: EvaluationQuotas,
    ) -> None:
        """Record the episodes of an evaluation that have ended and count."""
        assert self.recorder is not None
        numbers, envs = (np.array([getattr(one, name) for one in finished], np.int64) for name in ("number", "env"))
        are_counted = quotas.are_counted(numbers, envs).tolist()
        ended = self._recorded_ends(finished)
        counted = [episode for episode, is_counted in zip(ended, are_counted, strict=True) if is_counted]
        self.recorder.add(raw_blocks(cut, weights_seq_no), counted)
        self.recorder.drop([episode.id for episode in ended])

    def _recorded_ends(self, finished: Sequence[FinishedEpisode]) -> list[EndedEpisode]:
        return [
            EndedEpisode(
                self._env_episode_id(one.env, one.number),
                one.length,
                one.is_terminated,
                None if one.task is None else one.task.task,
            )
            for one in finished
        ]

    def _env_episode_id(self, env: int, number: int) -> str:
        return env_episode_id(self._id_prefix, env, number)

    def _summary(self, finished: Sequence[FinishedEpisode]) -> FinishedEpisodes:
        outside, self._outside = OutsideObservations.total(self._outside), []
        by_agent: dict[str, list[float]] = {}
        by_module: dict[str, list[float]] = {}
        for episode in finished:
            for agent, agent_return in episode.returns.items():
                by_agent.setdefault(agent, []).append(agent_return)
                by_module.setdefault(self._agents.module_of(agent), []).append(agent_return)
        return FinishedEpisodes(
            np.array([sum(episode.returns.values()) for episode in finished], np.float64),
            np.array([episode.length for episode in finished], np.int64),
            np.array([episode.env for episode in finished], np.int64),
            {agent: np.array(returns) for agent, returns in by_agent.items()},
            {module_id: np.array(returns) for module_id, returns in by_module.items()},
            outside,
            {} if self.infos is None else self.infos.numbers_of(finished),
            outcomes={
                LEAGUE: tuple(match for episode in finished for match in episode.matches),
                CURRICULUM: tuple(episode.task for episode in finished if episode.task is not None),
            },
        )

    def _start_if_needed(self, explore: bool) -> None:
        if self._has_started:
            return
        self._has_started = True
        self._agents.restart()
        for runner in self._modules.values():
            runner.rows.clear()
        if self.callbacks is not None:
            self.callbacks.before_first_reset()
        self._take_in(self.env.reset(self._seed_name), explore)
        if self.callbacks is not None:
            self.callbacks.after_reset(self._episodes)

    def _step(self, explore: bool) -> npt.NDArray[np.bool_]:
        """Take one vector step; return whether (N,) sub-environments made an env step (the others were reset)."""
        actions: list[AgentDict] = [{} for _ in range(self.env.num_envs)]
        batches = {id_: runner.to_module for id_, runner in self._modules.items() if runner.to_module is not None}
        outputs = self._forward(batches, explore) if batches else {}
        for module_id in batches:
            self._modules[module_id].act(outputs[module_id], explore, self._all_rows, actions)
        if self.callbacks is not None:
            self.callbacks.before_step(self._episodes)
        steps = self.env.step(actions)
        self._take_in(steps, explore)
        if self.callbacks is not None:  # connectors may have written the newest observations anew
            self.callbacks.after_step(self._episodes)
        return np.array([not step.is_reset for step in steps], np.bool_)

    def _take_in(self, steps: Sequence[EnvStep], explore: bool) -> None:
        """Write what the sub-environments returned to the rows, and make the batches of the next forward passes."""
        observed, ended = self._agents.sort_in(steps)
        if self.infos is not None:
            ended = self.infos.add_steps(steps, ended)
        if self.tasks is not None:
            ended = self.tasks.told(ended)
        self._finished += ended
        for module_id, runner in self._modules.items():
            runner.rows.slots = runner.write(observed[module_id], self._agents.env_t, self._agents.numbers)
            for episode in ended:
                runner.rows.end_env(episode.env)
        for runner in self._modules.values():
            runner.prepare(explore, self._all_rows)

    # -- state -----------------------------------------------------------------------------------------------------

    def add_player(self, player_id: str, policies: Mapping[str, bytes]) -> None:
        """Take the policy files of a player of the league; see `OpponentEnvironments`."""
        seated: Any = self.env
        seated.add_player(player_id, policies)

    def use_lineup(self, lineup: Any) -> None:
        """Draw the players of new episodes from a `Lineup` of the league."""
        seated: Any = self.env
        seated.use_lineup(lineup)

    def use_tasks(self, odds: Mapping[str, float]) -> None:
        """Draw the tasks of new episodes with these probabilities."""
        assert self.tasks is not None
        self.tasks.use(odds)

    def set_weights(self, weights: Weights) -> None:
        """Act with these parameters from now on: module id -> vector, or one vector of all modules together."""
        for key, parameters in self._weights.items():
            parameters.load(weights[key])

    def _take_over(
        self, weights: Weights | None, shared_state: Mapping[str, Any] | None, num_env_steps_sampled: int
    ) -> None:
        self._forward.look_at_settings()
        if weights is not None:
            self.set_weights(weights)
        if shared_state is not None:
            for module_id, runner in self._modules.items():
                runner.acting.env_to_module.set_state(shared_state.get(module_id, {}))
        for runner in self._modules.values():
            runner.acting.module_to_env.at_env_steps(num_env_steps_sampled)

    def address(self) -> None:
        """Return None: environments are stepped here."""

    def finish_recording(self) -> Recorded:
        """Finish the files of recorded env episodes."""
        assert self.recorder is not None
        return self.recorder.close()

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights; empty before the first one."""
        if not self._has_started:
            return {}
        return {
            "env": self.env.get_state(),
            "modules": {module_id: runner.get_state() for module_id, runner in self._modules.items()},
            **self._agents.get_state(),
            **({} if self.callbacks is None else {"callbacks": self.callbacks.get_state()}),
            **({} if self.infos is None else {"infos": self.infos.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        if not state:
            return
        self._has_started = True
        self.env.set_state(state["env"])
        for module_id, module_state in state["modules"].items():
            self._modules[module_id].set_state(module_state)
        self._agents.set_state(state)
        for n in self.env.not_restored:
            for runner in self._modules.values():
                runner.rows.abandon_env(n)
        if self.recorder is not None:  # what was sampled of the running episodes before is not here
            running = np.flatnonzero(~self.env.is_done).tolist()
            self.recorder.leave_out([self._env_episode_id(n, self._agents.numbers[n]) for n in running])
        if self.callbacks is not None and "callbacks" in state:
            self.callbacks.set_state(state["callbacks"])
        if self.infos is not None and "infos" in state:
            self.infos.set_state(state["infos"])

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module."""
        acting = self._modules[module_id].acting
        return acting.env_to_module, acting.module_to_env

    def close(self) -> None:
        """Close the environments; recorded env episodes that are in no whole file are dropped."""
        try:
            if self.recorder is not None:
                self.recorder.abort()
        finally:
            self.env.close()


def raw_blocks(cut: Mapping[str, Fragment], weights_seq_no: int) -> list[ColumnBlock]:
    """Return the blocks of fragments that hold rows as they are recorded: observations as environments made them."""
    return [
        with_weights_seq_no(fragment.block.with_columns({OBS: fragment.raw_obs}), weights_seq_no)
        for fragment in cut.values()
        if len(fragment.block)
    ]
