"""Memory of message bodies: partly received, bounded for the server, or shared with a client on the same machine.

A connection may always hold `FREE_BYTES`. A longer message gets room for its whole length before it is read, so that
every message with room can be completed. A connection without room is not read, and its bytes wait in the network.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

from runner.compat.shared_memory import file_of
from runner.rllink.messages import MessageError


class SharedBodies:
    """The memory of one connection; the server makes and removes it.

    Its pages are allocated when a client writes them: here that would block the event loop for 9 ms a client.

    Args:
        size: in bytes.

    Raises:
        OSError: the memory cannot be made.
    """

    def __init__(self, size: int) -> None:
        self._memory = SharedMemory(create=True, size=size)
        self._file = file_of(self._memory)
        self.name, self.size = self._memory.name, size

    def read(self, length: bytes, most: int) -> bytes:
        """Copy the body at the start of the memory.

        Args:
            length: length of the body in digits.
            most: most bytes of a body.

        Raises:
            MessageError: the length is no number, or beyond the limit or the memory.
        """
        if not (length.isdigit() and length.isascii()):
            raise MessageError("bad_body", f"expected the length of a body in digits, got {length!r:.40}")
        num_bytes = int(length)
        if num_bytes > min(self.size, most):
            raise MessageError("bad_body", f"a body of {num_bytes} bytes, at most {min(self.size, most)} are allowed")
        # A read through the mapping would end this process if a client had cut the file short.
        body = os.pread(self._file, num_bytes, 0)
        if len(body) < num_bytes:
            raise MessageError("bad_body", f"the shared memory holds {len(body)} bytes, not {num_bytes}")
        return body

    def close(self) -> None:
        """Remove the memory."""
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()


FREE_BYTES = 1 << 14
# Connections that wait for room may hold this part of all bytes: each was read once before it had to wait.
_SHARE_OF_WAITING = 4
_PACE_WINDOW_S = 1.0

_log = logging.getLogger(__name__)


class Receiving(Protocol):
    """A connection that receives a message."""

    def go_on(self) -> None:
        """Read on, since there is room."""

    def refuse_as_full(self) -> None:
        """End, since too many connections wait for room."""

    def refuse_as_slow(self) -> None:
        """End, since the message arrives too slowly while others wait for its room."""


@dataclass(eq=False)
class Holding:
    """The bytes of one connection.

    Attributes:
        connection: the connection.
        network: its peer address.
        number: counts holdings from 0.
        num_bytes: bytes that it holds.
        num_wanted: length of its message in bytes; 0 while the connection cannot be read anyway.
        has_room: whether room for the whole message is set aside.
        marked_bytes, marked_at: bytes held and monotonic time in seconds at the start of the measurement of its pace.
    """

    connection: Receiving
    network: str
    number: int
    num_bytes: int = 0
    num_wanted: int = 0
    has_room: bool = False
    marked_bytes: int = 0
    marked_at: float = 0.0


class ReceiveMemory:
    """Shares out `rllink.max_receiving_bytes`.

    A message gets room if as much again stays free, so that ordinary messages find room beside the longest.
    Room goes first to the address that has the least, then to the shorter message (in powers of two), then to the one
    that has waited longer.

    Args:
        max_bytes: bytes that are held or set aside at once.
        message_timeout_s: seconds in which a whole message has to arrive.
    """

    def __init__(self, max_bytes: int, message_timeout_s: float) -> None:
        self._max_bytes, self._message_timeout_s = max_bytes, message_timeout_s
        self._granted: dict[Holding, None] = {}
        self._waiting: dict[Holding, None] = {}
        self._num_granted = self._num_waiting = 0  # bytes
        self._granted_of: Counter[str] = Counter()
        self._count = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes that are set aside, or held by waiting connections."""
        return self._num_granted + self._num_waiting

    def hold(self, connection: Receiving, network: str) -> Holding:
        """Begin to account for a connection."""
        holding = Holding(connection, network, self._count)
        self._count += 1
        self._waiting[holding] = None
        return holding

    def update(self, holding: Holding, num_bytes: int, num_wanted: int, now: float) -> None:
        """Take note of what a connection holds and wants; `holding.has_room` says whether it may be read on."""
        if holding.has_room:
            holding.num_bytes = num_bytes
            return
        self._num_waiting += num_bytes - holding.num_bytes
        holding.num_bytes, holding.num_wanted = num_bytes, num_wanted
        self._grant(now)
        if not holding.has_room:
            self._limit_waiting()

    def release(self, holding: Holding, now: float) -> None:
        """Forget a connection whose message is complete, or that is gone."""
        if holding in self._granted:
            del self._granted[holding]
            self._num_granted -= holding.num_wanted
            self._granted_of[holding.network] -= holding.num_wanted
            if not self._granted_of[holding.network]:
                del self._granted_of[holding.network]
        elif holding in self._waiting:
            del self._waiting[holding]
            self._num_waiting -= holding.num_bytes
        self._grant(now)

    def _grant(self, now: float) -> None:
        """Give room to waiting connections in their order, up to the first that finds none."""
        while (first := self._first_waiting()) is not None:
            free = self._max_bytes - self.num_bytes + first.num_bytes
            if 2 * first.num_wanted > free:
                return
            del self._waiting[first]
            self._num_waiting -= first.num_bytes
            self._granted[first] = None
            self._num_granted += first.num_wanted
            self._granted_of[first.network] += first.num_wanted
            first.has_room, first.marked_bytes, first.marked_at = True, first.num_bytes, now
            first.connection.go_on()

    def _first_waiting(self) -> Holding | None:
        def order(one: Holding) -> tuple[int, int, int]:
            return self._granted_of.get(one.network, 0), one.num_wanted.bit_length(), one.number

        return min((one for one in self._waiting if one.num_wanted), key=order, default=None)

    def _limit_waiting(self) -> None:
        """Refuse the newest waiting connections of the address that holds most, until the rest stays in bounds."""
        while self._num_waiting > self._max_bytes // _SHARE_OF_WAITING:
            held: Counter[str] = Counter()
            for one in self._waiting:
                held[one.network] += one.num_bytes
            heaviest = held.most_common(1)[0][0]
            newest = max((one for one in self._waiting if one.network == heaviest), key=lambda one: one.number)
            del self._waiting[newest]
            self._num_waiting -= newest.num_bytes
            newest.connection.refuse_as_full()

    def check_pace(self, now: float) -> None:
        """Refuse messages that arrive too slowly while others wait for room; called periodically.

        The even pace of a message completes it after `message_timeout_s`.
        """
        if self._first_waiting() is None:
            return
        for holding in list(self._granted):
            seconds = now - holding.marked_at
            if seconds < _PACE_WINDOW_S:
                continue
            even = holding.num_wanted * seconds / self._message_timeout_s
            if holding.num_bytes - holding.marked_bytes < even:
                _log.info(
                    "RLlink: a message of %d bytes arrives too slowly and is given up: others wait for its memory",
                    holding.num_wanted,
                )
                holding.connection.refuse_as_slow()
            holding.marked_bytes, holding.marked_at = holding.num_bytes, now
