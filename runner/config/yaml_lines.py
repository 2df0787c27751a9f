"""The line of every key of a YAML file, which parsed values do not have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from runner.config.yaml_bounds import file_version, read_bounded

MarkedYAMLError = yaml.MarkedYAMLError
YAMLError = yaml.YAMLError
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML file."""
    return yaml.load(read_bounded(path), Loader=_Loader)


def locate_keys(path: Path) -> list[tuple[tuple[str, ...], int, bool]]:
    """Return (keys from the root, line, whether it is a leaf) of every key and list item in file order.

    A list is a leaf; its items follow it under their index.
    """
    return _locate_keys(path, file_version(path))


@lru_cache(maxsize=256)
def _locate_keys(path: Path, _version: tuple[int, ...]) -> list[tuple[tuple[str, ...], int, bool]]:
    root = yaml.compose(read_bounded(path), Loader=_Loader)
    return [] if root is None else list(_walk(root, ()))


def find_default_line(path: Path, option: str) -> int | None:
    """Return the line of the defaults-list entry that names `option`, or a group of this name."""
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
