"""Listeners that pass the episodes of an env runner to its recorder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from runner.env_runners.listeners import Cut, EpisodeListener, IntArray
from runner.env_runners.sample_recording import with_weights_seq_no
from runner.episodes.columns import DEFAULT_MODULE_ID, OBS, ColumnBlock
from runner.rows.agent_rows import env_episode_id
from runner.rows.finished_episodes import EndedEpisode, FinishedEpisodes
from runner.rows.lock_step_rows import EnvFragment

if TYPE_CHECKING:
    from runner.offline.writing.env_episode_recorder import EnvEpisodeRecorder
    from runner.offline.writing.recorder import EpisodeRecorder, Recorded


class _Recording(EpisodeListener):
    """Finishes or drops the files of a recorder."""

    def __init__(self, recorder: EpisodeRecorder | EnvEpisodeRecorder) -> None:
        self._files = recorder

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Forget the episodes that an evaluation has not finished."""
        if counted is not None:
            self._files.forget_open()
        return finished

    def finish(self) -> Recorded:
        """Finish the files."""
        return self._files.close()

    def close(self) -> None:
        """Drop episodes that are not yet in a complete file."""
        self._files.abort()


class EpisodeRecording(_Recording):
    """Passes chunks of episodes with a single agent to a recorder."""

    def __init__(self, recorder: EpisodeRecorder) -> None:
        super().__init__(recorder)
        self._recorder = recorder

    def on_cut(self, cut: Cut) -> None:
        """Pass on the chunks that count, with observations as the environment returned them."""
        fragment = cut.fragments[DEFAULT_MODULE_ID]
        assert isinstance(fragment, EnvFragment)
        block = _raw_block(fragment, cut.tasks)
        if cut.quotas is not None:
            self._recorder.add(block, cut.quotas.are_counted(fragment.episode_numbers, fragment.env_of))
            return
        self._recorder.add(with_weights_seq_no(block, cut.weights_seq_no))
        if cut.aborted:
            self._recorder.leave_out(cut.aborted)


def _raw_block(fragment: EnvFragment, tasks: Sequence[str] | None) -> ColumnBlock:
    """Return the block with observations as the environment returned them, and with the tasks of ended episodes."""
    block = fragment.block.with_columns({OBS: fragment.raw_obs})
    return replace(block, tasks=_tasks_of_chunks(fragment, tasks)) if tasks else block


def _tasks_of_chunks(fragment: EnvFragment, tasks: Sequence[str]) -> list[str | None]:
    """Return the task of each chunk that ends an episode, and None for the others."""
    block = fragment.block
    ended: dict[int, list[str]] = {}  # sub-environment -> tasks of its episodes, the newest first
    for n, task in zip(fragment.finished.env_of.tolist()[::-1], tasks[::-1], strict=True):
        ended.setdefault(n, []).append(task)
    is_done = (block.is_terminated | block.is_truncated).tolist()
    return [ended[n].pop() if done else None for n, done in zip(fragment.env_of.tolist(), is_done, strict=True)]


class EnvEpisodeRecording(_Recording):
    """Passes chunks of several agents' episodes to a recorder of env episodes.

    Args:
        recorder: writes the files.
        id_prefix: beginning of the ids of env episodes.
    """

    def __init__(self, recorder: EnvEpisodeRecorder, id_prefix: str) -> None:
        super().__init__(recorder)
        self._recorder, self._id_prefix = recorder, id_prefix

    def on_cut(self, cut: Cut) -> None:
        """Pass on all chunks, and the env episodes that ended and count."""
        blocks = [
            with_weights_seq_no(fragment.block.with_columns({OBS: fragment.raw_obs}), cut.weights_seq_no)
            for fragment in cut.fragments.values()
            if len(fragment.block)
        ]
        ended = self._ended_in(cut)
        if cut.quotas is None:
            self._recorder.add(blocks, ended)
            return
        numbers, envs = (np.array([getattr(one, key) for one in cut.ended], np.int64) for key in ("number", "env"))
        are_counted = cut.quotas.are_counted(numbers, envs).tolist()
        self._recorder.add(blocks, [episode for episode, counts in zip(ended, are_counted, strict=True) if counts])
        self._recorder.forget([episode.id for episode in ended])

    def _ended_in(self, cut: Cut) -> list[EndedEpisode]:
        tasks = [None] * len(cut.ended) if cut.tasks is None else cut.tasks
        return [
            EndedEpisode(env_episode_id(self._id_prefix, one.env, one.number), one.length, one.is_terminated, task)
            for one, task in zip(cut.ended, tasks, strict=True)
        ]

    def on_restored(self, running: Sequence[str]) -> None:
        """Skip running env episodes, whose first steps this recorder has not seen."""
        self._recorder.leave_out(running)
