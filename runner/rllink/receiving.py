"""Decodes messages with episodes to columns, and checks them against spaces and open episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    NamedChunk,
    NewObservation,
    read,
)
from runner.rllink.received_episodes import EnvEpisode, OpenEpisode, ReceivedChunks, count_env_steps

IntArray = npt.NDArray[np.int64]
_LONGEST_CHUNK = 2**31 - 1  # sums of lengths cannot overflow
_LARGEST_REWARD = float(np.finfo(np.float32).max)  # rewards are stored in single precision
_LARGEST_ENV_T = 2**31 - 1  # replay in lockstep stores time steps of env episodes in 32 bits


@dataclass
class OpenEpisodes:
    """The open episodes of one client.

    Args:
        name: name of the client, which is the prefix of its episode ids.
        limit: maximum number of open episodes.
        by_key: episodes by agent (None with a single agent) and id.
        num_begun: number of episodes that have begun.
        says_ends: whether the client reports the ends of env episodes (extension `env_ends`).
    """

    name: str
    limit: int
    by_key: dict[AgentKey, OpenEpisode] = field(default_factory=dict)
    num_begun: int = 0
    says_ends: bool = False
    # Id in messages -> newest env episode that agents may join; the least recently used one is first.
    _env_episodes: dict[str, EnvEpisode] = field(default_factory=dict)

    def new_id(self, id_: str | None) -> str:
        """Return an unused episode id."""
        name = f"{self.name}-{self.num_begun}" + ("" if id_ is None else f"-{id_}")
        self.num_begun += 1
        return name

    def new_env_episode(self, id_: str) -> EnvEpisode:
        """Make an env episode, which agents may join after `offer`."""
        number = self.num_begun
        return EnvEpisode(self.new_id(id_), self.name, id_, self.says_ends, number)

    def env_episode(self, id_: str) -> EnvEpisode | None:
        """Return the env episode of this id that agents may join, or None."""
        env = self._env_episodes.get(id_)
        return None if env is None or env.is_closed else env

    def begin(self, episode: OpenEpisode) -> None:
        """Add an agent's new episode to its env episode, and close an older one of the same id."""
        env = episode.env
        assert env is not None
        assert episode.agent_id is not None
        env.agents.add(episode.agent_id)
        env.is_complete &= episode.is_complete
        self.offer(env)

    def offer(self, env: EnvEpisode) -> None:
        """Allow agents to join an env episode, and close an older one of the same id."""
        before = self._env_episodes.pop(env.name, env)
        before.is_closed |= before is not env
        if not env.is_closed:
            self._env_episodes[env.name] = env
        if len(self._env_episodes) > 2 * self.limit:
            self._env_episodes.pop(next(iter(self._env_episodes))).is_closed = True

    def end(self, env: EnvEpisode, last: OpenEpisode | None = None) -> None:
        """Close an env episode for further agents; `last` is the episode with whose end the client reported it."""
        env.is_closed = True
        if last is not None:
            last.ends_env = True
        if self._env_episodes.get(env.name) is env:
            del self._env_episodes[env.name]

    def end_all(self) -> None:
        """Close all env episodes for further agents, because the client has disconnected."""
        for env in list(self._env_episodes.values()):
            env.is_complete &= not env.says_end
            self.end(env)

    def skip(self, chunks: Iterable[NamedChunk], lost: Mapping[AgentKey, OpenEpisode]) -> None:
        """Mark env episodes as incomplete in which agents would have begun with skipped chunks, and end them.

        Args:
            chunks: skipped chunks in the order of their message.
            lost: episodes among them that had begun before.
        """
        new = NewEpisodes(self)
        going_on = dict(lost)
        named: dict[AgentKey, OpenEpisode] = {}
        # Without `env_ends`, agents that join after a loss are assumed to begin again.
        closed = set() if self.says_ends else {id_ for _, id_ in lost}
        for chunk in chunks:
            if chunk.agent_id is None or chunk.id in closed:
                continue
            if chunk.key not in named:
                before = going_on.pop(chunk.key, None)
                named[chunk.key] = new.add(chunk.agent_id, chunk.id) if before is None else before
                named[chunk.key].is_complete = False
            if chunk.is_env_done:
                new.end_env_episode(named[chunk.key])
                named = {key: episode for key, episode in named.items() if key[1] != chunk.id}
        new.carry_out()

    def restore(self, episode: OpenEpisode) -> None:
        """Add an open episode from before a restart."""
        assert episode.name is not None
        self.by_key[episode.agent_id, episode.name] = episode


