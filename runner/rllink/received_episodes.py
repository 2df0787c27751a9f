"""Episodes from clients as columns: joins the chunks of several messages into one column block.

Dimension letters: E chunks, R env steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import OBS, REWARDS, Agents, Column, ColumnBlock, LookbackOfChunks, row_ranges
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTION_LOGP

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(eq=False)
class EnvEpisode:
    """An env episode of several agents; compared by identity.

    Attributes:
        id: unique id in the run.
        client, name: name of its client, and its id in messages of the client.
        says_end: whether its client reports its end; until then it continues, complete or not.
        number: newer env episodes of the client have higher numbers.
        agents: agents that have joined it, each once.
        is_complete: whether every step of all agents has arrived or can still arrive.
        is_closed: whether no further agent can join it.
        is_reported: whether it was reported as incomplete; set where samples are made, not in the server's thread.
    """

    id: str
    client: str
    name: str
    says_end: bool = False
    number: int = 0
    agents: set[str] = field(default_factory=set)
    is_complete: bool = True
    is_closed: bool = False
    is_reported: bool = False

    def abort(self) -> None:
        """Mark it as incomplete, because steps of one of its agents are lost.

        Agents may join it until its client reports its end; if the client never does, agents begin another one.
        """
        self.is_complete = False
        self.is_closed |= not self.says_end


@dataclass(eq=False)
class OpenEpisode:
    """An episode whose chunks arrive one by one; compared by identity.

    Attributes:
        id: name in blocks and logs, unique in the run.
        agent_id, env: its agent and its env episode, or None in runs with a single agent.
        client: name of its client.
        name: its id in messages of the client; without a name, later chunks cannot continue it.
        is_complete: whether every step was sampled from start to end; false if the client left or skipped steps.
        is_lost: whether no more chunks can arrive although it has not ended.
        num_steps, last_obs: while it is open, number of env steps that have arrived, and the last observation, with
            which the next chunk begins; set in the server's thread.
        past: last sampled steps by column: the lookback of the next chunk; set, as the next three, by the sampler.
        num_steps_sampled, return_: number and undiscounted reward sum of sampled steps.
        last_obs_sampled: last sampled observation.
        task: name of its task, or None if the client did not report one.
        ends_env: whether its client has reported that its env episode ends with it.
    """

    id: str
    agent_id: str | None = None
    env: EnvEpisode | None = None
    client: str = ""
    name: str | None = None
    is_complete: bool = True
    is_lost: bool = False
    num_steps: int = 0
    last_obs: Any = None
    past: Mapping[str, Column] | None = None
    num_steps_sampled: int = 0
    return_: float = 0.0
    last_obs_sampled: Any = None
    task: str | None = None
    ends_env: bool = False

    @property
    def env_id(self) -> str | None:
        """Return the id of its env episode, or None in runs with a single agent."""
        return None if self.env is None else self.env.id

    def get_state(self) -> dict[str, Any]:
        """Return the sampled part of the episode as arrays and plain values."""
        return {
            "id": self.id,
            "agent_id": self.agent_id,
            "env_id": self.env_id,
            "task": self.task,
            "client": self.client,
            "name": self.name,
            "is_whole": self.is_complete,
            "num_steps": self.num_steps_sampled,
            "return": self.return_,
            "last_obs": self.last_obs_sampled,
            "past": None if self.past is None else dict(self.past),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OpenEpisode:
        """Make an open episode that continues after its last sampled step; its env episode counts as aborted."""
        client, env_id = str(state["client"]), state["env_id"]
        return cls(
            str(state["id"]),
            state["agent_id"],
            None if env_id is None else EnvEpisode(env_id, client, state["name"], is_complete=False, is_reported=True),
            client=client,
            name=None if state["name"] is None else str(state["name"]),
            is_complete=bool(state["is_whole"]),
            num_steps=int(state["num_steps"]),
            last_obs=state["last_obs"],
            past=state["past"],
            num_steps_sampled=int(state["num_steps"]),
            return_=float(state["return"]),
            last_obs_sampled=state["last_obs"],
            task=state["task"],
        )

    def lose(self) -> None:
        """Mark the episode as lost: its client has disconnected, or its steps were rejected."""
        self.is_complete, self.is_lost = False, True
        if self.env is not None:
            self.env.abort()

    def begin_at(self, t_started: int) -> None:
        """Begin at this time step; earlier steps are lost, so the return of the complete episode is unknown."""
        self.num_steps_sampled, self.is_complete = t_started, False


def count_env_steps(chunks: Iterable[tuple[OpenEpisode, int]]) -> int:
    """Count the env steps of chunks (episode, number of steps): in each env episode, the most steps of an agent."""
    by_env: dict[str, Counter[str | None]] = {}
    for episode, num_steps in chunks:
        by_env.setdefault(episode.env_id or episode.id, Counter())[episode.agent_id] += num_steps
    return sum(max(by_agent.values()) for by_agent in by_env.values())


@dataclass(eq=False)
class ReceivedChunks:
    """Chunks of one module in one message: one of `episodes`, or all of `columns`.

    Attributes:
        columns: `obs` (R + E, ...), `actions` (R, ...), `rewards` (R,), and further columns (R, ...) of the client.
        lengths, is_terminated, is_truncated, weights_seq_no: (E,).
        episodes: the episode of each of the E chunks.
        env_t: time step (R + E,) of each observation in its env episode, or None with a single agent.
    """

    module_id: str
    columns: dict[str, Column]
    lengths: IntArray
    is_terminated: BoolArray
    is_truncated: BoolArray
    weights_seq_no: IntArray
    episodes: list[OpenEpisode] = field(default_factory=list)
    env_t: IntArray | None = None

    @property
    def num_rows(self) -> int:
        """The number R of env steps."""
        return int(self.lengths.sum())

    @property
    def has_outputs(self) -> bool:
        """Whether the client sent the policy's outputs, so its weights are not needed."""
        return ACTION_DIST_INPUTS in self.columns and ACTION_LOGP in self.columns


