"""One env runner for environments with several agents: N sub-environments, and for each module its own pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from runner.config.errors import Problem, RunFailure, nearest_match
from runner.env_runners.env_runner import EVALUATION_FRAGMENT, episode_quotas
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.mask_checks import check_masks
from runner.env_runners.multi_agent_env import ALL_AGENTS, AgentDict
from runner.env_runners.multi_agent_envs import EnvStep, MultiAgentEnvironments
from runner.env_runners.observation_checks import ObservationChecks, outline
from runner.env_runners.sample import Sample, Weights
from runner.episodes import nested
from runner.episodes.columns import Column, ColumnBlock, Rollout
from runner.episodes.spaces import blank_item
from runner.modules.flat_parameters import FlatParameters
from runner.modules.multi_rl_module import ALL_MODULES, MultiRLModule
from runner.modules.rl_module import RLModule
from runner.pipelines.piece import ACTIONS_FOR_ENV, Batch
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline, taken_metrics
from runner.rows.agent_rows import AgentRows
from runner.rows.chunks import IntArray
from runner.rows.finished_episodes import FinishedEpisodes, OutsideObservations
from runner.streams import random_stream

if TYPE_CHECKING:
    from runner.offline.writing.recorder import Recorded


@dataclass(frozen=True)
class ActingModule:
    """A module, the agents it acts for, and the pipelines around it."""

    module: RLModule
    agents: tuple[str, ...]
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline


class _ModuleRunner:
    """What one module needs to act: its rows, its weights, and the batch that its next forward pass gets."""

    def __init__(
        self,
        module_id: str,
        acting: ActingModule,
        envs: MultiAgentEnvironments,
        id_prefix: str,
        num_lookback: int,
        observation_check: str,
    ) -> None:
        env, first = envs.envs[0], acting.agents[0]
        space = env.observation_spaces[first]
        self.module_id = module_id
        self.acting = acting
        self.space = space
        self.checks = ObservationChecks(space, 1, f"{type(env).__name__}, agent {first}", observation_check)
        blank_action = blank_item(acting.module.action_space)
        self.rows = AgentRows(
            module_id, acting.agents, envs.num_envs, blank_item(space), blank_action, id_prefix, num_lookback
        )
        self.to_module: dict[str, Any] | None = None
        self.shared_data: dict[str, Any] = {}

    def act(self, outputs: Batch, explore: bool, all_rows: Mapping[str, AgentRows], actions: list[AgentDict]) -> None:
        """Let the agents that were observed last act; their actions go into the dict of their sub-environment."""
        rows = self.rows
        batch = self.acting.module_to_env(
            rl_module=self.acting.module,
            batch=outputs,
            episodes=rows,
            explore=explore,
            shared_data=self.shared_data,
            episodes_of_modules=all_rows,
        )
        for env, agent, action in batch.pop(ACTIONS_FOR_ENV):
            actions[env][agent] = action
        goes_on = rows.is_running[rows.slots]
        if not goes_on.all():
            batch = nested.take(batch, goes_on)
        rows.act(rows.slots[goes_on], batch)

    def prepare(self, explore: bool, all_rows: Mapping[str, AgentRows]) -> None:
        """Make the batch of the next forward pass, for the agents that were observed just now."""
        slots = self.rows.slots
        self.to_module, self.shared_data = None, {}
        if len(slots):
            self.to_module = self.acting.env_to_module(
                rl_module=self.acting.module,
                batch={},
                episodes=self.rows,
                explore=explore,
                shared_data=self.shared_data,
                episodes_of_modules=all_rows,
            )
            check_masks(self.acting.module, self.to_module, self.rows.is_running[slots], self._place)

    def _place(self, row: int) -> str:
        slot = int(self.rows.slots[row])
        return f"sub-environment {self.rows.env_of(slot)}, agent {self.rows.agent_of(slot)}"

    def write(self, observed: _Observed, env_t: Sequence[int], numbers: Sequence[int]) -> IntArray:
        """Write what was observed to the rows; returns the slots that got an observation.

        Args:
            observed: of the agents of this module.
            env_t, numbers: (N,) env time step and number of the env episode of each sub-environment.
        """
        rows = self.rows
        t, number = np.array(env_t), np.array(numbers)
        if observed.rewards:
            slots, rewards = np.array([slot for slot, _ in observed.rewards]), [r for _, r in observed.rewards]
            rows.add_rewards(slots, np.array(rewards, np.float64), number[slots // len(rows.agents)])
        fresh: list[IntArray] = []
        if observed.begun:
            slots, obs = self._stacked(observed.begun)
            env_of = slots // len(rows.agents)
            rows.begin(slots, obs, t[env_of], number[env_of])
            fresh.append(slots)
        if observed.seen:
            slots, obs = self._stacked(observed.seen)
            rows.observe(slots, obs, t[slots // len(rows.agents)])
            fresh.append(slots)
        if observed.ended_unseen:
            slots = np.array(observed.ended_unseen)
            rows.repeat_last(slots, t[slots // len(rows.agents)])
        if observed.ends:
            slots, is_terminated, is_truncated = (np.array(values) for values in zip(*observed.ends, strict=True))
            rows.end(slots, is_terminated, is_truncated)
        for slot, info in observed.infos:
            rows.add_info(slot, info)
        return np.concatenate(fresh) if fresh else np.zeros(0, np.int64)

    def _stacked(self, observed: Sequence[tuple[int, Any]]) -> tuple[IntArray, Column]:
        slots = np.array([slot for slot, _ in observed])
        try:
            obs = nested.stack([obs for _, obs in observed])
            self.checks.check_shapes(obs, "step", len(slots))
        except (RunFailure, TypeError, ValueError) as error:
            raise self._misfit(observed) or error from error
        return slots, obs

    def _misfit(self, observed: Sequence[tuple[int, Any]]) -> RunFailure | None:
        for slot, obs in observed:
            if not self._fits(obs):
                problem = Problem(
                    f"an observation of agent {self.rows.agent_of(slot)} does not fit its space",
                    where=f"sub-environment {self.rows.env_of(slot)}",
                    got=outline(obs),
                    allowed=str(self.space),
                )
                return RunFailure(problem)
        return None

    def _fits(self, obs: Any) -> bool:
        try:
            self.checks.check_shapes(nested.stack([obs]), "step", 1)
        except (RunFailure, TypeError, ValueError):
            return False
        return True

    def cut(self) -> tuple[ColumnBlock, OutsideObservations]:
        """Return the fragment so far, checked, and its observations to be counted."""
        acting = self.acting
        cut = self.rows.cut(lambda columns: acting.module_to_env.complete_fragment(columns, acting.module))
        return cut.block, check_fragment(cut.block, cut.raw_obs, self.checks)

    def get_state(self) -> dict[str, Any]:
        """Return the state of rows, of pipelines and the batch of the next forward pass."""
        to_module = self.to_module
        return {
            "rows": self.rows.get_state(),
            "to_module": None if to_module is None else nested.map_leaves(lambda x: np.asarray(x).copy(), to_module),
            "shared_data": self.shared_data,
            "env_to_module": self.acting.env_to_module.get_state(),
            "module_to_env": self.acting.module_to_env.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        self.rows.set_state(state["rows"])
        to_module = state["to_module"]
        self.to_module = (
            None if to_module is None else nested.map_leaves(lambda x: torch.from_numpy(np.array(x)), dict(to_module))
        )
        self.shared_data = dict(state["shared_data"])
        self.acting.env_to_module.set_state(state["env_to_module"])
        self.acting.module_to_env.set_state(state["module_to_env"])


@dataclass(frozen=True)
class _FinishedEpisode:
    """An env episode that ended. `returns`: agent id -> its return."""

    env: int
    length: int
    returns: Mapping[str, float]


class _Observed:
    """What the sub-environments returned for the agents of one module, in one vector step."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, Any]] = []  # slot, first observation
        self.seen: list[tuple[int, Any]] = []  # slot, observation
        self.rewards: list[tuple[int, float]] = []
        self.ended_unseen: list[int] = []
        self.ends: list[tuple[int, bool, bool]] = []  # slot, terminated, truncated
        self.infos: list[tuple[int, Mapping[str, Any]]] = []


