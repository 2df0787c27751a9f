"""Priorities in checkpoints: one full segment, followed by segments of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runner.fast.priority_tree import PriorityTree
from runner.segments import Segment, SegmentFile

MOST_PARTS = 64


@dataclass
class _Part:
    """Priorities of `num` positions; `values` are dropped once a checkpoint has written them."""

    num: int
    file: SegmentFile
    values: Mapping[str, Any] | None

    def segment(self) -> Segment:
        values = self.values
        return Segment(self.file, None if values is None else lambda: values)


class PriorityLog:
    """Segments of the priorities of a tree.

    Updates change positions all over the ring. So the first segment contains all priorities, and each further one only
    the changes since the previous segment. All are written again once the changes exceed half of the positions in use,
    or after 64 segments. On average a checkpoint writes twice the changed priorities and a 64th of all of them.

    Args:
        tree: tree of the priorities.
    """

    def __init__(self, tree: PriorityTree) -> None:
        self._tree = tree
        self._parts: list[_Part] = []  # all priorities first

    def segments(self, num_places: int) -> list[Segment]:
        """Return segments from which `load` restores the priorities.

        Args:
            num_places: number of positions in use; other positions do not have a priority.
        """
        changed = self._tree.take_changed()
        for part in self._parts:
            if part.file.path is not None:
                part.values = None
        if self._must_rewrite_all(len(changed), num_places):
            values = {"priorities": self._tree.priorities[:num_places].copy()}
            self._parts = [_Part(num_places, SegmentFile(), values)]
        elif len(changed):
            values = {"places": changed.astype(np.int32), "priorities": self._tree.priorities[changed]}
            self._parts.append(_Part(len(changed), SegmentFile(), values))
        return [part.segment() for part in self._parts]

    def _must_rewrite_all(self, num_changed: int, num_places: int) -> bool:
        if not 1 <= len(self._parts) < MOST_PARTS:
            return True
        if any(part.values is None and not part.file.is_there() for part in self._parts):
            return True  # the newest checkpoint was deleted
        return sum(part.num for part in self._parts[1:]) + num_changed > num_places // 2

    def load(self, segments: Sequence[Segment]) -> None:
        """Set the priorities of an empty tree, and continue with these segments."""
        for segment in segments:
            values = segment.values()
            priorities = values["priorities"]
            places = values.get("places", np.arange(len(priorities)))
            self._tree.priorities[places] = priorities
            is_stored = segment.file.path is not None
            self._parts.append(_Part(len(priorities), segment.file, None if is_stored else values))
        self._tree.sum_up()