class NewEpisodes:
    """Episodes that begin and env episodes that end with a message, applied once the message is accepted.

    Args:
        open_episodes: open episodes of the client.
    """

    def __init__(self, open_episodes: OpenEpisodes) -> None:
        self._open = open_episodes
        self._changes: list[Callable[[], None]] = []
        # Id in messages -> newest env episode, with its agents if the message is accepted.
        self._newest: dict[str, tuple[EnvEpisode, set[str]] | None] = {}

    def add(self, agent_id: str | None, id_: str | None) -> OpenEpisode:
        """Make a new episode; it is open once it is in `OpenEpisodes.by_key`."""
        name = self._open.new_id(id_)
        env = None if agent_id is None else self._env_episode_of(agent_id, str(id_))
        episode = OpenEpisode(name, agent_id, env, self._open.name, id_)
        if env is not None:
            self._changes.append(lambda: self._open.begin(episode))
        return episode

    def end_env_episode(self, episode: OpenEpisode) -> None:
        """Close the env episode of this episode for further agents."""
        env = episode.env
        if env is None:
            return
        newest = self._newest_of(env.name)
        if newest is not None and newest[0] is env:
            self._newest[env.name] = None
        self._changes.append(lambda: self._open.end(env, episode))

    def _env_episode_of(self, agent_id: str, id_: str) -> EnvEpisode:
        """Return the env episode of an agent's new episode; a new one if the agent was in the newest one of this id."""
        newest = self._newest_of(id_)
        if newest is None or agent_id in newest[1]:
            newest = self._newest[id_] = self._open.new_env_episode(id_), set()
        env, agents = newest
        agents.add(agent_id)
        return env

    def _newest_of(self, id_: str) -> tuple[EnvEpisode, set[str]] | None:
        if id_ not in self._newest:
            env = self._open.env_episode(id_)
            self._newest[id_] = None if env is None else (env, set(env.agents))
        return self._newest[id_]

    def carry_out(self) -> None:
        """Begin and end the episodes, because the message is accepted."""
        for change in self._changes:
            change()


class Receiver:
    """Turns messages into columns.

    Args:
        agents: agent id -> spaces, with the key None for a single agent.
        bound: largest absolute reward that is accepted.
        tasks: names of the tasks of the run.
    """

    def __init__(
        self,
        agents: Mapping[str | None, AgentSpaces],
        bound: RewardBound,
        tasks: Collection[str] = (),
    ) -> None:
        self._agents = agents
        self._tasks = tasks
        self._bound = bound
        self._is_taking_again = False

    @contextmanager
    def taking_again(self) -> Iterator[None]:
        """Receive messages of the journal in this context: they were accepted under an earlier bound of rewards."""
        self._is_taking_again = True
        try:
            yield
        finally:
            self._is_taking_again = False

    @property
    def max_abs_reward(self) -> float:
        """The largest absolute reward that is accepted now."""
        is_chosen = bool(self._bound.reason)
        return _LARGEST_REWARD if is_chosen and self._is_taking_again else min(self._bound.value, _LARGEST_REWARD)

    def receive(
        self,
        message: Episodes,
        body_format: str,
        open_episodes: OpenEpisodes,
        weights_seq_no: int,
        check: Callable[[list[ReceivedChunks], int], None],
    ) -> tuple[list[ReceivedChunks], int]:
        """Decode and check a message, and update the open episodes if all of it is accepted.

        Args:
            message: the decoded message.
            body_format: format of its undecoded parts, `json` or `msgpack`.
            open_episodes: open episodes of the client.
            weights_seq_no: number of the weights that chose the actions, unless the message contains it.
            check: called with the result; raises `MessageError` to reject it.

        Returns:
            The chunks in order, and the number of env steps.

        Raises:
            MessageError: the message is rejected, and nothing has changed.
        """
        if (message.episodes is UNSET) == (message.columns is UNSET):
            raise MessageError("bad_message", "a message must have either `episodes` or `columns`", "$.episodes")
        if message.weights_seq_no is not UNSET:
            weights_seq_no = message.weights_seq_no
        plan = _Plan(open_episodes)
        if message.columns is not UNSET:
            if None not in self._agents:
                raise MessageError(
                    "bad_message", "`columns` are only supported in runs with a single agent", "$.columns"
                )
            parts = [self._columns(message.columns, body_format, weights_seq_no, plan)]
            num_env_steps = parts[0].num_rows
        else:
            assert message.episodes is not UNSET
            parts = [
                self._chunk(chunk, f"$.episodes[{number}]", body_format, weights_seq_no, plan)
                for number, chunk in enumerate(message.episodes)
            ]
            num_env_steps = count_env_steps((part.episodes[0], part.num_rows) for part in parts)
        if message.env_steps is not UNSET and message.env_steps != num_env_steps:
            text = f"the episodes have {num_env_steps} env steps, but env_steps is {message.env_steps}"
            raise MessageError("bad_message", text, "$.env_steps")
        plan.check_limit()
        check(parts, num_env_steps)
        plan.carry_out()
        return parts, num_env_steps

    def _chunk(self, chunk: Episode, path: str, body_format: str, weights_seq_no: int, plan: _Plan) -> ReceivedChunks:
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
        going = plan.add(agent_id, id_, columns[OBS], 0, length, is_done, path, t_started)
        if chunk.is_env_done:
            plan.new.end_env_episode(going.episode)
        if going.num_steps == 0:
            going.episode.task = task
        if chunk.weights_seq_no is not UNSET:
            weights_seq_no = chunk.weights_seq_no
        return ReceivedChunks(
            agent.module_id,
            columns,
            np.array([length], np.int64),
            np.array([chunk.is_terminated]),
            np.array([chunk.is_truncated]),
            np.array([weights_seq_no], np.int64),
            [going.episode],
            None if agent_id is None else _env_t(chunk, going.num_steps, length, path),
        )

    def _columns(self, sent: Columns, body_format: str, weights_seq_no: int, plan: _Plan) -> ReceivedChunks:
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
            plan.add(None, id_, columns[OBS], first, length, done, path).episode
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


