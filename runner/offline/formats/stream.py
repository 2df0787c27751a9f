"""Episodes yielded by a user's function, possibly forever (`offline.input_: {_target_: FUNCTION, ...}`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from runner.config.callables import TARGET, arguments_of, called, with_callables
from runner.config.errors import ConfigError
from runner.config.imports import import_target
from runner.episodes import SingleAgentEpisode
from runner.episodes.columns import REWARDS, ColumnBlock, block_from_episodes
from runner.offline.codecs.layout import Spaces, fit_to_spaces
from runner.offline.codecs.trajectories import ReadCounts, check_rewards
from runner.offline.files.data_error import DataLocation, data_error, first_line
from runner.offline.files.input_files import InputFiles
from runner.offline.files.raw_rows import RawTable
from runner.offline.formats.raw_data import RawData
from runner.offline.formats.recorded_format import RecordedFormat
from runner.offline.formats.selection import Selection

_WHERE = "offline.input_"
_STEPS_OF_BLOCK = 2048


@dataclass(frozen=True)
class StreamFormat(RecordedFormat):
    """Episodes yielded by a function, which is called again for each pass.

    Attributes:
        target: the block `offline.input_`.
    """

    name = "stream"
    kinds = ()

    target: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, data: RawData, selection: Selection, spaces: Spaces) -> Self:
        assert isinstance(data.config.input_, Mapping)
        return cls(selection, spaces, target=data.config.input_)

    def blocks(self, files: InputFiles | None, tables: Iterator[RawTable], counts: ReadCounts) -> Iterator[ColumnBlock]:
        path, num_steps = str(self.target[TARGET]), 0
        waiting: dict[int, SingleAgentEpisode] = {}  # number, counting empty episodes -> episode
        for number, episode in enumerate(self._episodes()):
            if not isinstance(episode, SingleAgentEpisode):
                what, expected = "the function did not yield an episode", "runner.episodes.SingleAgentEpisode"
                raise data_error(
                    what, DataLocation(path, number, unit="episode"), got=type(episode).__name__, expected=expected
                )
            if not len(episode):
                counts.trajectories_dropped += 1
                continue
            waiting[number] = episode
            num_steps += len(episode)
            if num_steps >= _STEPS_OF_BLOCK:
                yield self._block(waiting, path)
                waiting, num_steps = {}, 0
        if waiting:
            yield self._block(waiting, path)

    def _episodes(self) -> Iterator[Any]:
        path = str(self.target[TARGET])
        arguments = with_callables(arguments_of(self.target), _WHERE)
        try:
            yield from called(import_target(path, _WHERE), arguments, _WHERE)
        except ConfigError:
            raise
        except Exception as error:  # raised by the user's function
            raise data_error(
                f"{path} failed: {type(error).__name__}: {first_line(error)}", DataLocation(path)
            ) from error

    def _block(self, episodes: Mapping[int, SingleAgentEpisode], path: str) -> ColumnBlock:
        numbers = list(episodes)
        try:
            block = block_from_episodes(list(episodes.values()))
        except (ValueError, TypeError) as error:
            place = DataLocation(path, numbers[0], unit="episode")
            raise data_error(f"these episodes are inconsistent: {first_line(error)}", place) from error
        ends = np.cumsum(block.lengths)

        def place_of(step: int) -> DataLocation:
            return DataLocation(path, numbers[int(np.searchsorted(ends, step, side="right"))], unit="episode")

        check_rewards(block.columns[REWARDS], place_of)
        return self.selection.block(replace(block, columns=fit_to_spaces(block.columns, self.spaces)))
