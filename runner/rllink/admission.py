"""Connections without a seat: how many there may be, how fast they may come, and how fast tokens are tried.

A connection takes a seat (one of `rllink.max_clients`) with its first request, which has the
token if the server asks for one. All rules are per peer address: a hostile address takes nothing from the others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.config.rllink import RLlinkConfig

_WRONG_TOKENS_AT_ONCE = 10
_IPV6_PREFIX = 64


class Allowance:
    """Permissions that come back at a steady rate.

    Args:
        rate_per_s: permissions that come back in a second.
        burst: permissions that may be taken at once.
        now: monotonic time in seconds.
    """

    def __init__(self, rate_per_s: float, burst: int, now: float) -> None:
        self._rate_per_s, self._burst = rate_per_s, burst
        self._left, self._at = float(burst), now

    def left(self, now: float) -> float:
        """Return the permissions that may be taken now; negative where some were promised for later."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate_per_s)
        self._at = now
        return self._left

    def take(self, now: float) -> float:
        """Take one permission; return the seconds until it holds."""
        self._left = self.left(now) - 1
        return max(0.0, -self._left / self._rate_per_s)

    def give_back(self) -> None:
        """Return a permission that was taken."""
        self._left += 1

    def is_full(self, now: float) -> bool:
        """Return whether all permissions are back, as in a new allowance."""
        return self.left(now) >= self._burst


@dataclass(eq=False)
class Peer:
    """One peer address and its connections without a seat, the oldest first."""

    arrivals: Allowance
    tokens: Allowance
    unseated: dict[Unseated, None] = field(default_factory=dict)


@dataclass(eq=False)
class Unseated:
    """A connection without a seat.

    Attributes:
        peer: its address, with the other connections from there.
        host: its address as text.
        since: monotonic time in seconds from which it may be read.
        refuse: ends the connection.
    """

    peer: Peer
    host: str
    since: float
    refuse: Callable[[], object] = lambda: None


class Admission:
    """Admits connections before they have a seat.

    Args:
        config: the `rllink` block.
    """

    def __init__(self, config: RLlinkConfig) -> None:
        self._config = config
        self._peers: dict[str, Peer] = {}
        self.num_unseated = 0

    def arrive(self, host: str, now: float) -> Unseated | None:
        """Admit a new connection, at once or (`since`) a little later; None if its address brings too many.

        If there are `rllink.max_unauthenticated` already, the address with most of them loses its oldest one. A client
        that speaks at once is thus served beside any number of silent connections.
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
            oldest.refuse()
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
        """Take note that the connection has a seat, so that it does not count against its address."""
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
        """Forget addresses without connections whose permissions are all back; called periodically."""
        for network, peer in list(self._peers.items()):
            if not peer.unseated and peer.arrivals.is_full(now) and peer.tokens.is_full(now):
                del self._peers[network]


def network_of(host: str) -> str:
    """Return the part of an address that belongs to one party: all of IPv4, the first 64 bits of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
