"""The source of each value and block of a composed configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

from runner.config.list_patches import DISCARD, discards_earlier, edit_list_of
from runner.config.overrides import OverrideLine
from runner.config.paths import display_path
from runner.config.renamed_edits import edit_note, old_names_in, rename_in_edits, with_new_names
from runner.config.renamed_keys import old_key_in, renaming_note, with_new_name
from runner.config.yaml_files import locate_keys, read_yaml

Keys = tuple[str, ...]


def join_keys(keys: Sequence[str]) -> str:
    """Return the dotted name of a key; below `stop`, metric names have slashes."""
    if len(keys) > 1 and keys[0] == "stop":
        return "stop." + "/".join(keys[1:]).replace(".", "/")
    return ".".join(keys)


class Provenance:
    """Records sources in the order in which files and overrides are merged: later ones win.

    Attributes:
        sources: dotted key of a value, block or removed key -> source.
        notes: notes about renamed keys.
    """

    def __init__(self, sources: Mapping[str, str] | None = None, num_edits: Mapping[str, int] | None = None) -> None:
        self.sources: dict[str, str] = dict(sources or {})
        self.notes: list[str] = []
        self._ranks: dict[Keys, int] = {}
        self._num_edits = dict(num_edits or {})  # key of a list of edits -> their number so far
        self._offsets: dict[str, int] = {}  # key of the list being recorded -> index of its first item

    def record_file(self, path: Path, package: str, leave_out: Sequence[str] = ()) -> None:
        """Record every key of a YAML file merged at `package`, except omitted keys."""
        prefix = tuple(package.split(".")) if package else ()
        read = cache(lambda: reduce(lambda value, name: {name: value}, reversed(prefix), read_yaml(path)))
        for keys, line, is_leaf in locate_keys(path):
            if keys[0] not in ("defaults", *leave_out) and (prefix or keys[0] != "hydra"):
                where, typed = f"{display_path(path)}:{line}", (*prefix, *keys)
                renamed = with_new_names(read, typed)
                self.notes += [edit_note(typed[-1], where)] if renamed[-1] != typed[-1] else []
                self._record_or_add(renamed, where, is_leaf)

    def record_override(self, line: OverrideLine) -> None:
        """Record every key that an override sets or removes."""
        keys = tuple(line.key.split("."))
        if line.parsed.is_delete():
            self._num_edits.pop(line.key, None)
            self._record(keys, line.where, is_leaf=True)
        else:
            self._record_value(keys, line.parsed.value(), line.where)

    def record_values(self, content: Mapping[str, Any], package: str, where: str) -> None:
        """Record every key of an option without a file, except its defaults list."""
        for name, value in content.items():
            if name != "defaults":
                self._record_value((*package.split("."), name), value, where)

    def _record_value(self, keys: Keys, value: Any, where: str) -> None:
        name = join_keys(keys)
        self.notes += [edit_note(old, where) for old in old_names_in(value, rename_in_edits(value, keys))]
        if edit_list_of(name) not in (None, name):  # an item of the composed list
            self._record(keys, where, is_leaf=not isinstance(value, dict))
            return
        self._record_or_add(keys, where, is_leaf=not isinstance(value, dict))
        if isinstance(value, dict):
            for inner, item in value.items():
                self._record_value((*keys, str(inner)), item, where)
        elif isinstance(value, list) and edit_list_of(name) == name:
            for index, edit in enumerate(value):
                for end in ([], [DISCARD]) if discards_earlier([edit]) else ([],):
                    self._record_or_add((*keys, str(index), *end), where, is_leaf=bool(end))

    def _record_or_add(self, keys: Keys, where: str, is_leaf: bool) -> None:
        """Record a key of a file or an override; items of a list of edits follow the earlier items."""
        name = join_keys(keys)
        old = old_key_in(name)
        if old is not None:
            keys = tuple(with_new_name(name).split("."))
            self.notes += [renaming_note(old, join_keys(keys), where)] if old == name else []
            name = join_keys(keys)
        edits = edit_list_of(name)
        if edits is None:
            self._record(keys, where, is_leaf)
        elif edits == name and is_leaf:
            self._begin_edits(name, where)
        elif edits == name or not keys[edits.count(".") + 1].isdigit():  # invalid: not a list
            self._record(keys, where, is_leaf)
        else:
            self._add_edit(edits, keys, where)

    def _begin_edits(self, name: str, where: str) -> None:
        count = self._offsets[name] = self._num_edits.get(name, 0)
        for index in range(count):  # earlier items keep their sources when the list gets a new item
            self.sources.setdefault(f"{name}.{index}", self.sources.get(name, where))
        self.sources[name] = where

    def _add_edit(self, name: str, keys: Keys, where: str) -> None:
        index, *rest = keys[name.count(".") + 1 :]
        if index == "0" and rest == [DISCARD]:
            self._forget(name)
            self.sources[name] = where
            self._offsets[name], self._num_edits[name] = -1, 0
            return
        number = self._offsets.get(name, 0) + int(index)
        self._num_edits[name] = max(self._num_edits.get(name, 0), number + 1)
        self.sources[".".join((name, str(number), *rest))] = where

    def _record(self, keys: Keys, where: str, is_leaf: bool) -> None:
        name = join_keys(keys)
        if is_leaf:  # replaces the complete block, if there is one
            self._forget(name)
            self._ranks[keys] = max(self._ranks.values(), default=0) + 1
        self.sources[name] = where

    def _forget(self, name: str) -> None:
        for known in [key for key in self.sources if key == name or key.startswith(f"{name}.")]:
            del self.sources[known]

    def flatten_stop(self, stop: dict[Any, Any]) -> dict[str, Any]:
        """Flatten `stop` to metric name -> value. The last spelling counts; null removes a metric."""
        flat: dict[str, tuple[int, Any]] = {}
        for keys, value in _leaves(stop, ("stop",)):
            name = join_keys(keys).removeprefix("stop.")
            rank = self._ranks.get(keys, -1)
            if name not in flat or rank > flat[name][0]:
                flat[name] = (rank, value)
        return {name: value for name, (_, value) in flat.items() if value is not None}


def _leaves(node: dict[Any, Any], prefix: Keys) -> list[tuple[Keys, Any]]:
    found: list[tuple[Keys, Any]] = []
    for key, value in node.items():
        keys = (*prefix, str(key))
        found += _leaves(value, keys) if isinstance(value, dict) else [(keys, value)]
    return found
