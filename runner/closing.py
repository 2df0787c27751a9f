"""Closing of several parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Closes(Protocol):
    """What holds processes, files or connections."""

    def close(self) -> None:
        """Give them back."""


def close_each(parts: Iterable[Closes | None]) -> None:
    """Close parts in order, the others too where one fails; its error is raised in the end.

    Of several errors the first is raised, an interrupt before others, with the rest as its notes.
    """
    errors: list[BaseException] = []
    for part in parts:
        try:
            if part is not None:
                part.close()
        except BaseException as error:
            errors.append(error)
    if errors:
        raised = next((one for one in errors if not isinstance(one, Exception)), errors[0])
        for one in errors:
            if one is not raised:
                raised.add_note(f"closing another part failed, too: {type(one).__name__}: {one}")
        raise raised