class _Plan:
    """Changes of a message to the open episodes of its client, applied when the complete message is accepted."""

    def __init__(self, open_episodes: OpenEpisodes) -> None:
        self._open = open_episodes
        # (agent, id) -> the episode after the chunks read so far; None after its end.
        self._named: dict[AgentKey, _Going | None] = {}
        self._all: list[_Going] = []
        self.new = NewEpisodes(open_episodes)

    def add(
        self,
        agent_id: str | None,
        id_: str | None,
        obs: Column,
        first: int,
        length: int,
        is_done: bool,
        path: str,
        t_started: int | None = None,
    ) -> _Going:
        """Add a chunk whose `length + 1` observations begin with row `first` of `obs`; return its earlier episode."""
        if id_ is None:
            return _begun(self.new.add(agent_id, None), t_started)
        key = agent_id, id_
        if key in self._named:
            going = self._named[key]
        else:
            known = self._open.by_key.get(key)
            going = None if known is None else _Going(known, known.num_steps, known.last_obs)
        if going is None:
            going = _begun(self.new.add(agent_id, id_), t_started)
        elif t_started not in (None, going.num_steps):
            text = f"the previous chunk ended at time step {going.num_steps}, but this one begins at {t_started}"
            raise MessageError("bad_message", text, f"{path}.t_started")
        elif not nested.equal(nested.take(obs, first), going.last_obs):
            text = f"a chunk of episode {id_!r:.80} must begin with the last observation of the previous chunk"
            raise MessageError("bad_message", text, f"{path}.obs")
        last_obs = None if is_done else nested.map_leaves(np.copy, nested.take(obs, first + length))
        after = _Going(going.episode, going.num_steps + length, last_obs)
        self._named[key] = None if is_done else after
        self._all.append(after)
        return going

    def check_limit(self) -> None:
        """Raise `MessageError` if the client would have too many open episodes."""
        going_on = {key for key, going in self._named.items() if going is not None}
        num_open = len((self._open.by_key.keys() - self._named.keys()) | going_on)
        if num_open > self._open.limit:
            text = f"{num_open} open episodes exceed the limit of {self._open.limit}"
            raise MessageError("too_many_episodes", text, "$.episodes")

    def carry_out(self) -> None:
        """Apply the changes to the client's open episodes."""
        self.new.carry_out()
        for after in self._all:
            after.episode.num_steps, after.episode.last_obs = after.num_steps, after.last_obs
        for key, going in self._named.items():
            if going is None:
                self._open.by_key.pop(key, None)
            else:
                self._open.by_key[key] = going.episode


@dataclass(frozen=True)
class _Going:
    """An episode after the chunks read so far, with its number of steps and its last observation."""

    episode: OpenEpisode
    num_steps: int = 0
    last_obs: Any = None


def _begun(episode: OpenEpisode, t_started: int | None) -> _Going:
    """Begin an episode, at a time step above 0 if its earlier steps are lost."""
    if t_started:
        episode.begin_at(t_started)
    return _Going(episode, t_started or 0)


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
