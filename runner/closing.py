"""Closing of several parts."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Protocol


class Closes(Protocol):
    """What holds processes, files or connections."""

    def close(self) -> None:
        """Give them back."""


def close_each(parts: Iterable[Closes | None]) -> None:
    """Close parts in order, the others too where one fails; its error is raised in the end.

    After several failures the last error is raised, with the earlier ones as its context.
    """
    with ExitStack() as stack:
        for part in reversed(list(parts)):
            if part is not None:
                stack.callback(part.close)
