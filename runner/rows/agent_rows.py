"""Rows of the agents that one module acts for, in all sub-environments of an env runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import Agents
from runner.rows.array_namespace import NUMPY, Array, ArrayNamespace
from runner.rows.chunks import Chunks, flat_rows
from runner.rows.running_episodes import RunningAgentEpisodes
from runner.rows.slot_rows import ENV_T, SlotRows


def env_episode_id(prefix: str, env: int, number: int) -> str:
    """Return the id of the episode with this number in a sub-environment."""
    return f"{prefix}-{env}-{number}"


class AgentRows(SlotRows, RunningAgentEpisodes):
    """Rows of S = N * A slots, one for each agent of each sub-environment.

    Args:
        module_id: the module that acts.
        agents: A agent ids; slot s holds agent s % A in sub-environment s // A.
        num_envs: N.
        blank_obs, blank_action, num_lookback, xp: see `RowStore`.
        id_prefix: ids of env episodes are `<prefix>-<sub-environment>-<number>`.
    """

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
        super().__init__(num_envs * len(agents), blank_obs, blank_action, num_lookback, xp)

    def end_env(self, env: int) -> None:
        """End the env episode of a sub-environment; rewards of agents that were never observed end with it."""
        self._reward_before[env * len(self.agents) : (env + 1) * len(self.agents)] = 0.0

    def abandon_env(self, env: int) -> None:
        """Forget the running episodes of a sub-environment's agents; they do not continue."""
        slots = slice(env * len(self.agents), (env + 1) * len(self.agents))
        self.is_running[slots] = self.is_waiting[slots] = self._is_used[slots] = False
        self._reward_before[slots] = 0.0

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

    def _agents(self, chunks: Chunks, numbers: list[int]) -> Agents:
        slots, stop = chunks.slot.tolist(), self._past + chunks.num_steps
        env_t = flat_rows(self._arrays.labels[ENV_T], slice(self._past, stop + 1), chunks.obs_rows)
        return Agents(
            [self.agent_of(slot) for slot in slots],
            [self._env_episode_id(*key) for key in zip(slots, numbers, strict=True)],
            self._xp.to_host(env_t),
        )
