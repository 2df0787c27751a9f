"""Connectors that add past frames, actions and rewards to the newest observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from runner.episodes import nested
from runner.episodes.columns import ColumnBlock
from runner.episodes.spaces import blank_item, leaf_spaces, replace_leaf_spaces
from runner.modules.images import CHW, TCHW, THWC, clear_axes
from runner.pipelines.connector import ACTIONS, OBS, REWARDS, Batch, Connector
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import FrameStackGraph, PastGraph
from runner.pipelines.flat_encoding import FlatEncoding, Floats, Space
from runner.pipelines.observation_connector import (
    ObservationConnector,
    check_keys,
    map_changed_leaves,
    observation_rows,
    step_rows,
)
from runner.pipelines.requirements import Requirements
from runner.rows.running_episodes import RunningEpisodes

ORIG_OBS = "_orig_obs"
PREV_ACTIONS = "prev_n_actions"
PREV_REWARDS = "prev_n_rewards"


class FrameStacking(Connector):
    """Stacks the last `num_frames` observations, oldest first; before an episode's start frames are zero.

    A Box (D,) becomes (num_frames * D,). (H, W, C) becomes (H, W, num_frames * C), with each frame's channels together;
    (H, W) becomes (H, W, num_frames). Images that are clearly (C, H, W), or that already have a first axis of frames,
    are stacked along that axis. In a Dict or Tuple every Box is stacked.

    Frames are taken from the episodes. In the env-to-module pipeline they are the environment's observations, so place
    the connector before all connectors that change observations. Also add it to the learner pipeline (episodes then
    hold single frames, which saves memory), or put `WriteObservationsToEpisodes` after it.

    Args:
        num_frames: at least 1.
        as_learner_connector: whether the connector is in a learner pipeline; only checked, since it is detected.
        keys_to_leave: top-level keys of a Dict space that are not stacked, such as an action mask.
    """

    requires = Requirements(writes=(OBS,), needs_episode_obs=True)

    def __init__(self, num_frames: int, as_learner_connector: bool = False, keys_to_leave: Sequence[str] = ()) -> None:
        if num_frames < 1:
            raise ValueError(f"FrameStacking: num_frames must be at least 1, got {num_frames}")
        self._num_frames = num_frames
        self._left = frozenset(keys_to_leave)
        self._is_for_learner = as_learner_connector
        belongs_in = ("learner",) if as_learner_connector else self.requires.belongs_in
        self.requires = replace(self.requires, belongs_in=belongs_in, num_lookback=num_frames - 1)
        self._is_order_checked = False
        self._is_first: Any = False

    def recompute_output_observation_space(self, input_observation_space: Space, input_action_space: Space) -> Space:
        """Return the space with each Box stacked.

        Raises:
            TypeError: a leaf is not a Box, or a key to leave does not exist.
        """
        check_keys(type(self).__name__, "keys_to_leave", self._left, input_observation_space)
        self._space = input_observation_space
        self._is_first = map_changed_leaves(_stacks_first, input_observation_space, self._left)
        return replace_leaf_spaces(self._stacked_space, input_observation_space, self._left)

    def _stacked_space(self, space: Space) -> Space:
        if not isinstance(space, gym.spaces.Box):
            raise TypeError(f"FrameStacking stacks Box observations, alone or in a Dict or Tuple; got {space}")
        before, is_first = self._num_frames - 1, _stacks_first(space)
        low, high = (
            _stacked(is_first, np.stack([*[np.asarray(past, bound.dtype)] * before, bound])[None])[0]
            for past, bound in ((np.minimum(space.low, 0), space.low), (np.maximum(space.high, 0), space.high))
        )
        return gym.spaces.Box(low, high, dtype=space.dtype.type)

    def __call__(self, *, batch: Batch, episodes: RunningEpisodes | ColumnBlock, **kwargs: Any) -> Batch:
        """Write the stacked rows.

        Raises:
            RuntimeError: another connector has already changed the observations.
        """
        if self._is_for_learner and not isinstance(episodes, ColumnBlock):
            raise TypeError("FrameStacking(as_learner_connector=True) works in learner pipelines only")
        values, _ = _history(batch, episodes, OBS, self._num_frames)
        if not self._is_order_checked:
            self._check_order(batch, episodes, values)
        batch[OBS] = nested.map_leaves(_stacked, self._is_first, values)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph, which remembers the earlier frames."""
        return FrameStackGraph(self._is_first, _blank_arrays(self._space), self._num_frames)

    def _check_order(self, batch: Batch, episodes: RunningEpisodes | ColumnBlock, values: Any) -> None:
        newest = nested.take(values, (slice(None), -1))
        if not nested.equal(observation_rows(type(self).__name__, batch, episodes), newest):
            raise RuntimeError(
                "FrameStacking: column 'obs' differs from the observations of the episodes; "
                "place it before the connectors that change them"
            )
        self._is_order_checked = True


