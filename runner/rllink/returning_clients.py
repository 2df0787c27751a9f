"""The clients of a resumed run: clients with a session can reconnect, others are gone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from runner.rllink.connection import Connections
from runner.rllink.journal import Journal, Record
from runner.rllink.received_episodes import EnvEpisode, OpenEpisode
from runner.rllink.session import ServedClient

_log = logging.getLogger(__name__)

_FIRST_AFTER_RESTART = 10**9


class ReturningClients:
    """Restores the clients from before a restart, their open episodes, and messages after the checkpoint.

    Args:
        connections: the connections of the server that clients reconnect to.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections, self._service = connections, connections.service
        self._by_name: dict[str, ServedClient] = {}
        self._gone: set[ServedClient] = set()  # clients without a session

    def restore_sessions(self, sessions: Mapping[str, Any]) -> None:
        """Restore clients that may reconnect."""
        for session_id, session in sessions.items():
            client = self._connections.restore_session(session_id, session["client"], int(session["number"]))
            client.open.num_begun = int(session["num_begun"])
            client.seq_no = None if session["weights_seq_no"] is None else int(session["weights_seq_no"])
            self._by_name[session["client"]] = client

    def restore_episodes(self, states: Iterable[Mapping[str, Any]]) -> dict[str, OpenEpisode]:
        """Restore open episodes, and return them by id."""
        episodes = [OpenEpisode.from_state(state) for state in states]
        for episode in episodes:
            self._client(episode.client).open.restore(episode)
        return {episode.id: episode for episode in episodes}

    def offer(self, env_episodes: Iterable[EnvEpisode]) -> None:
        """Allow agents to join these env episodes."""
        for env in env_episodes:
            self._client(env.client).open.offer(env)

    def restore_messages(self, journal: Journal, num_sampled: int) -> None:
        """Accept the messages after the checkpoint again; `num_sampled` of them had been sampled before."""
        records = list(journal.records_from(num_sampled))
        first = journal.num_records - len(records)  # older records may be deleted
        self._service.queue.num_records_sampled = first
        for number, record in enumerate(records, first):
            is_skipped = journal.is_skipped(number)
            if is_skipped:
                _log.warning("RLlink: skipping a message of %s because of rllink.skip_journal_records", record.client)
            self._service.restore_message(self._sender(record), record, number, is_skipped)

    def leave(self) -> None:
        """Truncate the open episodes of clients that cannot reconnect."""
        for client in self._gone:
            self._service.leave(client)

    def _sender(self, record: Record) -> ServedClient:
        if record.session is None:
            client = self._client(record.client)
            self._gone.add(client)
            return client
        client = self._connections.restore_session(record.session, record.client, record.request or 0)
        self._by_name[record.client] = client
        return client

    def _client(self, name: str) -> ServedClient:
        """Return a client; make it if it does not have a session, with new ids for its later episodes."""
        if name not in self._by_name:
            client = self._by_name[name] = self._connections.new_client(name)
            # Differs from an earlier restart, when fewer messages had been sampled.
            client.open.num_begun = _FIRST_AFTER_RESTART * (1 + self._service.queue.num_records_sampled)
            self._gone.add(client)
        return self._by_name[name]
