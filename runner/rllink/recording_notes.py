"""Listeners that note what recording needs of samples: which of the simulators' episodes are whole."""

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
        # Episodes that go on although they are left out; each is reported once.
        self._left_out: dict[str, OpenEpisode] = {}
        self._broken_off: list[str] = []

    def get_state(self) -> list[str]:
        """Return the ids of episodes that are recorded in part."""
        return list(self._open)

    def set_state(self, state: Sequence[str], running: Mapping[str, OpenEpisode]) -> None:
        """Continue with the episodes that were recorded in part; one that does not continue is left out."""
        for id_ in state:
            if id_ in running:
                self._open[id_] = running[id_]
            else:
                self._broken_off.append(id_)

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Add which chunks belong to whole episodes."""
        return replace(sample, to_record=self._note(chunks))

    def _note(self, sampled: Sequence[SampledChunks]) -> ToRecord:
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


class EnvRecordingNotes(SampleListener):
    """Notes which chunks belong to whole env episodes of several agents, and which of these are over."""

    def complete(self, sample: Sample, chunks: Sequence[SampledChunks], noted: NotedEnvEpisodes) -> Sample:
        """Add which chunks belong to whole env episodes, and which of these are over."""
        by_module: dict[str, list[SampledChunks]] = {}
        for one in chunks:
            by_module.setdefault(one.block.module_id, []).append(one)
        raw_obs = {id_: nested.concatenate([one.raw_obs for one in group]) for id_, group in by_module.items()}
        is_whole = {
            module_id: np.array(
                [episode.env is not None and not episode.env.is_told for one in group for episode in one.episodes]
            )
            for module_id, group in by_module.items()
        }
        to_record = ToRecord(raw_obs, is_whole, noted.broken_off, noted.over, noted.waiting)
        return replace(sample, to_record=to_record)
