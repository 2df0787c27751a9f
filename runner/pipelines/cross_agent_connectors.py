"""Connectors that add data of other agents at the same env step to a row.

Dimension letters: R env steps of E chunks, A agents of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.config.errors import Problem, RunFailure
from runner.episodes import nested
from runner.episodes.columns import OBS, Column, ColumnBlock
from runner.episodes.spaces import blank_item
from runner.pipelines.connector import AGENT_INDEX, AGENTS_MASK, OBS_OF_AGENTS, STATE, Batch
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.observation_connector import step_rows
from runner.pipelines.requirements import Requirements

IntArray = npt.NDArray[np.int64]


class AddObservationsOfAllAgentsToTrainBatch(LearnerConnector):
    """Adds the observations of all agents at each row's env step, for a critic that reads all agents.

    `obs_of_agents`: agent id -> (rows, ...) observations in the form of its episodes; zeros if the agent does not have
    one at that env step. `agents_mask` (rows, A) bool: which agents have an observation, in the order of the
    environment's `possible_agents` by module. `agent_index` (rows,) int64: index of the row's agent in this order. Rows
    are the rows of the batch: R, or R + E after `AddOneTsToEpisodesAndTruncate`.

    If an agent ends without a final observation, its last observation is repeated, as in its own rows. If the first
    observation of an agent still awaits its step when the rollout ends, its row is part of the next rollout. An agent
    that ends at the env step at which it appears does not have a row, and is not included.
    """

    requires = Requirements(writes=(OBS_OF_AGENTS, AGENTS_MASK, AGENT_INDEX), needs_other_agents=True)

    def use_agents(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        """Set the agents of the run: agent id -> space of the observations in its episodes."""
        self._spaces = dict(spaces)

    def __call__(
        self,
        *,
        batch: Batch,
        episodes: ColumnBlock,
        episodes_of_modules: Mapping[str, ColumnBlock] | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the columns."""
        blocks = episodes_of_modules or {episodes.module_id: episodes}
        observed, mask = observations_of_agents(episodes, blocks, self._spaces)
        index = agents_of_observations(episodes, list(self._spaces))
        columns = {OBS_OF_AGENTS: observed, AGENTS_MASK: mask, AGENT_INDEX: index}
        batch |= step_rows(columns, batch, episodes)
        return batch


class AddStatesFromInfosToTrainBatch(LearnerConnector):
    """Adds the environment's state at each row's env step, taken from `state` in the infos, for a critic that reads it.

    `state` (rows, ...) is nested like the environment's `state_space`. A row whose observation came without an info
    repeats the state of the previous row. `agent_index` (rows,) int64: index of the row's agent in the order of the
    environment's `possible_agents` by module. Rows are the rows of the batch: R, or R + E after
    `AddOneTsToEpisodesAndTruncate`.
    """

    requires = Requirements(writes=(STATE, AGENT_INDEX), needs_other_agents=True)

    def use_agents(self, spaces: Mapping[str, gym.Space[Any]]) -> None:
        """Set the agents of the run: agent id -> space of the observations in its episodes."""
        self._agents = list(spaces)

    def __call__(self, *, batch: Batch, episodes: ColumnBlock, **kwargs: Any) -> Batch:
        """Add the columns.

        Raises:
            RunFailure: the first info of a chunk does not contain a state.
        """
        states = [state for chunk in range(len(episodes)) for state in _states_of(episodes, chunk)]
        columns = {STATE: nested.stack(states), AGENT_INDEX: agents_of_observations(episodes, self._agents)}
        batch |= step_rows(columns, batch, episodes)
        return batch


def _states_of(block: ColumnBlock, chunk: int) -> list[Any]:
    infos = block.infos.rows_of(chunk, int(block.lengths[chunk]) + 1) if block.infos else None
    states: list[Any] = []
    for info in infos or [{}]:
        if STATE not in info and not states:
            what, agent = "an info lacks `state`, which a critic reads", _agents_of(block).agent_ids[chunk]
            fix = "set infos[agent]['state'] with each observation of each agent"
            raise RunFailure(Problem(what, f"agent {agent}", ", ".join(map(str, info)) or "{}", fix=fix))
        states.append(info.get(STATE, states[-1] if states else None))
    return states


