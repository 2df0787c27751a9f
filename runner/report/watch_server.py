"""Serve a live page of the folder of a run or a sweep to browsers on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.config.documents import read_regular
from runner.config.errors import RunnerError
from runner.interrupts import interrupts, is_interrupted
from runner.locks import owner_of
from runner.pages.page import PAGE_SCRIPT, Content, Page, render_content, render_document
from runner.pages.run_data import MOST_VIDEO_BYTES
from runner.pages.run_page import run_page
from runner.pages.run_record import find_videos, read_run
from runner.report.sweep_page import sweep_page
from runner.report.sweep_record import read_sweep
from runner.sweep.trials import SweepFolder
from runner.tracking.series import Follow, follow_columns

VIDEOS = "videos"
# Files of a run or a sweep that change while it is running.
_FILES = (
    *("progress.jsonl", "result.json", "environment.json", f"{VIDEOS}/*.mp4"),
    *("sweep.json", "trials.jsonl", "mutations.jsonl", "*/progress.jsonl"),
)
# Pause in seconds per second of rendering, because the training shares the machine.
_PAUSE_PER_WORK, _LONGEST_PAUSE_S = 5.0, 15.0


class FollowedRun:
    """A run dir; the page refers to its videos by URL. Only new lines of progress.jsonl are read for each page."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._columns = follow_columns(run_dir)

    def page(self) -> Page:
        """Return the current page."""
        if not self._run_dir.is_dir():
            raise FileNotFoundError(f"{self._run_dir} no longer exists")
        return run_page(read_run(self._run_dir, self._columns.read()), lambda file: f"{VIDEOS}/{file.name}")


class FollowedSweep:
    """Folder of a sweep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._follow: Follow = cache(follow_columns)

    def page(self) -> Page:
        """Return the current page."""
        return sweep_page(read_sweep(SweepFolder.open(self._folder, follow=self._follow), self._follow))


@dataclass(frozen=True)
class Update:
    """A page as JSON, and a tag that changes with it."""

    tag: str
    body: bytes


class FollowedFolder:
    """Renders a folder when its files have changed, for any number of readers. Thread-safe.

    Args:
        folder: folder of the run or the sweep.
        page_of: returns its current page, or raises `RunnerError` or OSError.
    """

    def __init__(self, folder: Path, page_of: Callable[[], Page]) -> None:
        self._folder = folder
        self._page_of = page_of
        self._lock = threading.Lock()
        self._state: object = None
        self._next_s = 0.0  # earliest time of the next rendering, by the monotonic clock
        self._update = Update("", b"")

    def update(self) -> Update:
        """Return the current page. If rendering is slow, it may be some seconds old.

        The JSON contains `html`, `specs`, `title` and `is_running`, or only `problem`, the reason for a missing page.
        """
        with self._lock:
            started_s = time.monotonic()
            if started_s < self._next_s:
                return self._update
            state = self._read_state()
            if state != self._state:
                self._update = self._render()
                self._state = state
                work_s = time.monotonic() - started_s
                self._next_s = time.monotonic() + min(_PAUSE_PER_WORK * work_s, _LONGEST_PAUSE_S)
            return self._update

    def find_video(self, name: str) -> Path | None:
        """Return a video of the run, or None if it does not exist."""
        return next((file for file in find_videos(self._folder / VIDEOS) if file.name == name), None)

    def _read_state(self) -> object:
        """Return a value that is equal as long as the files have not changed."""
        files = sorted(file for pattern in _FILES for file in self._folder.glob(pattern))
        return owner_of(self._folder), [(file, status.st_mtime_ns, status.st_size) for file, status in _stat(files)]

    def _render(self) -> Update:
        try:
            page = self._page_of()
            content = render_content(page)
            known = {"html": content.html, "specs": content.specs, "is_running": page.is_running}
            body = json.dumps({**known, "title": f"{page.title} - {page.kind}"}, allow_nan=False).encode()
        except (RunnerError, OSError) as error:
            body = _problem(str(error))
        except Exception as error:  # a bug in the report; the page shows it and may recover
            what = f"The page cannot be created: {type(error).__name__}: {error}."
            body = _problem(f"{what} `runner report {self._folder}` shows the stack trace.")
        return Update(f'"{hashlib.sha256(body).hexdigest()}"', body)


def _problem(text: str) -> bytes:
    return json.dumps({"problem": text}).encode()


def _stat(files: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for file in files:
        with suppress(OSError):  # deleted meanwhile
            yield file, file.stat()


ADDRESS = "127.0.0.1"
# Names of this machine, with any port because of tunnels. A foreign web page that resolves to this machine (DNS
# rebinding) sends a different name in `Host`.
_HOST = re.compile(rf"({re.escape(ADDRESS)}|localhost)(:[0-9]+)?")
_SOURCES = "connect-src 'self'; media-src blob:"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLL_S = 0.2
_WATCH_SCRIPT = Path(__file__).parent / "watch.js"


class WatchServer(socketserver.ThreadingTCPServer):
    """Answers `/`, `/update` and `/videos/NAME`, and nothing else.

    Args:
        followed: folder to show.
        port: port of 127.0.0.1, or 0 for any free port.

    Raises:
        OSError: the port is in use, or may not be used.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, followed: FollowedFolder, port: int = 0) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.timeout = _POLL_S
        self.followed = followed
        # The empty page is available immediately and then requests its content, as reading a long run takes seconds.
        self.document = render_document("runner", Content("", {}), [PAGE_SCRIPT, _WATCH_SCRIPT], _SOURCES).encode()

    @property
    def url(self) -> str:
        """URL of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def serve_until_interrupted(self) -> None:
        """Answer requests until Ctrl-C or SIGTERM."""
        with interrupts():
            while not is_interrupted():
                self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the stack trace of an error, except for connections closed by the browser."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request, after which a connection is closed

    def do_GET(self) -> None:
        """Answer a request."""
        if not _HOST.fullmatch(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is only available to browsers on this machine")
            return
        try:
            path = urlsplit(self.path).path
        except ValueError as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain; charset=utf-8", str(error).encode())
            return
        if path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.document)
        elif path == "/update":
            self._send_update()
        else:
            self._send_video(path)

    def _send_update(self) -> None:
        update = self.server.followed.update()
        if self.headers.get("If-None-Match") == update.tag:
            self._send(HTTPStatus.NOT_MODIFIED, "application/json", b"", ETag=update.tag)
        else:
            self._send(HTTPStatus.OK, "application/json", update.body, ETag=update.tag)

    def _send_video(self, path: str) -> None:
        folder, _, name = path.removeprefix("/").partition("/")
        file = self.server.followed.find_video(unquote(name)) if folder == VIDEOS else None
        try:
            content = None if file is None else read_regular(file, MOST_VIDEO_BYTES)
        except OSError as error:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", str(error).encode())
            return
        if content is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"not found")
        else:
            self._send(HTTPStatus.OK, "video/mp4", content)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers, "Content-Type": kind}.items():
            self.send_header(name, value)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""
