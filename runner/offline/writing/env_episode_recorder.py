"""Record multi-agent env episodes by joining the chunks that an env runner samples.

Dimension letters: E env episodes, T steps of an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from runner.episodes.columns import REWARDS, Agents, ColumnBlock
from runner.offline.codecs.env_episode_format import EnvEpisodes
from runner.offline.writing.recorder import (
    ENV_T,
    BoolArray,
    Recorded,
    RecordedChunk,
    joined_columns,
    joined_infos,
)
from runner.offline.writing.writer import EpisodeWriter
from runner.rows.finished_episodes import EndedEpisode
from runner.rows.to_record import ToRecord


@dataclass
class _AgentEpisode:
    """Recorded chunks of one agent's episode, and the end flags of the newest chunk."""

    id: str
    agent: str
    module_id: str
    env_episode_id: str
    parts: list[RecordedChunk] = field(default_factory=list)
    is_terminated: bool = False
    is_truncated: bool = False

    def get_state(self) -> dict[str, Any]:
        """Return arrays and plain values, without infos."""
        self.parts = [RecordedChunk.joined(self.parts)]
        return {
            "agent": self.agent,
            "module_id": self.module_id,
            "columns": dict(self.parts[0].columns),
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
        }

    @classmethod
    def from_state(cls, id_: str, env_episode_id: str, state: Mapping[str, Any]) -> _AgentEpisode:
        """Invert `get_state`."""
        columns = state["columns"]
        parts = [RecordedChunk(columns, len(columns[REWARDS]))]
        flags = bool(state["is_terminated"]), bool(state["is_truncated"])
        return cls(id_, str(state["agent"]), str(state["module_id"]), env_episode_id, parts, *flags)


