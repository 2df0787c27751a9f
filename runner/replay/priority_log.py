"""Priorities as checkpoints keep them: all of them once, and after that the ones that have changed."""

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
    """Priorities of `num` places; `values` are dropped once a checkpoint has written them."""

    num: int
    file: SegmentFile
    values: Mapping[str, Any] | None

    def segment(self) -> Segment:
        values = self.values
        return Segment(self.file, None if values is None else lambda: values)


class PriorityLog:
    """Segments of the priorities of a tree.

    Updates change places all over the ring. So the first segment has all priorities, and each further one the changed
    ones since the segment before. All are written anew when changes have half as many places as there are, or 64
    segments: on average a checkpoint writes twice what has changed, and a 64th of the priorities.

    Args:
        tree: with the priorities.
    """

    def __init__(self, tree: PriorityTree) -> None:
        self._tree = tree
        self._parts: list[_Part] = []  # all priorities first

    def segments(self, num_places: int) -> list[Segment]:
        """Return segments which `load` makes the same priorities of.

        Args:
            num_places: in use; the others have no priority.
        """
        changed = self._tree.take_changed()
        for part in self._parts:
            if part.file.path is not None:
                part.values = None
        if self._is_anew(len(changed), num_places):
            values = {"priorities": self._tree.priorities[:num_places].copy()}
            self._parts = [_Part(num_places, SegmentFile(), values)]
        elif len(changed):
            values = {"places": changed.astype(np.int32), "priorities": self._tree.priorities[changed]}
            self._parts.append(_Part(len(changed), SegmentFile(), values))
        return [part.segment() for part in self._parts]

    def _is_anew(self, num_changed: int, num_places: int) -> bool:
        if not 1 <= len(self._parts) < MOST_PARTS:
            return True
        if any(part.values is None and not part.file.is_there() for part in self._parts):
            return True  # somebody has deleted the newest checkpoint
        return sum(part.num for part in self._parts[1:]) + num_changed > num_places // 2

    def load(self, segments: Sequence[Segment]) -> None:
        """Set the priorities of a tree that has none, and go on with these segments."""
        for segment in segments:
            values = segment.values()
            priorities = values["priorities"]
            places = values.get("places", np.arange(len(priorities)))
            self._tree.priorities[places] = priorities
            is_stored = segment.file.path is not None
            self._parts.append(_Part(len(priorities), segment.file, None if is_stored else values))
        self._tree.sum_up()
