"""The server: listens, in an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from runner.config.errors import ConfigError, Problem
from runner.config.rllink import RLlinkConfig
from runner.rllink.connection import Connections
from runner.rllink.listener import Listener
from runner.rllink.messages import MessageError
from runner.rllink.service import Service

T = TypeVar("T")
_CLOSE_TIMEOUT_S = 5.0
_TICK_S = 0.1


class Server:
    """Serves clients on one address.

    Args:
        config: the `rllink` block.
        service: answers requests.
        host, port: address to listen on; port 0 selects a free one.
        name: prefix of the names of clients, unique among the env runners of a run.

    Attributes:
        service: answers requests.
        connections: the connections of clients.
        address: (host, port) that it listens on.

    Raises:
        ConfigError: cannot listen on the address, or the certificate cannot be used.
    """

    def __init__(self, config: RLlinkConfig, service: Service, host: str, port: int, name: str) -> None:
        self.service = service
        self.connections = Connections(config, service, name)
        self._is_serving = False
        tls = _tls_context(config)
        self._loop = _new_event_loop()
        service.use_loop(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rllink", daemon=True)
        self._thread.start()
        try:
            self._listener = Listener(
                host, port, tls, config.handshake_timeout_s, self.connections.admission, self.connections.make
            )
        except OSError as error:
            self._stop_loop()
            what = f"cannot listen on {host}:{port}: {error.strerror or error}"
            problem = Problem(
                what,
                "env.host, env.port",
                f"{host}:{port}",
                "a free address of this machine",
                fix="env.port=0 selects a free port",
            )
            raise ConfigError([problem]) from error
        self.address = self._listener.address
        self._watch = asyncio.run_coroutine_threadsafe(self._watch_time(), self._loop)

    @property
    def host_and_port(self) -> str:
        """Return the address as `host:port`."""
        host, port = self.address
        return f"{host}:{port}"

    def start(self) -> None:
        """Accept clients from now on."""
        if not self._is_serving:
            self._is_serving = True
            self.call(self._listener.start)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the event loop, and wait for its result."""

        async def run() -> T:
            return function(*arguments)

        return self.submit(run()).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _watch_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.connections.check_time(time.monotonic())

    def close(self) -> None:
        """Notify all clients that the run is over, and stop listening."""
        if self._loop.is_closed():
            return
        self._watch.cancel()
        self.submit(self._say_goodbye()).result(_CLOSE_TIMEOUT_S)
        self._stop_loop()

    async def _say_goodbye(self) -> None:
        await self._listener.close()
        self.service.stop_collecting()
        for connection in list(self.connections.open):
            connection.end(MessageError("shutting_down", "the run is over"))
        await asyncio.sleep(0.05)  # time to send the last answers

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._loop.close()
        self.connections.close()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop; uvloop, if installed, handles small messages in two thirds of asyncio's time."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _tls_context(config: RLlinkConfig) -> ssl.SSLContext | None:
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        what = f"the certificate cannot be used: {error}"
        got = f"{config.tls_certificate}, {config.tls_key}"
        raise ConfigError([Problem(what, "rllink.tls_certificate, rllink.tls_key", got, "PEM files")]) from error
    return context
