"""The listening socket, and the admission of connections: limits on their number and on the rate of tokens.

A connection takes a seat (one of `rllink.max_clients`) with its first request, which contains the token if the server
requires one. All limits are per peer address, so a hostile address cannot affect others.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from runner.config.rllink import RLlinkConfig
from runner.rllink.client.frames import frame
from runner.rllink.messages import JSON, MessageError, encode_answer

_WRONG_TOKENS_AT_ONCE = 10
_IPV6_PREFIX = 64


class Allowance:
    """A rate limit: permissions that are renewed at a steady rate.

    Args:
        rate_per_s: permissions renewed per second.
        burst: permissions that may be taken together.
        now: monotonic time in seconds.
    """

    def __init__(self, rate_per_s: float, burst: int, now: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._left, self._at = float(burst), now

    def left(self, now: float) -> float:
        """Return the permissions available now; negative if some were promised for later."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate_per_s)
        self._at = now
        return self._left

    def take(self, now: float) -> float:
        """Take one permission; return the seconds until it is valid."""
        self._left = self.left(now) - 1
        return max(0.0, -self._left / self._rate_per_s)

    def give_back(self) -> None:
        """Return a permission."""
        self._left += 1

    def is_full(self, now: float) -> bool:
        """Return whether all permissions are available, as in a new allowance."""
        return self.left(now) >= self._burst


@dataclass(eq=False)
class Peer:
    """One peer address and its connections without a seat, oldest first."""

    arrivals: Allowance
    tokens: Allowance
    unseated: dict[Unseated, None] = field(default_factory=dict)


@dataclass(eq=False)
class Unseated:
    """A connection without a seat.

    Attributes:
        peer: address of the connection, with the other connections from there.
        host: address as text.
        since: monotonic time in seconds from which the connection may be read.
        reject: closes the connection.
    """

    peer: Peer
    host: str
    since: float
    reject: Callable[[], object] = lambda: None


class Admission:
    """Admits connections that do not have a seat yet.

    Args:
        config: the `rllink` block.
    """

    def __init__(self, config: RLlinkConfig) -> None:
        self._config = config
        self._peers: dict[str, Peer] = {}
        self.num_unseated = 0

    def arrive(self, host: str, now: float) -> Unseated | None:
        """Admit a new connection, immediately or a little later (`since`); None if its address opens too many.

        If there are already `rllink.max_unauthenticated`, the address with most of them loses its oldest connection. So
        clients that send their request immediately are served despite any number of silent connections.
        """
        peer = self._peer(host, now)
        if peer.arrivals.left(now) < 1 - self._config.max_unauthenticated // 2:
            return None
        unseated = Unseated(peer, host, now + peer.arrivals.take(now))
        peer.unseated[unseated] = None
        self.num_unseated += 1
        if self.num_unseated > self._config.max_unauthenticated:
            heaviest = max(self._peers.values(), key=lambda one: len(one.unseated))
            oldest = next(iter(heaviest.unseated))
            self.leave(oldest)
            oldest.reject()
        return unseated

    def _peer(self, host: str, now: float) -> Peer:
        network = network_of(host)
        peer = self._peers.get(network)
        if peer is None:
            config = self._config
            arrivals = Allowance(config.max_unauthenticated_per_s, config.max_unauthenticated, now)
            tokens = Allowance(config.max_wrong_tokens_per_s, _WRONG_TOKENS_AT_ONCE, now)
            peer = self._peers[network] = Peer(arrivals, tokens)
        return peer

    def seat(self, unseated: Unseated) -> None:
        """Mark a connection as seated, so that it no longer counts against its address."""
        if self.leave(unseated):
            unseated.peer.arrivals.give_back()

    def leave(self, unseated: Unseated) -> bool:
        """Forget a connection; return whether it was known."""
        if unseated not in unseated.peer.unseated:
            return False
        del unseated.peer.unseated[unseated]
        self.num_unseated -= 1
        return True

    def forget(self, now: float) -> None:
        """Forget addresses without connections whose permissions are all available; called periodically."""
        for network, peer in list(self._peers.items()):
            if not peer.unseated and peer.arrivals.is_full(now) and peer.tokens.is_full(now):
                del self._peers[network]


def network_of(host: str) -> str:
    """Return the part of an address that belongs to one party: the full IPv4 address, or the first 64 bits of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


_BACKLOG = 1024
_NONE_LEFT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NONE_LEFT_PAUSE_S = 1.0
_TOO_MANY = MessageError("too_many_clients", "too many connections from this address sent no request; try again later")

_log = logging.getLogger(__name__)


class Listener:
    """Listens from the start, to reserve the address; clients that connect wait until `start`.

    Args:
        host, port: address to listen on; port 0 selects a free one.
        tls: encrypts connections, or None.
        handshake_timeout_s: seconds for the TLS handshake.
        admission: admits connections.
        make_connection: makes the protocol of an admitted connection.

    Attributes:
        address: (host, port).

    Raises:
        OSError: cannot listen on the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
        admission: Admission,
        make_connection: Callable[[Unseated], asyncio.BaseProtocol],
    ) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._socket = socket.create_server((str(address[0]), int(address[1])), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._tls, self._handshake_timeout_s = tls, handshake_timeout_s
        self._admission, self._make_connection = admission, make_connection
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to accept clients; called in the event loop."""
        # A task that awaits the next connection would lose an accepted one if it is cancelled; a callback does not.
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    async def close(self) -> None:
        """Stop listening, and drop incomplete connections."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if self._connecting:
            for task in self._connecting:
                task.cancel()
            await asyncio.wait(self._connecting)

    def _accept(self) -> None:
        try:
            accepted, address = self._socket.accept()
        except OSError as error:  # usually the client has already left
            if error.errno in _NONE_LEFT:
                _log.warning("RLlink: clients cannot connect: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(_NONE_LEFT_PAUSE_S, self.start)
            return
        accepted.setblocking(False)
        self._welcome(accepted, str(address[0]))

    def _welcome(self, accepted: socket.socket, host: str) -> None:
        unseated = self._admission.arrive(host, time.monotonic())
        if unseated is None:
            with accepted, suppress(OSError):
                if self._tls is None:
                    accepted.send(frame(encode_answer(_TOO_MANY.answer(), JSON)))
            return
        task = asyncio.ensure_future(self._connect(accepted, unseated))
        self._connecting.add(task)
        task.add_done_callback(lambda task: self._end_connecting(task, accepted, unseated))
        unseated.reject = task.cancel

    def _end_connecting(self, task: asyncio.Task[None], accepted: socket.socket, unseated: Unseated) -> None:
        self._connecting.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:  # maybe before its first line, so the task cannot do this itself
            self._admission.leave(unseated)
            accepted.close()
        if error is not None and not isinstance(error, OSError):  # an OSError is a failed handshake
            _log.error("RLlink: a connection failed", exc_info=error)

    async def _connect(self, accepted: socket.socket, unseated: Unseated) -> None:
        handshake_s = None if self._tls is None else self._handshake_timeout_s
        if (delay_s := unseated.since - time.monotonic()) > 0:
            await asyncio.sleep(delay_s)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self._make_connection(unseated), accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )
