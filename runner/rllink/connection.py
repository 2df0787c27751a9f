"""One connection of the server: frames in, answers out, in order; what is wrong with a frame ends here."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from runner.rllink import frames
from runner.rllink.frames import FrameError, FrameReader
from runner.rllink.messages import (
    JSON,
    MSGPACK,
    PROTOCOL_VERSION,
    UNSET,
    Answer,
    Format,
    GetActions,
    MessageError,
    Ping,
    Request,
    decode_request,
    encode_answer,
    format_of,
)
from runner.rllink.served_client import Client

if TYPE_CHECKING:
    from runner.rllink.server import Server, Session

_log = logging.getLogger(__name__)

# Bytes of whole frames that are read ahead of the one that is answered, before the client has to wait.
_MOST_READ_AHEAD = 1 << 20
# Longest body before the token.
_LONGEST_UNAUTHORIZED = 4096
_PONG = {"type": "PONG"}


class Connection(asyncio.Protocol):
    """Speaks the protocol with one client.

    Args:
        server: whose connection it is.
        number: of the connection, from 0.
    """

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self._config = server.config
        self._reader = FrameReader(self._config.max_body_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.client = Client(f"{server.name}-{number}", server.new_open_episodes(f"{server.name}-{number}"))
        self.session: Session | None = None
        self._extensions: dict[str, dict[str, Any]] = {}
        self._has_asked_for_extensions = False
        self._is_authorized = self._config.token is None
        if not self._is_authorized:
            self._reader.max_body_bytes = min(_LONGEST_UNAUTHORIZED, self._config.max_body_bytes)
        self._pending: asyncio.Future[Answer] | None = None
        self._is_reading_paused = self._is_writing_paused = self._is_closing = False
        now = time.monotonic()
        self._last_request, self._frame_begun, self._write_stuck, self._last_sign = now, 0.0, 0.0, now

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            text = f"{self._config.max_clients} clients are connected, more are not allowed"
            self._end(MessageError("too_many_clients", text))
            return
        host, port = (*(transport.get_extra_info("peername") or ("?", 0)), 0)[:2]
        _log.info("RLlink: client %s connects from %s:%s", self.client.name, host, port)

    def data_received(self, data: bytes) -> None:
        """Bytes of frames."""
        if not self._is_closing:
            self._reader.feed(data)
            self._answer_what_is_there()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._is_closing = True
        if self._pending is not None and self.session is None:  # a session's answer is asked for again
            self._pending.cancel()
        self._server.part(self)

    def pause_writing(self) -> None:
        """The client does not read what it was sent."""
        self._is_writing_paused, self._write_stuck = True, time.monotonic()

    def resume_writing(self) -> None:
        """It has read."""
        self._is_writing_paused = False
        self._answer_what_is_there()

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine."""
        host = (self._transport.get_extra_info("peername") or ("",))[0]
        return host == "::1" or str(host).startswith("127.")

    # -- requests ----------------------------------------------------------------------------------------------------

    def _answer_what_is_there(self) -> None:
        """Answer whole frames, one after the other, until one has to wait."""
        while self._pending is None and not self._is_writing_paused and not self._is_closing:
            try:
                body, is_shared = self._reader.next_frame()
            except FrameError as error:
                self._end(MessageError(error.code, str(error)))
                return
            if body is None:
                break
            self._last_request = time.monotonic()
            self._frame_begun = 0.0
            self._answer(body, is_shared)
        self._frame_begun = self._frame_begun or (time.monotonic() if self._reader.is_within_frame else 0.0)
        self._pace_reading()

    def _pace_reading(self) -> None:
        cannot_answer = self._pending is not None or self._is_writing_paused
        is_full = cannot_answer and self._reader.num_bytes > _MOST_READ_AHEAD
        if is_full != self._is_reading_paused and not self._is_closing:
            self._is_reading_paused = is_full
            (self._transport.pause_reading if is_full else self._transport.resume_reading)()

    def _answer(self, body: bytes, is_shared: bool) -> None:
        body_format: Format = JSON
        number: int | None = None
        try:
            body = self._unwrapped(body, is_shared)
            if format_of(body) == MSGPACK:
                if MSGPACK not in self._extensions:
                    raise MessageError("bad_body", "no JSON object; MessagePack needs the extension msgpack")
                body_format = MSGPACK
            request = decode_request(body, body_format)
            number = self._number_of(request)
            answer = self._carry_out(request, body_format, number, body)
        except FrameError as error:
            answer = self._refused(MessageError(error.code, str(error)))
        except MessageError as error:
            answer = self._refused(error)
        except Exception:
            _log.exception("RLlink: a request failed")
            answer = self._refused(MessageError("internal", "the server failed on this request; its log says how"))
        if isinstance(answer, asyncio.Future):
            self._pending = answer
            self._last_sign = time.monotonic()
            answer.add_done_callback(lambda done: self._send_pending(done, body_format, number))
        else:
            self._send(answer, body_format, number)

    def _unwrapped(self, body: bytes, is_shared: bool) -> bytes:
        if is_shared:
            body = self._server.shared_body(self, body)
        if frames.is_compressed(body):
            if "compression" not in self._extensions:
                raise MessageError("bad_body", "no JSON object; gzip needs the extension compression")
            body = frames.decompressed(body, self._config.max_body_bytes)
        return body

    def _carry_out(
        self, request: Request, body_format: Format, number: int | None, body: bytes
    ) -> Answer | asyncio.Future[Answer]:
        if isinstance(request, Ping):
            return self._shake_hands(request)
        if not self._is_authorized:
            raise MessageError("unauthorized", "this server asks for a token: send PING with `token` first")
        if isinstance(request, GetActions) and "actions" not in self._extensions:
            raise MessageError("not_granted", "GET_ACTIONS needs the extension actions", "$.type")
        service = self._server.service
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
                raise MessageError("bad_message", "PING has no number", "$.request")
            return None
        if number is UNSET:
            if self.session is not None:
                raise MessageError("bad_message", "in a session each request has its number", "$.request")
            return None
        if self.session is None:
            raise MessageError("not_granted", "`request` needs the extension session", "$.request")
        return number

    # -- handshake ---------------------------------------------------------------------------------------------------

    def _shake_hands(self, ping: Ping) -> Answer:
        token = self._config.token
        if ping.token is not UNSET and token is not None:
            self._is_authorized = hmac.compare_digest(ping.token.encode(), token.encode())
            self._reader.max_body_bytes = self._config.max_body_bytes
            if not self._is_authorized:
                self._end(MessageError("unauthorized", "the token is not the right one"))
                return {}
        if ping.extensions is UNSET and ping.protocol is UNSET:
            return dict(_PONG)
        if not self._is_authorized:
            raise MessageError("unauthorized", "this server asks for a token: send it in this PING")
        asked = {} if ping.extensions is UNSET else ping.extensions
        if asked and self._has_asked_for_extensions:
            raise MessageError("bad_message", "extensions are asked for once in a connection", "$.extensions")
        self._has_asked_for_extensions |= bool(asked)
        granted = self._server.grant(self, asked)
        config = self._config
        limits = {
            name: getattr(config, name)
            for name in ("max_body_bytes", "max_open_episodes", "max_abs_reward", "idle_timeout_s", "frame_timeout_s")
        }
        answer = {"type": "PONG", "protocol": PROTOCOL_VERSION, "server": self._server.title}
        self._send({**answer, "extensions": granted, "limits": limits}, JSON, None)
        self._extensions = dict(granted)
        self._reader.is_large_granted = "large_frames" in granted
        self._reader.is_shared_granted = "shared_memory" in granted
        return {}

    # -- answers -----------------------------------------------------------------------------------------------------

    def _send_pending(self, done: asyncio.Future[Answer], body_format: Format, number: int | None) -> None:
        self._pending = None
        # The time until now was the server's: what is left of the next frame may take as long as ever.
        self._last_request, self._frame_begun = time.monotonic(), 0.0
        if self._is_closing or done.cancelled():
            return
        error = done.exception()
        if isinstance(error, MessageError):
            self._send(self._refused(error), body_format, number)
        elif error is not None:
            _log.error("RLlink: a request failed", exc_info=error)
            internal = MessageError("internal", "the server failed on this request; its log says how")
            self._send(self._refused(internal), body_format, number)
        else:
            self._send(done.result(), body_format, number)
        self._answer_what_is_there()

    def _send(self, answer: Mapping[str, Any], body_format: Format, number: int | None) -> None:
        if not answer or self._is_closing:
            return
        if number is not None:
            answer = {**answer, "request": number}
        body = encode_answer(answer, body_format)
        if body == b'{"type":"PONG"}':
            body = b'{"type": "PONG"}'  # as the original draft spells it
        if "compression" in self._extensions:
            body = frames.compressed(body)
        try:
            framed = frames.frame(body, self._reader.is_large_granted)
        except FrameError as error:  # weights of a very large module
            framed = frames.frame(encode_answer(MessageError("internal", str(error)).answer(), body_format))
        self._transport.write(framed)

    def _refused(self, error: MessageError) -> Answer:
        self._server.service.counts.num_requests_refused += 1
        return error.answer()

    def _end(self, error: MessageError) -> None:
        """Say why, and close; what is said is still sent."""
        self._send(self._refused(error), JSON, None)
        self._is_closing, self._write_stuck = True, time.monotonic()
        self._transport.close()

    def say_goodbye(self) -> None:
        """The run is over."""
        if not self._is_closing:
            self._end(MessageError("shutting_down", "the run is over"))

    def give_way(self) -> None:
        """The client has come again by another connection."""
        self._is_closing = True
        self._transport.abort()

    # -- time --------------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """End the connection if something takes too long; called every now and then."""
        config = self._config
        if self._is_closing:
            if now - self._write_stuck > config.frame_timeout_s:  # it does not read why
                self._transport.abort()
        elif self._is_writing_paused and now - self._write_stuck > config.frame_timeout_s:
            self._is_closing = True
            self._transport.abort()
        elif self._pending is not None:
            self._give_sign(now)
        elif self._frame_begun and now - self._frame_begun > config.frame_timeout_s:
            self._end(MessageError("timeout", f"a message must arrive within {config.frame_timeout_s:g} s"))
        elif now - self._last_request > config.idle_timeout_s:
            self._end(MessageError("timeout", f"no request for {config.idle_timeout_s:g} s"))

    def _give_sign(self, now: float) -> None:
        heartbeat = self._extensions.get("heartbeat")
        if heartbeat is not None and now - self._last_sign >= heartbeat["interval_s"]:
            self._last_sign = now
            self._send({"type": "WAIT"}, JSON, None)
