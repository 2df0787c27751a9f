"""Serves a page that follows a folder, to browsers of this machine."""

from __future__ import annotations

import re
import socketserver
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from runner.config.documents import read_regular
from runner.interrupts import interrupts, is_interrupted
from runner.pages.page import PAGE_SCRIPT, Content, render_document
from runner.pages.run_files import MOST_VIDEO_BYTES
from runner.report.followed_folder import VIDEOS, FollowedFolder

ADDRESS = "127.0.0.1"
# Names of this machine, with any port: a tunnel may end at another one. A foreign web page whose name leads here (DNS
# rebinding) has its own name in `Host`.
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
        followed: what the page shows.
        port: of 127.0.0.1; 0: a free one.

    Raises:
        OSError: the port is taken, or may not be used.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, followed: FollowedFolder, port: int = 0) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self.timeout = _POLL_S
        self.followed = followed
        # The page is there at once, and asks for what is in it: reading a long run takes seconds.
        self.document = render_document("runner", Content("", {}), [PAGE_SCRIPT, _WATCH_SCRIPT], _SOURCES).encode()

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def serve_until_interrupted(self) -> None:
        """Answer requests until Ctrl-C or SIGTERM."""
        with interrupts():
            while not is_interrupted():
                self.handle_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the stack trace of an error; nothing where the browser has gone: tabs are closed at any time."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request, after which a connection is closed

    def do_GET(self) -> None:
        """Answer one request."""
        if not _HOST.fullmatch(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"the page is for browsers of this machine")
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
        """Print no line for each request."""
