"""Recording of the samples of env runners: whole episodes of simulators, joined where samples are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.rows.to_record import ToRecord

if TYPE_CHECKING:
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.recorder import Recorded


# Column of recorded steps: number of the weights that chose the action.
WEIGHTS_SEQ_NO = "weights_seq_no"


def with_weights_seq_no(block: ColumnBlock, weights_seq_no: int) -> ColumnBlock:
    """Return the block with a column that says which weights acted."""
    numbers = np.full(block.num_rows, weights_seq_no, np.int64)
    return block.with_columns({WEIGHTS_SEQ_NO: numbers})


class SampleRecorder(Protocol):
    """Joins the samples of one runner to episodes, and writes them."""

    def add_sample(self, blocks: Sequence[ColumnBlock], to_record: ToRecord) -> None:
        """Take the blocks of a sample, with observations as simulators sent them; may raise `RunFailure`."""

    def break_off_all(self) -> None:
        """Leave out all episodes that are open."""

    def put_on_disk(self) -> Recorded:
        """Finish the files; what was recorded until now. Raises `RunFailure` where that cannot be written."""

    def get_open(self) -> dict[str, Any]:
        """Return what was taken of the episodes that are open, by their ids."""

    def set_open(self, episodes: Mapping[str, Any]) -> None:
        """Go on with the episodes that `get_open` returned."""

    def close(self) -> Recorded:
        """Finish the files."""

    def abort(self) -> None:
        """Drop what is in no whole file yet."""


class SampleRecording:
    """Records the samples of a group, with a recorder for each runner.

    What a runner has sent is recorded, whatever becomes of the runner.

    Args:
        make_recorder: index of a runner -> its recorder.
        num_runners: of the group.
        file_list: which files the run has written; None: it cannot go on.
    """

    def __init__(
        self, make_recorder: Callable[[int], SampleRecorder], num_runners: int, file_list: FileList | None = None
    ) -> None:
        self._recorders = [make_recorder(index) for index in range(num_runners)]
        self._file_list = file_list
        self._before: Recorded | None = None

    def add(self, index: int, rollout: Rollout, to_record: ToRecord, weights_seq_no: int) -> None:
        """Take the sample of a runner.

        Raises:
            RunFailure: what has ended cannot be written.
        """
        raw = [
            with_weights_seq_no(block.with_columns({OBS: to_record.raw_obs[module_id]}), weights_seq_no)
            for module_id, block in rollout.blocks.items()
        ]
        self._recorders[index].add_sample(raw, to_record)

    def forget(self, index: int) -> None:
        """Leave out the open episodes of a runner that was lost."""
        self._recorders[index].break_off_all()

    def get_state(self) -> dict[str, Any]:
        """Put everything that has ended on disk; what that is, and the episodes that go on, by runner.

        Raises:
            RunFailure: it cannot be written.
        """
        recorded = self._summed([recorder.put_on_disk() for recorder in self._recorders])
        return {
            "report": asdict(recorded.report),
            "num_broken_off": recorded.num_broken_off,
            "open": {str(index): recorder.get_open() for index, recorder in enumerate(self._recorders)},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`, also of another number of runners; files that are newer are removed.

        Args:
            state: empty for a run that did not record before.
        """
        from runner.offline.writing.recorder import Recorded
        from runner.offline.writing.writer import WriteReport

        if state:
            report = WriteReport(**{**state["report"], "files": tuple(state["report"]["files"])})
            self._before = Recorded(report, 0, int(state["num_broken_off"]))
        for index, recorder in enumerate(self._recorders):
            recorder.set_open(state.get("open", {}).get(str(index), {}))
        if self._file_list is not None:
            self._file_list.keep_only(() if self._before is None else self._before.report.files)

    def finish(self) -> Recorded:
        """Finish the files of all runners; what the run has recorded since its beginning."""
        return self._summed([recorder.close() for recorder in self._recorders])

    def _summed(self, recorded: Sequence[Recorded]) -> Recorded:
        first = recorded[0] if self._before is None else self._before + recorded[0]
        return sum(recorded[1:], first)

    def abort(self) -> None:
        """Drop what is in no whole file yet."""
        for recorder in self._recorders:
            recorder.abort()
