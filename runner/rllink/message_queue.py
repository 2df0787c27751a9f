"""Accepted messages that were not sampled yet, and the batches that samples are made of."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from runner.pipelines.custom_metrics import ReducedMetrics
from runner.rllink.received_episodes import OpenEpisode, ReceivedChunks, SampledChunks
from runner.rllink.receiving import ReceivedMessage


@dataclass(frozen=True)
class Batch:
    """Env steps for one sample.

    Attributes:
        received: parts of messages, in order of arrival.
        num_env_steps: number of env steps in `received` and `served`.
        served: chunks of episodes in which the server chose the actions.
        learned: states by module id, which connectors have learned from these episodes.
        records: numbers of the journal records in the batch.
        connector_metrics: metrics that connectors reported while the server chose actions.
        num_left_out: number of env steps that were left out, because quarantined clients sent them.
    """

    received: list[ReceivedChunks]
    num_env_steps: int
    served: list[SampledChunks] = field(default_factory=list)
    learned: list[dict[str, Any]] = field(default_factory=list)
    records: range = range(0)
    connector_metrics: ReducedMetrics = field(default_factory=dict)
    num_left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it contains no steps, because quarantined clients sent all of them."""
        return not (self.received or self.served)


@dataclass(eq=False)
class _Queued:
    """A message that was not sampled yet.

    Attributes:
        parts: its chunks; empty if its client is in quarantine.
        num_env_steps: number of env steps.
        record: number of its record in the journal.
    """

    parts: list[ReceivedChunks]
    num_env_steps: int
    record: int


class MessageQueue:
    """Accepted messages in order of arrival. The event loop adds them; `take` may be called from any thread.

    Attributes:
        num_env_steps: number of env steps that can be taken.
        num_records_sampled: number of sampled journal records.
    """

    def __init__(self) -> None:
        self.num_env_steps = 0
        self.num_records_sampled = 0
        self._messages: deque[_Queued] = deque()
        self._lock = threading.Lock()

    def add(self, message: ReceivedMessage, record: int, is_left_out: bool) -> None:
        """Add a message with this number in the journal; if it is left out, only its env steps are counted."""
        with self._lock:
            self._messages.append(_Queued([] if is_left_out else message.parts, message.num_env_steps, record))
            self.num_env_steps += 0 if is_left_out else message.num_env_steps

    def take(self, num_env_steps: int) -> Batch | None:
        """Take the first messages that contain `num_env_steps` env steps, or return None if there are too few."""
        received: list[ReceivedChunks] = []
        num_taken = num_left_out = 0
        with self._lock:
            if self.num_env_steps < num_env_steps:
                return None
            first = self.num_records_sampled
            while num_taken < num_env_steps:
                message = self._messages.popleft()
                received += message.parts
                if message.parts:
                    num_taken += message.num_env_steps
                else:
                    num_left_out += message.num_env_steps
                self.num_records_sampled = message.record + 1
            self.num_env_steps -= num_taken
            records = range(first, self.num_records_sampled)
        return Batch(received, num_taken, records=records, num_left_out=num_left_out)

    def leave_out(self, clients: Collection[str]) -> None:
        """Leave out the messages of these clients."""
        with self._lock:
            for message in self._messages:
                if message.parts and message.parts[0].episodes[0].client in clients:
                    message.parts = []
                    self.num_env_steps -= message.num_env_steps

    def truncate(self, episodes: Collection[OpenEpisode]) -> None:
        """Mark the last chunk of each of these episodes as truncated."""
        remaining = set(map(id, episodes))
        with self._lock:
            for message in reversed(self._messages):
                for part in reversed(message.parts):
                    _truncate_last(part, remaining)

    @property
    def num_env_steps_received(self) -> int:
        """Return the number of env steps of all messages, including messages that are left out."""
        with self._lock:
            return sum(message.num_env_steps for message in self._messages)

    @property
    def episodes(self) -> list[OpenEpisode]:
        """Return the episode of each chunk."""
        with self._lock:
            return [episode for message in self._messages for part in message.parts for episode in part.episodes]

    @property
    def oldest_seq_no(self) -> int | None:
        """Return the lowest weights number of the chunks, or None without chunks."""
        with self._lock:
            numbers = [int(part.weights_seq_no.min()) for message in self._messages for part in message.parts]
        return min(numbers, default=None)


def _truncate_last(part: ReceivedChunks, remaining: set[int]) -> None:
    """Mark the last chunk of each episode (by `id()`) in the set as truncated, and remove it from the set."""
    for chunk in reversed(range(len(part.episodes))):
        if id(part.episodes[chunk]) in remaining:
            part.is_truncated[chunk] = True
            remaining.discard(id(part.episodes[chunk]))
