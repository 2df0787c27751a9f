"""Record the samples of external simulators in the driver; other env runners record with `EpisodeRecording`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.episodes.columns import OBS, ColumnBlock, Rollout
from runner.rows.to_record import ToRecord

if TYPE_CHECKING:
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.output_files import FileList
    from runner.offline.writing.recorder import EpisodeRecorder, Recorded


# Column of recorded steps: number of the weights that chose the action.
WEIGHTS_SEQ_NO = "weights_seq_no"


def with_weights_seq_no(block: ColumnBlock, weights_seq_no: int) -> ColumnBlock:
    """Return the block with a column for the number of the weights that chose the action."""
    numbers = np.full(block.num_rows, weights_seq_no, np.int64)
    return block.with_columns({WEIGHTS_SEQ_NO: numbers})


class SampleRecording:
    """Records the samples of a group whose runners serve external simulators, with a recorder for each runner.

    Samples are recorded even if their runner dies later.

    Args:
        make_recorder: index of a runner -> its recorder.
        num_runners: size of the group.
        file_list: files that the run has written, or None if it cannot be resumed.
    """

    def __init__(
        self,
        make_recorder: Callable[[int], EpisodeRecorder | EnvEpisodeRecorder],
        num_runners: int,
        file_list: FileList | None = None,
    ) -> None:
        self._recorders = list(map(make_recorder, range(num_runners)))
        self._file_list = file_list
        self._before: Recorded | None = None

    def add(self, index: int, rollout: Rollout, to_record: ToRecord, weights_seq_no: int) -> None:
        """Record the sample of a runner.

        Raises:
            RunFailure: ended episodes cannot be written.
        """
        raw = [
            with_weights_seq_no(block.with_columns({OBS: to_record.raw_obs[module_id]}), weights_seq_no)
            for module_id, block in rollout.blocks.items()
        ]
        self._recorders[index].add_sample(raw, to_record)

    def forget(self, index: int) -> None:
        """Drop the unfinished episodes of a dead runner."""
        self._recorders[index].leave_out_all()

    def get_state(self) -> dict[str, Any]:
        """Write all ended episodes to disk; return the report of them and the unfinished episodes, by runner.

        Raises:
            RunFailure: the files cannot be written.
        """
        recorded = self._summed([recorder.put_on_disk() for recorder in self._recorders])
        return {
            "report": asdict(recorded.report),
            "num_broken_off": recorded.num_incomplete,
            "open": {str(index): recorder.get_open() for index, recorder in enumerate(self._recorders)},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`, possibly for another number of runners; newer files are removed.

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
        """Finish the files of all runners; return the report of all recorded data of the run."""
        return self._summed([recorder.close() for recorder in self._recorders])

    def _summed(self, recorded: Sequence[Recorded]) -> Recorded:
        first = recorded[0] if self._before is None else self._before + recorded[0]
        return sum(recorded[1:], first)

    def abort(self) -> None:
        """Drop all data that are not yet in a complete file."""
        for recorder in self._recorders:
            recorder.abort()