def agents_of_observations(block: ColumnBlock, agents: Sequence[str]) -> IntArray:
    """Return (R + E,) the index in `agents` of each observation's agent."""
    number = {agent: place for place, agent in enumerate(agents)}
    of_chunk = np.array([number[agent] for agent in _agents_of(block).agent_ids], np.int64)
    index: IntArray = np.repeat(of_chunk, block.lengths + 1)
    return index


def observations_of_agents(
    asked: ColumnBlock, blocks: Mapping[str, ColumnBlock], spaces: Mapping[str, gym.Space[Any]]
) -> tuple[dict[str, Column], npt.NDArray[np.bool_]]:
    """Return the observation of each agent at the env step of each observation of a block.

    Args:
        asked: the block.
        blocks: module id -> block of the same rollout.
        spaces: agent id -> space of its observations.

    Returns:
        Agent id -> (R + E, ...) observations, zeros if missing, and a mask (R + E, A) of the existing ones.
    """
    steps = _EnvSteps([asked, *blocks.values()])
    keys_asked = steps.keys_of(asked)
    mask = np.zeros((len(keys_asked), len(spaces)), np.bool_)
    observed: dict[str, Column] = {}
    indexes = [_AgentIndex(block, steps.keys_of(block)) for block in blocks.values()]
    for place, (agent, space) in enumerate(spaces.items()):
        column = observed[agent] = nested.zeros(blank_item(space), (len(keys_asked),))
        for index in indexes:
            at, rows = index.find(agent, keys_asked)
            if len(at):
                nested.assign(column, at, nested.take(index.obs, rows))
                mask[at, place] = True
    return observed, mask


class _EnvSteps:
    """Numbers env steps consistently over all blocks of a rollout."""

    def __init__(self, blocks: list[ColumnBlock]) -> None:
        ids = dict.fromkeys(id_ for block in blocks for id_ in _agents_of(block).multi_agent_episode_ids)
        self._numbers = {id_: number for number, id_ in enumerate(ids)}
        self._longest = 1 + max((int(_agents_of(block).env_t.max()) for block in blocks if len(block)), default=0)

    def keys_of(self, block: ColumnBlock) -> IntArray:
        """Return (R + E,) the number of each observation's env step."""
        agents = _agents_of(block)
        episodes = np.array([self._numbers[id_] for id_ in agents.multi_agent_episode_ids], np.int64)
        keys: IntArray = np.repeat(episodes, block.lengths + 1) * self._longest + agents.env_t
        return keys


class _AgentIndex:
    """Finds the observations of a block by agent and env step."""

    def __init__(self, block: ColumnBlock, keys: IntArray) -> None:
        self.obs = block.columns[OBS]
        ids = list(dict.fromkeys(_agents_of(block).agent_ids))
        places = np.array([ids.index(agent) for agent in _agents_of(block).agent_ids], np.int64)
        of_row = np.repeat(places, block.lengths + 1)
        self._rows = {agent: np.flatnonzero(of_row == place) for place, agent in enumerate(ids)}
        self._keys = keys

    def find(self, agent: str, asked: IntArray) -> tuple[IntArray, IntArray]:
        """Return the positions in `asked` of env steps at which the agent has an observation, and its rows of `obs`."""
        rows = self._rows.get(agent)
        if rows is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        order = np.argsort(self._keys[rows], kind="stable")
        keys = self._keys[rows][order]
        places = np.searchsorted(keys, asked)
        at = np.flatnonzero(keys[np.minimum(places, len(keys) - 1)] == asked)
        return at, rows[order][places[at]]


def _agents_of(block: ColumnBlock) -> Any:
    if block.agents is None:
        raise ValueError(f"the block of module {block.module_id!r} does not contain the agents of its rows")
    return block.agents
