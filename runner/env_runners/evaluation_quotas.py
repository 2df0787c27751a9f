"""Quotas of the sub-environments in an evaluation, in episodes or in env steps, and the episodes that count.

Dimension letters: N sub-environments, E chunks of a fragment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runner.config.blocks import ENV_STEPS, EPISODES
from runner.rows.finished_episodes import FinishedEpisodes

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


class EvaluationQuotas:
    """The quotas of the sub-environments, and the amounts that remain.

    Quotas are fixed before the first step, so that sub-environments with short episodes do not run more of them.

    Args:
        duration: total of all sub-environments, in `unit`; quotas differ by at most one.
        unit: `episodes` or `env_steps`.
        num_envs: N.

    Attributes:
        remaining: episodes or env steps (N,) left to run.
        num_counted: episodes (N,) that ended within the quota: the first of each sub-environment.
    """

    def __init__(self, duration: int, unit: str, num_envs: int) -> None:
        if unit not in (EPISODES, ENV_STEPS):
            raise ValueError(f"an evaluation is measured in {EPISODES} or {ENV_STEPS}, not in {unit}")
        self._counts_steps = unit == ENV_STEPS
        is_larger = np.arange(num_envs) < duration % num_envs
        self.remaining: IntArray = duration // num_envs + is_larger.astype(np.int64)
        self.num_counted: IntArray = np.zeros(num_envs, np.int64)
        self._num_aborted: IntArray = np.zeros(num_envs, np.int64)

    @property
    def is_running(self) -> BoolArray:
        """Whether a sub-environment has not reached its quota (N,)."""
        return self.remaining > 0

    def count(self, is_reset: BoolArray, has_ended: BoolArray, aborted: Sequence[int] = ()) -> None:
        """Count a vector step.

        Args:
            is_reset: (N,) whether the sub-environment was reset instead of stepped.
            has_ended: (N,) whether the step ended its episode.
            aborted: sub-environments whose episode failed in this step; another episode replaces it.
        """
        counts = self.is_running
        for n in aborted:
            self._num_aborted[n] += counts[n]
        self.num_counted += counts & has_ended
        self.remaining -= counts & (~is_reset if self._counts_steps else has_ended)

    def are_counted(self, episode_numbers: IntArray, env_of: IntArray) -> BoolArray:
        """Return whether (E,) chunks belong to episodes that ended within the quota, or still may.

        Args:
            episode_numbers: number (E,) of the chunk's episode within its sub-environment, from 0.
            env_of: sub-environment (E,) of the chunk.
        """
        limits = self.num_counted + self._num_aborted + self.is_running
        return episode_numbers < limits[env_of]

    def counted(self, finished: FinishedEpisodes) -> tuple[FinishedEpisodes, IntArray]:
        """Return the finished episodes that count, ordered by sub-environment, and their indices."""
        places = self.chosen(finished.env_of)
        returns, lengths, env_of = finished.returns[places], finished.lengths[places], finished.env_of[places]
        return replace(finished, returns=returns, lengths=lengths, env_of=env_of), places

    def chosen(self, env_of: Sequence[int] | IntArray) -> IntArray:
        """Return the indices of the finished episodes that count, given the sub-environment of each."""
        envs = np.asarray(env_of, np.int64)
        return np.concatenate([np.flatnonzero(envs == n)[:number] for n, number in enumerate(self.num_counted)])
