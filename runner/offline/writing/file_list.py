"""Which recorded files a run has written: a run that goes on removes the ones newer than its checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from runner.offline.files.filesystems import Location
from runner.offline.writing.output_files import remove_empty_folder


class FileList:
    """Paths of recorded files in a file of the run dir, one a line.

    Args:
        path: of the list; made with the first entry.
        location: the folder of the recorded files.
    """

    def __init__(self, path: Path, location: Location) -> None:
        self._path, self._location = path, location

    @property
    def paths(self) -> list[str]:
        """All entries; files that were never finished among them."""
        return self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []

    def add(self, path: str) -> None:
        """Take note of a file before it is written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(f"{path}\n")

    def keep_only(self, kept: Collection[str]) -> None:
        """Remove the files in the folder that are not among `kept`, with what was begun of them."""
        for path in self.paths:
            folder, _, name = path.rpartition("/")
            if path in kept or not self._is_inside(folder):
                continue
            begun = f"{folder}/.{name}.tmp"
            for left in (path, begun):
                with contextlib.suppress(OSError):
                    self._location.filesystem.delete_file(left)
            with contextlib.suppress(OSError):  # where Ray Data writes, it is a folder
                self._location.filesystem.delete_dir(begun)
            if folder != self._location.path:
                remove_empty_folder(self._location.filesystem, folder)

    def _is_inside(self, folder: str) -> bool:
        """Whether a folder is the one of the recorded files, or in it."""
        return ".." not in folder.split("/") and f"{folder}/".startswith(f"{self._location.path}/")
