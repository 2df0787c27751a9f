"""Listeners that mark data for recording: which episodes of simulators are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from runner.env_runners.sample import Sample
from runner.episodes import nested
from runner.rllink.env_episodes import NotedEnvEpisodes
from runner.rllink.received_episodes import OpenEpisode, SampledChunks
from runner.rllink.sample_listeners import SampleListener
from runner.rows.to_record import ToRecord


class RecordingNotes(SampleListener):
    """Follows the episodes of a single agent from their first sampled chunk to their end."""

    name: ClassVar[str] = "recorded_in_part"

    def __init__(self) -> None:
        self._open: dict[str, OpenEpisode] = {}
        # Incomplete episodes that continue; each is reported once.
        self._left_out: dict[str, OpenEpisode] = {}
        self._aborted: list[str] = []

    def get_state(self) -> list[str]:
        """Return the ids of partly recorded episodes."""
        return list(self._open)

    def set_state(self, state: Sequence[str], running: Mapping[str, OpenEpisode]) -> None:
        """Restore partly recorded episodes, and leave out episodes that do not continue."""
        for id_ in state:
            if id_ in running:
                self._open[id_] = running[id_]
            else:
                self._aborted.append(id_)

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Mark the chunks of complete episodes."""
        return replace(sample, to_record=self._note(chunks))

    def _note(self, sampled: Sequence[SampledChunks]) -> ToRecord:
        """Process one sample of a module: one block or more."""
        is_complete: list[bool] = []
        for one in sampled:
            is_done = one.block.is_terminated | one.block.is_truncated
            for episode, done in zip(one.episodes, is_done.tolist(), strict=True):
                is_complete.append(episode.is_complete)
                self._note_chunk(episode, episode.is_complete, done)
        self._forget_lost()
        aborted, self._aborted = self._aborted, []
        raw_obs = nested.concatenate([one.raw_obs for one in sampled]) if len(sampled) > 1 else sampled[0].raw_obs
        module_id = sampled[0].block.module_id
        tasks = {module_id: [episode.task for one in sampled for episode in one.episodes]}
        return ToRecord({module_id: raw_obs}, {module_id: np.array(is_complete, np.bool_)}, aborted, tasks=tasks)

    def _note_chunk(self, episode: OpenEpisode, is_complete: bool, is_done: bool) -> None:
        if not is_complete and episode.id not in self._left_out:
            self._aborted.append(episode.id)
        self._open.pop(episode.id, None)
        self._left_out.pop(episode.id, None)
        if not is_done:
            (self._open if is_complete else self._left_out)[episode.id] = episode

    def _forget_lost(self) -> None:
        """Leave out episodes whose simulator has disconnected, because they will never end."""
        lost = [id_ for id_, episode in self._open.items() if episode.is_lost]
        for id_ in lost:
            del self._open[id_]
        self._aborted += lost
        self._left_out = {id_: episode for id_, episode in self._left_out.items() if not episode.is_lost}


class EnvRecordingNotes(SampleListener):
    """Marks the chunks of complete env episodes of several agents, and the env episodes that are over."""

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Mark the chunks of complete env episodes, and the env episodes that are over."""
        by_module: dict[str, list[SampledChunks]] = {}
        for one in chunks:
            by_module.setdefault(one.block.module_id, []).append(one)
        raw_obs = {id_: nested.concatenate([one.raw_obs for one in group]) for id_, group in by_module.items()}
        is_complete = {
            module_id: np.array(
                [episode.env is not None and not episode.env.is_reported for one in group for episode in one.episodes]
            )
            for module_id, group in by_module.items()
        }
        to_record = ToRecord(raw_obs, is_complete, noted.aborted, noted.over, noted.waiting)
        return replace(sample, to_record=to_record)
