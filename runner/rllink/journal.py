"""What clients were told has arrived, on disk: nothing of it is lost when the server is killed.

A record is written before its message is acknowledged, and read again after a restart from a checkpoint. It is safe
against the end of the process, not against that of the machine. Records lie in segments, one for each checkpoint.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.config.rllink import name_records, parse_records
from runner.rllink.frames import FrameError, FrameReader, frame

_log = logging.getLogger(__name__)

_SUFFIX = ".rllink"
LOST, GIVEN = "lost", "given"
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Record:
    """A message with episodes that was accepted.

    Attributes:
        client: name of the client.
        session: its session, if it has one; request: the number of the message in it.
        body_format: `json` or `msgpack`; or what else happened: `lost`, the body is (agent, id) of episodes that were
            lost, as JSON; `given`, a session has got weights for the first time.
        weights_seq_no: of the weights that acted, where the message does not say.
        body: as it came.
    """

    client: str
    session: str | None
    request: int | None
    body_format: str
    weights_seq_no: int
    body: bytes = b""


class Journal:
    """Records of one runner, numbered from the start of the run.

    Args:
        folder: of the journals of a run; made with the first record.
        runner: its index and generation; one that replaces a lost one begins anew.
        num_kept: checkpoints whose records are kept.
    """

    def __init__(self, folder: Path, runner: str, num_kept: int) -> None:
        self._folder = folder
        self._runner = runner
        self._prefix = f"runner-{runner}-"
        self._num_kept = num_kept
        self._positions: list[int] = []
        self._file: int | None = None
        self._weights_file = folder / f"runner-{runner}.weights"
        self.num_records = 0

    def append(self, record: Record) -> None:
        """Write a record; `OSError` where that is not possible."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
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
            os.ftruncate(self._file, size)  # half a record would hide those that follow
            raise
        self.num_records += 1

    def begin_segment(self, position: int) -> None:
        """A checkpoint is being made: what it has not seen are the records from number `position` on."""
        # One more than are kept: until the new one is complete, the oldest of them is still there.
        self._positions = [*self._positions, position][-self._num_kept - 1 :]
        self.close()
        segments = self._segments()
        for (_, path), (next_first, _) in itertools.pairwise(segments):
            if next_first <= self._positions[0]:
                path.unlink()

    def records_from(self, position: int) -> Iterator[Record]:
        """The records from this number on, in their order; new ones are numbered behind them.

        The checkpoint that has seen those before is the oldest from now on whose records are kept.
        """
        self._positions = [position]
        segments = self._segments()
        if segments and segments[0][0] > position:
            _log.warning("RLlink: %d messages after this checkpoint are not kept any more", segments[0][0] - position)
        for first, path in segments:
            for number, record in enumerate(_read(path), start=first):
                self.num_records = number + 1
                if number >= position:
                    yield record
        self.num_records = max(self.num_records, position)

    def name_of(self, records: range) -> str:
        """What `rllink.leave_out` calls these records."""
        return name_records(self._runner, records)

    def records_named(self, names: Iterable[str]) -> list[range]:
        """Numbers of the records of this runner in `rllink.leave_out`."""
        return [records for runner, records in map(parse_records, names) if runner == self._runner]

    def note_weights(self, seq_no: int) -> None:
        """Weights with this number are given to clients from now on."""
        self._folder.mkdir(parents=True, exist_ok=True)
        written = self._weights_file.with_suffix(".new")
        written.write_text(f"{seq_no:020d}")
        os.replace(written, self._weights_file)

    @property
    def newest_seq_no(self) -> int:
        """The highest number that weights were given, also by a server that was killed; 0: none."""
        try:
            return int(self._weights_file.read_text())
        except FileNotFoundError:
            return 0

    def _segments(self) -> list[tuple[int, Path]]:
        """Number of the first record, file; in order."""
        found = self._folder.glob(f"{self._prefix}*{_SUFFIX}")
        return sorted((int(path.stem.removeprefix(self._prefix)), path) for path in found)

    def close(self) -> None:
        """End the segment."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _read(path: Path) -> Iterator[Record]:
    """The whole records of a segment; the last one may be cut off, then nobody was told that it had arrived."""
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
