"""Connections, which answer frames in order and handle every error of a frame, with their sessions and extensions."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from runner.config.paths import runner_version
from runner.config.rllink import RLlinkConfig
from runner.rllink.client import frames
from runner.rllink.client.frames import FrameError, FrameReader
from runner.rllink.listener import Admission, Unseated, network_of
from runner.rllink.messages import (
    JSON,
    MSGPACK,
    PROTOCOL_VERSION,
    UNSET,
    Answer,
    Format,
    GetActionsRequest,
    MessageError,
    Ping,
    Request,
    decode_request,
    encode_answer,
    format_of,
)
from runner.rllink.open_episodes import OpenEpisodes
from runner.rllink.receive_memory import FREE_BYTES, Holding, ReceiveMemory, SharedBodies
from runner.rllink.service import Service
from runner.rllink.session import Reply, ServedClient, Session

_log = logging.getLogger(__name__)

# Length limit of bodies before the token, in bytes.
_LONGEST_UNAUTHORIZED = 4096
_PONG = {"type": "PONG"}
_HEARTBEAT_S = (0.2, 600.0)
_MOST_SHARED = 64


class Connections:
    """All connections of a server, with their shared seats, sessions and memory.

    Args:
        config: the `rllink` block.
        service: answers requests.
        name: prefix of the names of clients, unique among the env runners of a run.

    Attributes:
        title: name and version of the server in a PONG.
        admission: admits connections without a seat.
        memory: distributes the memory for partly received messages.
        sessions: id -> session.
        open: connections that are not closed yet.
    """

    def __init__(self, config: RLlinkConfig, service: Service, name: str) -> None:
        self.config = config
        self.service = service
        self.name = name
        self.title = f"runner {runner_version() or ''}"
        self.admission = Admission(config)
        self.memory = ReceiveMemory(config.max_receiving_bytes, config.frame_timeout_s)
        self.sessions: dict[str, Session] = {}
        self.open: set[Connection] = set()
        self._shared: dict[Connection, SharedBodies] = {}
        self._numbers = itertools.count()

    @property
    def num_clients(self) -> int:
        """Return the number of connected clients."""
        return len(self.service.clients)

    def new_client(self, name: str, session_id: str | None = None) -> ServedClient:
        """Make a client without episodes."""
        return ServedClient(name, OpenEpisodes(name, self.config.max_open_episodes), session_id=session_id)

    def restore_session(self, session_id: str, name: str, number: int) -> ServedClient:
        """Restore a session from before a restart, and return its client; call this before clients connect."""
        session = self.sessions.get(session_id)
        if session is None:
            client = self.new_client(name, session_id)
            session = self.sessions[session_id] = Session(session_id, client, is_restored=True)
            self.service.known.add(client)
        session.number = max(session.number, number)
        return session.client

    def make(self, unseated: Unseated) -> Connection:
        """Make the connection of a client that has arrived; asyncio then calls its `connection_made`."""
        return Connection(self, next(self._numbers), unseated)

    def seat(self, connection: Connection, session: Session | None) -> bool:
        """Give a connection a seat; return whether one was free.

        Args:
            connection: a connection without a seat.
            session: its session if the client reconnects; the old connection of the session is closed.
        """
        if self.num_clients >= self.config.max_clients:
            if session is None or session.connection is None:
                return False
            session.connection.disconnect()
        self.service.join(connection.client)
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.open.discard(connection)
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
        session = self.sessions.get(session_id or "")
        is_resumed = session is not None
        if session is None:
            session = Session(secrets.token_urlsafe(24), connection.client)
            connection.client.session_id = session.id
            self.sessions[session.id] = session
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

    def check_time(self, now: float) -> None:
        """Close connections that take too long, and forget sessions that were not resumed; called periodically."""
        for connection in list(self.open):
            connection.check_time(now)
        self.memory.check_pace(now)
        self.admission.forget(now)
        left = sorted((one for one in self.sessions.values() if one.connection is None), key=lambda one: one.left_at)
        num_too_many = len(left) - self.config.max_clients
        for number, session in enumerate(left):
            if number < num_too_many or now - session.left_at > self.config.session_timeout_s:
                del self.sessions[session.id]
                self.service.leave(session.client)

    def close(self) -> None:
        """Remove the memory that is shared with clients."""
        for shared in self._shared.values():
            shared.close()


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


class Connection(asyncio.Protocol):
    """Speaks the protocol with one client.

    Args:
        connections: all connections of the server.
        number: number of the connection, from 0.
        unseated: its admission, until it has a seat.
    """

    def __init__(self, connections: Connections, number: int, unseated: Unseated) -> None:
        self._connections = connections
        self._unseated = unseated
        self._config = connections.config
        self._reader = FrameReader(self._config.max_body_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.client = connections.new_client(f"{connections.name}-{number}")
        self.session: Session | None = None
        self._extensions: dict[str, dict[str, Any]] = {}
        self._has_asked_for_extensions = False
        self._is_authorized = self._config.token is None
        if not self._is_authorized:
            self._reader.max_body_bytes = min(_LONGEST_UNAUTHORIZED, self._config.max_body_bytes)
        self.is_seated = False
        self._pending: asyncio.Future[Answer] | None = None
        self._holding: Holding | None = None
        self._is_reading_paused = self._is_writing_paused = self._is_closing = self._is_lost = False
        now = time.monotonic()
        self._request_at, self._frame_began_at, self._write_blocked_at, self._heartbeat_at = now, 0.0, 0.0, now

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve a connected client."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.open.add(self)
        text = f"the limit of {self._config.max_unauthenticated} connections without a request or token is reached"
        self._unseated.reject = lambda: self.end(MessageError("too_many_clients", text))

    def data_received(self, data: bytes) -> None:
        """Answer the frames that these bytes complete."""
        if not self._is_closing:
            self._reader.feed(data)
            self._answer_complete_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a disconnected client; a second call does nothing."""
        if self._is_lost:
            return
        self._is_closing = self._is_lost = True
        if self._pending is not None and self.session is None:  # a session requests its answer again
            self._pending.cancel()
        self._drop_received()
        self._connections.admission.leave(self._unseated)
        self._connections.remove(self)

    def pause_writing(self) -> None:
        """Stop answering, because the client does not read its answers."""
        self._is_writing_paused, self._write_blocked_at = True, time.monotonic()

    def resume_writing(self) -> None:
        """Continue answering, because the client has read its answers."""
        self._is_writing_paused = False
        self._answer_complete_frames()

    @property
    def is_local(self) -> bool:
        """Return whether the client is on this machine."""
        return self._unseated.host == "::1" or self._unseated.host.startswith("127.")

    # -- requests ----------------------------------------------------------------------------------------------------

    def _answer_complete_frames(self) -> None:
        """Answer complete frames one after the other, until one has to wait."""
        while self._pending is None and not self._is_writing_paused and not self._is_closing:
            try:
                body, is_shared = self._reader.next_frame()
            except FrameError as error:
                self.end(error)
                return
            if body is None:
                break
            self._request_at = time.monotonic()
            self._frame_began_at = 0.0
            if self._holding is not None:
                self._release_memory()
            self._answer(body, is_shared)
        self._frame_began_at = self._frame_began_at or (time.monotonic() if self._reader.is_within_frame else 0.0)
        self._pace_reading()

    def _pace_reading(self) -> None:
        """Pause reading while a long message waits for its answer or for memory; resume it afterwards."""
        num_bytes = self._reader.num_bytes
        must_wait = False
        if (num_bytes > FREE_BYTES or self._holding is not None) and not self._is_closing:
            memory = self._connections.memory
            holding = self._holding = self._holding or memory.hold(self, network_of(self._unseated.host))
            cannot_answer = self._pending is not None or self._is_writing_paused
            num_wanted = 0 if cannot_answer else self._reader.num_frame_bytes
            memory.update(holding, num_bytes, num_wanted, time.monotonic())
            # The request may close this connection if too many wait.
            must_wait = not self._is_closing and (cannot_answer or not holding.is_granted)
        if must_wait != self._is_reading_paused and not self._has_ended:
            self._is_reading_paused, self._heartbeat_at = must_wait, time.monotonic()
            (self._transport.pause_reading if must_wait else self._transport.resume_reading)()

    # -- memory ------------------------------------------------------------------------------------------------------

    def _release_memory(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            self._connections.memory.release(holding, time.monotonic())

    def _drop_received(self) -> None:
        """Free received bytes that will not be answered."""
        self._reader.clear()
        self._release_memory()

    @property
    def _waits_for_memory(self) -> bool:
        return self._holding is not None and self._is_reading_paused and not self._is_writing_paused

    def continue_reading(self) -> None:
        """Resume reading, because memory is available; the waiting time does not count against the client."""
        self._frame_began_at = time.monotonic()
        if self._is_reading_paused and not self._has_ended:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _answer(self, body: bytes, is_shared: bool) -> None:
        body_format: Format = JSON
        number: int | None = None
        try:
            body = self._unwrapped(body, is_shared)
            if format_of(body) == MSGPACK:
                if MSGPACK not in self._extensions:
                    raise MessageError(
                        "bad_body", "the body is not a JSON object; MessagePack needs the extension msgpack"
                    )
                body_format = MSGPACK
            request = decode_request(body, body_format)
            number = self._number_of(request)
            answer = self._carry_out(request, body_format, number, body)
        except Exception as error:
            answer = self._rejected(error)
        if isinstance(answer, asyncio.Future):
            self._pending = answer
            self._heartbeat_at = time.monotonic()
            answer.add_done_callback(lambda done: self._send_pending(done, body_format, number))
        else:
            self._send(answer, body_format, number)

    def _unwrapped(self, body: bytes, is_shared: bool) -> bytes:
        if is_shared:
            body = self._connections.shared_body(self, body)
        if frames.is_compressed(body):
            if "compression" not in self._extensions:
                raise MessageError("bad_body", "the body is not a JSON object; gzip needs the extension compression")
            body = frames.decompressed(body, self._config.max_body_bytes)
        return body

    def _carry_out(self, request: Request, body_format: Format, number: int | None, body: bytes) -> Reply:
        if isinstance(request, Ping):
            return self._answer_ping(request)
        if not self._is_authorized:
            raise MessageError("unauthorized", "this server requires a token: send PING with `token` first")
        if not self._takes_seat(request):
            return {}
        if isinstance(request, GetActionsRequest) and "actions" not in self._extensions:
            raise MessageError("not_granted", "GET_ACTIONS needs the extension actions", "$.type")
        service = self._connections.service
        if self.session is None or number is None:
            return service.answer(self.client, request, body_format, body)
        return self.session.carry_out(
            number,
            lambda: service.answer(self.client, request, body_format, body),
            lambda: service.answer_again(self.client, request, body_format),
        )

    def _number_of(self, request: Request) -> int | None:
        number = request.request
        if isinstance(request, Ping):
            if number is not UNSET:
                raise MessageError("bad_message", "PING must not have a number", "$.request")
            return None
        if number is UNSET:
            if self.session is not None:
                raise MessageError("bad_message", "in a session, each request must have a number", "$.request")
            return None
        if self.session is None:
            raise MessageError("not_granted", "`request` needs the extension session", "$.request")
        return number

    # -- handshake ---------------------------------------------------------------------------------------------------

    def _takes_seat(self, request: Request) -> bool:
        """Give the connection a seat; return whether it has one, and close it otherwise."""
        if not self.is_seated and not self._connections.seat(self, self._session_named_in(request)):
            text = f"the limit of {self._config.max_clients} connected clients is reached"
            self.end(MessageError("too_many_clients", text))
            return False
        if not self.is_seated:
            self.is_seated = True
            self._connections.admission.seat(self._unseated)
            _log.info("RLlink: client %s connected from %s", self.client.name, self._unseated.host)
        return True

    def _session_named_in(self, request: Request) -> Session | None:
        """Return the session that a PING names, if it exists; session ids cannot be guessed."""
        if not isinstance(request, Ping) or request.extensions is UNSET:
            return None
        session_id = request.extensions.get("session", {}).get("id")
        return self._connections.sessions.get(session_id) if isinstance(session_id, str) else None

    def _answer_ping(self, ping: Ping) -> Reply:
        """Answer a PING; delay checking its token if the address has sent wrong tokens."""
        token = self._config.token
        if token is None or ping.token is UNSET:
            return self._shake_hands(ping)
        delay_s = self._unseated.peer.tokens.take(time.monotonic())
        if not delay_s or self._session_named_in(ping) is not None:
            return self._check_token(ping, token)
        return asyncio.ensure_future(self._check_token_later(ping, token, delay_s))

    async def _check_token_later(self, ping: Ping, token: str, delay_s: float) -> Answer:
        try:
            await asyncio.sleep(delay_s)
        except asyncio.CancelledError:  # the client is gone, and its token was not checked
            self._unseated.peer.tokens.give_back()
            raise
        return self._check_token(ping, token)

    def _check_token(self, ping: Ping, token: str) -> Answer:
        if not hmac.compare_digest(str(ping.token).encode(), token.encode()):
            self.end(MessageError("unauthorized", "the token is wrong"))
            return {}
        self._is_authorized = True
        self._unseated.peer.tokens.give_back()
        self._reader.max_body_bytes = self._config.max_body_bytes
        return self._shake_hands(ping)

    def _shake_hands(self, ping: Ping) -> Answer:
        if self._is_authorized and not self._takes_seat(ping):
            return {}
        if ping.extensions is UNSET and ping.protocol is UNSET:
            return dict(_PONG)
        if not self._is_authorized:
            raise MessageError("unauthorized", "this server requires a token: send it in this PING")
        asked = {} if ping.extensions is UNSET else ping.extensions
        if asked and self._has_asked_for_extensions:
            raise MessageError("bad_message", "extensions can be requested only once per connection", "$.extensions")
        self._has_asked_for_extensions |= bool(asked)
        granted = self._connections.grant(self, asked)
        config = self._config
        limits = {
            "max_body_bytes": config.max_body_bytes,
            "max_open_episodes": config.max_open_episodes,
            "max_abs_reward": self._connections.service.max_abs_reward,
            "handshake_timeout_s": config.handshake_timeout_s,
            "idle_timeout_s": config.idle_timeout_s,
            "frame_timeout_s": config.frame_timeout_s,
        }
        answer = {"type": "PONG", "protocol": PROTOCOL_VERSION, "server": self._connections.title}
        self._send({**answer, "extensions": granted, "limits": limits}, JSON, None)
        self._extensions = dict(granted)
        self._reader.is_large_granted = "large_frames" in granted
        self._reader.is_shared_granted = "shared_memory" in granted
        return {}

    # -- answers -----------------------------------------------------------------------------------------------------

    def _send_pending(self, done: asyncio.Future[Answer], body_format: Format, number: int | None) -> None:
        self._pending = None
        # The waiting time does not count against the client: the rest of the next frame gets the full time again.
        self._request_at, self._frame_began_at = time.monotonic(), 0.0
        if self._is_closing or done.cancelled():
            return
        error = done.exception()
        self._send(done.result() if error is None else self._rejected(error), body_format, number)
        self._answer_complete_frames()

    def _send(self, answer: Mapping[str, Any], body_format: Format, number: int | None) -> None:
        if not answer or self._has_ended:
            return
        if number is not None:
            answer = {**answer, "request": number}
        body = encode_answer(answer, body_format)
        if body == b'{"type":"PONG"}':
            body = b'{"type": "PONG"}'  # the spelling of the original draft
        if "compression" in self._extensions:
            body = frames.compressed(body)
        try:
            framed = frames.frame(body, self._reader.is_large_granted)
        except FrameError as error:  # weights of a very large module
            framed = frames.frame(encode_answer(MessageError("internal", str(error)).answer(), body_format))
        try:
            self._transport.write(framed)
        except RuntimeError:  # uvloop does not report clients that left before the connection was made
            self.connection_lost(None)

    @property
    def _has_ended(self) -> bool:
        """Whether nothing more can be read or written, even before the event loop has reported a lost client."""
        return self._is_closing or self._transport.is_closing()

    def _rejected(self, error: BaseException) -> Answer:
        self._connections.service.counts.num_requests_refused += 1
        if isinstance(error, FrameError):
            error = MessageError(error.code, str(error))
        if not isinstance(error, MessageError):
            _log.error("RLlink: a request failed", exc_info=error)
            error = MessageError("internal", "the server failed on this request; see its log")
        return error.answer()

    def end(self, error: FrameError | MessageError) -> None:
        """Send an error and close the connection, unless it is closing already."""
        if self._is_closing:
            return
        self._send(self._rejected(error), JSON, None)
        self._is_closing, self._write_blocked_at = True, time.monotonic()
        self._drop_received()
        self._transport.close()

    def disconnect(self) -> None:
        """Close the connection immediately, because the client has reconnected."""
        self._is_closing = True
        self._transport.abort()

    # -- time --------------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Close the connection if something takes too long; called periodically."""
        config = self._config
        if self._is_closing:
            if now - self._write_blocked_at > config.frame_timeout_s:  # the client does not read the error
                self._transport.abort()
        elif self._is_writing_paused and now - self._write_blocked_at > config.frame_timeout_s:
            self._is_closing = True
            self._transport.abort()
        elif self._pending is not None:
            self._send_heartbeat(now)
        elif not self.is_seated and now - self._unseated.since > config.handshake_timeout_s:
            what = "request" if self._is_authorized else "token"
            self.end(MessageError("timeout", f"no {what} within {config.handshake_timeout_s:g} s"))
        elif self._waits_for_memory:
            self._send_heartbeat(now)
        elif self._frame_began_at and now - self._frame_began_at > config.frame_timeout_s:
            self.end(MessageError("timeout", f"a message must arrive within {config.frame_timeout_s:g} s"))
        elif now - self._request_at > config.idle_timeout_s:
            self.end(MessageError("timeout", f"no request for {config.idle_timeout_s:g} s"))

    def _send_heartbeat(self, now: float) -> None:
        heartbeat = self._extensions.get("heartbeat")
        if heartbeat is not None and now - self._heartbeat_at >= heartbeat["interval_s"]:
            self._heartbeat_at = now
            self._send({"type": "WAIT"}, JSON, None)
