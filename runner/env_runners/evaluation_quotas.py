"""How long each sub-environment of an evaluation runs, in episodes or in env steps, and which episodes count.

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
    """The quota of each sub-environment, and what is left of it.

    A quota is fixed before the first step, so that no sub-environment is asked for more because its episodes are short.

    Args:
        duration: of all sub-environments together, in `unit`; quotas differ by one at most.
        unit: `episodes` or `env_steps`.
        num_envs: N.

    Attributes:
        remaining: (N,) what each still has to run, in `unit`.
        num_counted: (N,) episodes that ended within the quota; they are the first ones of a sub-environment.
    """

    def __init__(self, duration: int, unit: str, num_envs: int) -> None:
        if unit not in (EPISODES, ENV_STEPS):
            raise ValueError(f"an evaluation is measured in {EPISODES} or {ENV_STEPS}, not in {unit}")
        self._counts_steps = unit == ENV_STEPS
        is_larger = np.arange(num_envs) < duration % num_envs
        self.remaining: IntArray = duration // num_envs + is_larger.astype(np.int64)
        self.num_counted: IntArray = np.zeros(num_envs, np.int64)
        self._num_broken_off: IntArray = np.zeros(num_envs, np.int64)

    @property
    def is_running(self) -> BoolArray:
        """Whether (N,) a sub-environment has something left to run."""
        return self.remaining > 0

    def count(self, is_step: BoolArray, has_ended: BoolArray) -> None:
        """Take note of a vector step.

        Args:
            is_step: (N,) false where the sub-environment was reset.
            has_ended: (N,) the step ended its episode.
        """
        counts = self.is_running
        self.num_counted += counts & has_ended
        self.remaining -= counts & (is_step if self._counts_steps else has_ended)

    def break_off(self, envs: Sequence[int], is_step: BoolArray) -> None:
        """Take note of episodes that break off in a vector step, before `count`: others run in their place.

        Args:
            envs: sub-environments that were made anew.
            is_step: (N,) see `count`; false is written to the ones that were.
        """
        is_broken = np.zeros_like(is_step)
        is_broken[list(envs)] = True
        self._num_broken_off += is_broken & is_step & self.is_running
        is_step &= ~is_broken

    def are_counted(self, episode_numbers: IntArray, env_of: IntArray) -> BoolArray:
        """Return whether (E,) chunks are of episodes that have ended within the quota, or still may.

        Args:
            episode_numbers: (E,) number of the chunk's episode within its sub-environment, from 0.
            env_of: (E,) its sub-environment.
        """
        limits = self.num_counted + self._num_broken_off + self.is_running
        return episode_numbers < limits[env_of]

    def counted(self, finished: FinishedEpisodes) -> FinishedEpisodes:
        """Return the finished episodes that count, those of sub-environment 0 first."""
        chosen = self.chosen(finished.env_of)
        infos = {name: numbers[chosen] for name, numbers in finished.infos.items()}
        return replace(
            finished,
            returns=finished.returns[chosen],
            lengths=finished.lengths[chosen],
            env_of=finished.env_of[chosen],
            infos=infos,
            outcomes={name: tuple(of_each[place] for place in chosen) for name, of_each in finished.outcomes.items()},
        )

    def chosen(self, env_of: Sequence[int] | IntArray) -> IntArray:
        """Return the places of finished episodes that count, among ones of these sub-environments."""
        envs = np.asarray(env_of, np.int64)
        return np.concatenate([np.flatnonzero(envs == n)[:number] for n, number in enumerate(self.num_counted)])
