"""Bounded reading of untrusted documents: JSON, YAML and plain values.

A small text can expand to a huge value: aliases of aliases in YAML, or references to references in a configuration.
Nested brackets can exhaust the interpreter's stack.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

MAX_DEPTH = 64
MAX_BYTES = 2**34
MAX_ITEMS = 200_000
MAX_LETTERS = 2**24
_REFERENCE = re.compile(r"\$\{(\.*[\w./\[\]-]+)\}")


class TooLargeError(ValueError):
    """A document is nested too deeply, or expands to too many values."""


def parse_json(text: str | bytes) -> Any:
    """Return the plain values of a JSON document.

    Raises:
        ValueError: the text is not valid JSON, or nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooLargeError(f"values are nested deeper than {MAX_DEPTH}") from None
    brackets = ("{", "[") if isinstance(text, str) else (b"{", b"[")
    if sum(map(text.count, brackets)) > MAX_DEPTH:  # type: ignore[arg-type]  # fewer cannot lie deeper
        check_depth(value)
    return value


def read_regular(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a regular file. Pipes and devices, which might never end, are rejected.

    Raises:
        OSError: the file cannot be read, is not regular, or has more than `max_bytes`.
    """
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            raise OSError(f"{path} has {num_bytes:,} bytes; expected at most {max_bytes:,}")
        return file.read()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Pipes and devices, which might never end, are rejected.

    Raises:
        OSError: the file cannot be read, or is not regular.
    """
    file = open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")  # noqa: SIM115  # the caller's
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def check_depth(value: Any) -> None:
    """Raise `TooLargeError` if plain values are nested deeper than `MAX_DEPTH`."""
    level = [value] if isinstance(value, (Mapping, list)) else []
    for _ in range(MAX_DEPTH):
        inner = [one if isinstance(one, list) else one.values() for one in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
        if not level:
            return
    raise TooLargeError(f"values are nested deeper than {MAX_DEPTH}")


def check_expansion(values: Any) -> None:
    """Check the size of a configuration after resolution, without resolving its references.

    Raises:
        TooLargeError: more than `MAX_ITEMS` values or `MAX_LETTERS` letters, or circular references.
    """
    _Expansion(values).check()


class _Expansion:
    """Counts values and letters; each position in the configuration is counted once."""

    def __init__(self, values: Any) -> None:
        self._values = values
        # Key: id of a container, or a text and the place of its block.
        self._known: dict[Hashable, tuple[int, int]] = {}
        self._open: set[Hashable] = set()

    def check(self) -> None:
        check_depth(self._values)
        try:
            items, letters = self._size(self._values, ())
        except RecursionError:
            raise TooLargeError("references are circular or nested too deeply") from None
        if items > MAX_ITEMS or letters > MAX_LETTERS:
            raise TooLargeError(f"its references expand to {items:,} values with {letters:,} letters")

    def _size(self, value: Any, place: tuple[str, ...]) -> tuple[int, int]:
        if isinstance(value, str):
            return self._size_of_text(value, place) if "${" in value else (1, len(value))
        if not isinstance(value, (dict, list)):
            return 1, 0
        if id(value) in self._known:
            return self._known[id(value)]
        if id(value) in self._open:
            raise TooLargeError("references are circular")
        self._open.add(id(value))
        keyed = value.items() if isinstance(value, dict) else enumerate(value)
        sizes = [self._size(item, (*place, str(key))) for key, item in keyed]
        self._open.discard(id(value))
        self._known[id(value)] = 1 + sum(items for items, _ in sizes), sum(letters for _, letters in sizes)
        return self._known[id(value)]

    def _size_of_text(self, text: str, place: tuple[str, ...]) -> tuple[int, int]:
        key = (text, place[:-1])
        if key in self._known:
            return self._known[key]
        if key in self._open:
            raise TooLargeError("references are circular")
        self._open.add(key)
        sizes = [(1, len(text))]
        for match in _REFERENCE.finditer(text):
            found, at = self._find(match.group(1), place)
            sizes.append(self._size(found, at))
        self._open.discard(key)
        self._known[key] = sum(items for items, _ in sizes), sum(letters for _, letters in sizes)
        return self._known[key]

    def _find(self, reference: str, place: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Return the value of a reference and its position; None if it does not exist, which the resolution reports."""
        dots = len(reference) - len(reference.lstrip("."))
        start = place[: max(0, len(place) - dots)] if dots else ()
        parts: tuple[str, ...] = (*start, *(part for part in re.split(r"[.\[\]]+", reference.lstrip(".")) if part))
        value, at = self._values, parts[:0]
        for number, part in enumerate(parts):
            if isinstance(value, str) and (match := _REFERENCE.fullmatch(value)):
                value, at = self._find(match.group(1), at)
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None, parts[:number]
            at = (*at, part)
        return value, at