class MultiAgentEnvRunner:
    """Steps N environments with several agents and returns what happened, a column block for each module.

    Args:
        env: the sub-environments.
        modules: module id -> the module with its agents and pipelines.
        seed_name: `(role, index, generation)`; names all random streams of this runner within the run's seed.
        seed: of the run.
        num_lookback: past steps that chunks can see.
        observation_check: of the `env` block.
        together: evaluates the modules; its weights travel as one vector. None: each by itself, with its weights.
    """

    def __init__(
        self,
        env: MultiAgentEnvironments,
        modules: Mapping[str, ActingModule],
        seed_name: tuple[str, int, int],
        seed: int,
        num_lookback: int,
        observation_check: str = "warn",
        together: MultiRLModule | None = None,
    ) -> None:
        self.env = env
        by_id = {module_id: acting.module for module_id, acting in modules.items()}
        self._together = MultiRLModule(by_id) if together is None else together
        networks: Mapping[str, nn.Module] = by_id if together is None else {ALL_MODULES: together}
        self._weights = {key: FlatParameters(network) for key, network in networks.items()}
        self._seed_name = seed_name
        self._seed = seed
        role, index, generation = seed_name
        prefix = f"{role}-{index}" if generation == 0 else f"{role}-{index}.{generation}"
        self._modules = {
            module_id: _ModuleRunner(module_id, acting, env, f"{seed}-{prefix}", num_lookback, observation_check)
            for module_id, acting in modules.items()
        }
        self._all_rows = {module_id: runner.rows for module_id, runner in self._modules.items()}
        self._place_of = {  # agent id -> its module's runner, its place among the module's agents
            agent: (runner, place)
            for runner in self._modules.values()
            for place, agent in enumerate(runner.acting.agents)
        }
        self._has_started = False
        self._env_t = [0] * env.num_envs
        self._numbers = [-1] * env.num_envs
        self._returns: list[dict[str, float]] = [{} for _ in range(env.num_envs)]
        self._running: list[set[str]] = [set() for _ in range(env.num_envs)]
        self._has_ended: list[set[str]] = [set() for _ in range(env.num_envs)]
        self._finished: list[_FinishedEpisode] = []
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
    ) -> Sample:
        """Step until at least `num_env_steps` env steps are made; see `EnvRunner.sample`."""
        self._take_over(weights, shared_state)
        num_steps = 0
        with torch.inference_mode():
            self._start_if_needed(explore)
            while num_steps < num_env_steps:
                num_steps += self._step(explore)
            blocks = self._cut()
        states = {module_id: runner.acting.env_to_module.get_state() for module_id, runner in self._modules.items()}
        finished, self._finished = self._finished, []
        rollout = Rollout({module_id: block for module_id, block in blocks.items() if len(block)}, num_steps)
        return Sample(
            rollout,
            self._summary(finished),
            states,
            connector_metrics=taken_metrics({module_id: self.pipelines_of(module_id) for module_id in self._modules}),
            weights_seq_no=weights_seq_no,
        )

    def evaluate(
        self,
        num_episodes: int,
        explore: bool = False,
        weights: Weights | None = None,
        shared_state: Mapping[str, Any] | None = None,
        weights_seq_no: int = 0,
    ) -> FinishedEpisodes:
        """Run exactly `num_episodes` whole episodes; see `SingleAgentEnvRunner.evaluate`."""
        self._take_over(weights, shared_state)
        quotas = episode_quotas(num_episodes, self.env.num_envs)
        self._give_streams()
        self._has_started = False
        self._finished = []
        num_vector_steps = 0
        with torch.inference_mode():
            self._start_if_needed(explore)
            while (np.bincount([e.env for e in self._finished], minlength=self.env.num_envs) < quotas).any():
                self._step(explore)
                num_vector_steps += 1
                if num_vector_steps % EVALUATION_FRAGMENT == 0:
                    self._cut()
            self._cut()
        finished, self._finished = self._finished, []
        by_env = [[episode for episode in finished if episode.env == n] for n in range(self.env.num_envs)]
        return self._summary([episode for n, episodes in enumerate(by_env) for episode in episodes[: quotas[n]]])

    def _cut(self) -> dict[str, ColumnBlock]:
        """Return the fragment of each module."""
        cut = {module_id: runner.cut() for module_id, runner in self._modules.items()}
        self._outside += [outside for _, outside in cut.values()]
        return {module_id: block for module_id, (block, _) in cut.items()}

    def _summary(self, finished: Sequence[_FinishedEpisode]) -> FinishedEpisodes:
        outside, self._outside = OutsideObservations.total(self._outside), []
        by_agent: dict[str, list[float]] = {}
        by_module: dict[str, list[float]] = {}
        for episode in finished:
            for agent, agent_return in episode.returns.items():
                by_agent.setdefault(agent, []).append(agent_return)
                by_module.setdefault(self._place_of[agent][0].module_id, []).append(agent_return)
        return FinishedEpisodes(
            np.array([sum(episode.returns.values()) for episode in finished], np.float64),
            np.array([episode.length for episode in finished], np.int64),
            np.array([episode.env for episode in finished], np.int64),
            {agent: np.array(returns) for agent, returns in by_agent.items()},
            {module_id: np.array(returns) for module_id, returns in by_module.items()},
            outside,
        )

    def _start_if_needed(self, explore: bool) -> None:
        if self._has_started:
            return
        self._has_started = True
        self._numbers = [-1] * self.env.num_envs
        for runner in self._modules.values():
            runner.rows.clear()
        self._take_in(self.env.reset(self._seed_name), explore)

    def _step(self, explore: bool) -> int:
        """Take one vector step; return how many sub-environments made an env step (the others were reset)."""
        actions: list[AgentDict] = [{} for _ in range(self.env.num_envs)]
        batches = {id_: runner.to_module for id_, runner in self._modules.items() if runner.to_module is not None}
        together = self._together
        forward = together.forward_exploration if explore else together.forward_inference
        outputs = forward(batches) if batches else {}
        for module_id in batches:
            self._modules[module_id].act(outputs[module_id], explore, self._all_rows, actions)
        steps = self.env.step(actions)
        self._take_in(steps, explore)
        return sum(not step.is_reset for step in steps)

    def _take_in(self, steps: Sequence[EnvStep], explore: bool) -> None:
        """Write what the sub-environments returned to the rows, and make the batches of the next forward passes."""
        observed = {module_id: _Observed() for module_id in self._modules}
        num_finished = len(self._finished)
        for n, step in enumerate(steps):
            self._sort_in(n, step, observed)
        for module_id, runner in self._modules.items():
            runner.rows.slots = runner.write(observed[module_id], self._env_t, self._numbers)
            for episode in self._finished[num_finished:]:
                runner.rows.end_env(episode.env)
        for runner in self._modules.values():
            runner.prepare(explore, self._all_rows)

    def _sort_in(self, n: int, step: EnvStep, observed: Mapping[str, _Observed]) -> None:
        """Give each agent's data to its module."""
        if step.is_reset:
            self._numbers[n] += 1
            self._env_t[n] = 0
            self._returns[n] = {}
            self._running[n], self._has_ended[n] = set(), set()
        else:
            self._env_t[n] += 1
        returns = self._returns[n]
        for agent, reward in step.rewards.items():
            runner, slot = self._slot(agent, n, "rewards")
            try:
                returns[agent] = returns.get(agent, 0.0) + float(reward)
            except (TypeError, ValueError):
                raise self._failure(f"the reward of agent {agent} is no number", n, repr(reward)) from None
            observed[runner.module_id].rewards.append((slot, reward))
        for agent, obs in step.obs.items():
            runner, slot = self._slot(agent, n, "observations")
            data = observed[runner.module_id]
            if agent in self._running[n]:
                data.seen.append((slot, obs))
            elif agent in self._has_ended[n]:
                raise self._failure(f"agent {agent} is observed after its episode has ended", n)
            else:
                self._running[n].add(agent)
                returns.setdefault(agent, 0.0)
                data.begun.append((slot, obs))
            if step.infos.get(agent):
                data.infos.append((slot, step.infos[agent]))
        if any(step.terminateds.values()) or any(step.truncateds.values()):
            self._sort_in_ends(n, step, observed)

    def _sort_in_ends(self, n: int, step: EnvStep, observed: Mapping[str, _Observed]) -> None:
        """End the episodes of agents that this step ended, and the env episode with the last of them."""
        all_terminated, all_truncated = (bool(ends.get(ALL_AGENTS)) for ends in (step.terminateds, step.truncateds))
        for data_name, ends in (("terminateds", step.terminateds), ("truncateds", step.truncateds)):
            for agent in ends:
                if agent != ALL_AGENTS:
                    self._slot(agent, n, data_name)
        for agent in sorted(self._running[n]):
            flags = bool(step.terminateds.get(agent)), bool(step.truncateds.get(agent))
            is_terminated, is_truncated = flags if any(flags) else (all_terminated, all_truncated)
            if not (is_terminated or is_truncated):
                continue
            runner, slot = self._slot(agent, n, "terminateds")
            data = observed[runner.module_id]
            if agent not in step.obs:
                if not is_terminated:
                    what = f"agent {agent} is truncated without a final observation, so its value cannot be estimated"
                    raise self._failure(what, n)
                data.ended_unseen.append(slot)
            data.ends.append((slot, is_terminated, is_truncated))
            self._running[n].discard(agent)
            self._has_ended[n].add(agent)
        is_open = ALL_AGENTS in step.terminateds or ALL_AGENTS in step.truncateds
        if all_terminated or all_truncated or not (self._running[n] or is_open):
            self.env.end_episode(n)
            self._finished.append(_FinishedEpisode(n, self._env_t[n], self._returns[n]))

    def _slot(self, agent: str, n: int, data: str) -> tuple[_ModuleRunner, int]:
        try:
            runner, place = self._place_of[agent]
        except KeyError:
            what = f"the environment's {data} name an agent that is none of its possible_agents"
            raise self._failure(what, n, str(agent), list(self._place_of)) from None
        return runner, n * len(runner.rows.agents) + place

    def _failure(self, what: str, n: int, got: str | None = None, known: Sequence[str] = ()) -> RunFailure:
        nearest = nearest_match(got, list(known)) if got else None
        return RunFailure(Problem(what, self.env.place(n), got, ", ".join(known) or None, nearest))

    # -- state -----------------------------------------------------------------------------------------------------

    def set_weights(self, weights: Weights) -> None:
        """Act with these parameters from now on: module id -> vector, or one vector of all modules together."""
        for key, parameters in self._weights.items():
            parameters.load(weights[key])

    def _take_over(self, weights: Weights | None, shared_state: Mapping[str, Any] | None) -> None:
        if weights is not None:
            self.set_weights(weights)
        if shared_state is not None:
            for module_id, runner in self._modules.items():
                runner.acting.env_to_module.set_state(shared_state.get(module_id, {}))

    def address(self) -> None:
        """Return None: environments are stepped here."""

    def finish_recording(self) -> Recorded:
        """Raise `RunFailure`: episodes of several agents are not recorded yet."""
        raise RunFailure(Problem("episodes of several agents cannot be recorded yet", "offline.output"))

    def get_state(self) -> dict[str, Any]:
        """Return everything that the next `sample` depends on, except the weights; empty before the first one."""
        if not self._has_started:
            return {}
        return {
            "env": self.env.get_state(),
            "modules": {module_id: runner.get_state() for module_id, runner in self._modules.items()},
            "env_t": list(self._env_t),
            "numbers": list(self._numbers),
            "own_returns": [dict(returns) for returns in self._returns],
            "running": [sorted(agents) for agents in self._running],
            "has_ended": [sorted(agents) for agents in self._has_ended],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`."""
        if not state:
            return
        self._has_started = True
        self.env.set_state(state["env"])
        for module_id, module_state in state["modules"].items():
            self._modules[module_id].set_state(module_state)
        self._env_t = [int(t) for t in state["env_t"]]
        self._numbers = [int(number) for number in state["numbers"]]
        self._returns = [dict(returns) for returns in state["own_returns"]]
        self._running = [set(agents) for agents in state["running"]]
        self._has_ended = [set(agents) for agents in state["has_ended"]]

    def pipelines_of(self, module_id: str) -> tuple[EnvToModulePipeline, ModuleToEnvPipeline]:
        """Return the pipelines around a module."""
        acting = self._modules[module_id].acting
        return acting.env_to_module, acting.module_to_env

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
