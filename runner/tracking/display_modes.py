"""Choose the display for a mode and a stream."""

from __future__ import annotations

import os
import sys
from typing import Literal, TextIO

from runner.tracking.display import Display, PlainDisplay
from runner.tracking.notebook_display import NotebookDisplay, is_in_notebook

DisplayMode = Literal["auto", "live", "plain", "none"]


def make_display(mode: DisplayMode, stream: TextIO | None = None) -> Display:
    """Return the display for `mode` on `stream` (None: stdout, or a notebook's output).

    "auto" is live on a terminal and in a notebook, and plain elsewhere.
    """
    if mode == "none":
        return Display()
    if mode != "plain" and stream is None and is_in_notebook():
        return NotebookDisplay()
    stream = sys.stdout if stream is None else stream
    if mode == "plain" or (mode == "auto" and not is_capable_terminal(stream)):
        return PlainDisplay(stream)
    from rich.console import Console

    from runner.tracking.live_display import LiveDisplay

    return LiveDisplay(Console(file=stream, force_terminal=True, highlight=False))


def is_capable_terminal(stream: TextIO) -> bool:
    """Return whether lines on the stream can be redrawn in place."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except ValueError:  # closed
        return False
