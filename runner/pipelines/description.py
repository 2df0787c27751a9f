"""Text descriptions of connectors and spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from runner.pipelines.connector import Connector
from runner.pipelines.requirements import Requirements

# Pipeline -> its input and output.
ENDS: Mapping[str, tuple[str, str]] = {
    "env_to_module": ("running episodes", "batch of the next forward pass"),
    "module_to_env": ("module outputs", "actions of the next step"),
    "learner": ("episode chunks", "train batch"),
}


def columns_of(connector: Connector) -> dict[str, tuple[str, ...]]:
    """Return the columns of a connector by use (`reads`, `writes`, ...) and its metrics, without empty entries."""
    requires = Requirements.of(connector)
    parts = {"reads": requires.reads, "writes": requires.writes, "per fragment": requires.writes_per_fragment}
    parts["reports"] = tuple(connector.reports)
    return {label: tuple(columns) for label, columns in parts.items() if columns}


def space_text(space: gym.Space[Any]) -> str:
    """Return a space as one line; bounds of a Box are shown only if they are the same for all elements."""
    if isinstance(space, gym.spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {space_text(part)}" for key, part in space.spaces.items()) + ")"
    if isinstance(space, gym.spaces.Tuple):
        return "Tuple(" + ", ".join(map(space_text, space.spaces)) + ")"
    if isinstance(space, gym.spaces.Box) and (len({*space.low.flat}) > 1 or len({*space.high.flat}) > 1):
        return f"Box({space.shape}, {space.dtype})"
    return str(space)
