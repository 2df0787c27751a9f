"""A small RLlink server that shares no code with ours: the base protocol, with one defect at a time."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import math
import threading
from typing import Any

_TYPES = {"PING", "GET_CONFIG", "GET_STATE", "EPISODES", "EPISODES_AND_GET_STATE", "GET_ACTIONS"}
_KEYS = {
    "PING": {"protocol": int, "extensions": dict, "token": str},
    "GET_CONFIG": {},
    "GET_STATE": {},
    "EPISODES": {"episodes": list, "weights_seq_no": int, "env_steps": int},
}
_KEYS["EPISODES_AND_GET_STATE"] = _KEYS["EPISODES"]
_CHUNK = {"obs": list, "actions": list, "rewards": list, "is_terminated": bool, "is_truncated": bool}
_OPTIONAL = {"id": str, "weights_seq_no": int, "action_logp": list, "action_dist_inputs": list}
_LIMITS = {
    "max_body_bytes": 1_000_000,
    "max_open_episodes": 20,
    "handshake_timeout_s": 0.3,
    "max_abs_reward": 1e6,
    "idle_timeout_s": 600,
    "frame_timeout_s": 0.2,
}
_CONFIG = {
    "env_steps_per_sample": 10,
    "force_on_policy": False,
    "observation_space": {
        "space": "box",
        "low": [-1.0, "-inf"],
        "high": [1.0, "inf"],
        "shape": [2],
        "dtype": "float32",
    },
    "action_space": {"space": "discrete", "n": 3, "start": 0, "dtype": "int64"},
}
_NEWEST = 4


class Refused(Exception):
    def __init__(self, code: str, path: str | None = None, closes: bool = False) -> None:
        self.code, self.path, self.closes = code, path, closes


class SmallServer:
    """Listens on a free port. `defect`: what is done wrong; "" for nothing. `token`: that it asks for."""

    def __init__(self, defect: str = "", token: str | None = None) -> None:
        self.defect, self.token = defect, token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(5)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _Conversation(self, reader, writer).go_on()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class _Conversation:
    def __init__(self, server: SmallServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._defect, self._token = server.defect, server.token
        self._reader, self._writer = reader, writer
        self._has_asked = self._is_seated = False
        self._is_authorized = server.token is None
        self._open: dict[str, Any] = {}
        self._held: list[bytes] = []

    async def go_on(self) -> None:
        if self._defect == "speaks unasked":
            self._send({"type": "SET_CONFIG"})
        while True:
            try:
                body = await self._body()
                if self._defect == "waits for more" and self._reader._buffer:  # type: ignore[attr-defined]
                    await self._body()
                answer = self._answer(body)
            except Refused as refused:
                answer = {"type": "ERROR", "code": refused.code, "message": "no"}
                if refused.path is not None and self._defect != "no path":
                    answer["path"] = refused.path
                if self._defect == "closes after a mistake":
                    return
                self._send(answer)
                if refused.closes and self._defect != "never closes":
                    await self._writer.drain()
                    return
                continue
            if answer is not None:
                self._send(answer)

    def _send(self, answer: dict[str, Any]) -> None:
        if self._defect == "heartbeat unasked" and answer["type"] == "ACK":
            self._send({"type": "WAIT"})
        body = json.dumps(answer).encode()
        if answer == {"type": "PONG"} and self._defect == "other bytes in PONG":
            body = b'{"type":"PONG"}'
        header = b"%8d" if self._defect == "blanks in headers" else b"%08d"
        frame = header % len(body) + body
        if self._defect == "swaps answers" and answer["type"] == "SET_CONFIG" and self._reader._buffer:  # type: ignore[attr-defined]
            self._held.append(frame)
            return
        self._writer.write(frame + b"".join(self._held) + (frame if self._defect == "answers twice" else b""))
        self._held.clear()

    async def _header(self) -> bytes:
        is_patient = self._is_seated or self._defect == "waits for ever"
        try:
            return await asyncio.wait_for(
                self._reader.readexactly(8), None if is_patient else _LIMITS["handshake_timeout_s"]
            )
        except TimeoutError:
            raise Refused("timeout", closes=True) from None

    async def _body(self) -> bytes:
        header = await self._header()
        if not (header.isdigit() and header.isascii()) and self._defect != "any header":
            raise Refused("bad_header", closes=True)
        length = int(header) if header.isdigit() else 16
        if length > _LIMITS["max_body_bytes"] and self._defect != "any length":
            raise Refused("too_large", closes=True)
        self._is_seated = self._is_authorized
        reading = self._reader.readexactly(length)
        if self._defect == "no timeout":
            return await reading
        try:
            return await asyncio.wait_for(reading, _LIMITS["frame_timeout_s"])
        except TimeoutError:
            raise Refused("timeout", closes=True) from None

    def _answer(self, body: bytes) -> dict[str, Any] | None:
        message = self._message(body)
        kind = message.pop("type")
        if kind == "PING":
            return self._pong(message)
        if not self._is_authorized and self._defect != "forgets the token":
            raise Refused("unauthorized")
        if kind == "GET_CONFIG":
            config = {"type": "SET_CONFIG", **_CONFIG}
            if self._defect == "no action space":
                del config["action_space"]
            if self._defect == "an agent without spaces":
                config["agents"] = {"a": None}
            return config
        if kind == "GET_STATE":
            return self._state()
        if kind == "GET_ACTIONS":
            raise Refused("bad_message" if self._defect == "wrong code" else "not_granted", "$.type")
        num_env_steps = self._take(message)
        if self._defect == "unanswered EPISODES":
            return None
        if kind == "EPISODES_AND_GET_STATE":
            return self._state()
        if self._defect == "counts episodes":
            num_env_steps = len(message["episodes"])
        return {"type": "ACK", "env_steps": num_env_steps, "weights_seq_no": _NEWEST}

    def _message(self, body: bytes) -> dict[str, Any]:
        constant = float if self._defect == "NaN is a number" else _refuse
        try:
            message = json.loads(body.decode(), parse_constant=constant)
        except (ValueError, RecursionError):
            raise Refused("bad_body") from None
        if not isinstance(message, dict):
            raise Refused("bad_body")
        kind = message.get("type")
        if not isinstance(kind, str):
            raise Refused("bad_message", "$.type")
        if kind not in _TYPES:
            raise Refused("bad_message" if self._defect == "unknown is bad" else "unknown_type", "$.type")
        if kind != "GET_ACTIONS":
            required = {"episodes"} if kind.startswith("EPISODES") else set()
            self._check_keys(message, {"type": str, **_KEYS[kind]}, {"type"} | required, "$")
        return message

    def _check_keys(self, value: dict[str, Any], types: dict[str, Any], required: set[str], path: str) -> None:
        for key in required - value.keys():
            raise Refused("bad_message", f"{path}.{key}")
        for key, field in value.items():
            if key == "request":
                raise Refused("not_granted", f"{path}.request")
            if key not in types:
                if self._defect == "ignores unknown keys":
                    continue
                raise Refused("bad_message", f"{path}.{key}")
            if type(field) is not types[key] or (key == "protocol" and field < 1 and self._defect != "protocol 0"):
                raise Refused("bad_message", f"{path}.{key}")

    def _pong(self, ping: dict[str, Any]) -> dict[str, Any]:
        if "token" in ping and self._token is not None:
            self._is_authorized = ping["token"] == self._token
            if not self._is_authorized:
                raise Refused("unauthorized", closes=True)
        if not ping.keys() - {"token"}:
            return {"type": "PONG"}
        if not self._is_authorized:
            raise Refused("unauthorized")
        asked = ping.get("extensions", {})
        for name, options in asked.items():
            if not isinstance(options, dict):
                raise Refused("bad_message", f"$.extensions.{name}")
        if asked and self._has_asked and self._defect != "asks again":
            raise Refused("bad_message", "$.extensions")
        self._has_asked |= bool(asked)
        granted = asked if self._defect == "grants everything" else {}
        if self._defect == "grants more":
            granted = {"heartbeat": {"interval_s": 1}}
        limits = {} if self._defect == "no limits" else _LIMITS
        return {"type": "PONG", "protocol": 1, "server": "small", "extensions": granted, "limits": limits}

    def _state(self) -> dict[str, Any]:
        content = b"no model" if self._defect == "no model" else _model()
        packed = content if self._defect == "no gzip" else gzip.compress(content)
        return {"type": "SET_STATE", "weights_seq_no": _NEWEST, "onnx_file": base64.b64encode(packed).decode()}

    def _take(self, message: dict[str, Any]) -> int:
        is_atomic = self._defect != "takes half a message"
        going = dict(self._open) if is_atomic else self._open
        num_env_steps = 0
        for number, chunk in enumerate(message["episodes"]):
            path = f"$.episodes[{number}]"
            if not isinstance(chunk, dict):
                raise Refused("bad_message", path)
            num_env_steps += self._take_chunk(chunk, path, going, message.get("weights_seq_no"))
        if message.get("env_steps", num_env_steps) != num_env_steps and self._defect != "believes env_steps":
            raise Refused("bad_message", "$.env_steps")
        if len(going) > _LIMITS["max_open_episodes"] and self._defect != "any number of episodes":
            raise Refused("too_many_episodes")
        self._open = going
        return num_env_steps

    def _take_chunk(self, chunk: dict[str, Any], path: str, going: dict[str, Any], seq_no: Any) -> int:
        self._check_keys(chunk, _CHUNK | _OPTIONAL, set(_CHUNK), path)
        length = len(chunk["actions"])
        for obs in chunk["obs"]:
            if not (isinstance(obs, list) and len(obs) == 2 and all(map(_is_number, obs))):
                raise Refused("bad_message", f"{path}.obs")
            if self._defect == "obs in bounds only" and not -1 <= obs[0] <= 1:
                raise Refused("bad_message", f"{path}.obs")
        for action in chunk["actions"]:
            if type(action) is not int or not (0 <= action < 3 or self._defect == "any action"):
                raise Refused("bad_message", f"{path}.actions")
        if length == 0 and self._defect != "empty chunks":
            raise Refused("bad_message", f"{path}.actions")
        if len(chunk["rewards"]) != length or not all(map(_is_number, chunk["rewards"])):
            raise Refused("bad_message", f"{path}.rewards")
        if max(map(abs, chunk["rewards"])) > _LIMITS["max_abs_reward"] and self._defect != "any reward":
            raise Refused("bad_message", f"{path}.rewards")
        if len(chunk["obs"]) != length + 1:
            raise Refused("bad_message", f"{path}.obs")
        if chunk["is_terminated"] and chunk["is_truncated"]:
            raise Refused("bad_message", f"{path}.is_truncated")
        seq_no = chunk.get("weights_seq_no", seq_no)
        if seq_no is not None and self._defect != "any weights":
            has_outputs = "action_logp" in chunk and "action_dist_inputs" in chunk
            if seq_no > _NEWEST or (seq_no < 1 and not has_outputs):
                raise Refused("unknown_weights", "$.weights_seq_no")
        self._join(chunk, path, going)
        return length

    def _join(self, chunk: dict[str, Any], path: str, going: dict[str, Any]) -> None:
        if "id" not in chunk:
            return
        last = going.get(chunk["id"])
        if last is not None and last != chunk["obs"][0] and self._defect != "joins anything":
            raise Refused("bad_message", f"{path}.obs")
        if not chunk["is_terminated"] and not chunk["is_truncated"]:
            going[chunk["id"]] = chunk["obs"][-1]
        elif self._defect != "ids are never free":
            going.pop(chunk["id"], None)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _model() -> bytes:
    """An ONNX file with nothing but names, by hand."""

    def part(number: int, content: bytes) -> bytes:
        assert len(content) < 128
        return bytes((number << 3 | 2, len(content))) + content

    width = part(1, bytes((8, 3)))
    shape = part(2, part(1, part(2, part(1, part(2, b"batch")) + width)))
    outputs = part(12, part(1, b"actions")) + part(12, part(1, b"action_dist_inputs") + shape)
    graph = part(11, part(1, b"obs")) + outputs
    return part(7, graph) + part(14, part(1, b"runner_manifest") + part(2, b"{}"))
