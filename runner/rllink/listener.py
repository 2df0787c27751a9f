"""The listening socket: it accepts the connections that are admitted and, with TLS, encrypts them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

from runner.rllink.admission import Admission, Unseated
from runner.rllink.frames import frame
from runner.rllink.messages import JSON, MessageError, encode_answer

_BACKLOG = 1024
_NONE_LEFT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NONE_LEFT_PAUSE_S = 1.0
_TOO_MANY = MessageError("too_many_clients", "too many connections of this address became no clients; come again")

_log = logging.getLogger(__name__)


class Listener:
    """Listens from the start, so that no other process gets the address; clients that connect wait until `start`.

    Args:
        host, port: address to listen on; port 0 takes a free one.
        tls: encrypts connections; None leaves them plain.
        handshake_timeout_s: seconds for the handshake of TLS.
        admission: admits connections.
        make_connection: makes the protocol of an admitted connection.

    Attributes:
        address: (host, port).

    Raises:
        OSError: the address cannot be listened on.
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
        self._accepting: asyncio.Task[None] | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to accept clients."""
        self._accepting = asyncio.ensure_future(self._accept())

    async def close(self) -> None:
        """Stop listening, and drop connections that are not complete yet."""
        for task in (self._accepting, *self._connecting):
            if task is not None:
                task.cancel()
        if self._accepting is not None:
            await asyncio.wait([self._accepting])
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _NONE_LEFT:
                    _log.warning("RLlink: no client can connect: %s", error.strerror)
                    await asyncio.sleep(_NONE_LEFT_PAUSE_S)
                continue  # the client is gone already
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
        task.add_done_callback(self._connecting.discard)
        unseated.refuse = task.cancel

    async def _connect(self, accepted: socket.socket, unseated: Unseated) -> None:
        handshake_s = None if self._tls is None else self._handshake_timeout_s
        try:
            if (delay_s := unseated.since - time.monotonic()) > 0:
                await asyncio.sleep(delay_s)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make_connection(unseated), accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except (OSError, asyncio.CancelledError):  # no handshake
            self._admission.leave(unseated)
            accepted.close()
