"""The server: listens, admits clients and grants extensions, in an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from runner.config.errors import ConfigError, Problem
from runner.config.paths import runner_version
from runner.config.rllink import RLlinkConfig
from runner.rllink.connection import Connection
from runner.rllink.listener import Admission, Listener, Unseated
from runner.rllink.messages import MessageError
from runner.rllink.receive_memory import ReceiveMemory, SharedBodies
from runner.rllink.receiving import OpenEpisodes
from runner.rllink.service import Service
from runner.rllink.session import ServedClient, Session

T = TypeVar("T")
_HEARTBEAT_S = (0.2, 600.0)
_CLOSE_TIMEOUT_S = 5.0
_TICK_S = 0.1
_MOST_SHARED = 64


class Server:
    """Serves clients on one address.

    Args:
        config: the `rllink` block.
        service: answers requests.
        host, port: address to listen on; port 0 selects a free one.
        name: prefix of the names of clients, unique among the env runners of a run.

    Attributes:
        address: (host, port) that it listens on.
        admission: admits connections without a seat.
        memory: distributes the memory for partly received messages.

    Raises:
        ConfigError: cannot listen on the address, or the certificate cannot be used.
    """

    def __init__(self, config: RLlinkConfig, service: Service, host: str, port: int, name: str) -> None:
        self.config = config
        self.service = service
        self.name = name
        self.title = f"runner {runner_version() or ''}"
        self._numbers = itertools.count()
        self._connections: set[Connection] = set()
        self._seated: set[Connection] = set()
        self.admission = Admission(config)
        self.memory = ReceiveMemory(config.max_receiving_bytes, config.frame_timeout_s)
        self._sessions: dict[str, Session] = {}
        self._shared: dict[Connection, SharedBodies] = {}
        self._is_serving = False
        tls = _tls_context(config)
        self._loop = _new_event_loop()
        service.use_loop(self._loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="rllink", daemon=True)
        self._thread.start()
        try:
            self._listener = Listener(
                host, port, tls, config.handshake_timeout_s, self.admission, self._make_connection
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

    def _make_connection(self, unseated: Unseated) -> Connection:
        return Connection(self, next(self._numbers), unseated)

    def start(self) -> None:
        """Accept clients from now on."""
        if not self._is_serving:
            self._is_serving = True
            self.call(self._listener.start)

    def restore_session(self, session_id: str, name: str, number: int) -> ServedClient:
        """Restore a session from before a restart, and return its client; call this before `start`."""
        session = self._sessions.get(session_id)
        if session is None:
            client = ServedClient(name, self.new_open_episodes(name), session_id=session_id)
            session = self._sessions[session_id] = Session(session_id, client, is_restored=True)
            self.service.known.add(client)
        session.number = max(session.number, number)
        return session.client

    @property
    def sessions(self) -> Mapping[str, Session]:
        """Return the sessions by id."""
        return self._sessions

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
            now = time.monotonic()
            for connection in list(self._connections):
                connection.check_time(now)
            self.memory.check_pace(now)
            self.admission.forget(now)
            left = sorted(
                (one for one in self._sessions.values() if one.connection is None), key=lambda one: one.left_at
            )
            num_too_many = len(left) - self.config.max_clients
            for number, session in enumerate(left):
                if number < num_too_many or now - session.left_at > self.config.session_timeout_s:
                    del self._sessions[session.id]
                    self.service.leave(session.client)

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
        for connection in list(self._connections):
            connection.end(MessageError("shutting_down", "the run is over"))
        await asyncio.sleep(0.05)  # time to send the last answers

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._loop.close()
        for shared in self._shared.values():
            shared.close()

    # -- for connections -----------------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """The number of connections that have a seat."""
        return len(self._seated)

    def new_open_episodes(self, name: str) -> OpenEpisodes:
        """Make the open episodes of a new client."""
        return OpenEpisodes(name, self.config.max_open_episodes)

    def meet(self, connection: Connection) -> None:
        """Add a new connection that does not have a seat yet."""
        self._connections.add(connection)

    def seat(self, connection: Connection, session: Session | None) -> bool:
        """Give a connection a seat; return whether one was free.

        Args:
            connection: a connection without a seat.
            session: its session if the client reconnects; the old connection of the session is closed.
        """
        if session is not None and session.connection is not None and len(self._seated) >= self.config.max_clients:
            self._seated.discard(session.connection)
            session.connection.disconnect()
        if len(self._seated) >= self.config.max_clients:
            return False
        self._seated.add(connection)
        self.service.join(connection.client)
        return True

    def part(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        self._seated.discard(connection)
        if not connection.is_seated:
            return
        shared = self._shared.pop(connection, None)
        if shared is not None:
            shared.close()
        session = connection.session
        if session is None:
            self.service.leave(connection.client)
        elif session.connection is connection:
            session.connection, session.left_at = None, time.monotonic()
            self.service.pause(connection.client)

    def grant(self, connection: Connection, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the granted extensions of a connection, with their options.

        Raises:
            MessageError: an option is not valid; nothing is granted.
        """
        granted: dict[str, dict[str, Any]] = {
            name: {} for name in ("msgpack", "large_frames", "actions") if name in asked
        }
        if "gzip" in _strings(asked, "compression", "methods"):
            granted["compression"] = {"method": "gzip"}
        if "heartbeat" in asked:
            granted["heartbeat"] = {"interval_s": _interval(asked["heartbeat"])}
        session_id = _session_id(asked["session"]) if "session" in asked else None
        if "session" in asked:
            granted["session"] = self._join_session(connection, session_id)
        if "agents" in asked and self.service.has_agents:
            connection.client.has_agents = True
            granted["agents"] = {}
        if "env_ends" in asked and self.service.has_agents:
            connection.client.open.says_ends = True
            granted["env_ends"] = {}
        if "tasks" in asked and self.service.tasks:
            connection.client.has_tasks = True
            granted["tasks"] = {"tasks": self.service.tasks}
        wanted = asked.get("weights", {}).get("format")
        if wanted in ("onnx", "safetensors"):
            connection.client.weights_format = wanted
            granted["weights"] = {"format": wanted}
        if "shared_memory" in asked and connection.is_local and len(self._shared) < _MOST_SHARED:
            with suppress(OSError):  # no memory is available: messages use the socket
                self._shared[connection] = shared = SharedBodies(self.config.shared_memory_bytes)
                granted["shared_memory"] = {"name": shared.name, "size": shared.size}
        return granted

    def _join_session(self, connection: Connection, session_id: str | None) -> dict[str, Any]:
        session = self._sessions.get(session_id or "")
        is_resumed = session is not None
        if session is None:
            session = Session(secrets.token_urlsafe(24), connection.client)
            connection.client.session_id = session.id
            self._sessions[session.id] = session
        else:
            if session.connection is not None:  # dead, but not detected yet
                session.connection.disconnect()
            self.service.leave(connection.client)
            connection.client = session.client
            self.service.join(session.client)
        session.connection = connection
        connection.session = session
        return {"id": session.id, "resumed": is_resumed, "timeout_s": self.config.session_timeout_s}

    def shared_body(self, connection: Connection, length: bytes) -> bytes:
        """Read a body from the memory shared with a client; raise `MessageError` if it does not fit."""
        return self._shared[connection].read(length, self.config.max_body_bytes)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop; uvloop, if installed, handles small messages in two thirds of asyncio's time."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _strings(asked: Mapping[str, Mapping[str, Any]], name: str, option: str) -> list[str]:
    values = asked.get(name, {}).get(option, [])
    if not isinstance(values, list):
        raise MessageError("bad_message", "expected a list of strings", f"$.extensions.{name}.{option}")
    return values


def _interval(options: Mapping[str, Any]) -> float:
    interval = options.get("interval_s", 5.0)
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or interval <= 0:
        raise MessageError("bad_message", "expected seconds above 0", "$.extensions.heartbeat.interval_s")
    return min(max(float(interval), _HEARTBEAT_S[0]), _HEARTBEAT_S[1])


def _session_id(options: Mapping[str, Any]) -> str | None:
    session_id = options.get("id")
    if session_id is not None and not isinstance(session_id, str):
        raise MessageError("bad_message", "expected a string or null", "$.extensions.session.id")
    return session_id


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