@dataclass(frozen=True)
class JoinedChunks:
    """Chunks of different episodes as one block.

    Attributes:
        block: E chunks with R env steps.
        weights_seq_no: number (R,) of the weights that chose each action.
        episodes: the episode of each of the E chunks.
        given: names of columns other than obs, actions and rewards that clients sent for all rows.
        partly_given: name -> (mask (R,), column (R, ...)) of columns that clients sent only for the rows of the mask.
    """

    block: ColumnBlock
    weights_seq_no: IntArray
    episodes: Sequence[OpenEpisode]
    given: frozenset[str]
    partly_given: Mapping[str, tuple[BoolArray, Column]] = field(default_factory=dict)


@dataclass(frozen=True)
class SampledChunks:
    """Chunks with all columns that a learner needs.

    Attributes:
        block: E chunks with R env steps.
        episodes: the episode of each of the E chunks.
        raw_obs: observations (R + E, ...) as the client sent them.
    """

    block: ColumnBlock
    episodes: Sequence[OpenEpisode]
    raw_obs: Column


def join_chunks(parts: Sequence[ReceivedChunks], extra_columns: Iterable[str]) -> JoinedChunks:
    """Join all chunks of one module into one block, with one chunk per episode.

    Args:
        parts: parts of messages in order of arrival; at least one.
        extra_columns: names of further columns to copy, other than obs, actions and rewards.

    Returns:
        The chunks; each can look back at earlier sampled steps of its episode.
    """
    given = frozenset(name for name in extra_columns if all(name in part.columns for part in parts))
    names = [*("obs", "actions", "rewards"), *sorted(given)]
    columns = {name: _concatenated([part.columns[name] for part in parts]) for name in names}
    some = [name for name in extra_columns if name not in given and any(name in part.columns for part in parts)]
    partly_given = {name: _partly(name, parts) for name in some}
    lengths = np.concatenate([part.lengths for part in parts])
    seq_no = np.repeat(np.concatenate([part.weights_seq_no for part in parts]), lengths)
    episodes = [episode for part in parts for episode in part.episodes]
    is_terminated = np.concatenate([part.is_terminated for part in parts])
    is_truncated = np.concatenate([part.is_truncated for part in parts])
    env_t = None if parts[0].env_t is None else np.concatenate([part.env_t for part in parts if part.env_t is not None])
    if len(set(map(id, episodes))) < len(episodes):
        groups = _chunks_by_episode(episodes)
        step_rows, obs_rows = _rows_in_order(groups, lengths)
        columns = {
            name: nested.take(column, obs_rows if name == OBS else step_rows) for name, column in columns.items()
        }
        partly_given = {
            name: (rows[step_rows], nested.take(column, step_rows)) for name, (rows, column) in partly_given.items()
        }
        seq_no, episodes = seq_no[step_rows], [episodes[group[0]] for group in groups]
        env_t = None if env_t is None else env_t[obs_rows]
        lengths = np.array([lengths[group].sum() for group in groups], np.int64)
        last = [group[-1] for group in groups]
        is_terminated, is_truncated = is_terminated[last], is_truncated[last]
    for chunk in np.flatnonzero(~(is_terminated | is_truncated)).tolist():
        if episodes[chunk].name is None:  # it cannot be continued
            is_truncated[chunk], episodes[chunk].is_complete = True, False
    block = ColumnBlock(
        columns=columns,
        lengths=lengths,
        is_terminated=is_terminated,
        is_truncated=is_truncated,
        t_started=np.array([episode.num_steps_sampled for episode in episodes], np.int64),
        episode_ids=[episode.id for episode in episodes],
        lookback=_lookback_of(episodes),
        module_id=parts[0].module_id,
        agents=None if env_t is None else _agents(episodes, env_t),
    )
    return JoinedChunks(block, seq_no, episodes, given, partly_given)


