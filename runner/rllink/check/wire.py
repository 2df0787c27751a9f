"""Raw frames to a server under test; every wait has a time limit."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.rllink.client import frames
from runner.rllink.client.packing import pack, unpack

_MOST_RECEIVED = 1 << 31
_SHORTENED = 200


class Failure(Exception):
    """The server breaks a rule."""

    def __init__(self, expected: str, got: str) -> None:
        self.expected, self.got = expected, got
        super().__init__(f"expected {expected}, got {got}")


class NoAnswer(Failure):
    """The server did not answer in time."""


class Closed(Failure):
    """The server closed the connection."""


@dataclass(frozen=True)
class Target:
    """The address of the server, and `timeout_s`, the longest wait for an answer in seconds."""

    host: str
    port: int
    token: str | None = None
    tls: ssl.SSLContext | None = None
    timeout_s: float = 10.0


def short(value: Any) -> str:
    """Shorten a value for messages."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHORTENED else f"{text[:_SHORTENED]}... ({len(text)} characters)"


def expect(condition: bool, expected: str, got: Any) -> None:
    """Raise `Failure` if the condition does not hold."""
    if not condition:
        raise Failure(expected, short(got))


class Wire:
    """One connection.

    Attributes:
        granted: the granted extensions with their options.
        pong: the PONG of its handshake.
        last_sent: the last message sent, for reports.

    Raises:
        OSError: the server cannot be reached.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self.granted: dict[str, Any] = {}
        self.pong: dict[str, Any] = {}
        self.last_sent = "nothing"
        self._reader = frames.FrameReader(_MOST_RECEIVED)
        self.socket = socket.create_connection((target.host, target.port), target.timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            plain = self.socket
            try:
                self.socket = target.tls.wrap_socket(plain, server_hostname=target.host)
            except BaseException:
                plain.close()
                raise

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self.last_sent = short(data.decode("ascii", "backslashreplace"))
        self.socket.settimeout(self._target.timeout_s)
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed("a connection that accepts a message", f"{error}") from None

    def send_body(self, body: bytes) -> None:
        """Send a frame."""
        self.send_bytes(frames.frame(body, "large_frames" in self.granted))

    def send(self, message: Any, msgpack: bool = False) -> None:
        """Send a message in JSON or MessagePack."""
        self.send_body(pack(message) if msgpack else json.dumps(message, allow_nan=False).encode())
        self.last_sent = short(str(message))

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive_body(self, timeout_s: float | None = None) -> bytes:
        """Receive the body of the next frame, and check its header [F2]."""
        deadline = time.monotonic() + (self._target.timeout_s if timeout_s is None else timeout_s)
        self._reader.is_large_granted = "large_frames" in self.granted
        try:
            while (body := self._reader.next_body()) is None:
                self._reader.feed(self._receive_bytes(deadline))
        except frames.FrameError as error:
            raise Failure("a header of eight digits [F2]", str(error)) from None
        return body

    def _receive_bytes(self, deadline: float) -> bytes:
        self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            raise NoAnswer("an answer", "none in time") from None
        except OSError as error:
            raise Closed("an answer", f"the connection broke: {error}") from None
        if not data:
            raise Closed("an answer", "the end of the connection")
        return data

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Receive the next message in either format, skipping signs of life."""
        while (message := self.receive_any(timeout_s))["type"] == "WAIT":
            expect("heartbeat" in self.granted, "WAIT only after heartbeat was granted [R1]", message)
        return message

    def receive_any(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Receive the next message, including `WAIT`."""
        return self.decode(self.receive_body(timeout_s))

    def decode(self, body: bytes) -> dict[str, Any]:
        """Decode the message in a body."""
        try:
            if frames.is_compressed(body) and "compression" in self.granted:
                body = frames.decompressed(body, _MOST_RECEIVED)
            if "msgpack" in self.granted and body[:1] != b"{":
                message = unpack(body)
            else:
                message = json.loads(body.decode("utf-8"), parse_constant=_reject_constant)
        except ValueError as error:
            raise Failure("a JSON object in UTF-8 [F3]", f"{short(body)}: {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise Failure("an object with the key type [R3]", short(message))
        return message

    def ask(self, message: Mapping[str, Any], timeout_s: float | None = None, msgpack: bool = False) -> dict[str, Any]:
        """Send a message and return its answer."""
        self.send(message, msgpack)
        return self.receive(timeout_s)

    def is_silent(self, seconds: float) -> bool:
        """Return whether nothing arrives within this time."""
        try:
            self.receive_body(seconds)
        except NoAnswer:
            return not self._reader.num_bytes
        return False

    def expect_end(self) -> None:
        """Expect that the server closes the connection."""
        try:
            body = self.receive_body()
        except Closed:
            return
        except NoAnswer:
            raise Failure("the end of the connection", "it stays open") from None
        raise Failure("the end of the connection", f"another answer: {short(body)}")

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")
