"""Decodes messages with episodes to columns, and checks them against spaces and open episodes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTION_LOGP
from runner.rllink.arrays import number_column
from runner.rllink.judgement import RewardBound
from runner.rllink.messages import (
    UNSET,
    AgentKey,
    AgentSpaces,
    Columns,
    Episode,
    Episodes,
    MessageError,
    NewObservation,
    read,
)
from runner.rllink.open_episodes import EpisodeChanges, OpenEpisodes
from runner.rllink.received_episodes import OpenEpisode, ReceivedChunks, count_env_steps

IntArray = npt.NDArray[np.int64]
_LONGEST_CHUNK = 2**31 - 1  # sums of lengths cannot overflow
_LARGEST_REWARD = float(np.finfo(np.float32).max)  # rewards are stored in single precision
_LARGEST_ENV_T = 2**31 - 1  # replay in lockstep stores time steps of env episodes in 32 bits


@dataclass(frozen=True)
class ReceivedMessage:
    """A decoded message whose chunks fit the open episodes of its client.

    Attributes:
        parts: its chunks, in order.
        num_env_steps: number of env steps.
        changes: changes of the open episodes; apply them to accept the message.
    """

    parts: list[ReceivedChunks]
    num_env_steps: int
    changes: EpisodeChanges


class Receiver:
    """Turns messages into columns.

    Args:
        agents: agent id -> spaces, with the key None for a single agent.
        bound: largest absolute reward that is accepted.
        tasks: names of the tasks of the run.
        is_journal: whether the messages come from the journal. They were accepted under an earlier bound, so a bound
            that was derived or learned does not apply to them.
    """

    def __init__(
        self,
        agents: Mapping[str | None, AgentSpaces],
        bound: RewardBound,
        tasks: Collection[str] = (),
        is_journal: bool = False,
    ) -> None:
        self._agents = agents
        self._tasks = tasks
        self._bound = bound
        self._is_journal = is_journal

    @property
    def max_abs_reward(self) -> float:
        """The largest absolute reward that is accepted now."""
        if self._is_journal and self._bound.reason:
            return _LARGEST_REWARD
        return min(self._bound.value, _LARGEST_REWARD)

    def receive(
        self, message: Episodes, body_format: str, open_episodes: OpenEpisodes, weights_seq_no: int
    ) -> ReceivedMessage:
        """Decode and check a message.

        Args:
            message: the decoded message.
            body_format: format of its undecoded parts, `json` or `msgpack`.
            open_episodes: open episodes of the client.
            weights_seq_no: number of the weights that chose the actions, unless the message contains it.

        Raises:
            MessageError: the message is not valid.
        """
        if (message.episodes is UNSET) == (message.columns is UNSET):
            raise MessageError("bad_message", "a message must have either `episodes` or `columns`", "$.episodes")
        if message.weights_seq_no is not UNSET:
            weights_seq_no = message.weights_seq_no
        changes = _ChunkChanges(open_episodes)
        if message.columns is not UNSET:
            if None not in self._agents:
                raise MessageError(
                    "bad_message", "`columns` are only supported in runs with a single agent", "$.columns"
                )
            parts = [self._columns(message.columns, body_format, weights_seq_no, changes)]
            num_env_steps = parts[0].num_rows
        else:
            assert message.episodes is not UNSET
            parts = [
                self._chunk(chunk, f"$.episodes[{number}]", body_format, weights_seq_no, changes)
                for number, chunk in enumerate(message.episodes)
            ]
            num_env_steps = count_env_steps((part.episodes[0], part.num_rows) for part in parts)
        if message.env_steps is not UNSET and message.env_steps != num_env_steps:
            text = f"the episodes have {num_env_steps} env steps, but env_steps is {message.env_steps}"
            raise MessageError("bad_message", text, "$.env_steps")
        changes.check_limit()
        return ReceivedMessage(parts, num_env_steps, changes)

    def _chunk(
        self, chunk: Episode, path: str, body_format: str, weights_seq_no: int, changes: _ChunkChanges
    ) -> ReceivedChunks:
        agent_id = None if chunk.agent_id is UNSET else chunk.agent_id
        agent = self.agent(agent_id, path)
        id_ = None if chunk.id is UNSET else chunk.id
        if agent_id is not None and id_ is None:
            raise MessageError("bad_message", "with several agents, an episode must have an id", f"{path}.id")
        columns: dict[str, Column] = {
            OBS: agent.read_obs(lambda: agent.obs.rows(chunk.obs, body_format), f"{path}.obs"),
            ACTIONS: agent.read_actions(lambda: agent.actions.rows(chunk.actions, body_format), f"{path}.actions"),
            **self._numbers(chunk, agent, path),
        }
        length = nested.row_count(columns[ACTIONS])
        if length == 0:
            raise MessageError("bad_message", "a chunk must have at least one step", f"{path}.actions")
        _check_lengths(columns, length, 1, path)
        check_end(chunk, path)
        is_done = chunk.is_terminated or chunk.is_truncated
        t_started = None if chunk.t_started is UNSET else chunk.t_started
        task = self.task(chunk, path)
        before = changes.add_chunk(agent_id, id_, columns[OBS], 0, length, is_done, path, t_started)
        if chunk.is_env_done:
            changes.end_env_episode(before.episode)
        if before.num_steps == 0:
            before.episode.task = task
        if chunk.weights_seq_no is not UNSET:
            weights_seq_no = chunk.weights_seq_no
        return ReceivedChunks(
            agent.module_id,
            columns,
            np.array([length], np.int64),
            np.array([chunk.is_terminated]),
            np.array([chunk.is_truncated]),
            np.array([weights_seq_no], np.int64),
            [before.episode],
            None if agent_id is None else _env_t(chunk, before.num_steps, length, path),
        )

    def _columns(self, sent: Columns, body_format: str, weights_seq_no: int, changes: _ChunkChanges) -> ReceivedChunks:
        path = "$.columns"
        agent = self._agents[None]
        lengths = read(f"{path}.lengths", number_column, sent.lengths, np.int64)
        if lengths.ndim != 1 or len(lengths) == 0 or lengths.min() < 1 or lengths.max() > _LONGEST_CHUNK:
            text = f"lengths must be one or more integers from 1 to {_LONGEST_CHUNK}"
            raise MessageError("bad_message", text, f"{path}.lengths")
        columns: dict[str, Column] = {
            OBS: agent.read_obs(lambda: agent.obs.columns(sent.obs, body_format), f"{path}.obs"),
            ACTIONS: agent.read_actions(lambda: agent.actions.columns(sent.actions, body_format), f"{path}.actions"),
            **self._numbers(sent, agent, path),
        }
        num_chunks = len(lengths)
        _check_lengths(columns, int(lengths.sum()), num_chunks, path)
        flags = {
            # Copy, because flags are written to when the client leaves, and a view into the message is read-only.
            name: read(f"{path}.{name}", number_column, getattr(sent, name), np.bool_).copy()
            for name in ("is_terminated", "is_truncated")
        }
        for name, values in flags.items():
            if values.shape != (num_chunks,):
                text = f"expected {num_chunks} booleans, got shape {list(values.shape)}"
                raise MessageError("bad_message", text, f"{path}.{name}")
        if (flags["is_terminated"] & flags["is_truncated"]).any():
            raise _two_ends(path)
        ids: Sequence[str | None] = [None] * num_chunks if sent.ids is UNSET else sent.ids
        if len(ids) != num_chunks:
            raise MessageError("bad_message", f"expected {num_chunks} ids, got {len(ids)}", f"{path}.ids")
        is_done = (flags["is_terminated"] | flags["is_truncated"]).tolist()
        first_obs = (np.cumsum(lengths) - lengths + np.arange(num_chunks)).tolist()
        episodes = [
            changes.add_chunk(None, id_, columns[OBS], first, length, done, path).episode
            for id_, first, length, done in zip(ids, first_obs, lengths.tolist(), is_done, strict=True)
        ]
        seq_nos = np.full(num_chunks, weights_seq_no, np.int64)
        return ReceivedChunks(
            agent.module_id, columns, lengths, flags["is_terminated"], flags["is_truncated"], seq_nos, episodes
        )

    def agent(self, agent_id: str | None, path: str) -> AgentSpaces:
        """Return the spaces of the agent named at this path; raise `MessageError` if the run lacks this agent."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            return agent
        known = ", ".join(map(str, self._agents))
        if agent_id is None:
            text = f"in a run with several agents, an episode must have an agent_id; agents are {known}"
        elif None in self._agents:
            text = f"this run has a single agent, so agent_id must be missing; got {agent_id!r:.80}"
        else:
            text = f"unknown agent {agent_id!r:.80}; agents are {known}"
        raise MessageError("bad_message", text, f"{path}.agent_id")

    def task(self, sent: Episode | NewObservation, path: str) -> str | None:
        """Return the task reported for an episode; raise `MessageError` if the run does not have this task."""
        if sent.task is UNSET:
            return None
        if sent.task not in self._tasks:
            known = f"tasks are {', '.join(self._tasks)}" if self._tasks else "this run does not use tasks"
            raise MessageError("bad_message", f"unknown task {sent.task!r:.80}; {known}", f"{path}.task")
        return sent.task

    def _numbers(self, sent: Episode | Columns, agent: AgentSpaces, path: str) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        shapes: dict[str, tuple[int, ...]] = {
            REWARDS: (),
            ACTION_LOGP: (),
            ACTION_DIST_INPUTS: (agent.num_dist_inputs,),
        }
        for name, shape in shapes.items():
            values = getattr(sent, name)
            if values is UNSET:
                continue
            column = read(f"{path}.{name}", number_column, values, np.float32)
            if column.ndim == 0 or column.shape[1:] != shape:
                expected = f"rows of {shape[0]} numbers" if shape else "numbers"
                text = f"expected {expected}, got shape {list(column.shape)}"
                raise MessageError("bad_message", text, f"{path}.{name}")
            columns[name] = column
        rewards = columns[REWARDS]
        largest = self.max_abs_reward
        if rewards.size and (rewards.max() > largest or rewards.min() < -largest):
            row = int(np.argmax(np.abs(rewards)))
            self.check_reward(float(rewards[row]), f"{path}.rewards", f" (item {row})")
        return columns

    def check_reward(self, reward: float, path: str, where: str = "") -> None:
        """Raise `MessageError` for a reward that is not finite or exceeds the limit."""
        if not math.isfinite(reward):
            raise MessageError("bad_message", "a number is not finite", path)
        if abs(reward) > self.max_abs_reward:
            reason = f" ({self._bound.reason})" if self._bound.reason else ""
            limit = f"rllink.max_abs_reward, {self.max_abs_reward:g}{reason}"
            raise MessageError("bad_message", f"a reward of {reward:g} exceeds {limit}{where}", path)


