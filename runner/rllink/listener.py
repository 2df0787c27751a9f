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
from runner.rllink.client.frames import frame
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
        self._connecting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin to accept clients."""
        self._go_on()

    async def close(self) -> None:
        """Stop listening, and drop connections that are not complete yet."""
        if self._pause is not None:
            self._pause.cancel()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if self._connecting:
            for task in self._connecting:
                task.cancel()
            await asyncio.wait(self._connecting)

    def _go_on(self) -> None:
        # A task that awaits the next connection would lose an accepted one when it is cancelled; a callback does not.
        asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            accepted, address = self._socket.accept()
        except OSError as error:  # most often the client is gone already
            if error.errno in _NONE_LEFT:
                _log.warning("RLlink: no client can connect: %s", error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                self._pause = loop.call_later(_NONE_LEFT_PAUSE_S, self._go_on)
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
        unseated.refuse = task.cancel

    def _end_connecting(self, task: asyncio.Task[None], accepted: socket.socket, unseated: Unseated) -> None:
        self._connecting.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:  # perhaps before its first line, so it cannot do this itself
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
