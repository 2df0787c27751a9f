"""Recording of the samples of env runners: whole episodes of simulators, joined where samples are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runner.episodes.columns import OBS, Column, ColumnBlock

if TYPE_CHECKING:
    from runner.offline.recorder import EpisodeRecorder, Recorded


@dataclass(frozen=True)
class ToRecord:
    """What recording needs of a sample beside its block, which has E chunks and R env steps.

    Attributes:
        raw_obs: (R + E, ...) observations as simulators sent them.
        is_whole: (E,) whether nothing of the chunk's episode is missing so far.
        broken_off: ids of episodes that have turned out to be not whole since the last sample.
    """

    raw_obs: Column
    is_whole: npt.NDArray[np.bool_]
    broken_off: Sequence[str]


class SampleRecording:
    """Records the samples of a group, those of each runner by a recorder of its own.

    What a runner has sent is recorded, whatever becomes of the runner.

    Args:
        make_recorder: index of a runner -> its recorder.
        num_runners: of the group.
    """

    def __init__(self, make_recorder: Callable[[int], EpisodeRecorder], num_runners: int) -> None:
        self._recorders = [make_recorder(index) for index in range(num_runners)]

    def add(self, index: int, block: ColumnBlock, to_record: ToRecord) -> None:
        """Take the sample of a runner.

        Raises:
            RunFailure: what has ended cannot be written.
        """
        columns = {**block.columns, OBS: to_record.raw_obs}
        self._recorders[index].add(replace(block, columns=columns), to_record.is_whole)
        self._recorders[index].break_off(to_record.broken_off)

    def forget(self, index: int) -> None:
        """Leave out the open episodes of a runner that was lost."""
        self._recorders[index].break_off_all()

    def get_state(self) -> dict[str, Any]:
        """Put everything that has ended on disk; the state of the rest."""
        return {str(index): recorder.get_state() for index, recorder in enumerate(self._recorders)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`, which is empty for a run that did not record before."""
        for index, recorder in enumerate(self._recorders):
            if str(index) in state:
                recorder.set_state(state[str(index)])

    def finish(self) -> Recorded:
        """Finish the files of all runners."""
        recorded = [recorder.close() for recorder in self._recorders]
        return sum(recorded[1:], recorded[0])

    def abort(self) -> None:
        """Drop what is in no whole file yet."""
        for recorder in self._recorders:
            recorder.abort()
