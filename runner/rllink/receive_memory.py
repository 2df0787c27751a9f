"""Memory of message bodies: partly received, limited per server, or shared with a client on the same machine.

A connection may always hold `FREE_BYTES`. Longer messages get memory for their full length before they are read, so
every message with memory can be completed. A connection without memory is not read, and its bytes wait in the network.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Protocol

from runner.rllink.messages import MessageError

_MOST_DIGITS = 20  # Python converts at most 4,300 digits
_FOLDER = "/dev/shm"  # with the files of POSIX shared memory on Linux


class SharedBodies:
    """The shared memory of one connection; the server creates and removes it.

    Its pages are allocated when the client writes them; allocating here would block the event loop for 9 ms per client.

    Args:
        size: size in bytes.

    Raises:
        OSError: the memory cannot be created, or is not a file, as on macOS.
    """

    def __init__(self, size: int) -> None:
        self._memory = SharedMemory(create=True, size=size)
        self.name, self.size = self._memory.name, size
        try:
            self._file = os.open(os.path.join(_FOLDER, self.name), os.O_RDONLY)
        except OSError:
            self._remove()
            raise

    def read(self, length: bytes, most: int) -> bytes:
        """Copy the body at the start of the memory.

        Args:
            length: length of the body, as a string of digits.
            most: largest size of a body in bytes.

        Raises:
            MessageError: the length is not a number, or exceeds the limit or the memory.
        """
        if not (length.isdigit() and length.isascii() and len(length) <= _MOST_DIGITS):
            raise MessageError("bad_body", f"expected the length of a body in digits, got {length!r:.40}")
        num_bytes = int(length)
        if num_bytes > min(self.size, most):
            raise MessageError("bad_body", f"a body of {num_bytes} bytes exceeds the limit of {min(self.size, most)}")
        # Reading through the mapping would crash this process if the client had truncated the file.
        body = os.pread(self._file, num_bytes, 0)
        if len(body) < num_bytes:
            raise MessageError("bad_body", f"the shared memory holds {len(body)} bytes, not {num_bytes}")
        return body

    def close(self) -> None:
        """Remove the memory."""
        os.close(self._file)
        self._remove()

    def _remove(self) -> None:
        self._memory.close()
        with suppress(FileNotFoundError):
            self._memory.unlink()


FREE_BYTES = 1 << 14
# Waiting connections may hold this part of all bytes: each was read once before it had to wait.
_SHARE_OF_WAITING = 4
_PACE_WINDOW_S = 1.0

_log = logging.getLogger(__name__)


class Receiving(Protocol):
    """A connection that is receiving a message."""

    def continue_reading(self) -> None:
        """Resume reading, because memory is available."""

    def end(self, error: MessageError) -> None:
        """Send an error and close the connection."""


@dataclass(eq=False)
class Holding:
    """The bytes of one connection.

    Attributes:
        connection: the connection.
        network: peer address of the connection.
        number: number of the allocation, from 0.
        num_bytes: bytes held.
        num_wanted: length of the message in bytes; 0 while the connection cannot be read anyway.
        is_granted: whether memory for the full message is reserved.
        marked_bytes, marked_at: bytes held and monotonic time in seconds when the measurement of the pace started.
    """

    connection: Receiving
    network: str
    number: int
    num_bytes: int = 0
    num_wanted: int = 0
    is_granted: bool = False
    marked_bytes: int = 0
    marked_at: float = 0.0


class ReceiveMemory:
    """Distributes `rllink.max_receiving_bytes` among connections.

    A message gets memory if the same amount stays free, so that short messages fit in addition to the longest. The
    address with the least memory comes first, then the shorter message (in powers of two), then the connection that has
    waited longer.

    Args:
        max_bytes: limit of bytes held or reserved.
        message_timeout_s: seconds in which a complete message must arrive.
    """

    def __init__(self, max_bytes: int, message_timeout_s: float) -> None:
        self._max_bytes, self._message_timeout_s = max_bytes, message_timeout_s
        self._granted: dict[Holding, None] = {}
        self._waiting: dict[Holding, None] = {}
        self._count = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes that are reserved, or held by waiting connections; may be called from any thread."""
        return sum(one.num_wanted for one in tuple(self._granted)) + self._num_waiting

    @property
    def _num_waiting(self) -> int:
        return sum(one.num_bytes for one in tuple(self._waiting))

    def hold(self, connection: Receiving, network: str) -> Holding:
        """Start to account for a connection."""
        holding = Holding(connection, network, self._count)
        self._count += 1
        self._waiting[holding] = None
        return holding

    def update(self, holding: Holding, num_bytes: int, num_wanted: int, now: float) -> None:
        """Update the held and requested bytes of a connection; it may be read if `holding.is_granted`."""
        holding.num_bytes = num_bytes
        if holding.is_granted:
            return
        holding.num_wanted = num_wanted
        self._grant(now)
        if not holding.is_granted:
            self._limit_waiting()

    def release(self, holding: Holding, now: float) -> None:
        """Forget a connection whose message is complete, or that is closed."""
        self._granted.pop(holding, None)
        self._waiting.pop(holding, None)
        self._grant(now)

    def _grant(self, now: float) -> None:
        """Give memory to waiting connections in order, up to the first whose message does not fit."""
        while (first := self._first_waiting()) is not None:
            free = self._max_bytes - self.num_bytes + first.num_bytes
            if 2 * first.num_wanted > free:
                return
            del self._waiting[first]
            self._granted[first] = None
            first.is_granted, first.marked_bytes, first.marked_at = True, first.num_bytes, now
            first.connection.continue_reading()

    def _first_waiting(self) -> Holding | None:
        waiting = [one for one in self._waiting if one.num_wanted]
        if not waiting:
            return None
        granted: Counter[str] = Counter()
        for one in self._granted:
            granted[one.network] += one.num_wanted
        return min(waiting, key=lambda one: (granted[one.network], one.num_wanted.bit_length(), one.number))

    def _limit_waiting(self) -> None:
        """Reject the newest waiting connections of the address that holds most, until the limit is kept."""
        while self._num_waiting > self._max_bytes // _SHARE_OF_WAITING:
            held: Counter[str] = Counter()
            for one in self._waiting:
                held[one.network] += one.num_bytes
            heaviest = held.most_common(1)[0][0]
            newest = max((one for one in self._waiting if one.network == heaviest), key=lambda one: one.number)
            del self._waiting[newest]
            text = "too many clients wait for memory; try again later"
            newest.connection.end(MessageError("too_many_clients", text))

    def check_pace(self, now: float) -> None:
        """Reject messages that arrive too slowly while others wait for memory; called periodically.

        At an even pace, a message is complete after `message_timeout_s`.
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
                    "RLlink: rejecting a message of %d bytes that arrives too slowly while others wait for memory",
                    holding.num_wanted,
                )
                within = f"within {self._message_timeout_s:g} s, at an even pace while others wait for memory"
                holding.connection.end(MessageError("timeout", f"a message must arrive {within}"))
            holding.marked_bytes, holding.marked_at = holding.num_bytes, now
