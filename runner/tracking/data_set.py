"""A data set that a run reads, as MLflow records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.tracking.headline import bytes_text

Context = Literal["training", "evaluation"]


@dataclass(frozen=True)
class DataSet:
    """What identifies recorded data, and what is in them.

    Attributes:
        name: for people.
        digest: of the content; equal name and digest are the same data.
        context: what the run does with them.
        source_type: where they are: local, s3, gs, ...
        source: how to find them; `uri` is one address.
        schema: column -> type.
        profile: counts and sizes, as far as known.
    """

    name: str
    digest: str
    context: Context
    source_type: str
    source: Mapping[str, Any]
    schema: Mapping[str, str] = field(default_factory=dict)
    profile: Mapping[str, str | int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name and size."""
        return sized(self.name, int(self.profile.get("num_files", 0)), int(self.profile.get("num_bytes", 0)))


def sized(name: str, num_files: int, num_bytes: int) -> str:
    """Return a name, with what is known of the size; 0: unknown."""
    size = [f"{num_files:,} file{'' if num_files == 1 else 's'}"] if num_files else []
    size += [bytes_text(num_bytes)] if num_bytes else []
    return f"{name} ({', '.join(size)})" if size else name
