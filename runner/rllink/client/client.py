"""The client of RLlink: it connects a simulator to a training run over TCP."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import random
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .answers import RLlinkError, ServerConfig, ServerGone, Task, Weights
from .frames import FrameReader, SharedWriter, compressed, decompressed, frame, is_compressed, shared_frame
from .packing import pack, unpack
from .sampling import LocalSampler, RemoteSampler

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
# Extensions that a client requests by default.
DEFAULT_EXTENSIONS: Mapping[str, Mapping[str, Any]] = {
    "msgpack": {},
    "large_frames": {},
    "session": {"id": None},
    "heartbeat": {"interval_s": 5.0},
    "actions": {},
    "agents": {},
    "env_ends": {},
    "tasks": {},
}
_MOST_RECEIVED = 1 << 30
_CHUNK = 1 << 18
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Client:
    """A connection to a server. If it breaks, the client reconnects and repeats the unanswered request.

    Args:
        host, port: address of the server.
        token: token of the server, or None.
        tls: SSL context for a server with a certificate, for example `ssl.create_default_context(cafile=...)`.
        extensions: name -> options of the extensions to request; `{}` requests none.
        timeout_s: seconds of silence after which the connection counts as broken; with the extension `heartbeat` the
            server sends signs of life while an answer is delayed.
        reconnect_s: seconds for which reconnecting is tried; 0 disables it.
        compress: whether to compress long messages.
        share_memory: whether to send long messages through shared memory if the server is on this machine.

    Attributes:
        extensions: name -> options of the extensions that the server granted.
        limits: limits of the server in its PONG.
        task_odds: task -> probability, as received with the newest weights or actions; empty before, and in runs
            without tasks.

    Raises:
        ServerGone: no server answers at this address.
        RLlinkError: the server rejects this client.
    """

    def __init__(  # noqa: PLR0913 - options of a connection, by name
        self,
        host: str = "127.0.0.1",
        port: int = 5556,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        extensions: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_s: float = 60.0,
        reconnect_s: float = 120.0,
        compress: bool = False,
        share_memory: bool = False,
    ) -> None:
        self._address = host, port
        self._token = token
        self._tls = tls
        self._asked = {**(DEFAULT_EXTENSIONS if extensions is None else extensions)}
        if compress:
            self._asked["compression"] = {"methods": ["gzip"]}
        if share_memory:
            self._asked["shared_memory"] = {}
        self._timeout_s, self._reconnect_s = timeout_s, reconnect_s
        self.extensions: dict[str, dict[str, Any]] = {}
        self.limits: dict[str, Any] = {}
        self.task_odds: dict[str, float] = {}
        self._session_id: str | None = None
        self._is_resumed = False
        self._shared: SharedWriter | None = None
        self._number = 0
        self._socket: socket.socket | None = None
        self._reader = FrameReader(_MOST_RECEIVED)
        self._config: ServerConfig | None = None
        try:
            self._connect_within(reconnect_s)
        except BaseException:
            self.close()
            raise

    # -- requests of a simulator -----------------------------------------------------------------------------------

    def get_config(self) -> ServerConfig:
        """Return the configuration of the server; it is requested only once."""
        if self._config is None:
            answer = self._ask({"type": "GET_CONFIG"}, "SET_CONFIG")
            names = ServerConfig.__dataclass_fields__
            self._config = ServerConfig(**{name: value for name, value in answer.items() if name in names})
        return self._config

    def get_state(self) -> Weights:
        """Return the newest weights."""
        return _weights(self._ask({"type": "GET_STATE"}, "SET_STATE"))

    def send_episodes(
        self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None, columns: Any = None
    ) -> int:
        """Send sampled data; return the number of the newest weights.

        Args:
            episodes: chunks as in the specification, section 6; with the extension `msgpack`, lists may be arrays.
            weights_seq_no: number of the weights that chose the actions, or None for the last weights received.
            columns: many chunks as one array block per column, instead of `episodes`.
        """
        answer = self._ask(_episodes("EPISODES", episodes, weights_seq_no, columns), "ACK")
        return int(answer["weights_seq_no"])

    def send_episodes_and_get_state(
        self, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None = None, columns: Any = None
    ) -> Weights:
        """Send sampled data and return weights, after the next update if the server forces on-policy sampling."""
        return _weights(self._ask(_episodes("EPISODES_AND_GET_STATE", episodes, weights_seq_no, columns), "SET_STATE"))

    def get_actions(self, episodes: Sequence[Mapping[str, Any]], explore: bool = True) -> list[Any]:
        """Request one action per episode, None for ended ones (specification, section 8, `actions`)."""
        answer = self._ask({"type": "GET_ACTIONS", "episodes": list(episodes), "explore": explore}, "ACTIONS")
        return list(answer["actions"])

    def draw_task(self, rng: np.random.Generator) -> Task | None:
        """Draw the task of a new episode, or return None if the run does not use tasks.

        Before the server has sent probabilities, all tasks are equally likely.
        """
        tasks = self.extensions.get("tasks", {}).get("tasks", {})
        if not tasks:
            return None
        odds = np.array([self.task_odds.get(name, 0.0) for name in tasks])
        name = str(rng.choice(list(tasks), p=odds / odds.sum() if odds.sum() > 0 else None))
        return Task(name, tasks[name]["options"], tasks[name]["env_config"])

    def ping(self) -> None:
        """Wait until the server answers a PING."""
        self._ask({"type": "PING"}, "PONG")

    def sampler(
        self, inference: Literal["client", "server"] = "client", seed: int | None = None
    ) -> LocalSampler | RemoteSampler:
        """Make a sampler, which returns an action for each observation and sends episodes when they are due.

        Args:
            inference: where to compute actions: in the client with onnxruntime, or on the server.
            seed: seed of the client's noise, or None for a random one.
        """
        if inference == "server":
            return RemoteSampler(self)
        return LocalSampler(self, np.random.default_rng(seed))

    # -- requests and answers ----------------------------------------------------------------------------------------

    def _ask(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        """Return the answer to a message; send it again after each break of the connection."""
        is_numbered = False
        while True:
            if "session" in self.extensions and message["type"] != "PING" and not is_numbered:
                self._number += 1
                is_numbered = True
            try:
                if is_numbered:
                    message["request"] = self._number
                self._send(message)
                answer = self._receive()
                _check_alive(answer)
            except (TypeError, ValueError):
                self._number -= is_numbered  # nothing was sent
                raise
            except OSError as error:
                if self._reconnect_s == 0:
                    raise
                _log.warning("RLlink: the connection to %s:%d broke: %s", *self._address, error)
                self._connect_within(self._reconnect_s)
                if not self._is_resumed:
                    message.pop("request", None)
                    is_numbered = False
                continue
            if answer["type"] == "ERROR":
                self._rejected(answer, is_numbered)
            if answer["type"] != expected:
                raise RLlinkError("bad_message", f"expected {expected}, but the server sent {answer['type']!r}")
            self.task_odds = answer.get("task_odds", self.task_odds)
            return answer

    def _rejected(self, answer: Mapping[str, Any], is_numbered: bool) -> None:
        code = str(answer.get("code"))
        if code == "shutting_down":
            self.close()
            raise ServerGone("the run is over")
        if is_numbered:
            self._number -= 1  # a rejected request was not carried out, so its number is free
        raise RLlinkError(code, str(answer.get("message")), answer.get("path"))

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._socket is None:
            raise ConnectionResetError("not connected")
        if "msgpack" in self.extensions:
            body = pack(message)
        else:
            body = json.dumps(message, default=_listed, allow_nan=False, separators=(",", ":")).encode()
        if self._shared is not None and self._shared.write(body):
            self._socket.sendall(shared_frame(len(body)))
            return
        if "compression" in self.extensions:
            body = compressed(body)
        self._socket.sendall(frame(body, "large_frames" in self.extensions))

    def _receive(self) -> dict[str, Any]:
        """Return the next answer, skipping signs of life."""
        while True:
            try:
                answer = self._read_value()
            except (TypeError, ValueError) as error:
                self.close()  # it is unknown where the next message begins
                raise RLlinkError("bad_message", f"the server sent a message that cannot be read: {error}") from error
            if not isinstance(answer, dict) or not isinstance(answer.get("type"), str):
                raise RLlinkError("bad_message", "the server sent a message that is not part of the protocol")
            if answer["type"] != "WAIT":
                return answer

    def _read_value(self) -> Any:
        while (body := self._reader.next_body()) is None:
            assert self._socket is not None
            data = self._socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        if is_compressed(body):
            body = decompressed(body, _MOST_RECEIVED)
        return json.loads(body) if body[:1] == b"{" else unpack(body)

    # -- connecting --------------------------------------------------------------------------------------------------

    def _connect_within(self, seconds: float) -> None:
        """Connect within this time; retry with growing pauses."""
        latest = time.monotonic() + seconds
        pause = _FIRST_PAUSE_S
        while True:
            try:
                self._connect()
                return
            except ServerGone:  # the run is over
                raise
            except OSError as error:
                self.close()
                left = latest - time.monotonic()
                if left <= 0:
                    self._session_id = None  # it is unknown whether its unanswered request was carried out
                    host, port = self._address
                    raise ServerGone(f"no RLlink server at {host}:{port}: {error}") from error
                time.sleep(
                    min(pause * random.uniform(0.5, 1.5), left)
                )  # avoids that all clients retry at the same time
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connect(self) -> None:
        self.close()
        self._socket = socket.create_connection(self._address, self._timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self._socket = self._tls.wrap_socket(self._socket, server_hostname=self._address[0])
        self._reader = FrameReader(_MOST_RECEIVED)
        self.extensions = {}
        ping: dict[str, Any] = {"type": "PING"}
        if self._token is not None:
            ping["token"] = self._token
        if self._asked:
            asked = dict(self._asked)
            if "session" in asked:
                asked["session"] = {"id": self._session_id}
            ping |= {"protocol": PROTOCOL_VERSION, "extensions": asked}
        self._send(ping)
        pong = self._receive()
        _check_alive(pong)
        if pong["type"] == "ERROR":
            self._rejected(pong, False)
        self.extensions, self.limits = pong.get("extensions", {}), pong.get("limits", {})
        self._reader.is_large_granted = "large_frames" in self.extensions
        if "shared_memory" in self.extensions:
            self._shared = _shared_writer(**self.extensions["shared_memory"])
        session = self.extensions.get("session")
        self._is_resumed = session is not None and bool(session["resumed"])
        if session is not None and not self._is_resumed:
            self._session_id, self._number = session["id"], 0

    def close(self) -> None:
        """End the connection."""
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shared_writer(name: str, size: int) -> SharedWriter | None:
    try:
        return SharedWriter(name, size)
    except OSError as error:  # for example behind a tunnel, through which a client looks local to the server
        _log.warning("RLlink: messages are not sent through shared memory: %s", error)
        return None


def _check_alive(answer: Mapping[str, Any]) -> None:
    """Raise `ConnectionResetError` if the server ends this connection but may accept a new one."""
    if answer["type"] == "ERROR" and answer.get("code") in ("timeout", "too_many_clients"):
        raise ConnectionResetError(str(answer.get("message")))


def _episodes(
    kind: str, episodes: Sequence[Mapping[str, Any]], weights_seq_no: int | None, columns: Any
) -> dict[str, Any]:
    message: dict[str, Any] = {"type": kind}
    message |= {"episodes": list(episodes)} if columns is None else {"columns": columns}
    return message if weights_seq_no is None else {**message, "weights_seq_no": weights_seq_no}


def _weights(answer: Mapping[str, Any]) -> Weights:
    modules: Iterable[tuple[str | None, Mapping[str, Any]]] = [(None, answer)]
    if "modules" in answer:
        modules = answer["modules"].items()
    return Weights(int(answer["weights_seq_no"]), {module_id: _file(module) for module_id, module in modules})


def _file(module: Mapping[str, Any]) -> bytes:
    content = module["onnx_file"] if "onnx_file" in module else module["safetensors_file"]
    if isinstance(content, str):
        content = base64.b64decode(content, validate=True)
    return gzip.decompress(content) if "onnx_file" in module else bytes(content)


def _listed(value: Any) -> Any:
    """Turn arrays and numbers of numpy into lists and numbers for JSON."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be sent")
