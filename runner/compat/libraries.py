"""Libraries whose private names are used: the versions that were checked, and the error when a name is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class LibraryChangedError(Exception):
    """An installed library lacks a private name that `runner` uses."""

    exit_code = 1  # `ExitCode.FAILED`, which is in a higher layer


@dataclass(frozen=True)
class Library:
    """A library with private names that `runner` uses.

    Attributes:
        name: name of its distribution on PyPI.
        checked: versions that the private names were checked with.
    """

    name: str
    checked: str

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Convert an error about a missing name of the library to a `LibraryChangedError`."""
        try:
            yield
        except (ImportError, AttributeError) as error:
            raise self.changed(str(error)) from error

    def require(self, owner: object, *names: str) -> None:
        """Check that a class or module of the library has these names.

        Raises:
            LibraryChangedError: a name is missing.
        """
        for name in names:
            if not hasattr(owner, name):
                raise self.changed(f"{getattr(owner, '__name__', owner)} does not define {name}")

    def changed(self, what: str) -> LibraryChangedError:
        """Return the error for a missing name."""
        return LibraryChangedError(
            f"{self.name} {self._installed()} is not compatible with this version of runner: {what}; "
            f"pip install '{self.name}{self.checked}'"
        )

    def _installed(self) -> str:
        import importlib.metadata  # takes longer to import than this module

        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return "(unknown version)"
