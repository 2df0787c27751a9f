"""A browser without a window that tests talk to: one page, through Chromium's DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import WAIT_S

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for found in map(shutil.which, NAMES) if found), None)
_POLL_S = 0.1
_COMMANDS, _REPLIES = 3, 4  # file descriptors, as the protocol has them


class BrowserPage:
    """An open page.

    Attributes:
        complaints: errors of its scripts, and what it was refused to load.
    """

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._received, self._number, self._session = b"", 0, ""
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Go to an address."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        self._call("Emulation.setScrollbarsHidden", hidden=True)  # a picture of the whole page has none
        self._call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return what a JavaScript expression gives, also a promise, as JSON has it."""
        given = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in given, given
        return given["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Return the first value of an expression that counts as true."""
        give_up_s = time.monotonic() + WAIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < give_up_s, (script, self.evaluate("document.body?.innerText"), self.complaints)
            time.sleep(_POLL_S)
        return value

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._number:
            self._hear(reply)
        assert "error" not in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.complaints.append(event["params"]["entry"]["text"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            received = os.read(self._replies, 2**20)
            assert received, "the browser has ended"
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        content: dict[str, Any] = json.loads(message)
        return content


@contextmanager
def browser_page(folder: Path) -> Iterator[BrowserPage]:
    """Start a browser that keeps its files in a folder; gives its page."""
    assert BROWSER is not None
    (commands_in, commands_out), (replies_in, replies_out) = os.pipe(), os.pipe()

    def place_pipes() -> None:
        # Copies first: one of the pipes may have the other's place.
        ends = [os.dup(commands_in), os.dup(replies_out)]
        for end, place in zip(ends, (_COMMANDS, _REPLIES), strict=True):
            os.dup2(end, place)

    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        [*command, f"--user-data-dir={folder / 'profile'}"],
        preexec_fn=place_pipes,
        close_fds=False,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands_in)
    os.close(replies_out)
    try:
        yield BrowserPage(commands_out, replies_in)
    finally:
        process.kill()
        process.wait()
        os.close(commands_out)
        os.close(replies_in)
