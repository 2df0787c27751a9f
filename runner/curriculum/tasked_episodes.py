"""The tasks of an env runner's episodes, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.curriculum.tasked_env import Tasked
from runner.env_runners.listeners import Cut, EpisodeListener, IntArray, VectorStep
from runner.rows.finished_episodes import FinishedEpisodes
from runner.rows.task_outcomes import TASK_OUTCOMES, TaskOutcome


class TaskedEpisodes(EpisodeListener):
    """Keeps the tasks of finished episodes until a sample or an evaluation is complete.

    Args:
        envs: the N sub-environments of the env runner.
    """

    def __init__(self, envs: Sequence[Tasked]) -> None:
        self._envs = list(envs)
        self.begin()

    @property
    def receivers(self) -> Mapping[str, Callable[..., None]]:
        """`tasks`: the probabilities with which the tasks of new episodes are drawn."""
        return {"tasks": self.use}

    def use(self, odds: Mapping[str, float]) -> None:
        """Draw the tasks of new episodes with these probabilities."""
        for env in self._envs:
            env.odds = dict(odds)

    def begin(self) -> None:
        """Forget all episodes."""
        self._ended: list[tuple[str, float | None]] = []  # task and measured value, in the order of their ends
        self._num_cut = 0

    def on_step(self, step: VectorStep) -> None:
        """Note the tasks and the values of episodes that have ended.

        Raises:
            RunFailure: an episode does not have the value that is measured, or it is not a number.
        """
        for n, agent in step.ended_unseen:
            if info := step.results[n].infos.get(agent):
                self._envs[n].measure(agent, info)
        if not np.count_nonzero(step.is_done):
            return
        agents_of = {episode.env: episode.returns for episode in step.ended}  # opponents of a league are excluded
        for n in np.flatnonzero(step.is_done).tolist():
            env = self._envs[n]
            self._ended.append((env.task, env.measured(agents_of.get(n))))

    def on_cut(self, cut: Cut) -> None:
        """Add the tasks of the episodes that ended."""
        cut.tasks = [task for task, _ in self._ended[self._num_cut :]]
        self._num_cut = len(self._ended)

    def complete(self, finished: FinishedEpisodes, counted: IntArray | None) -> FinishedEpisodes:
        """Add the outcomes of the episodes; if the measure is `episode_return`, an outcome is the return."""
        ended = self._ended if counted is None else [self._ended[place] for place in counted]
        outcomes = tuple(
            TaskOutcome(task, episode_return if measured is None else measured)
            for (task, measured), episode_return in zip(ended, finished.returns.tolist(), strict=True)
        )
        self.begin()
        return replace(finished, outcomes={**finished.outcomes, TASK_OUTCOMES: outcomes})
