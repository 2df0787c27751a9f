"""Files of segments: written once, and linked from one checkpoint of a run to the next."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from runner.checkpoints.files import ALTERED, MISSING, broken, read_file, write_file
from runner.checkpoints.stored_values import Reference, segment_from_bytes, segment_to_bytes
from runner.segments import Segment, SegmentFile

SUFFIX = ".segment"


class SegmentWriter:
    """Puts the segments of a state into a checkpoint that is being written.

    A file of another checkpoint beside it is linked, not read: the new checkpoint is as complete as if all had been
    written, and stays so when the other one is deleted. Files of other runs are never shared, and where the file system
    has no links, values are written again.

    Args:
        folder: hidden, until the checkpoint is complete.
        place: of the complete checkpoint.
    """

    def __init__(self, folder: Path, place: Path) -> None:
        self._folder, self._place = folder, place
        self._placed: list[tuple[Segment, SegmentFile]] = []

    def put(self, part: str, segment: Segment) -> Reference:
        """Link or write the file of a segment of a part of the state; return its name and its bytes."""
        name = f"{part}.{len(self._placed):06d}{SUFFIX}"
        file = segment.file
        if self._is_linked(file, name):
            num_bytes, digest = file.num_bytes, file.digest
        else:
            content = segment_to_bytes(segment.values(), part)
            num_bytes, digest = len(content), write_file(self._folder / name, content)
        self._placed.append((segment, stored_file(self._place / name, num_bytes, digest)))
        return [name, num_bytes]

    def _is_linked(self, file: SegmentFile, name: str) -> bool:
        if file.path is None or file.path.parent.parent != self._place.parent or not file.is_there():
            return False
        try:
            os.link(file.path, self._folder / name)
        except OSError:  # no links here, or too many of one file
            return False
        return True

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file by its name."""
        return {file.path.name: file.digest for _, file in self._placed if file.path is not None}

    def settle(self) -> None:
        """Tell the segments where their files lie, now that the checkpoint is complete."""
        for segment, file in self._placed:
            segment.file.take_over(file)


def stored_file(path: Path, num_bytes: int, digest: str) -> SegmentFile:
    """Describe the file of a segment in a complete checkpoint."""
    return SegmentFile(path, num_bytes, digest, partial(_read, path, digest))


def stored_segment(folder: Path, digests: Mapping[str, str], reference: Reference) -> Segment:
    """Return a segment in a complete checkpoint; it is read when its values are asked for.

    Raises:
        CheckpointError: its file is missing or cut off.
    """
    name, num_bytes = str(reference[0]), int(reference[1])
    file = stored_file(folder / name, num_bytes, digests[name])
    if not file.is_there():
        path = folder / name
        if not path.exists():
            raise broken(MISSING, path, "no such file")
        raise broken(ALTERED, path, f"{path.stat().st_size} bytes", f"{num_bytes} bytes")
    return Segment(file)


def _read(path: Path, digest: str) -> dict[str, Any]:
    return segment_from_bytes(read_file(path, digest), path)
