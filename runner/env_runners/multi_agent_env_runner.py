"""One env runner for environments with several agents: N sub-environments, and separate pipelines per module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runner.env_runners.agent_episodes import AgentEpisodes
from runner.env_runners.evaluation_quotas import EvaluationQuotas
from runner.env_runners.listeners import BoolArray, Cut, EpisodeListener, IntArray, VectorStep
from runner.env_runners.module_runner import ActingModule, ModuleRunner
from runner.env_runners.multi_agent_env import AgentDict
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments
from runner.env_runners.runner_identity import RunnerIdentity
from runner.env_runners.running_agents import FinishedEpisode, RunningAgents
from runner.env_runners.stepping_env_runner import SteppingEnvRunner
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.rows.agent_rows import env_episode_id
from runner.rows.finished_episodes import FinishedEpisodes, OutsideObservations


class MultiAgentEnvRunner(SteppingEnvRunner):
    """Steps N environments with several agents and returns one column block per module.

    `_act` runs one forward pass of all modules; each `ModuleRunner` converts its outputs to its agents' actions. After
    the env step, `RunningAgents` assigns the results to modules and notes which agents have joined or ended. Then each
    `ModuleRunner` writes its rows and prepares its next batch.

    Args:
        env: the sub-environments.
        modules: module id -> the module with its agents and pipelines.
        module: evaluates all modules.
        identity: names the random streams and the episodes.
        num_lookback: number of past steps that chunks can see.
        validate_observations: the option of the `env` block.
        is_joined: whether weights are one vector of `module`; otherwise there is one vector for each module.
        listeners: follow the env episodes, in this order.
    """

    env: MultiAgentEnvironments
    module: MultiRLModule
    _has_module_streams = True

    def __init__(
        self,
        env: MultiAgentEnvironments,
        modules: Mapping[str, ActingModule],
        module: MultiRLModule,
        identity: RunnerIdentity,
        num_lookback: int,
        validate_observations: str = "warn",
        is_joined: bool = False,
        listeners: Sequence[EpisodeListener] = (),
    ) -> None:
        networks = {ALL_MODULES: module} if is_joined else {id_: acting.module for id_, acting in modules.items()}
        pipelines = {id_: (acting.env_to_module, acting.module_to_env) for id_, acting in modules.items()}
        super().__init__(env, module, networks, pipelines, identity, listeners)
        prefix = identity.id_prefix
        self._modules = {
            module_id: ModuleRunner(module_id, acting, env, prefix, num_lookback, validate_observations)
            for module_id, acting in modules.items()
        }
        self._all_rows = {module_id: runner.rows for module_id, runner in self._modules.items()}
        self._agents = RunningAgents(env, {module_id: acting.agents for module_id, acting in modules.items()})
        self._episodes = AgentEpisodes(env, self._agents, self._all_rows, prefix)
        self._num_steps = 0
        self._ended: list[FinishedEpisode] = []

    # -- stepping --------------------------------------------------------------------------------------------------

    @property
    def _num_env_steps(self) -> int:
        return self._num_steps

    @property
    def _awaits_reset(self) -> BoolArray:
        return self.env.is_done

    def _reserve(self, num_env_steps: int) -> None:
        """Do nothing: rows of agents grow as they are written."""

    def _begin(self, explore: bool, counted: BoolArray) -> VectorStep:
        self._num_steps, self._ended = 0, []
        for rows in self._all_rows.values():
            rows.clear()
        return self._add_results(self.env.reset(self._identity.seed_name), explore, counted)

    def _act(self, explore: bool) -> list[AgentDict]:
        """Return agent id -> action for each sub-environment."""
        actions: list[AgentDict] = [{} for _ in range(self.env.num_envs)]
        batches = {id_: runner.to_module for id_, runner in self._modules.items() if runner.to_module is not None}
        outputs = self._forward(batches, explore) if batches else {}
        for module_id in batches:
            self._modules[module_id].act(outputs[module_id], explore, self._all_rows, actions)
        return actions

    def _step(self, actions: Sequence[AgentDict], explore: bool, counted: BoolArray) -> VectorStep:
        return self._add_results(self.env.step(actions), explore, counted)

    def _add_results(self, results: Sequence[EnvStep], explore: bool, counted: BoolArray) -> VectorStep:
        """Write the results of resets and steps to the rows, and make the batches of the next forward passes."""
        observed, ended = self._agents.update(results)
        ended_unseen: list[tuple[int, str]] = []
        for module_id, runner in self._modules.items():
            rows, of_module = runner.rows, observed[module_id]
            rows.slots = runner.write(of_module, self.env.num_steps, self.env.episode_numbers)
            ended_unseen += [(rows.env_of(slot), rows.agent_of(slot)) for slot in of_module.ended_unseen]
            for episode in ended:
                rows.end_env(episode.env)
        for runner in self._modules.values():
            runner.prepare(explore, self._all_rows)
        is_reset = np.array([result.is_reset for result in results], np.bool_)
        is_done = np.zeros_like(is_reset)
        is_done[[episode.env for episode in ended]] = True
        self._num_steps += len(is_reset) - int(np.count_nonzero(is_reset))
        self._ended += ended
        return VectorStep(
            is_reset, is_done, counted, self._episodes, results=results, ended=ended, ended_unseen=ended_unseen
        )

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _cut(self, weights_seq_no: int, quotas: EvaluationQuotas | None, with_outputs: bool) -> Cut:
        cut = {module_id: runner.cut(with_outputs) for module_id, runner in self._modules.items()}
        fragments = {module_id: fragment for module_id, (fragment, _) in cut.items()}
        outside = OutsideObservations.total([outside for _, outside in cut.values()])
        num_steps, self._num_steps = self._num_steps, 0
        ended, self._ended = self._ended, []
        return Cut(fragments, num_steps, weights_seq_no, quotas, ended=ended, outside=outside)

    def _collect_finished(
        self, cuts: Sequence[Cut], quotas: EvaluationQuotas | None
    ) -> tuple[FinishedEpisodes, IntArray | None]:
        outside = OutsideObservations.total([cut.outside for cut in cuts])
        ended = [episode for cut in cuts for episode in cut.ended]
        if quotas is None:
            return self._summary(ended, outside), None
        places = quotas.chosen([episode.env for episode in ended])
        return self._summary([ended[place] for place in places], outside), places

    def _summary(self, episodes: Sequence[FinishedEpisode], outside: OutsideObservations) -> FinishedEpisodes:
        by_agent: dict[str, list[float]] = {}
        by_module: dict[str, list[float]] = {}
        for episode in episodes:
            for agent, agent_return in episode.returns.items():
                by_agent.setdefault(agent, []).append(agent_return)
                by_module.setdefault(self._agents.module_of(agent), []).append(agent_return)
        return FinishedEpisodes(
            np.array([sum(episode.returns.values()) for episode in episodes], np.float64),
            np.array([episode.length for episode in episodes], np.int64),
            np.array([episode.env for episode in episodes], np.int64),
            {agent: np.array(returns) for agent, returns in by_agent.items()},
            {module_id: np.array(returns) for module_id, returns in by_module.items()},
            outside,
        )

    # -- state -----------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {
            "env": self.env.get_state(),
            "modules": {module_id: runner.get_state() for module_id, runner in self._modules.items()},
            **self._agents.get_state(),
        }

    def _restore(self, state: Mapping[str, Any]) -> Sequence[str]:
        self.env.set_state(state["env"])
        for module_id, module_state in state["modules"].items():
            self._modules[module_id].set_state(module_state)
        self._agents.set_state(state)
        self._num_steps, self._ended = 0, []  # a sample that failed may have left some
        for n in self.env.not_restored:
            for rows in self._all_rows.values():
                rows.abandon_env(n)
        running = np.flatnonzero(~self.env.is_done).tolist()
        return [env_episode_id(self._identity.id_prefix, n, self.env.episode_numbers[n]) for n in running]
