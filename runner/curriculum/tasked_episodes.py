"""The tasks of an env runner's episodes: which are drawn, and how episodes ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runner.curriculum.tasked_env import Tasked
from runner.rows.task_outcomes import TaskOutcome

if TYPE_CHECKING:
    from runner.env_runners.running_agents import FinishedEpisode


class TaskedEpisodes:
    """Keeps the tasks of finished episodes of an env runner until it takes them.

    Args:
        envs: its N sub-environments.
    """

    def __init__(self, envs: Sequence[Tasked]) -> None:
        self._envs = list(envs)
        self._ended: list[tuple[str, float | None]] = []

    def use(self, odds: Mapping[str, float]) -> None:
        """Draw the tasks of new episodes with these probabilities."""
        for env in self._envs:
            env.odds = dict(odds)

    def clear(self) -> None:
        """Forget all episodes."""
        self._ended = []

    def add_step(self, is_done: npt.NDArray[np.bool_]) -> None:
        """Take note of a vector step; (N,) whether it ended the episode.

        Raises:
            RunFailure: an episode has not what is measured.
        """
        if is_done.any():
            ended = [self._envs[n] for n in np.flatnonzero(is_done).tolist()]
            self._ended += [(env.task, env.measured()) for env in ended]

    def take(self, returns: npt.NDArray[np.float64]) -> tuple[TaskOutcome, ...]:
        """Return the outcomes of the episodes since the last call, in the order of their ends.

        Args:
            returns: (F,) of these episodes.
        """
        ended, self._ended = self._ended, []
        return tuple(
            TaskOutcome(task, episode_return if measured is None else measured)
            for (task, measured), episode_return in zip(ended, returns.tolist(), strict=True)
        )

    def told(self, ended: Sequence[FinishedEpisode]) -> list[FinishedEpisode]:
        """Return env episodes of several agents that have just ended, with their outcomes."""
        return [replace(episode, task=self._outcome(episode)) for episode in ended]

    def _outcome(self, episode: FinishedEpisode) -> TaskOutcome:
        env = self._envs[episode.env]
        measured = env.measured(episode.returns)  # opponents of a league have no returns
        return TaskOutcome(env.task, sum(episode.returns.values()) if measured is None else measured)
