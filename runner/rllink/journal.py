"""The journal of acknowledged messages on disk: no message is lost if the server is killed.

A record is written before its message is acknowledged, and is read again after a restart from a checkpoint. It survives
the end of the process, but not a crash of the machine. Records are stored in segments, one per checkpoint.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.config.rllink import name_records, parse_records
from runner.rllink.client.frames import FrameError, FrameReader, frame

_log = logging.getLogger(__name__)

_SUFFIX = ".rllink"
LOST, GIVEN = "lost", "given"
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Record:
    """An accepted message with episodes, or another event of a client.

    Attributes:
        client: name of the client.
        session: id of its session, or None.
        request: number of the message in the session, or None.
        body_format: `json` or `msgpack`; for other events `lost` (episodes were lost; the body is a JSON list of
            (agent, id, whether its env episode ends)) or `given` (a session received weights for the first time).
        weights_seq_no: number of the weights that chose the actions, unless the message contains it.
        body: the body of the message.
        says_ends: whether the client reports the ends of env episodes.
    """

    client: str
    session: str | None
    request: int | None
    body_format: str
    weights_seq_no: int
    body: bytes = b""
    says_ends: bool = False


class Journal:
    """Records of one env runner, numbered from the start of the run.

    Args:
        folder: folder of the journals of a run; created with the first record.
        runner: `index.generation` of the runner; a replacement runner has the next generation.
        num_kept: number of checkpoints for which records are kept.
        skipped: `rllink.skip_journal_records`.
    """

    def __init__(self, folder: Path, runner: str, num_kept: int, skipped: Sequence[str] = ()) -> None:
        self._skipped = tuple(skipped)
        self._skipped_records = [records for of, records in map(parse_records, skipped) if of == runner]
        self._folder = folder
        self._runner = runner
        self._prefix = f"runner-{runner}-"
        self._num_kept = num_kept
        self._positions: list[int] = []
        self._file: int | None = None
        self._weights_file = folder / f"runner-{runner}.weights"
        self.num_records = 0

    def append(self, record: Record) -> None:
        """Write a record; raise `OSError` if that fails."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._delete_later_segments()
            path = self._folder / f"{self._prefix}{self.num_records:012d}{_SUFFIX}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        head = asdict(record)
        body: bytes = head.pop("body")
        data = memoryview(frame(json.dumps(head).encode()) + frame(body, large=True))
        size = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, size)  # an incomplete record would hide the following ones
            raise
        self.num_records += 1

    def _delete_later_segments(self) -> None:
        """Delete segments that another runner of this generation wrote before the run was resumed.

        A restart would read them after the records of this runner, as if they followed these.
        """
        for first, path in self._segments():
            if first > self.num_records:
                path.unlink()

    def begin_segment(self, position: int) -> None:
        """Begin the segment of a checkpoint that contains the records before number `position`."""
        # One more than `num_kept`, because the oldest checkpoint may be needed until the new one is complete.
        self._positions = [*self._positions, position][-self._num_kept - 1 :]
        self.close()
        segments = self._segments()
        for (_, path), (next_first, _) in itertools.pairwise(segments):
            if next_first <= self._positions[0]:
                path.unlink()

    def records_from(self, position: int) -> Iterator[Record]:
        """Read the records from this number on, in order; new records continue their numbers.

        Older records are no longer needed, and are deleted with the next segments.
        """
        self._positions = [position]
        segments = self._segments()
        if segments and segments[0][0] > position:
            _log.warning(
                "RLlink: %d messages after this checkpoint are no longer in the journal", segments[0][0] - position
            )
        for first, path in segments:
            for number, record in enumerate(_read(path), start=first):
                self.num_records = number + 1
                if number >= position:
                    yield record
        self.num_records = max(self.num_records, position)

    def is_skipped(self, number: int) -> bool:
        """Return whether `rllink.skip_journal_records` names the record with this number."""
        return any(number in records for records in self._skipped_records)

    def skipped_with(self, records: range) -> tuple[str, ...]:
        """Return the value of `rllink.skip_journal_records` that also skips these records; () without records."""
        return (*self._skipped, name_records(self._runner, records)) if records else ()

    def note_weights(self, seq_no: int) -> None:
        """Record that clients receive weights with this number from now on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._weights_file.with_suffix(".new")
        written.write_text(f"{seq_no:020d}")
        os.replace(written, self._weights_file)

    @property
    def newest_seq_no(self) -> int:
        """Return the highest number of weights that clients received, also from a killed server, or 0."""
        try:
            return int(self._weights_file.read_text())
        except FileNotFoundError:
            return 0

    def _segments(self) -> list[tuple[int, Path]]:
        """Return (number of the first record, file) of each segment, in order."""
        found = self._folder.glob(f"{self._prefix}*{_SUFFIX}")
        return sorted((int(path.stem.removeprefix(self._prefix)), path) for path in found)

    def close(self) -> None:
        """Close the current segment."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class NoJournal(Journal):
    """Counts records without storing them: the journal of an env runner without a run dir."""

    newest_seq_no = 0

    def __init__(self) -> None:
        super().__init__(Path(), "", 0)

    def append(self, record: Record) -> None:
        self.num_records += 1

    def skipped_with(self, records: range) -> tuple[str, ...]:
        return ()  # no record is read again

    def note_weights(self, seq_no: int) -> None:
        pass

    def _segments(self) -> list[tuple[int, Path]]:
        return []


def _read(path: Path) -> Iterator[Record]:
    """Read the complete records of a segment; an incomplete last record was never acknowledged."""
    reader = FrameReader(_LARGEST)
    reader.is_large_granted = True
    reader.feed(path.read_bytes())
    while True:
        try:
            head = reader.next_body()
            body = None if head is None else reader.next_body()
        except FrameError:
            return
        if head is None or body is None:
            return
        yield Record(**json.loads(head), body=body)
