"""Pieces that make other observations of the environment's, and what they share: a space's items as flat vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.episodes import SingleAgentEpisode, nested
from runner.episodes.columns import ColumnBlock
from runner.pipelines.common_pieces import observations_of, step_rows_of_obs
from runner.pipelines.piece import LOSS_MASK, OBS, Batch, ConnectorPiece, Items

Space = gym.Space[Any]
# Keys and indices that lead to a leaf of a nested space.
Path = tuple[Any, ...]
Floats = npt.NDArray[np.float32]


class ObservationPiece(ConnectorPiece):
    """Base of pieces that make other observations; yours overrides `transform` and, mostly,
    `recompute_output_observation_space`.

    It may stand before or after `AddObservationsFromEpisodesToBatch`: without an `obs` column it takes the observations
    from the episodes. In a learner pipeline rows are R, or R + E after `AddOneTsToEpisodesAndTruncate`.
    """

    writes = (OBS,)

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Transform all rows of `obs`."""
        obs = batch.get(OBS)
        if type(obs) is not np.ndarray:
            obs = observation_rows(type(self).__name__, batch, episodes)
        batch[OBS] = self.transform(obs, batch, episodes)
        return batch

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Any:
        """The new observations.

        Args:
            obs: (rows, ...) arrays, nested as the space is; not to be written into.
            batch: the other columns so far.
            episodes: where the observations come from, one row each (env pipelines) or many (learner pipelines).
        """
        raise NotImplementedError(f"{type(self).__name__} has no transform")


def observation_rows(piece: str, batch: Batch, episodes: Any) -> Any:
    """The batch's (rows, ...) observations, or those of the episodes if it has none.

    Raises:
        TypeError: they are no arrays any more; names the piece.
    """
    if OBS in batch:
        return _as_arrays(piece, batch[OBS])
    if isinstance(episodes, ColumnBlock) and OBS in batch.get(episodes.module_id, ()):
        raise TypeError(f"{piece} finds column 'obs' by module already; place it before AgentToModuleMapping")
    return observations_of(episodes, batch)


def _as_arrays(piece: str, obs: Any) -> Any:
    if type(obs) is Items:
        return obs.stacked()
    for leaf in nested.leaves(obs):
        if not isinstance(leaf, np.ndarray):
            kind = type(leaf).__name__
            raise TypeError(f"{piece} needs arrays in column 'obs', got {kind}; place it before NumpyToTensor")
    return obs


def step_rows(column: Any, batch: Batch, block: ColumnBlock) -> Any:
    """The rows of the batch, out of a (R + E, ...) column with a row for each observation."""
    return column if LOSS_MASK in batch else nested.take(column, step_rows_of_obs(block))


# -- a space's items as vectors ----------------------------------------------------------------------------------------


