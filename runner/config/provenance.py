"""Where each value of a composed configuration came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.config.overrides import OverrideLine
from runner.config.paths import display_path
from runner.config.yaml_lines import locate_keys

Keys = tuple[str, ...]


def join_keys(keys: Sequence[str]) -> str:
    """The dotted name of a key; below `stop` the parts of a metric's name are joined with slashes."""
    if len(keys) > 1 and keys[0] == "stop":
        return "stop." + "/".join(keys[1:]).replace(".", "/")
    return ".".join(keys)


class Provenance:
    """Records sources in the order in which files and overrides are merged: later ones win."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self.blocks: dict[str, str] = {}
        self._ranks: dict[Keys, int] = {}

    def record_file(self, path: Path, package: str) -> None:
        """Every key of a YAML file that is merged at `package`."""
        prefix = tuple(package.split(".")) if package else ()
        for keys, line, is_leaf in locate_keys(path):
            if keys[0] != "defaults" and (prefix or keys[0] != "hydra"):
                self._record((*prefix, *keys), f"{display_path(path)}:{line}", is_leaf)

    def record_override(self, line: OverrideLine) -> None:
        """Every key that an override sets."""
        keys = tuple(line.key.split("."))
        if line.parsed.is_delete():
            self._forget(join_keys(keys))
            self._ranks[keys] = len(self._ranks)
            return
        self._record_value(keys, line.parsed.value(), line.where)

    def _record_value(self, keys: Keys, value: Any, where: str) -> None:
        self._record(keys, where, is_leaf=not isinstance(value, dict))
        if isinstance(value, dict):
            for name, item in value.items():
                self._record_value((*keys, str(name)), item, where)

    def _record(self, keys: Keys, where: str, is_leaf: bool) -> None:
        name = join_keys(keys)
        if not is_leaf:
            self.blocks[name] = where
            return
        self._forget(name)
        self.sources[name] = where
        self._ranks.pop(keys, None)
        self._ranks[keys] = max(self._ranks.values(), default=0) + 1

    def _forget(self, name: str) -> None:
        for known in [key for key in self.sources if key == name or key.startswith(f"{name}.")]:
            del self.sources[known]

    def flatten_stop(self, stop: dict[Any, Any]) -> dict[str, Any]:
        """Metric name -> value. Of two spellings the one merged last counts; null removes the metric."""
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
