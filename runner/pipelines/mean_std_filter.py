"""Running standardisation of observations, with statistics that are merged exactly over runners."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.spaces import replace_leaf_spaces
from runner.pipelines.connector import LOSS_MASK, Batch
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import StandardisationGraph
from runner.pipelines.observation_connector import ObservationConnector, check_keys, map_changed_leaves
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes

Space = gym.Space[Any]
_SMALLEST_STD = 1e-8


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of the rows seen so far (float64; mean and m2 have an item's shape)."""

    count: float
    mean: npt.NDArray[np.float64]
    m2: npt.NDArray[np.float64]

    @classmethod
    def of_nothing(cls, shape: tuple[int, ...]) -> Moments:
        """Return the moments of zero rows."""
        return cls(0.0, np.zeros(shape), np.zeros(shape))

    @classmethod
    def of_rows(cls, rows: npt.NDArray[Any]) -> Moments:
        """Return the moments of (B, ...) rows."""
        if len(rows) == 0:
            return cls.of_nothing(rows.shape[1:])
        if len(rows) == 1:  # equal for finite rows, in a third of the time
            return cls(1.0, rows[0].astype(np.float64), np.zeros(rows.shape[1:]))
        mean = np.add.reduce(rows, axis=0, dtype=np.float64) / len(rows)
        shifts = rows - mean
        return cls(float(len(rows)), mean, np.add.reduce(shifts * shifts, axis=0))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the union of both sets of rows (Chan et al., 1979)."""
        if other.count == 0:
            return self
        if self.count == 0:
            return other
        count = self.count + other.count
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + shift * shift * (self.count * other.count / count))

    def std(self) -> npt.NDArray[np.float64]:
        """Return the standard deviation of at least two rows, with zeros replaced."""
        return np.maximum(np.sqrt(self.m2 / (self.count - 1)), _SMALLEST_STD)

    @classmethod
    def merged_of(cls, states: Sequence[Mapping[str, Any]]) -> Moments:
        """Merge states that share their `merged` moments; `own` holds the moments of the rows since then."""
        merged = cls.from_state(states[0], "merged")
        for state in states:
            merged = merged.merged(cls.from_state(state, "own"))
        return merged

    def to_state(self, name: str) -> dict[str, Any]:
        """Return arrays under `<name>_count`, `<name>_mean`, `<name>_m2`."""
        return {f"{name}_count": self.count, f"{name}_mean": self.mean, f"{name}_m2": self.m2}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], name: str) -> Moments:
        """Invert `to_state`."""
        return cls(float(state[f"{name}_count"]), np.asarray(state[f"{name}_mean"]), np.asarray(state[f"{name}_m2"]))


class MeanStdFilter(ObservationConnector):
    """Standardises `obs` (N, ...) by the running mean and standard deviation, in the batch and in the episodes.

    Every float Box is standardised, alone or in a Dict or Tuple, whose other leaves are unchanged. Results are float32.
    The learner gets the observations that the policy saw. With several runners, each keeps the moments of its rows
    since the last merge. Merged states equal the state after all rows.

    Args:
        keys_to_leave: top-level keys of a Dict space that are not changed, such as a float action mask.
        de_mean_to_zero: subtract the mean.
        de_std_to_one: divide by the standard deviation.
        clip_by_value: maximum absolute value of the result, or None for no limit.
        update_stats: update the statistics; evaluation runners never do.
        needs_floats: reject observations without a float Box; if false, such observations are unchanged.
    """

    requires = Requirements(belongs_in=("env_to_module",), writes_obs_to_episodes=True)
    reports = {  # noqa: RUF012
        "observations_clipped_fraction": ("mean", "fraction of the standardised numbers that clip_by_value limits"),
    }

    def __init__(
        self,
        de_mean_to_zero: bool = True,
        de_std_to_one: bool = True,
        clip_by_value: float | None = 10.0,
        update_stats: bool = True,
        keys_to_leave: Sequence[str] = (),
        needs_floats: bool = True,
    ) -> None:
        self._needs_floats = needs_floats
        self._is_idle = False
        self.leaves_observations_raw = False
        self._left = frozenset(keys_to_leave)
        self._centres = de_mean_to_zero
        self._scales = de_std_to_one
        self._clip = clip_by_value
        self._updates = update_stats
        self._places: Any = None
        self._merged = self._since_merge = Moments.of_nothing(())

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """Return the space with float Boxes within the clip bounds.

        Raises:
            TypeError: the space does not contain a float Box, or a key to leave does not exist.
        """
        space = input_observation_space
        check_keys(type(self).__name__, "keys_to_leave", self._left, space)
        shape: tuple[int, ...] = space.shape or ()
        self._places = None
        if not isinstance(space, gym.spaces.Box):
            self._places, num_floats = _places_of(space, self._left)
            shape = (num_floats,)
        self._is_idle = not (_is_filtered(space) or (self._places is not None and shape != (0,)))
        if self._is_idle and self._needs_floats:
            raise TypeError(f"MeanStdFilter needs float observations (a Box), but the space is {space}")
        if self._is_idle:
            return space
        self._merged = self._since_merge = Moments.of_nothing(shape)
        return replace_leaf_spaces(self._filtered_space, space, self._left)

    def _filtered_space(self, space: Space) -> Space:
        bound = np.inf if self._clip is None else self._clip
        return gym.spaces.Box(-bound, bound, space.shape, np.float32) if _is_filtered(space) else space

    def transform(self, obs: Any, batch: Batch, episodes: RunningEpisodes) -> Any:
        """Update the statistics with the rows, and standardise them."""
        if self._is_idle:
            return obs
        rows = self._rows_of(obs)
        if self._updates and self.is_training:
            mask = batch.get(LOSS_MASK)
            self._since_merge = self._since_merge.merged(Moments.of_rows(rows if mask is None else rows[mask]))
        filtered = self._standardised(rows)
        if self.metrics is not None and self._clip is not None and filtered.size:
            num_clipped = np.count_nonzero(np.abs(filtered) >= np.float32(self._clip))
            self.metrics.report("observations_clipped_fraction", num_clipped / filtered.size, filtered.size)
        result = self._as_observations(filtered, obs)
        if not self.leaves_observations_raw:
            episodes.write_obs(result)
        return result

    def for_raw_episodes(self) -> MeanStdFilter:
        """Return a replacement filter that does not change the observations in the episodes."""
        other = copy.copy(self)
        other.leaves_observations_raw = True
        return other

    def standardised(self, obs: Any) -> Any:
        """Return standardised observations (N, ...) without updating the statistics."""
        if self._is_idle:
            return obs
        return self._as_observations(self._standardised(self._rows_of(obs)), obs)

    def _rows_of(self, obs: Any) -> npt.NDArray[Any]:
        return obs if self._places is None else self._as_vectors(obs)

    def _as_observations(self, filtered: npt.NDArray[np.float32], obs: Any) -> Any:
        """Write the standardised values back to the leaves of `obs` they came from."""
        if self._places is None:
            return filtered
        return nested.map_leaves(lambda place, leaf: _taken(place, leaf, filtered), self._places, obs)

    def _as_vectors(self, obs: Any) -> npt.NDArray[np.float64]:
        """Return (N, D): all standardised leaves, concatenated."""
        vectors = np.empty((nested.row_count(obs), *self._since_merge.mean.shape))

        def write(place: slice | None, leaf: npt.NDArray[Any]) -> None:
            if place is not None:
                vectors[:, place] = leaf.reshape(len(leaf), place.stop - place.start)

        nested.map_leaves(write, self._places, obs)
        return vectors

    def _standardised(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        seen = self._merged.merged(self._since_merge)
        if self._centres:
            rows = rows - seen.mean
        if self._scales and seen.count > 1:
            rows = rows / seen.std()
        if self._clip is not None:
            rows = np.minimum(np.maximum(rows, -self._clip), self._clip)
        return rows.astype(np.float32)

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph, also in float64; it does not update the statistics."""
        if self._is_idle:
            return None
        places = slice(0, self._merged.mean.size) if self._places is None else self._places
        statistics = self._statistics(self.get_state())
        return StandardisationGraph(places, statistics["mean"], statistics["std"], self._statistics, self._clip)

    def _statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the (D,) subtrahend and divisor from a state of this connector."""
        seen = Moments.from_state(state, "merged").merged(Moments.from_state(state, "own"))
        mean = seen.mean if self._centres else np.zeros_like(seen.mean)
        std = seen.std() if self._scales and seen.count > 1 else np.ones_like(seen.mean)
        return {"mean": mean.reshape(-1), "std": std.reshape(-1)}

    def get_state(self) -> dict[str, Any]:
        """Return the moments at the last merge, and the moments of this runner's rows since then."""
        return self._merged.to_state("merged") | self._since_merge.to_state("own")

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._merged = Moments.from_state(state, "merged")
        self._since_merge = Moments.from_state(state, "own")

    def reset_state(self) -> None:
        """Forget all rows."""
        self._merged = self._since_merge = Moments.of_nothing(self._merged.mean.shape)

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the moments of all rows of all runners; each row is counted once."""
        merged = Moments.merged_of(states)
        return merged.to_state("merged") | Moments.of_nothing(merged.mean.shape).to_state("own")


def _is_filtered(space: Space) -> bool:
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _places_of(space: Space, left: Collection[str]) -> tuple[Any, int]:
    """Return the structure of a space, and the number of standardised values. Each leaf is a slice of the vector of
    standardised values, or None if it is not standardised.
    """
    num_values = 0

    def place(leaf: Space) -> slice | None:
        nonlocal num_values
        start = num_values
        num_values += math.prod(leaf.shape or ()) if _is_filtered(leaf) else 0
        return slice(start, num_values) if num_values > start else None

    places = map_changed_leaves(place, space, left)
    return places, num_values


def _taken(place: slice | None, leaf: npt.NDArray[Any], vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return the leaf's columns of the vectors in the leaf's shape, or the unchanged leaf."""
    return leaf if place is None else vectors[:, place].reshape(leaf.shape)