def leaf_spaces(space: Space, path: Path = ()) -> Iterator[tuple[Path, Space]]:
    """The leaves of a space and their places, in the order of its keys; `((), space)` of one that is not nested."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaf_spaces(part, (*path, key))
    elif isinstance(space, gym.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaf_spaces(part, (*path, index))
    else:
        yield path, space


def leaf_at(column: Any, path: Path) -> npt.NDArray[Any]:
    """The leaf of a nested column at a place."""
    for key in path:
        column = column[key]
    leaf: npt.NDArray[Any] = column
    return leaf


@dataclass(frozen=True)
class _Leaf:
    """Where a leaf of `num_numbers` numbers comes from and goes to.

    `classes` (K,): the values that its K one-hot columns stand for, column k for number `components[k]`.
    """

    path: Path
    num_numbers: int
    columns: slice
    classes: npt.NDArray[Any] | None
    components: npt.NDArray[np.intp] | None


class FlatEncoding:
    """Items of a space as float32 vectors: Discrete and MultiDiscrete leaves one-hot, the others flattened.

    Args:
        leaves: as from `leaf_spaces`.
        piece: named in errors.

    Attributes:
        size: D, the length of a vector.
        low, high: (D,) float32, bounds of the vectors.

    Raises:
        TypeError: a leaf has no such encoding, or there is none.
    """

    def __init__(self, leaves: Iterable[tuple[Path, Space]], piece: str) -> None:
        self._leaves: list[_Leaf] = []
        self.size = 0
        bounds: list[tuple[Floats, Floats]] = []
        for path, space in leaves:
            classes, components = _one_hot_columns(space)
            bounds.append(_flat_bounds(space, path, piece) if classes is None else _unit_bounds(len(classes)))
            columns = slice(self.size, self.size + len(bounds[-1][0]))
            self._leaves.append(_Leaf(path, math.prod(space.shape or ()), columns, classes, components))
            self.size = columns.stop
        if not bounds:
            raise TypeError(f"{piece} finds nothing in the space to make a vector of")
        self.low, self.high = (np.concatenate(part) for part in zip(*bounds, strict=True))

    def encode(self, items: Any, num_rows: int) -> Floats:
        """(num_rows, D) vectors of a nested column with so many items.

        A Discrete value outside of its space gives no one, only zeros.
        """
        vectors = np.empty((num_rows, self.size), np.float32)
        for leaf in self._leaves:
            rows = (leaf_at(items, leaf.path) if leaf.path else items).reshape(num_rows, leaf.num_numbers)
            if leaf.classes is None:
                vectors[:, leaf.columns] = rows
            else:
                values = rows if leaf.components is None else rows[:, leaf.components]
                np.equal(values, leaf.classes, out=vectors[:, leaf.columns])
        return vectors


def _one_hot_columns(space: Space) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.intp] | None]:
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(space.start, space.start + space.n, dtype=space.dtype), None
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1)
        within = [np.arange(size) for size in sizes]
        starts = np.repeat(space.start.reshape(-1), sizes)
        return (np.concatenate(within) + starts).astype(space.dtype), np.repeat(np.arange(sizes.size), sizes)
    return None, None


def _unit_bounds(size: int) -> tuple[Floats, Floats]:
    return np.zeros(size, np.float32), np.ones(size, np.float32)


def _flat_bounds(space: Space, path: Path, piece: str) -> tuple[Floats, Floats]:
    if isinstance(space, gym.spaces.MultiBinary):
        return _unit_bounds(math.prod(space.shape))
    if not isinstance(space, gym.spaces.Box):
        where = f" at {list(path)}" if path else ""
        raise TypeError(f"{piece} cannot make a vector of {space}{where}; it knows {_ENCODABLE}")
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 are none
        return space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)


_ENCODABLE = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"


# -- pieces ------------------------------------------------------------------------------------------------------------


class FlattenObservations(ObservationPiece):
    """Makes one float32 vector (rows, D) of observations of any nesting; Discrete and MultiDiscrete ones one-hot.

    Leaves follow one another in the order of the space's keys. For env-to-module and learner pipelines alike.

    Args:
        keys_to_remove: keys of a Dict space (at its top) that are left out.
    """

    def __init__(self, keys_to_remove: Sequence[str] | None = None) -> None:
        self._removed = tuple(keys_to_remove or ())
        self._encoding: FlatEncoding | None = None
        self._is_flat_already = False

    def recompute_output_observation_space(
        self, input_observation_space: Space, input_action_space: Space
    ) -> gym.spaces.Box:
        """A 1-D Box with the leaves' bounds.

        Raises:
            TypeError: a leaf cannot be flattened, or a key to remove is not there.
        """
        space = input_observation_space
        keys = list(space.spaces) if isinstance(space, gym.spaces.Dict) else []
        unknown = [key for key in self._removed if key not in keys]
        if unknown:
            raise TypeError(f"FlattenObservations: keys_to_remove has {unknown}, the keys of {space} are {keys}")
        leaves = ((path, leaf) for path, leaf in leaf_spaces(space) if not path or path[0] not in self._removed)
        self._encoding = FlatEncoding(leaves, type(self).__name__)
        self._is_flat_already = isinstance(space, gym.spaces.Box) and space.dtype == np.float32
        return gym.spaces.Box(self._encoding.low, self._encoding.high, dtype=np.float32)

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Floats:
        """(rows, D); a float32 Box is not copied."""
        if self._encoding is None:
            raise RuntimeError("FlattenObservations is called before it was given the spaces")
        if self._is_flat_already:
            vectors: Floats = obs.reshape(len(obs), self._encoding.size)
            return vectors
        return self._encoding.encode(obs, nested.row_count(obs))


class WriteObservationsToEpisodes(ConnectorPiece):
    """Lets the episodes hold the `obs` (N, ...) of the batch, so that the learner gets what the policy saw.

    Place it behind the pieces that transform observations; the learner pipeline then needs none of them.
    """

    reads = (OBS,)
    writes_obs_to_episodes = True

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Write the rows; the batch stays.

        Raises:
            TypeError: in a learner pipeline, or behind `NumpyToTensor`.
        """
        obs = batch[OBS]
        if type(obs) is not np.ndarray:
            obs = _as_arrays(type(self).__name__, obs)
        if not hasattr(episodes, "write_obs"):
            kind = type(episodes).__name__
            raise TypeError(f"WriteObservationsToEpisodes belongs in the env-to-module pipeline, got a {kind}")
        episodes.write_obs(obs)
        return batch


class SingleAgentObservationPreprocessor(ObservationPiece, ABC):
    """Base of pieces that change observations one by one: override `preprocess` and, if shapes, dtypes or bounds
    change, `recompute_output_observation_space`.

    Results are stacked into the column `obs` (N, ...) and the episodes hold them from then on, so that the learner
    gets what the policy saw. For the env-to-module pipeline. A loop over N sub-environments; where that is too slow,
    derive from `ObservationPiece`.
    """

    writes_obs_to_episodes = True

    @abstractmethod
    def preprocess(self, observation: Any, episode: SingleAgentEpisode) -> Any:
        """The observation to use instead of `observation`, the newest one of `episode`, with the same structure,
        shapes and dtypes each time.
        """

    def transform(self, obs: Any, batch: Batch, episodes: Any) -> Any:
        """All rows, one after the other.

        Raises:
            TypeError: in a learner pipeline.
        """
        name = type(self).__name__
        if isinstance(episodes, ColumnBlock):
            raise TypeError(f"{name} belongs in the env-to-module pipeline; a learner gets what it wrote there")
        items = [self.preprocess(*pair) for pair in zip(nested.unstack(obs), episodes, strict=True)]
        try:
            rows = nested.stack(items)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}.preprocess returns what cannot be column 'obs': {error}") from None
        if hasattr(episodes, "write_obs"):
            episodes.write_obs(rows)
        return rows


class MultiAgentObservationPreprocessor(SingleAgentObservationPreprocessor):
    """The same for runs with several agents.

    Pipelines are per module here: `preprocess` is called for each acting agent of the pipeline's module, and
    `episode.agent_id` and `episode.module_id` say for whom.
    """
