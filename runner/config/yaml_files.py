"""Bounded reading of YAML files, and the line number of every key.

Small YAML documents can expand to huge values: aliases of aliases double a document with each line, and deeply nested
brackets crash libyaml's loader. The check of the event stream before loading neither follows aliases nor recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]

from runner.config.documents import MAX_DEPTH, MAX_ITEMS, read_regular

MAX_YAML_BYTES = 2**24
MarkedYAMLError = yaml.MarkedYAMLError
YAMLError = yaml.YAMLError
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class UnboundedYAMLError(yaml.MarkedYAMLError):  # type: ignore[misc]
    """A text that is nested too deeply, expands to too many values, or is too long."""


def read_bounded(path: Path) -> str:
    """Read the text of a YAML file and check it.

    Raises:
        OSError: the file cannot be read.
        MarkedYAMLError: the file is not encoded in UTF-8, or its text expands to too many values.
    """
    content = read_regular(path, MAX_YAML_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        mark = yaml.Mark(str(path), error.start, content.count(b"\n", 0, error.start), 0, None, None)
        raise MarkedYAMLError(problem="the file is not encoded in UTF-8", problem_mark=mark) from None
    check_bounds(text, str(path))
    return text


def file_version(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file changes, at the resolution of the file system's clock.

    Raises:
        OSError: the file does not exist.
    """
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def check_bounds(text: str, name: str) -> None:
    """Raise `UnboundedYAMLError` for text that expands to too many values; the loader reports invalid YAML.

    Args:
        text: one or more documents.
        name: file name for messages.
    """
    try:
        fault = _find_fault(text)
    except yaml.YAMLError:
        return
    if fault is not None:
        raise UnboundedYAMLError(problem=fault[1], problem_mark=_named(fault[0], name))


def _named(mark: Any, name: str) -> Any:
    return yaml.Mark(name, mark.index, mark.line, mark.column, None, None)


def _find_fault(text: str) -> tuple[Any, str] | None:
    """Return the position and the description of the first fault, or None."""
    expansion = _Expansion()
    for event in yaml.parse(text, Loader=_Loader):
        fault = expansion.add(event)
        if fault is not None:
            return event.start_mark, fault
    return None


class _Expansion:
    """Counts the values that a text expands to, event by event."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}  # anchor -> number of values of its aliases
        self._open_blocks: list[tuple[str | None, int]] = []  # anchor, values so far
        self._total = 0

    def add(self, event: Any) -> str | None:
        """Count an event; return its fault, or None."""
        if isinstance(event, _STARTS):
            self._open_blocks.append((event.anchor, 1))
            return f"values are nested deeper than {MAX_DEPTH}" if len(self._open_blocks) > MAX_DEPTH else None
        if isinstance(event, yaml.AliasEvent) and any(anchor == event.anchor for anchor, _ in self._open_blocks):
            return f"the alias *{event.anchor} contains itself"
        self._count(self._completed_size(event))
        return f"its aliases expand to more than {MAX_ITEMS:,} values" if self._total > MAX_ITEMS else None

    def _completed_size(self, event: Any) -> int:
        """Return the number of values that end with an event, and store it for aliases."""
        if isinstance(event, yaml.AliasEvent):
            return self._sizes.get(event.anchor, 1)
        if isinstance(event, _ENDS):
            anchor, size = self._open_blocks.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        else:
            return 0
        if anchor is not None:
            self._sizes[anchor] = size
        return size

    def _count(self, size: int) -> None:
        if self._open_blocks and size:
            anchor, so_far = self._open_blocks[-1]
            self._open_blocks[-1] = anchor, so_far + size
            self._total = max(self._total, so_far + size)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes texts such as 1e3: OmegaConf reads them as numbers, YAML 1.1 as texts."""

    def represent_text(self, text: str) -> yaml.Node:
        """Return the node of a text."""
        try:
            float(text)
        except ValueError:
            return self.represent_str(text)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="'")


_Dumper.add_representer(str, _Dumper.represent_text)


def dump_yaml(value: Any) -> str:
    """Return plain values as YAML; the innermost lists and blocks are in flow style."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120))


class _ValueLoader(_Loader):  # type: ignore[misc]
    """Reads dates as text, as OmegaConf does; 2026-02-30 looks like a date."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        start: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for start, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file."""
    return yaml.load(read_bounded(path), Loader=_ValueLoader)


def locate_keys(path: Path) -> list[tuple[tuple[str, ...], int, bool]]:
    """Return (keys from the root, line, whether it is a leaf) of every key and list item in file order.

    A list is a leaf, followed by its items under their indexes.
    """
    return _locate_keys(path, file_version(path))


@lru_cache(maxsize=256)
def _locate_keys(path: Path, _version: tuple[int, ...]) -> list[tuple[tuple[str, ...], int, bool]]:
    root = yaml.compose(read_bounded(path), Loader=_Loader)
    return [] if root is None else list(_walk(root, ()))


def find_default_line(path: Path, option: str) -> int | None:
    """Return the line of the entry in the defaults list with the option, or with a group of this name."""
    root = yaml.compose(read_bounded(path), Loader=_Loader)
    for key, entries in root.value if isinstance(root, yaml.MappingNode) else []:
        if key.value == "defaults" and isinstance(entries, yaml.SequenceNode):
            for entry in entries.value:
                if _names_option(entry, option):
                    return int(entry.start_mark.line) + 1
    return None


def _names_option(entry: yaml.Node, option: str) -> bool:
    if isinstance(entry, yaml.MappingNode):
        return any(_names_option(value, option) or _names_group(key, option) for key, value in entry.value)
    if isinstance(entry, yaml.SequenceNode):
        return any(_names_option(item, option) for item in entry.value)
    return str(entry.value).strip("/").split("@")[0] in (option, option.rpartition("/")[2])


def _names_group(key: yaml.Node, group: str) -> bool:
    return group in (part.strip("/") for part in str(key.value).split())


def _walk(node: yaml.Node, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int, bool]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            keys = (*prefix, str(key.value))
            yield keys, key.start_mark.line + 1, not isinstance(value, yaml.MappingNode)
            yield from _walk(value, keys)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            keys = (*prefix, str(index))
            yield keys, item.start_mark.line + 1, not isinstance(item, yaml.MappingNode)
            yield from _walk(item, keys)
