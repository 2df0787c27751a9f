"""Recording of several agents: whole env episodes out of the chunks that an env runner samples.

Dimension letters: E env episodes, T steps of an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from runner.episodes import nested
from runner.episodes.columns import Agents, ColumnBlock
from runner.offline.codecs.env_episode_format import EnvEpisodes
from runner.offline.writing.recorder import ENV_T, JoinedInfos, Part, Recorded
from runner.offline.writing.writer import EpisodeWriter
from runner.rows.finished_episodes import EndedEpisode


@dataclass
class _AgentEpisode:
    """What was taken of one agent's episode, and the flags of its newest chunk."""

    id: str
    agent: str
    module_id: str
    env_episode_id: str
    parts: list[Part] = field(default_factory=list)
    is_terminated: bool = False
    is_truncated: bool = False


class EnvEpisodeRecorder:
    """Joins the chunks of agents' episodes, and writes an env episode when it has ended.

    Args:
        writer: of this runner.
    """

    def __init__(self, writer: EpisodeWriter) -> None:
        self._writer = writer
        self._open: dict[str, dict[str, _AgentEpisode]] = {}  # env episode -> agent's episode id -> what was taken
        self._left_out: set[str] = set()
        self._num_broken_off = 0

    def add(self, blocks: Iterable[ColumnBlock], ended: Sequence[EndedEpisode]) -> None:
        """Take the chunks of a fragment, and write the env episodes that ended with it.

        Args:
            blocks: of all modules; their arrays may be reused afterwards.
            ended: env episodes of which no more chunk comes.

        Raises:
            RunFailure: what has ended cannot be written.
        """
        for block in blocks:
            self._take(block)
        whole = [episode for episode in ended if episode.id not in self._left_out]
        self._num_broken_off += len(ended) - len(whole)
        self._left_out -= {episode.id for episode in ended}
        if whole:
            agents = [agent for episode in whole for agent in self._open.pop(episode.id, {}).values()]
            self._writer.add_env_episodes(_env_episodes(whole, agents))

    def leave_out(self, ids: Iterable[str]) -> None:
        """Leave out env episodes, of which some chunks were or will be taken, but not all."""
        for id_ in ids:
            self._left_out.add(id_)
            self._open.pop(id_, None)

    def drop(self, ids: Iterable[str]) -> None:
        """Forget env episodes that have ended and do not count."""
        for id_ in ids:
            self._open.pop(id_, None)

    def drop_open(self) -> None:
        """Forget the env episodes that are open: they do not count."""
        self._open.clear()

    def close(self) -> Recorded:
        """Finish the files."""
        num_open = len(self._open) + len(self._left_out)
        self._open.clear()
        return Recorded(self._writer.close(), num_open, self._num_broken_off)

    def abort(self) -> None:
        """Drop what is in no whole file yet."""
        self._writer.abort()

    def _take(self, block: ColumnBlock) -> None:
        agents = block.agents
        assert agents is not None
        flags = zip(block.is_terminated.tolist(), block.is_truncated.tolist(), strict=True)
        for chunk, (id_, (is_terminated, is_truncated)) in enumerate(zip(block.episode_ids, flags, strict=True)):
            env_id = agents.multi_agent_episode_ids[chunk]
            if env_id in self._left_out:
                continue
            of_env = self._open.setdefault(env_id, {})
            if id_ not in of_env:
                of_env[id_] = _AgentEpisode(id_, agents.agent_ids[chunk], block.module_id, env_id)
            episode = of_env[id_]
            episode.parts.append(Part.of(block, chunk, copies=True))
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
    )


def _block(module_id: str, episodes: Sequence[_AgentEpisode]) -> ColumnBlock:
    """Return a block with one chunk an agent's episode."""
    every = [episode.parts for episode in episodes]
    columns = {
        name: nested.concatenate([part.rows_of(name, part is parts[-1]) for parts in every for part in parts])
        for name in every[0][0].columns
    }
    env_t = columns.pop(ENV_T)
    return ColumnBlock(
        columns=columns,
        lengths=np.array([sum(part.length for part in parts) for parts in every], np.int64),
        is_terminated=np.array([episode.is_terminated for episode in episodes], np.bool_),
        is_truncated=np.array([episode.is_truncated for episode in episodes], np.bool_),
        t_started=np.zeros(len(every), np.int64),
        episode_ids=[episode.id for episode in episodes],
        infos=JoinedInfos(every) if any(part.infos for parts in every for part in parts) else None,
        module_id=module_id,
        agents=Agents([one.agent for one in episodes], [one.env_episode_id for one in episodes], env_t),
    )
