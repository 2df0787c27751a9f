"""One of several modules in an env runner: its pipelines and the rows of its agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runner.config.errors import Problem, RunFailure
from runner.env_runners.acting_pass import array_of
from runner.env_runners.fragment_checks import check_fragment
from runner.env_runners.mask_checks import check_masks
from runner.env_runners.multi_agent_env import AgentDict
from runner.env_runners.multi_agent_envs import MultiAgentEnvironments
from runner.env_runners.observation_checks import ObservationChecks, find_difference
from runner.env_runners.running_agents import Observed
from runner.episodes import nested
from runner.episodes.columns import Column
from runner.episodes.spaces import blank_item
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTIONS_FOR_ENV, Batch
from runner.pipelines.pipeline import EnvToModulePipeline, ModuleToEnvPipeline
from runner.rows.agent_rows import AgentRows
from runner.rows.chunks import IntArray
from runner.rows.finished_episodes import OutsideObservations
from runner.rows.fragments import Fragment


@dataclass(frozen=True)
class ActingModule:
    """A module, the agents it acts for, and the pipelines around it."""

    module: RLModule
    agents: tuple[str, ...]
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline


class ModuleRunner:
    """Acts with one module for its agents in all sub-environments; holds their rows and the module's next batch."""

    def __init__(
        self,
        module_id: str,
        acting: ActingModule,
        envs: MultiAgentEnvironments,
        id_prefix: str,
        num_lookback: int,
        validate_observations: str,
    ) -> None:
        env, first = envs.environments[0], acting.agents[0]
        space = env.observation_spaces[first]
        self.module_id = module_id
        self.acting = acting
        self.space = space
        self.checks = ObservationChecks(space, 1, f"{type(env).__name__}, agent {first}", validate_observations)
        blank_action = blank_item(acting.module.action_space)
        self.rows = AgentRows(
            module_id, acting.agents, envs.num_envs, blank_item(space), blank_action, id_prefix, num_lookback
        )
        self.to_module: dict[str, Any] | None = None
        self.shared_data: dict[str, Any] = {}

    def act(self, outputs: Batch, explore: bool, all_rows: Mapping[str, AgentRows], actions: list[AgentDict]) -> None:
        """Act for the agents that were observed last; write their actions into the dict of their sub-environment."""
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
        continues = rows.is_running[rows.slots]
        if not continues.all():
            batch = nested.take(batch, continues)
        rows.act(rows.slots[continues], batch)

    def prepare(self, explore: bool, all_rows: Mapping[str, AgentRows]) -> None:
        """Make the batch of the next forward pass, for the agents that have just been observed."""
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

    def write(self, observed: Observed, env_t: Sequence[int], numbers: Sequence[int]) -> IntArray:
        """Write observations to the rows; return the slots that got one.

        Args:
            observed: data of the agents of this module.
            env_t, numbers: env time step (N,) and number (N,) of the env episode of each sub-environment.
        """
        rows = self.rows
        t, number = np.array(env_t), np.array(numbers)
        if observed.rewards:
            slots, rewards = np.array([slot for slot, _ in observed.rewards]), [r for _, r in observed.rewards]
            rows.add_rewards(slots, np.array(rewards, np.float64), number[slots // len(rows.agents)])
        fresh: list[IntArray] = []
        if observed.begun:
            fresh.append(self._write_obs(observed.begun, rows.begin, t, number))
        if observed.seen:
            fresh.append(self._write_obs(observed.seen, rows.observe, t))
        if observed.ended_unseen:
            slots = np.array(observed.ended_unseen)
            rows.repeat_last(slots, t[slots // len(rows.agents)])
        if observed.ends:
            slots, is_terminated, is_truncated = (np.array(values) for values in zip(*observed.ends, strict=True))
            rows.end(slots, is_terminated, is_truncated)
        for slot, info in observed.infos:
            rows.add_info(slot, info)
        return np.concatenate(fresh) if fresh else np.zeros(0, np.int64)

    def _write_obs(
        self, observed: Sequence[tuple[int, Any]], write: Callable[..., None], *of_envs: IntArray
    ) -> IntArray:
        """Check observations, write them with these numbers (N,) of their sub-environments, and return their slots."""
        slots = np.array([slot for slot, _ in observed])
        env_of = slots // len(self.rows.agents)
        try:
            obs = nested.stack([obs for _, obs in observed])
            self.checks.check_shapes(obs, "step", len(slots))
            write(slots, obs, *(numbers[env_of] for numbers in of_envs))
        except (RunFailure, TypeError, ValueError) as error:  # an unknown key, for example, cannot be written
            raise self._misfit(observed) or error from error
        return slots

    def _misfit(self, observed: Sequence[tuple[int, Any]]) -> RunFailure | None:
        for slot, obs in observed:
            found = find_difference(obs, self.space)
            if found is not None:
                what = f"an observation of agent {self.rows.agent_of(slot)} does not fit its space"
                return RunFailure(Problem(what, f"sub-environment {self.rows.env_of(slot)}", *found))
        return None

    def cut(self, with_outputs: bool) -> tuple[Fragment, OutsideObservations]:
        """Return the fragment so far, checked, and its observations outside of their space.

        Args:
            with_outputs: whether to add the outputs that are computed once per fragment; false for greedy actions,
                whose `action_logp` would be meaningless.
        """
        acting = self.acting

        def complete(columns: dict[str, Column]) -> None:
            if with_outputs:
                acting.module_to_env.complete_fragment(columns, acting.module)

        cut = self.rows.cut(complete)
        return cut, check_fragment(cut.block, cut.raw_obs, self.checks)

    def get_state(self) -> dict[str, Any]:
        """Return the state of rows, of pipelines and the batch of the next forward pass."""
        to_module = self.to_module
        return {
            "rows": self.rows.get_state(),
            "to_module": None if to_module is None else nested.map_leaves(array_of, to_module),
            "shared_data": self.shared_data,
            "env_to_module": self.acting.env_to_module.get_state(),
            "module_to_env": self.acting.module_to_env.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self.rows.set_state(state["rows"])
        to_module = state["to_module"]
        self.to_module = (
            None if to_module is None else nested.map_leaves(lambda x: torch.from_numpy(np.array(x)), dict(to_module))
        )
        self.shared_data = dict(state["shared_data"])
        self.acting.env_to_module.set_state(state["env_to_module"])
        self.acting.module_to_env.set_state(state["module_to_env"])
