"""Pieces and spaces in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from runner.pipelines.piece import ConnectorPiece

# Pipeline -> what goes into it and what comes out.
ENDS: Mapping[str, tuple[str, str]] = {
    "env_to_module": ("running episodes", "batch of the next forward pass"),
    "module_to_env": ("module outputs", "actions of the next step"),
    "learner": ("episode chunks", "train batch"),
}


def columns_of(piece: ConnectorPiece) -> dict[str, tuple[str, ...]]:
    """Return what a piece does with columns -> their names, and the metrics that it reports; without empty ones."""
    parts = {"reads": piece.reads, "writes": piece.writes, "per fragment": piece.writes_per_fragment}
    parts["reports"] = tuple(piece.reports)
    return {label: tuple(columns) for label, columns in parts.items() if columns}


def space_text(space: gym.Space[Any]) -> str:
    """A space on one line; bounds of a Box only where they are the same everywhere."""
    if isinstance(space, gym.spaces.Dict):
        return "Dict(" + ", ".join(f"{key}: {space_text(part)}" for key, part in space.spaces.items()) + ")"
    if isinstance(space, gym.spaces.Tuple):
        return "Tuple(" + ", ".join(map(space_text, space.spaces)) + ")"
    if isinstance(space, gym.spaces.Box) and (len({*space.low.flat}) > 1 or len({*space.high.flat}) > 1):
        return f"Box({space.shape}, {space.dtype})"
    return str(space)
