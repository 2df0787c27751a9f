"""Refusal of small YAML texts that expand to huge values, before they are loaded.

Aliases of aliases double a document with each line, and brackets in brackets crash libyaml's loader. The stream of
events that is checked here neither follows aliases nor recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from runner.config.documents import MAX_DEPTH, MAX_ITEMS, read_regular

MAX_YAML_BYTES = 2**24
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class UnboundedYAMLError(yaml.MarkedYAMLError):  # type: ignore[misc]
    """A text that is nested too deep, expands to too much, or is too long."""


def read_bounded(path: Path) -> str:
    """Read the text of a YAML file and check it.

    Raises:
        OSError, UnicodeDecodeError: the file cannot be read.
        UnboundedYAMLError: the text expands to too much.
    """
    text = read_regular(path, MAX_YAML_BYTES).decode("utf-8")
    check_bounds(text, str(path))
    return text


def check_bounds(text: str, name: str) -> None:
    """Raise `UnboundedYAMLError` for a text that expands to too much; invalid YAML is left to the loader.

    Args:
        text: one document or several.
        name: of the file, for messages.
    """
    try:
        fault = next(_find_faults(text), None)
    except yaml.YAMLError:
        return
    if fault is not None:
        raise UnboundedYAMLError(problem=fault[1], problem_mark=_named(fault[0], name))


def _named(mark: Any, name: str) -> Any:
    return yaml.Mark(name, mark.index, mark.line, mark.column, None, None)


def _find_faults(text: str) -> Iterator[tuple[Any, str]]:
    sizes: dict[str, int] = {}  # anchor -> values that an alias of it stands for
    open_blocks: list[tuple[str | None, int]] = []  # anchor, values so far
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        size = 0
        if isinstance(event, _STARTS):
            open_blocks.append((event.anchor, 1))
            if len(open_blocks) > MAX_DEPTH:
                yield event.start_mark, f"values in values, deeper than {MAX_DEPTH}"
        elif isinstance(event, _ENDS):
            anchor, size = open_blocks.pop()
            if anchor is not None:
                sizes[anchor] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            if event.anchor is not None:
                sizes[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_blocks):
                yield event.start_mark, f"the alias *{event.anchor} stands inside what it stands for"
            size = sizes.get(event.anchor, 1)
        if open_blocks and size:
            anchor, so_far = open_blocks[-1]
            open_blocks[-1] = anchor, so_far + size
            total = max(total, so_far + size)
        if total > MAX_ITEMS:
            yield event.start_mark, f"its aliases expand to more than {MAX_ITEMS:,} values"