class PrevActionsPrevRewards(ObservationConnector):
    """Adds the last actions and rewards to each observation, oldest first; zeros before an episode's start.

    `obs` becomes a dict of `_orig_obs`: the observation (rows, ...), `prev_n_actions`: (rows, n_prev_actions * D)
    float32, each action as one vector, Discrete and MultiDiscrete one-hot, and `prev_n_rewards`: (rows,
    n_prev_rewards) float32. Actions are the module's, before they are scaled or clipped for the environment.

    Args:
        n_prev_actions, n_prev_rewards: number of past actions and rewards; 0 omits the key.
    """

    def __init__(self, n_prev_actions: int = 1, n_prev_rewards: int = 1) -> None:
        if min(n_prev_actions, n_prev_rewards) < 0 or n_prev_actions == n_prev_rewards == 0:
            got = f"n_prev_actions={n_prev_actions}, n_prev_rewards={n_prev_rewards}"
            raise ValueError(f"PrevActionsPrevRewards: neither may be negative nor both 0, got {got}")
        self._num_actions = n_prev_actions
        self._num_rewards = n_prev_rewards
        self._encoding: FlatEncoding | None = None
        self.requires = replace(self.requires, num_lookback=max(n_prev_actions, n_prev_rewards))

    def recompute_output_observation_space(
        self, input_observation_space: Space, input_action_space: Space
    ) -> gym.spaces.Dict:
        """Return a Dict with the observation, the actions and the rewards.

        Raises:
            TypeError: the action space has a leaf that cannot be encoded as a vector.
        """
        parts: dict[str, Space] = {ORIG_OBS: input_observation_space}
        if self._num_actions:
            leaves = [(path, _without_bounds(space)) for path, space in leaf_spaces(input_action_space)]
            self._action_space = input_action_space
            self._encoding = FlatEncoding(leaves, type(self).__name__)
            low, high = (np.tile(bound, self._num_actions) for bound in (self._encoding.low, self._encoding.high))
            parts[PREV_ACTIONS] = gym.spaces.Box(low, high, dtype=np.float32)
        if self._num_rewards:
            parts[PREV_REWARDS] = gym.spaces.Box(-np.inf, np.inf, (self._num_rewards,), np.float32)
        return gym.spaces.Dict(parts)

    def transform(self, obs: Any, batch: Batch, episodes: RunningEpisodes | ColumnBlock) -> dict[str, Any]:
        """Return the dict of columns."""
        columns = {ORIG_OBS: obs}
        if self._num_actions:
            columns[PREV_ACTIONS] = self._past_actions(batch, episodes)
        if self._num_rewards:
            rewards, _ = _history(batch, episodes, REWARDS, self._num_rewards)
            columns[PREV_REWARDS] = rewards.astype(np.float32, copy=False)
        return columns

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph; the caller passes the last action and reward."""
        encoding, blank_action, size = None, None, 0
        if self._encoding is not None:
            encoding, size = self._encoding.encode_tensors, self._encoding.size
            blank_action = _blank_arrays(self._action_space)
        names = (ORIG_OBS, PREV_ACTIONS, PREV_REWARDS)
        return PastGraph(names, encoding, blank_action, size, self._num_actions, self._num_rewards)

    def _past_actions(self, batch: Batch, episodes: RunningEpisodes | ColumnBlock) -> Floats:
        if self._encoding is None:
            raise RuntimeError("PrevActionsPrevRewards was called before its spaces were set")
        actions, is_there = _history(batch, episodes, ACTIONS, self._num_actions)
        num_rows = len(is_there)
        vectors = self._encoding.encode(actions, num_rows * self._num_actions)
        vectors *= is_there.reshape(-1, 1)  # a missing action is all zeros, not the encoding of action 0
        return vectors.reshape(num_rows, self._num_actions * self._encoding.size)


def _history(
    batch: Batch, episodes: RunningEpisodes | ColumnBlock, column: str, length: int
) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return (rows, length, ...) values, and (rows, length) whether they are within the episode, for the rows of the
    batch."""
    values, is_there = episodes.history(column, length)
    if isinstance(episodes, ColumnBlock):
        values, is_there = step_rows(values, batch, episodes), step_rows(is_there, batch, episodes)
    return values, is_there


def _blank_arrays(space: Space) -> Any:
    return nested.map_leaves(np.asarray, blank_item(space))


def _stacks_first(space: Space) -> bool:
    """Return whether the first axis of a leaf holds channels or frames."""
    return clear_axes(space) in (CHW, THWC, TCHW)


def _stacked(is_first: bool | None, frames: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return (rows, F, ..., C) -> (rows, ..., F * C), or (rows, F, C, ...) -> (rows, F * C, ...) if channels come
    first; for data without channels, scalars and (H, W): (rows, ..., F). If `is_first` is None, return the newest."""
    if is_first is None:
        return frames[:, -1]
    if is_first:
        return frames.reshape(len(frames), frames.shape[1] * frames.shape[2], *frames.shape[3:])
    if frames.ndim in (2, 4):
        frames = frames[..., None]
    rows, num_frames, *shape, channels = frames.shape
    stacks = np.empty((rows, *shape, num_frames, channels), frames.dtype)
    for number in range(num_frames):  # a single copy with moved axes takes six times as long
        stacks[..., number, :] = frames[:, number]
    return stacks.reshape(rows, *shape, num_frames * channels)


def _without_bounds(space: Space) -> Space:
    """Return a Box for outputs of a module, which may be outside the action space's bounds."""
    return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32) if isinstance(space, gym.spaces.Box) else space
