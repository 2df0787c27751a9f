"""Running standardisation of observations, with statistics that merge exactly over runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.pipelines.piece import OBS, Batch, ConnectorPiece

_SMALLEST_STD = 1e-8


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of rows seen so far (float64; mean and m2 have an item's shape)."""

    count: float
    mean: npt.NDArray[np.float64]
    m2: npt.NDArray[np.float64]

    @classmethod
    def of_nothing(cls, shape: tuple[int, ...]) -> Moments:
        """Of no row."""
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of_rows(cls, rows: npt.NDArray[Any]) -> Moments:
        """Of (B, ...) rows."""
        mean = rows.mean(axis=0, dtype=np.float64)
        return cls(float(len(rows)), mean, np.square(rows - mean).sum(axis=0))

    def merged(self, other: Moments) -> Moments:
        """Of both sets of rows together (Chan et al., 1979)."""
        count = self.count + other.count
        if count == 0:
            return self
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + np.square(shift) * (self.count * other.count / count))

    def to_state(self, name: str) -> dict[str, Any]:
        """As arrays under `<name>_count`, `<name>_mean`, `<name>_m2`."""
        return {f"{name}_count": self.count, f"{name}_mean": self.mean, f"{name}_m2": self.m2}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str) -> Moments:
        """From `to_state`."""
        return cls(float(state[f"{name}_count"]), np.asarray(state[f"{name}_mean"]), np.asarray(state[f"{name}_m2"]))


class MeanStdFilter(ConnectorPiece):
    """Standardises `obs` by running mean and standard deviation, in the batch and in the episodes.

    Place it after `AddObservationsFromEpisodesToBatch`. What the policy saw is what the learner gets. On several
    runners each keeps the moments of its own rows since the last merge; merged states equal those of all rows.

    Args:
        de_mean_to_zero: subtract the mean.
        de_std_to_one: divide by the standard deviation.
        clip_by_value: largest absolute value of the result; None: no bound.
        update_stats: learn from what passes; evaluation runners never do.
    """

    reads = (OBS,)
    writes = (OBS,)

    def __init__(
        self,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
    ) -> None:
        self._centres = de_mean_to_zero
        self._scales = de_std_to_one
        self._clip = clip_by_value
        self._updates = update_stats
        self._merged = self._own = Moments.of_nothing(())

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """A Box of the same shape within the clip bounds.

        Raises:
            TypeError: the space is no Box of floats.
        """
        space = input_observation_space
        if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise TypeError(f"MeanStdFilter needs float observations (a Box), the space here is {space}")
        self._merged = self._own = Moments.of_nothing(space.shape)
        bound = np.inf if self._clip is None else self._clip
        return gym.spaces.Box(-bound, bound, space.shape, space.dtype.type)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Standardise the newest observations."""
        obs = batch[OBS]
        if self._updates and self.is_training:
            self._own = self._own.merged(Moments.of_rows(obs))
        batch[OBS] = self._standardised(obs)
        if hasattr(episodes, "current_obs"):
            episodes.current_obs[...] = batch[OBS]
        return batch

    def _standardised(self, obs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        seen = self._merged.merged(self._own)
        if self._centres:
            obs = obs - seen.mean
        if self._scales and seen.count > 1:
            obs = obs / np.maximum(np.sqrt(seen.m2 / (seen.count - 1)), _SMALLEST_STD)
        return (obs if self._clip is None else np.clip(obs, -self._clip, self._clip)).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        """Moments at the last merge and those of this runner's rows since then."""
        return self._merged.to_state("merged") | self._own.to_state("own")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._merged = Moments.from_state(state, "merged")
        self._own = Moments.from_state(state, "own")

    def reset_state(self) -> None:
        """Forget all rows."""
        self._merged = self._own = Moments.of_nothing(self._merged.mean.shape)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The moments of all rows of all runners; nothing is counted twice."""
        merged = Moments.from_state(states[0], "merged")
        for state in states:
            merged = merged.merged(Moments.from_state(state, "own"))
        return merged.to_state("merged") | Moments.of_nothing(merged.mean.shape).to_state("own")
