"""Keys of pipeline edits that were renamed: an old key is an alias of the new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

from runner.config.list_patches import (
    CONNECTOR_KEY,
    CONNECTORS_KEY,
    OLD_CONNECTOR_KEY,
    OLD_CONNECTORS_KEY,
    place_in_edits,
)
from runner.config.renamed_keys import renaming_note
from runner.config.targets import PIPELINE, is_subclass

Keys = tuple[str, ...]
# Old key -> new key.
_NEW = {OLD_CONNECTOR_KEY: CONNECTOR_KEY, OLD_CONNECTORS_KEY: CONNECTORS_KEY}
_BLOCKS = ("prepend", "append", CONNECTOR_KEY)


def rename_in_edits(value: Any, keys: Keys) -> Any:
    """Return the value at these keys with renamed keys, if it is (in) a list of edits."""
    start = place_in_edits(keys)
    if start is None:
        return value
    if len(keys) == start + 1:
        return _rename_in_edit(value)
    rename = _rename_in_edit if len(keys) == start else _rename_in_block
    return [rename(item) for item in value] if isinstance(value, list) else rename(value)


def _rename_in_edit(edit: Any) -> Any:
    if not isinstance(edit, Mapping):
        return edit
    renamed = _rename(edit, OLD_CONNECTOR_KEY)
    return {key: _rename_in_block(value) if key in _BLOCKS else value for key, value in renamed.items()}


def _rename_in_block(block: Any) -> Any:
    """Rename keys in the block of a connector; only pipelines, because others may use the old name for an argument."""
    if not _is_pipeline(block):
        return block
    renamed = _rename(block, OLD_CONNECTORS_KEY)
    connectors = renamed.get(CONNECTORS_KEY)
    if isinstance(connectors, list):
        renamed[CONNECTORS_KEY] = [_rename_in_block(connector) for connector in connectors]
    return renamed


def _rename(values: Mapping[Any, Any], old: str) -> dict[Any, Any]:
    """Rename one key; if both names are present, the old key stays and is reported as unknown."""
    if _NEW[old] in values:
        return dict(values)
    return {_NEW[old] if key == old else key: value for key, value in values.items()}


def _is_pipeline(block: Any) -> bool:
    return isinstance(block, Mapping) and is_subclass(str(block.get("_target_")), PIPELINE)


def with_new_names(read: Callable[[], Any], keys: Keys) -> Keys:
    """Return keys into a list of edits with their new names; other keys are unchanged.

    Args:
        read: returns the values along the keys.
        keys: keys from the root of these values.
    """
    start = place_in_edits(keys) if {OLD_CONNECTOR_KEY, OLD_CONNECTORS_KEY} & {*keys} else None
    if start is None:
        return keys
    node, renamed = reduce(_child, keys[: start + 1], read()), [*keys[: start + 1]]
    for key in keys[start + 1 :]:
        is_in_edit = len(renamed) == start + 1
        is_old = key == OLD_CONNECTOR_KEY if is_in_edit else key == OLD_CONNECTORS_KEY and _is_pipeline(node)
        renamed.append(_NEW[key] if is_old else key)
        node = _child(node, key) or _child(node, renamed[-1])
    return tuple(renamed)


def _child(node: Any, key: str) -> Any:
    if isinstance(node, list):
        return node[int(key)] if key.isdigit() and int(key) < len(node) else None
    return node.get(key) if isinstance(node, Mapping) else None


def old_names_in(value: Any, renamed: Any) -> Iterator[str]:
    """Yield the old names in a value, given the value that `rename_in_edits` returned for it."""
    if isinstance(value, list):
        for item, other in zip(value, renamed, strict=True):
            yield from old_names_in(item, other)
    elif isinstance(value, Mapping):
        for (old, item), (new, other) in zip(value.items(), renamed.items(), strict=True):
            if old != new:
                yield old
            yield from old_names_in(item, other)


def edit_note(old: str, where: str) -> str:
    """Return the note about the new key."""
    return renaming_note(old, _NEW[old], where)