class _ChunkChanges(EpisodeChanges):
    """The changes by the chunks of a message: the episodes that begin, continue and end with them."""

    def __init__(self, open_episodes: OpenEpisodes) -> None:
        super().__init__(open_episodes)
        # (agent, id) -> the episode after the chunks read so far; None after its end.
        self._named: dict[AgentKey, _Position | None] = {}

    def add_chunk(
        self,
        agent_id: str | None,
        id_: str | None,
        obs: Column,
        first: int,
        length: int,
        is_done: bool,
        path: str,
        t_started: int | None = None,
    ) -> _Position:
        """Add a chunk whose `length + 1` observations begin with row `first` of `obs`; return its start."""
        if id_ is None:
            return _begun(self.begin(agent_id, None), t_started)
        key = agent_id, id_
        if key in self._named:
            before = self._named[key]
        else:
            known = self._open.by_key.get(key)
            before = None if known is None else _Position(known, known.num_steps, known.last_obs)
        if before is None:
            before = _begun(self.begin(agent_id, id_), t_started)
        elif t_started not in (None, before.num_steps):
            text = f"the previous chunk ended at time step {before.num_steps}, but this one begins at {t_started}"
            raise MessageError("bad_message", text, f"{path}.t_started")
        elif not nested.equal(nested.take(obs, first), before.last_obs):
            text = f"a chunk of episode {id_!r:.80} must begin with the last observation of the previous chunk"
            raise MessageError("bad_message", text, f"{path}.obs")
        after = None
        if not is_done:
            last_obs = nested.map_leaves(np.copy, nested.take(obs, first + length))
            after = _Position(before.episode, before.num_steps + length, last_obs)
        self._named[key] = after
        return before

    def check_limit(self) -> None:
        """Raise `MessageError` if the client would have too many open episodes."""
        continuing = {key for key, after in self._named.items() if after is not None}
        num_open = len((self._open.by_key.keys() - self._named.keys()) | continuing)
        if num_open > self._open.limit:
            text = f"{num_open} open episodes exceed the limit of {self._open.limit}"
            raise MessageError("too_many_episodes", text, "$.episodes")

    def apply(self) -> None:
        """Begin, continue and end the episodes, because the message is accepted."""
        super().apply()
        for key, after in self._named.items():
            if after is None:
                self._open.by_key.pop(key, None)
            else:
                after.episode.num_steps, after.episode.last_obs = after.num_steps, after.last_obs
                self._open.by_key[key] = after.episode


