"""An experiment that was read out of another system's configuration, and its text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BLOCKS = ("env", "algorithm", "connectors", "module", "env_runners", "evaluation", "stop")


@dataclass
class Imported:
    """What was found.

    Attributes:
        source: what it was read out of, in a few words.
        options: group -> option.
        values: block -> its values.
        missing: what has no counterpart -> why, or what to do.
    """

    source: str
    options: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def set(self, block: str, **values: Any) -> None:
        """Set values of a block; None: leave it at its default."""
        given = {name: value for name, value in values.items() if value is not None}
        self.values.setdefault(block, {}).update(given)

    def to_yaml(self) -> str:
        """Return the text of the experiment's file."""
        lines = ["# @package _global_", f"# Imported from {self.source}."]
        lines += [f"# No counterpart: {key} ({reason})." for key, reason in self.missing.items()]
        chosen = ", ".join(f"override /{group}: {option}" for group, option in self.options.items())
        lines.append(f"defaults: [{chosen}]")
        lines += [f"{block}: {_flow(self.values[block])}" for block in _BLOCKS if self.values.get(block)]
        return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and value.replace("_", "").replace(".", "").replace("-", "").isalnum():
        return value
    return json.dumps(value)
