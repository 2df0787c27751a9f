"""Rows of the agents that one module acts for, in all sub-environments of an env runner.

An agent's next row begins when it is observed again. Rewards in between are added up in the row of the last action. A
row without a result at a cut is carried over with the lookback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import REWARDS, Agents, Column
from runner.rows.array_namespace import NUMPY, Array, ArrayNamespace
from runner.rows.chunks import Chunks, flat_rows
from runner.rows.infos import copied_info
from runner.rows.row_store import RowStore

ENV_T = "env_t"  # env time step of an observation
NUMBER = "number"  # number of the observation's env episode
_GROWTH = 1.5


def env_episode_id(prefix: str, env: int, number: int) -> str:
    """Return the id of the episode with this number in a sub-environment."""
    return f"{prefix}-{env}-{number}"


class AgentRows(RowStore):
    """Rows of S = N * A slots that advance independently, one for each agent of each sub-environment.

    As a sequence, it holds the running episodes of the slots that were observed last.

    Args:
        module_id: the module that acts.
        agents: A agent ids; slot s holds agent s % A in sub-environment s // A.
        num_envs: N.
        blank_obs, blank_action, num_lookback, xp: see `RowStore`.
        id_prefix: ids of env episodes are `<prefix>-<sub-environment>-<number>`.

    Attributes:
        slots: slots (K,) that were observed last, also if their episodes have just ended.
        is_running: (S,) bool, whether the newest episode has not ended.
        is_waiting: (S,) bool, whether the slot has acted and was not observed since.
        has_terminated, has_truncated: (S,) bool, how the newest episode has ended.
    """

    _counters: ClassVar[Mapping[str, str]] = {
        "is_used": "_is_used",
        "episode_start": "_episode_start",
        "t_at_start": "_t_at_start",
        "reward_before": "_reward_before",
        "slots": "slots",
        "is_running": "is_running",
        "is_waiting": "is_waiting",
        "has_terminated": "has_terminated",
        "has_truncated": "has_truncated",
    }

    def __init__(
        self,
        module_id: str,
        agents: Sequence[str],
        num_envs: int,
        blank_obs: Any,
        blank_action: Any,
        id_prefix: str,
        num_lookback: int,
        xp: ArrayNamespace = NUMPY,
    ) -> None:
        self.module_id = module_id
        self.agents = list(agents)
        self._id_prefix = id_prefix
        num_slots = num_envs * len(agents)
        super().__init__(num_slots, blank_obs, blank_action, num_lookback, xp, (ENV_T, NUMBER))

    def clear(self) -> None:
        """See `RowStore`."""
        super().clear()
        self.slots = self._xp.arange(0, 0)
        self.is_running = self._zeros(bool)
        self.is_waiting = self._zeros(bool)
        self.has_terminated, self.has_truncated = self._zeros(bool), self._zeros(bool)
        self._is_used = self._zeros(bool)  # whether the row of the newest observation holds one
        self._reward_before = self._zeros(float)  # rewards for the first action, which is still to come

    # -- writing -------------------------------------------------------------------------------------------------

    def begin(self, slots: Array, obs: Column, env_t: Array, numbers: Array) -> None:
        """Write the first observations (K, ...) of agents in env episodes of these numbers, at these env steps."""
        self._reserve_one_more(slots)
        arrays = self._arrays
        follows = slots[self._is_used[slots]]
        arrays.is_gap[self._row[follows], follows] = True
        self._row[follows] += 1
        at = (self._row[slots], slots)
        self._xp.assign(arrays.obs, at, obs)
        arrays.labels[ENV_T][at], arrays.labels[NUMBER][at], arrays.is_gap[at] = env_t, numbers, False
        self._episode_start[slots] = self._row[slots]
        self._t_at_start[slots[self._row[slots] == self._past]] = 0
        self.is_running[slots] = self._is_used[slots] = True
        self.has_terminated[slots] = self.has_truncated[slots] = False
        for slot in slots.tolist() if self._infos else ():  # infos of final observations that were in this row
            self._infos.of_slot.pop((self._row_of(slot), slot), None)

    def act(self, slots: Array, outputs: Mapping[str, Column]) -> None:
        """Write the outputs (K, ...) of running agents for their newest observations, such as actions."""
        arrays = self._arrays
        if not arrays.knows_outputs:
            arrays.add_columns(outputs)
        at = (self._row[slots], slots)
        for name, values in outputs.items():
            self._xp.assign(arrays.steps[name], at, values)
        self._xp.assign(arrays.steps[REWARDS], at, self._reward_before[slots])
        arrays.is_terminated[at] = arrays.is_truncated[at] = arrays.is_gap[at] = False
        self._reward_before[slots] = 0.0
        self.is_waiting[slots] = True

    def add_rewards(self, slots: Array, rewards: Array, numbers: Array) -> None:
        """Add rewards to the last action of each agent, or to its first action if it has not acted yet.

        If the agent has finished, the reward is added to its last action while that is in this fragment.
        """
        row = self._row[slots]
        is_waiting = self.is_waiting[slots]
        is_of_episode = self._arrays.labels[NUMBER][row, slots] == numbers
        has_step = ~is_waiting & is_of_episode & (row > self._past) & (row > self._episode_start[slots])
        is_late = ~is_waiting & ~has_step
        in_rows = self._arrays.steps[REWARDS]
        in_rows[row[is_waiting], slots[is_waiting]] += rewards[is_waiting]
        in_rows[row[has_step] - 1, slots[has_step]] += rewards[has_step]
        self._reward_before[slots[is_late]] += rewards[is_late]

    def observe(self, slots: Array, obs: Column, env_t: Array) -> None:
        """Write new observations (K, ...) of waiting agents, which completes their steps."""
        self._reserve_one_more(slots)
        arrays = self._arrays
        before = (self._row[slots], slots)
        self._row[slots] += 1
        at = (self._row[slots], slots)
        self._xp.assign(arrays.obs, at, obs)
        arrays.labels[ENV_T][at], arrays.labels[NUMBER][at] = env_t, arrays.labels[NUMBER][before]
        arrays.is_gap[at] = False
        self.is_waiting[slots] = False

    def repeat_last(self, slots: Array, env_t: Array) -> None:
        """Write the last observations again for agents that ended without a final observation."""
        at = (self._row[slots], slots)
        written_obs = self._arrays.written_obs
        written = None if written_obs is None else nested.take(written_obs, at)
        self.observe(slots, nested.take(self._arrays.obs, at), env_t)
        if written is not None:
            self._arrays.write_obs((self._row[slots], slots), written)

    def end(self, slots: Array, is_terminated: Array, is_truncated: Array) -> None:
        """End the episodes of these agents, none of which waits for an observation."""
        has_step = self._row[slots] > self._episode_start[slots]
        at = (self._row[slots][has_step] - 1, slots[has_step])
        self._arrays.is_terminated[at] = is_terminated[has_step]
        self._arrays.is_truncated[at] = is_truncated[has_step]
        self.has_terminated[slots], self.has_truncated[slots] = is_terminated, is_truncated
        self.is_running[slots] = False

    def add_info(self, slot: int, info: Mapping[str, Any]) -> None:
        """Store the info of the slot's newest observation."""
        if info:
            self._infos.of_slot[self._row_of(slot), slot] = copied_info(info)

    def _reserve_one_more(self, slots: Array) -> None:
        num_rows = self._arrays.num_rows
        if len(slots) and int(self._row[slots].max()) + 2 > num_rows:
            self._arrays.reserve(int(num_rows * _GROWTH) + 2)

    def add_slots(self, more: int) -> None:
        """Allocate space for `more` slots after the existing ones, without agents."""
        first, self.max_rows = self.max_rows, self.max_rows + more
        self._arrays.add_slots(more)
        for name in ("_row", *(name for name in self._counters.values() if name != "slots")):
            before = getattr(self, name)
            setattr(self, name, self._xp.concatenate((before, self._xp.zeros((more,), before.dtype))))
        self._row[first:] = self._episode_start[first:] = self._past

    def end_env(self, env: int) -> None:
        """End the env episode of a sub-environment; rewards of agents that were never observed end with it."""
        self._reward_before[env * len(self.agents) : (env + 1) * len(self.agents)] = 0.0

    def abandon_env(self, env: int) -> None:
        """Forget the running episodes of a sub-environment's agents; they do not continue."""
        slots = slice(env * len(self.agents), (env + 1) * len(self.agents))
        self.is_running[slots] = self.is_waiting[slots] = self._is_used[slots] = False
        self._reward_before[slots] = 0.0

    # -- running episodes ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(f"agent {index} of {len(self)} that were observed")
        return self.running_episode(int(self.slots[index]))

    def _first_rows(self) -> Any:
        return self._zeros(int) + self._past

    @property
    def _observed(self) -> tuple[Any, Any]:
        return self._row[self.slots], self.slots

    def _recent(self, column: Column, first: int, stop: int) -> Column:
        rows = self._row[self.slots][:, None] + self._xp.arange(first, stop)
        return nested.take(column, (rows, self.slots[:, None]))

    def _newest_rows(self, num_rows: int) -> Any:
        return self._row + self._xp.arange(1 - num_rows, 1)[:, None], self._xp.arange(0, self.max_rows)

    def _row_of(self, slot: int) -> int:
        return int(self._row[slot])

    def _number_now(self, slot: int) -> int:
        return int(self._arrays.labels[NUMBER][self._row_of(slot), slot])

    def _ends_now(self, slot: int) -> tuple[bool, bool]:
        return bool(self.has_terminated[slot]), bool(self.has_truncated[slot])

    def running_episode(self, slot: int) -> SingleAgentEpisode:
        """See `RowStore`; the episode also has its agent and module."""
        episode = super().running_episode(slot)
        episode.agent_id, episode.module_id = self.agent_of(slot), self.module_id
        episode.multi_agent_episode_id = self._env_episode_id(slot, self._number_now(slot))
        return episode

    def observed_at(self, slot: int) -> Array:
        """Return the env time step of each observation of `running_episode(slot)`, lookback included."""
        first = max(int(self._episode_start[slot]), 0)
        return self._arrays.labels[ENV_T][first : self._row_of(slot) + 1, slot]

    def holds(self, slot: int, number: int) -> bool:
        """Return whether a slot has rows of the env episode with this number."""
        return bool(self._is_used[slot]) and self._number_now(slot) == number

    def agent_of(self, slot: int) -> str:
        """Return the agent of a slot."""
        return self.agents[slot % len(self.agents)]

    def env_of(self, slot: int) -> int:
        """Return the sub-environment of a slot."""
        return slot // len(self.agents)

    def _env_episode_id(self, slot: int, number: int) -> str:
        return env_episode_id(self._id_prefix, self.env_of(slot), number)

    def _episode_id(self, slot: int, number: int) -> str:
        return f"{self._env_episode_id(slot, number)}-{self.agent_of(slot)}"

    # -- cutting ---------------------------------------------------------------------------------------------------

    def _is_step(self) -> Array:
        stop = int(self._row.max())
        rows = self._xp.arange(self._past, stop)
        return (rows[:, None] < self._row) & ~self._arrays.is_gap[self._past : stop]

    def _numbers_at(self, t: Array, slots: Array) -> Array:
        return self._arrays.labels[NUMBER][self._past + t, slots]

    def _begin_next_fragment(self) -> None:
        super()._begin_next_fragment()
        self._is_used = self._xp.copy(self.is_running)
        arrays = self._arrays
        for flags in (arrays.is_gap, arrays.is_terminated, arrays.is_truncated):
            flags[: self._past + 1] = False

    def _agents(self, chunks: Chunks, numbers: list[int]) -> Agents:
        slots, stop = chunks.slot.tolist(), self._past + chunks.num_steps
        env_t = flat_rows(self._arrays.labels[ENV_T], slice(self._past, stop + 1), chunks.obs_rows)
        return Agents(
            [self.agent_of(slot) for slot in slots],
            [self._env_episode_id(*key) for key in zip(slots, numbers, strict=True)],
            self._xp.to_host(env_t),
        )

    # -- state -----------------------------------------------------------------------------------------------------

    def _saved_steps(self) -> dict[str, Column]:
        """Return the lookback rows of running episodes and the rows of unfinished steps; all others are zeros.

        Otherwise older steps in the memory would make the state of a resumed run differ.
        """
        newest = self._past + 1
        saved = {name: self._arrays.saved(column, newest) for name, column in self._arrays.steps.items()}
        is_step = np.arange(newest)[:, None] >= self._xp.to_host(self._episode_start)
        is_step[self._past] = self._xp.to_host(self.is_waiting)
        for leaf in nested.leaves(saved):
            leaf[~is_step] = 0
        return saved
