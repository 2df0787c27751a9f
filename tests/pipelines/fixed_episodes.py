"""Running episodes with given columns, for calls of single connectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import SingleAgentEpisode, nested
from runner.pipelines.connector import Connector
from runner.pipelines.pipeline import ModuleToEnvPipeline
from runner.streams import random_stream


def pipeline_of(connector: Connector, index: int = 0) -> ModuleToEnvPipeline:
    """A pipeline of one connector, with a random stream, which is part of its state."""
    pipeline = ModuleToEnvPipeline([connector])
    pipeline.give_streams(lambda *_: random_stream(3, "env_runner/module_to_env", index))
    return pipeline


class FixedEpisodes:
    """Episodes that know no more than what they are made with; each column (K, length, ...).

    Args:
        episodes: what they are as a sequence.
        columns: column -> its history; `obs`: up to the newest.

    Attributes:
        written_obs: what a connector wrote.
    """

    def __init__(self, episodes: Sequence[SingleAgentEpisode] = (), **columns: Any) -> None:
        self._episodes = episodes
        self._columns = columns
        self.written_obs: Any = None
        self.max_rows = len(episodes)

    @property
    def current_obs(self) -> Any:
        return nested.take(self._columns.get("obs", ()), (slice(None), -1))

    @property
    def starts_episode(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self), np.bool_)

    def newest_step(self, column: str) -> Any:
        return nested.take(self._columns[column], (slice(None), -1)) if column in self._columns else None

    def write_obs(self, obs: Any) -> None:
        self.written_obs = obs

    def history(self, column: str, length: int) -> tuple[Any, npt.NDArray[np.bool_]]:
        values = nested.take(self._columns[column], (slice(None), slice(-length, None)))
        return values, np.ones((nested.row_count(values), length), np.bool_)

    def __len__(self) -> int:
        return len(self._episodes)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return iter(self._episodes)

    def __getitem__(self, index: int, /) -> SingleAgentEpisode:
        return self._episodes[index]
