"""Running episodes as objects, to call connectors and pipelines on episodes made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.episodes import LookbackBuffer, SingleAgentEpisode, nested
from runner.episodes.columns import ACTIONS, OBS, REWARDS, Column
from runner.rows.running_episodes import RunningEpisodes


class EpisodeList(RunningEpisodes):
    """Episodes with at least one observation each. Their history includes lookback rows.

    Args:
        episodes: K episodes.
    """

    def __init__(self, episodes: Sequence[SingleAgentEpisode]) -> None:
        self._episodes = list(episodes)
        self.max_rows = len(self._episodes)
        self._replaced: Column | None = None  # observations written by `write_obs`

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> SingleAgentEpisode:  # type: ignore[override]
        return self._episodes[index]

    @property
    def current_obs(self) -> Column:
        """See `RunningEpisodes`."""
        if self._replaced is not None:
            return self._replaced
        return nested.stack([episode.get_observations(-1) for episode in self._episodes])

    @property
    def starts_episode(self) -> npt.NDArray[np.bool_]:
        """See `RunningEpisodes`."""
        return np.array([episode.t == 0 for episode in self._episodes], np.bool_)

    def newest_step(self, column: str) -> Column | None:
        """See `RunningEpisodes`."""
        if not any(self._rows(episode, column, 1) for episode in self._episodes):
            return None
        return nested.take(self.history(column, 1)[0], (slice(None), 0))

    def write_obs(self, obs: Column) -> None:
        """See `RunningEpisodes`."""
        self._replaced = self.current_obs
        for episode, item in zip(self._episodes, nested.unstack(obs), strict=True):
            episode.set_observations(new_data=item, at_indices=-1)

    def history(self, column: str, length: int) -> tuple[Column, npt.NDArray[np.bool_]]:
        """See `RunningEpisodes`; of any length.

        Raises:
            ValueError: no episode has a row of the column yet, so that its shape is unknown.
        """
        rows = [self._rows(episode, column, length) for episode in self._episodes]
        known = [item for items in rows for item in items]
        if not known:
            raise ValueError(f"a history of {column!r} needs an episode with at least one step")
        blank = nested.map_leaves(np.zeros_like, known[0])
        padded = [nested.stack([blank] * (length - len(items)) + items) for items in rows]
        is_there = np.arange(length) >= length - np.array([len(items) for items in rows])[:, None]
        return nested.stack(padded), is_there

    @staticmethod
    def _rows(episode: SingleAgentEpisode, column: str, length: int) -> list[Any]:
        buffers = {OBS: episode.observations, ACTIONS: episode.actions, REWARDS: episode.rewards}
        buffer: LookbackBuffer | None = (buffers | episode.extra_model_outputs).get(column)
        if buffer is None or length == 0:
            return []
        data = buffer.data
        return (data if isinstance(data, list) else nested.unstack(data))[-length:]