class EnvEpisodeRecorder:
    """Joins the chunks of agents' episodes, and writes each env episode when it ends.

    Args:
        writer: writer of this env runner.
    """

    def __init__(self, writer: EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[str, dict[str, _AgentEpisode]] = {}  # env episode -> agent's episode id -> recorded chunks
        self._waiting: Sequence[EndedEpisode] = ()  # episodes that end unless another agent joins
        self._left_out: set[str] = set()
        self._num_incomplete = 0

    def add(
        self,
        blocks: Iterable[ColumnBlock],
        ended: Sequence[EndedEpisode],
        is_recorded: Mapping[str, BoolArray] = MappingProxyType({}),
    ) -> None:
        """Record the chunks of a fragment, and write the env episodes that ended with it.

        Args:
            blocks: blocks of all modules. Their arrays may be reused afterwards.
            ended: env episodes without further chunks.
            is_recorded: module id -> (E,) chunks to record; missing modules record all chunks.

        Raises:
            RunFailure: an ended episode cannot be written.
        """
        for block in blocks:
            self._take(block, is_recorded.get(block.module_id))
        complete = [episode for episode in ended if episode.id not in self._left_out]
        self._num_incomplete += len(ended) - len(complete)
        self._left_out -= {episode.id for episode in ended}
        if complete:
            agents = [agent for episode in complete for agent in self._open.pop(episode.id, {}).values()]
            self._writer.add_env_episodes(_env_episodes(complete, agents))

    def add_sample(self, blocks: Sequence[ColumnBlock], to_record: ToRecord) -> None:
        """Record the blocks of a sample of simulators. Raises the errors of `add`."""
        self.add(blocks, to_record.ended, to_record.is_complete)
        self._waiting = to_record.waiting
        for id_ in to_record.aborted:
            self._open.pop(id_, None)
            self._num_incomplete += 1

    def leave_out_all(self) -> None:
        """Leave out all open env episodes. Episodes that only waited for another agent end here and are written."""
        self._write_waiting()
        self._num_incomplete += len(self._open)
        self._open.clear()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, ()
        self.add((), [episode for episode in waiting if episode.id in self._open])

    def leave_out(self, ids: Iterable[str]) -> None:
        """Leave out env episodes of which some chunks are missing."""
        for id_ in ids:
            self._left_out.add(id_)
            self._open.pop(id_, None)

    def forget(self, ids: Iterable[str]) -> None:
        """Forget env episodes that ended but do not count in an evaluation."""
        for id_ in ids:
            self._open.pop(id_, None)

    def forget_open(self) -> None:
        """Forget the open env episodes without counting them."""
        self._open.clear()
        self._waiting = ()

    def put_on_disk(self) -> Recorded:
        """Finish the files, and return a report of the recorded data.

        Raises:
            RunFailure: the data cannot be written.
        """
        num_open = len(self._open) + len(self._left_out)
        return Recorded(self._writer.put_on_disk(), num_open, self._num_incomplete)

    def get_open(self) -> dict[str, Any]:
        """Return the recorded chunks of unfinished env episodes.

        Returns:
            Id -> `agents`: agent's episode id -> its state, without infos; `end`: the (length, is_terminated, task)
            with which the episode ends unless another agent joins, or None.
        """
        ends = {episode.id: [episode.length, episode.is_terminated, episode.task] for episode in self._waiting}
        return {
            env_id: {
                "agents": {id_: episode.get_state() for id_, episode in of_env.items()},
                "end": ends.get(env_id),
            }
            for env_id, of_env in self._open.items()
        }

    def set_open(self, episodes: Mapping[str, Any]) -> None:
        """Continue the env episodes returned by `get_open`."""
        self._open = {
            env_id: {id_: _AgentEpisode.from_state(id_, env_id, state) for id_, state in saved["agents"].items()}
            for env_id, saved in episodes.items()
        }
        ends = {env_id: saved["end"] for env_id, saved in episodes.items() if saved["end"] is not None}
        self._waiting = [
            EndedEpisode(id_, int(length), bool(terminated), *task) for id_, (length, terminated, *task) in ends.items()
        ]

    def close(self) -> Recorded:
        """Finish the files. Env episodes that wait for further agents end here."""
        self._write_waiting()
        num_open = len(self._open) + len(self._left_out)
        self._open.clear()
        return Recorded(self._writer.close(), num_open, self._num_incomplete)

    def abort(self) -> None:
        """Discard data that are not in a complete file."""
        self._writer.abort()

    def _take(self, block: ColumnBlock, is_recorded: BoolArray | None) -> None:
        agents = block.agents
        assert agents is not None
        flags = zip(block.is_terminated.tolist(), block.is_truncated.tolist(), strict=True)
        for chunk, (id_, (is_terminated, is_truncated)) in enumerate(zip(block.episode_ids, flags, strict=True)):
            env_id = agents.multi_agent_episode_ids[chunk]
            if env_id in self._left_out or (is_recorded is not None and not is_recorded[chunk]):
                continue
            of_env = self._open.setdefault(env_id, {})
            if id_ not in of_env:
                of_env[id_] = _AgentEpisode(id_, agents.agent_ids[chunk], block.module_id, env_id)
            episode = of_env[id_]
            episode.parts.append(RecordedChunk.of(block, chunk, copies=True))
            episode.is_terminated, episode.is_truncated = is_terminated, is_truncated


def _env_episodes(ended: Sequence[EndedEpisode], agents: Sequence[_AgentEpisode]) -> EnvEpisodes:
    is_terminated = np.array([episode.is_terminated for episode in ended], np.bool_)
    by_module: dict[str, list[_AgentEpisode]] = {}
    for agent in agents:
        by_module.setdefault(agent.module_id, []).append(agent)
    return EnvEpisodes(
        [episode.id for episode in ended],
        np.array([episode.length for episode in ended], np.int64),
        is_terminated,
        ~is_terminated,
        [_block(module_id, episodes) for module_id, episodes in by_module.items()],
        [episode.task for episode in ended],
    )


def _block(module_id: str, episodes: Sequence[_AgentEpisode]) -> ColumnBlock:
    """Return a block with one chunk per agent's episode."""
    every = [episode.parts for episode in episodes]
    columns = joined_columns(every, every[0][0].columns)
    env_t = columns.pop(ENV_T)
    return ColumnBlock(
        columns=columns,
        lengths=np.array([sum(part.length for part in parts) for parts in every], np.int64),
        is_terminated=np.array([episode.is_terminated for episode in episodes], np.bool_),
        is_truncated=np.array([episode.is_truncated for episode in episodes], np.bool_),
        t_started=np.zeros(len(every), np.int64),
        episode_ids=[episode.id for episode in episodes],
        infos=joined_infos(every),
        module_id=module_id,
        agents=Agents([one.agent for one in episodes], [one.env_episode_id for one in episodes], env_t),
    )
