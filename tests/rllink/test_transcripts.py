r"""Recorded conversations, replayed: what the server says to these bytes must not change. UPDATE_GOLDEN=1 rewrites it.

A transcript is read line by line:

    server: OVERRIDES      how the server is configured
    sample: N              the run samples N env steps; the weights of this moment become the newest ones
    connect                a connection (again)
    > BYTES                the client sends these bytes, as they are; \xNN and \\ as in Python
    < FRAME                the server's next frame: its header and its body
    <~ FRAME               the same, after any number of WAIT
    memory: BYTES          the client writes them to the start of the shared memory
    closed                 the server ends the connection

Frames of the server are shown with their bodies: JSON as it is, `msgpack` and what it says, `gzip` and what is inside.
What varies is masked, and the header with it: <file> (weights), <session>, <memory>, <version>, <action>. A <session>
in what the client sends is the one that was granted last.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.rllink.client.frames import FrameReader
from runner.rllink.client.packing import unpack
from tests.rllink.conftest import RawClient, Served

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
# Pattern in the text of a body -> what it becomes; a group is what varies.
MASKS = {
    r'"(?:onnx|safetensors)_file": ?"([^"]*)"': "<file>",
    r'"session": ?\{"id": ?"([^"]*)"': "<session>",
    r'"shared_memory": ?\{"name": ?"([^"]*)"': "<memory>",
    r'"server": ?"([^"]*)"': "<version>",
    r'"actions": ?\[([0-9][^\]]*)\]': "<action>",
}


class Replay:
    """One transcript: `lines` are as they should be afterwards."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._client: RawClient | None = None
        self._session = ""
        self._memory: Path | None = None
        self.is_sampling: Any = None

    def line(self, text: str) -> str:
        """Do what a line says; returns it as it should be."""
        mark, _, rest = text.partition(" ")
        match mark:
            case "connect":
                self.close()
                self._client = RawClient(self._served.address)
                self._client._reader = FrameReader()
            case ">":
                data = _bytes(rest).replace(b"<session>", self._session.encode())
                self._connected.socket.sendall(data)
            case "<":
                return f"< {self._shown(self._frame())}"
            case "<~":
                while b'"WAIT"' in (frame := self._frame()):
                    pass
                return f"<~ {self._shown(frame)}"
            case "sample:":
                self.is_sampling = self._served.sample(int(rest), update=self.is_sampling is not None)
            case "memory:":
                assert self._memory is not None
                with self._memory.open("r+b", buffering=0) as memory:
                    memory.write(_bytes(rest))
            case "closed":
                assert self._connected.is_closed()
            case _:
                assert mark in ("server:", "#", ""), f"no such line: {text}"
        return text

    @property
    def _connected(self) -> RawClient:
        assert self._client is not None, "a transcript begins with connect"
        return self._client

    def _frame(self) -> bytes:
        """The next frame, header and body."""
        header = self._received(8)
        header += self._received(8) if header[:1] == b"+" else b""
        return header + self._received(int(header.removeprefix(b"+")))

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._connected.socket.recv(size - len(data))
            assert more, "the server closed the connection"
            data += more
        return data

    def _shown(self, frame: bytes) -> str:
        header, body = frame[:8].decode(), frame[8:]
        kind, text = _text_of(body)
        shown = text
        for pattern, name in MASKS.items():
            shown = re.sub(pattern, lambda found: self._masked(found, name), shown)  # noqa: B023
        if shown != text or "gzip" in kind:
            header = "<length>"
        return " ".join(part for part in (header, kind, shown) if part)

    def _masked(self, found: re.Match[str], name: str) -> str:
        if name == "<session>":
            self._session = found[1]
        if name == "<memory>":
            self._memory = Path("/dev/shm", found[1])
        if name == "<action>":
            name = re.sub(r"\d+", name, found[1])
        start, stop = found.span(1)
        return found[0][: start - found.start()] + name + found[0][stop - found.start() :]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _text_of(body: bytes) -> tuple[str, str]:
    """What a body is, and what it says."""
    if body[:2] == b"\x1f\x8b":
        kind, text = _text_of(gzip.decompress(body))
        return f"gzip {kind}".strip(), text
    if body[:1] == b"{":
        return "", body.decode()
    return "msgpack", json.dumps(unpack(body), default=lambda data: f"{len(data)} bytes")


def _bytes(text: str) -> bytes:
    """Bytes of printable characters and escapes."""
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def test_there_is_one_for_the_base_protocol_and_for_each_extension() -> None:
    extensions = {"msgpack", "large_frames", "compression", "session", "heartbeat", "agents", "actions", "weights"}
    names = {path.stem for path in TRANSCRIPTS}
    assert names >= {"base", "errors", "on_policy", "token", "shared_memory"} | extensions


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_server_says_what_it_said(path: Path, serve: Callable[..., Served]) -> None:
    lines = path.read_text(encoding="ascii").splitlines()
    overrides = [line.removeprefix("server: ") for line in lines if line.startswith("server: ")]
    # Some made-up observations are outside of their space.
    replay = Replay(serve("env.validate_observations=warn", *overrides))
    try:
        said = [replay.line(line) for line in lines]
    finally:
        replay.close()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text("\n".join(said) + "\n", encoding="ascii")
    assert said == path.read_text(encoding="ascii").splitlines(), f"UPDATE_GOLDEN=1 rewrites {path}"
