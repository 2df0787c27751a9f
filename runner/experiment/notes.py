"""Lines for the user while a trainer is built and runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


class Notes:
    """Shows lines with a function, or logs them.

    Args:
        show: prints a line, or None to log it.
    """

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show

    def warn(self, text: str) -> None:
        """Show a line, and log it as a warning."""
        (self._show or _log.warning)(text)

    def inform(self, text: str) -> None:
        """Show a line, logged as information, for example while the run waits."""
        (self._show or _log.info)(text)

    @contextmanager
    def shown_by(self, show: Callable[[str], None]) -> Iterator[None]:
        """Show lines with this function within the context."""
        before, self._show = self._show, show
        try:
            yield
        finally:
            self._show = before
