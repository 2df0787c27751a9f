"""Closes several parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Closes(Protocol):
    """An object that holds processes, files or connections."""

    def close(self) -> None:
        """Free the resources."""


def close_each(parts: Iterable[Closes | None]) -> None:
    """Close every part in order, even if one fails; re-raise the first error at the end.

    An interrupt takes precedence over other errors. Further errors become notes of the raised one.
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
                raised.add_note(f"closing another part also failed: {type(one).__name__}: {one}")
        raise raised
