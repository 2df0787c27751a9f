"""The open episodes of one client, and the changes that a message makes to them once it is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from runner.rllink.messages import AgentKey, NamedChunk
from runner.rllink.received_episodes import EnvEpisode, OpenEpisode


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
        changes = EpisodeChanges(self)
        continuing = dict(lost)
        named: dict[AgentKey, OpenEpisode] = {}
        # Without `env_ends`, agents that join after a loss are assumed to begin again.
        closed = set() if self.says_ends else {id_ for _, id_ in lost}
        for chunk in chunks:
            if chunk.agent_id is None or chunk.id in closed:
                continue
            if chunk.key not in named:
                before = continuing.pop(chunk.key, None)
                named[chunk.key] = changes.begin(chunk.agent_id, chunk.id) if before is None else before
                named[chunk.key].is_complete = False
            if chunk.is_env_done:
                changes.end_env_episode(named[chunk.key])
                named = {key: episode for key, episode in named.items() if key[1] != chunk.id}
        changes.apply()

    def restore(self, episode: OpenEpisode) -> None:
        """Add an open episode from before a restart."""
        assert episode.name is not None
        self.by_key[episode.agent_id, episode.name] = episode


class EpisodeChanges:
    """Episodes that begin and env episodes that end with a message, applied once the message is accepted.

    Args:
        open_episodes: open episodes of the client.
    """

    def __init__(self, open_episodes: OpenEpisodes) -> None:
        self._open = open_episodes
        self._changes: list[Callable[[], None]] = []
        # Id in messages -> newest env episode, with its agents if the message is accepted.
        self._newest: dict[str, tuple[EnvEpisode, set[str]] | None] = {}

    def begin(self, agent_id: str | None, id_: str | None) -> OpenEpisode:
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

    def apply(self) -> None:
        """Begin and end the episodes, because the message is accepted."""
        for change in self._changes:
            change()