def _partly(name: str, parts: Sequence[ReceivedChunks]) -> tuple[BoolArray, Column]:
    """Return the mask (R,) of the rows for which a column was sent, and the column (R, ...)."""
    rows = np.concatenate([np.full(part.num_rows, name in part.columns) for part in parts])
    sent = nested.concatenate([part.columns[name] for part in parts if name in part.columns])
    column = nested.map_leaves(lambda leaf: np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype), sent)
    nested.assign(column, rows, sent)
    return rows, column


def store_lookback(joined: JoinedChunks, block: ColumnBlock, num_lookback: int) -> None:
    """Store the last sampled steps in the episodes that continue.

    Args:
        joined: result of `join_chunks`.
        block: the same chunks with all columns.
        num_lookback: number of steps that later chunks can look back at.
    """
    add_returns(block, joined.episodes)
    offsets, first_obs_rows = block.offsets, block.first_obs_rows
    for chunk, episode in enumerate(joined.episodes):
        length = int(block.lengths[chunk])
        last = int(first_obs_rows[chunk]) + length
        episode.last_obs_sampled = nested.map_leaves(np.copy, nested.take(joined.block.columns[OBS], last))
        if num_lookback == 0 or block.is_terminated[chunk] or block.is_truncated[chunk]:
            continue
        num_past = min(num_lookback, length)
        ends = {name: int(offsets[chunk]) + length for name in block.columns}
        ends[OBS] = int(first_obs_rows[chunk]) + length
        past = {
            name: nested.map_leaves(np.copy, nested.take(column, slice(ends[name] - num_past, ends[name])))
            for name, column in block.columns.items()
        }
        if episode.past is not None and num_past < num_lookback:
            missing = slice(-(num_lookback - num_past), None)
            past = {
                name: nested.concatenate((nested.take(episode.past[name], missing), column))
                for name, column in past.items()
            }
        episode.past = past


def add_returns(block: ColumnBlock, episodes: Sequence[OpenEpisode]) -> None:
    """Add the steps and rewards of chunks to the totals of their episodes."""
    returns = np.add.reduceat(block.columns[REWARDS].astype(np.float64), block.offsets[:-1])
    for episode, length, chunk_return in zip(episodes, block.lengths.tolist(), returns.tolist(), strict=True):
        episode.num_steps_sampled += length
        episode.return_ += chunk_return


def _chunks_by_episode(episodes: Sequence[OpenEpisode]) -> list[list[int]]:
    """Return the numbers of the chunks of each episode, in order."""
    chunks_of: dict[int, list[int]] = {}
    for chunk, episode in enumerate(episodes):
        chunks_of.setdefault(id(episode), []).append(chunk)
    return list(chunks_of.values())


def _rows_in_order(groups: Sequence[Sequence[int]], lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of steps and of observations such that the chunks of an episode follow one another.

    An observation that two chunks share occurs once.
    """
    chunks = np.array([chunk for group in groups for chunk in group], np.int64)
    is_later = np.array([number > 0 for group in groups for number in range(len(group))], np.int64)
    starts = (np.cumsum(lengths) - lengths)[chunks]
    obs_rows = row_ranges(starts + chunks + is_later, lengths[chunks] + 1 - is_later)
    return row_ranges(starts, lengths[chunks]), obs_rows


def _lookback_of(episodes: Sequence[OpenEpisode]) -> LookbackOfChunks | None:
    pasts = [episode.past or {} for episode in episodes]
    num_before = np.array([len(past[REWARDS]) if past else 0 for past in pasts], np.int64)
    return LookbackOfChunks(pasts, num_before) if any(pasts) else None


def _agents(episodes: Sequence[OpenEpisode], env_t: IntArray) -> Agents:
    return Agents(
        [episode.agent_id or "" for episode in episodes], [episode.env_id or "" for episode in episodes], env_t
    )


def _concatenated(columns: list[Column]) -> Column:
    if len(columns) > 1:
        return nested.concatenate(columns)
    # Copy, because blocks are views into the message, and learners write into their arrays.
    return nested.map_leaves(lambda array: np.require(array, requirements="W"), columns[0])