@dataclass(frozen=True)
class _Position:
    """A position in an episode between two chunks: the number of earlier steps, and the observation there."""

    episode: OpenEpisode
    num_steps: int = 0
    last_obs: Any = None


def _begun(episode: OpenEpisode, t_started: int | None) -> _Position:
    """Begin an episode, at a time step above 0 if its earlier steps are lost."""
    if t_started:
        episode.begin_at(t_started)
    return _Position(episode, t_started or 0)


def check_end(sent: Episode | NewObservation, path: str) -> None:
    """Raise `MessageError` for two ends of an episode, and for an end of an env episode without an agent's end."""
    if sent.is_terminated and sent.is_truncated:
        raise _two_ends(path)
    if sent.is_env_done and not (sent.is_terminated or sent.is_truncated):
        text = "an env episode can only end together with an agent's episode"
        raise MessageError("bad_message", text, f"{path}.is_env_done")


def _two_ends(path: str) -> MessageError:
    return MessageError("bad_message", "an episode cannot be both terminated and truncated", f"{path}.is_truncated")


def _check_lengths(columns: Mapping[str, Column], num_steps: int, num_chunks: int, path: str) -> None:
    for name, column in columns.items():
        expected = num_steps + num_chunks if name == OBS else num_steps
        try:
            got = nested.row_count(column)
        except (ValueError, TypeError) as error:
            raise MessageError("bad_message", str(error), f"{path}.{name}") from None
        if got != expected:
            raise MessageError("bad_message", f"expected {expected} items, got {got}", f"{path}.{name}")


def _env_t(chunk: Episode, num_before: int, length: int, path: str) -> IntArray:
    env_t: IntArray = np.arange(num_before, num_before + length + 1)
    if chunk.env_t is not UNSET:
        sent = chunk.env_t
        env_t = read(f"{path}.env_t", number_column, sent, np.int64)
    is_within = env_t.shape == (length + 1,) and env_t.min() >= 0 and env_t.max() <= _LARGEST_ENV_T
    if not is_within or (np.diff(env_t) < 0).any():
        text = f"expected {length + 1} env time steps from 0 to {_LARGEST_ENV_T} that do not decrease"
        raise MessageError("bad_message", text, f"{path}.env_t")
    return env_t
