"""Clients as the server knows them, and sessions: clients that may reconnect after their connection broke."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.rllink.inference import ServedEpisode
from runner.rllink.messages import AgentKey, Answer, MessageError
from runner.rllink.open_episodes import OpenEpisodes

# An answer, or its future while it is delayed.
Reply = Answer | asyncio.Future[Answer]


@dataclass(eq=False)
class ServedClient:
    """A client: one connection, or a session that outlives its connections.

    Attributes:
        name: prefix of the ids of its episodes.
        open: open episodes that it samples itself.
        served_episodes: open episodes in which the server chooses the actions.
        seq_no: number of the last weights sent to it, or None before the first.
        samples: whether it waited for new weights after its last episodes, so that others must wait for it.
        weights_format: `onnx` or `safetensors`.
        has_agents, has_tasks: whether the extensions `agents` and `tasks` are granted.
        session_id: id of its session, or None.
        is_quarantined: whether its steps are left out of samples.
    """

    name: str
    open: OpenEpisodes
    served_episodes: dict[AgentKey, ServedEpisode] = field(default_factory=dict)
    seq_no: int | None = None
    samples: bool = False
    weights_format: str = "onnx"
    has_agents: bool = False
    has_tasks: bool = False
    session_id: str | None = None
    is_quarantined: bool = False


class Replaceable(Protocol):
    """A connection that closes when its client reconnects."""

    def disconnect(self) -> None:
        """Close the connection."""


@dataclass(eq=False)
class Session:
    """A client that may reconnect, with its last answer.

    Attributes:
        id: id with which the client resumes the session.
        client: the client.
        number: number of the last request.
        answer: the last answer, or None if it is not known.
        connection: the current connection, or None while the client is disconnected.
        left_at: monotonic time in seconds at which the last connection ended.
        is_restored: whether it is from before a restart, so its last requests may not be known.
    """

    id: str
    client: ServedClient
    number: int = 0
    answer: Reply | None = None
    connection: Replaceable | None = None
    left_at: float = field(default_factory=time.monotonic)
    is_restored: bool = False

    def get_state(self) -> dict[str, Any]:
        """Return the data that the client needs to reconnect after a restart."""
        client = self.client
        return {
            "client": client.name,
            "number": self.number,
            "num_begun": client.open.num_begun,
            "weights_seq_no": client.seq_no,
        }

    def carry_out(self, number: int, answer: Callable[[], Reply], answer_again: Callable[[], Reply]) -> Reply:
        """Carry out the request with the next number, or repeat the answer to the last one.

        Args:
            number: number of the request.
            answer: carries the request out.
            answer_again: answers a request that was carried out before a restart.

        Raises:
            MessageError: the number is neither of these, or the request is rejected and can be sent again.
        """
        if number == self.number and (self.answer is not None or self.is_restored):
            if self.answer is None:
                self.answer = answer_again()
                self._watch_for_refusal()
            return self.answer
        if number != self.number + 1 and not (self.is_restored and number > self.number):
            text = f"request number {number} is neither the last number {self.number} nor the next"
            raise MessageError("bad_message", text, "$.request")
        if isinstance(self.answer, asyncio.Future) and not self.answer.done():
            text = f"request {self.number} is unanswered; send it again first"
            raise MessageError("bad_message", text, "$.request")
        self.answer = answer()
        self.number, self.is_restored = number, False
        self._watch_for_refusal()
        return self.answer

    def _watch_for_refusal(self) -> None:
        if isinstance(self.answer, asyncio.Future):
            self.answer.add_done_callback(self._forget_rejected)

    def _forget_rejected(self, done: asyncio.Future[Answer]) -> None:
        """Free the number of a rejected request, which was not carried out."""
        if done is self.answer and not done.cancelled() and done.exception() is not None:
            self.number, self.answer = self.number - 1, None
