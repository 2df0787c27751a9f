"""Episodes of simulators that are recorded in part: a recording leaves out the ones that never become whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from runner.episodes import nested
from runner.rllink.received_episodes import OpenEpisode, SampledChunks
from runner.rows.to_record import ToRecord


class OpenRecordings:
    """Follows episodes from their first sampled chunk to their end."""

    def __init__(self) -> None:
        self._open: dict[str, OpenEpisode] = {}
        # Episodes that go on although they are left out; each is reported once.
        self._left_out: dict[str, OpenEpisode] = {}
        self._broken_off: list[str] = []

    @property
    def ids(self) -> list[str]:
        """Return the ids of episodes that are recorded in part."""
        return list(self._open)

    def go_on(self, ids: Iterable[str], restored: Mapping[str, OpenEpisode]) -> None:
        """Go on after a restart.

        Args:
            ids: episodes that were recorded in part; one that is not restored can never end, and is left out.
            restored: episodes that go on, by id.
        """
        for id_ in ids:
            if id_ in restored:
                self._open[id_] = restored[id_]
            else:
                self._broken_off.append(id_)

    def note(self, sampled: Sequence[SampledChunks]) -> ToRecord:
        """Take note of one sample of a module: one block or more."""
        is_whole: list[bool] = []
        for one in sampled:
            is_done = one.block.is_terminated | one.block.is_truncated
            for episode, done in zip(one.episodes, is_done.tolist(), strict=True):
                is_whole.append(episode.is_whole)
                self._note_chunk(episode, episode.is_whole, done)
        self._forget_lost()
        broken_off, self._broken_off = self._broken_off, []
        raw_obs = nested.concatenate([one.raw_obs for one in sampled]) if len(sampled) > 1 else sampled[0].raw_obs
        module_id = sampled[0].block.module_id
        tasks = {module_id: [episode.task for one in sampled for episode in one.episodes]}
        return ToRecord({module_id: raw_obs}, {module_id: np.array(is_whole, np.bool_)}, broken_off, tasks=tasks)

    def _note_chunk(self, episode: OpenEpisode, is_whole: bool, is_done: bool) -> None:
        if not is_whole and episode.id not in self._left_out:
            self._broken_off.append(episode.id)
        self._open.pop(episode.id, None)
        self._left_out.pop(episode.id, None)
        if not is_done:
            (self._open if is_whole else self._left_out)[episode.id] = episode

    def _forget_lost(self) -> None:
        """Leave out episodes whose simulator has gone: no chunk will ever end them."""
        lost = [id_ for id_, episode in self._open.items() if episode.is_lost]
        for id_ in lost:
            del self._open[id_]
        self._broken_off += lost
        self._left_out = {id_: episode for id_, episode in self._left_out.items() if not episode.is_lost}
