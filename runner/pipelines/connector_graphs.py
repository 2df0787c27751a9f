"""Graphs of the connectors in this package, see `runner.pipelines.connector_graph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.episodes import nested
from runner.pipelines.connector import ACTIONS, ACTIONS_FOR_ENV, OBS, STATE_IN, STATE_OUT
from runner.pipelines.connector_graph import Columns, ConnectorGraph, Remembered, Step


class AddObservationsGraph(ConnectorGraph):
    """Adds `obs`."""

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Return the columns with `obs`, unless they already contain it."""
        return {OBS: step.obs, **columns}


class AddTimeGraph(ConnectorGraph):
    """(B, ...) -> (B, 1, ...)."""

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Add the axis to every column."""
        return {name: nested.map_leaves(lambda leaf: leaf.unsqueeze(1), rows) for name, rows in columns.items()}


class RemoveTimeGraph(ConnectorGraph):
    """(B, 1, ...) -> (B, ...)."""

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Remove the axis from every column except the states."""
        return {
            name: rows if name == STATE_OUT else nested.map_leaves(lambda leaf: leaf.squeeze(1), rows)
            for name, rows in columns.items()
        }


class AddStatesGraph(ConnectorGraph):
    """Adds `state_in`."""

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Add the states that the caller kept from the previous step."""
        return {**columns, STATE_IN: step.module_state}


class GreedyActionsGraph(ConnectorGraph):
    """Adds `actions`, the distribution's mode."""

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Compute from `action_dist_inputs`."""
        return {**columns, ACTIONS: step.module.action_dist.mode(columns["action_dist_inputs"])}


class StandardisationGraph(ConnectorGraph):
    """Standardises leaves of `obs` in float64, as numpy does; the result is float32.

    Args:
        places: structure of the observations; each leaf is a slice of `mean` and `std`, or None to keep it unchanged.
        mean, std: (D,) float64.
        statistics_of: returns mean and std from a state of the connector.
        clip: maximum absolute value of the result, or None for no limit.
    """

    def __init__(
        self,
        places: Any,
        mean: npt.NDArray[np.float64],
        std: npt.NDArray[np.float64],
        statistics_of: Callable[[Mapping[str, Any]], dict[str, npt.NDArray[Any]]],
        clip: float | None,
    ) -> None:
        super().__init__()
        self._places = places
        self._clip = clip
        self._statistics_of = statistics_of
        self.register_buffer("mean", torch.from_numpy(mean.copy()))
        self.register_buffer("std", torch.from_numpy(std.copy()))

    mean: Tensor
    std: Tensor

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace column `obs`."""
        return {**columns, OBS: nested.map_leaves(self._standardised, self._places, columns.get(OBS, step.obs))}

    def _standardised(self, place: slice | None, leaf: Tensor) -> Tensor:
        if place is None:
            return leaf
        shape = leaf.shape[1:]
        rows = (leaf.double() - self.mean[place].reshape(shape)) / self.std[place].reshape(shape)
        if self._clip is not None:
            rows = rows.clamp(-self._clip, self._clip)
        return rows.float()

    def statistics(self, state: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return `mean` and `std`."""
        return self._statistics_of(state)


class FrameStackGraph(ConnectorGraph):
    """Stacks the newest observation on remembered ones.

    Args:
        is_first: structure of the observations, with a flag per leaf: whether its first axis holds channels or frames;
            None if it is not stacked.
        blanks: for each leaf, an item of zeros.
        num_frames: number of frames including the newest.
    """

    def __init__(self, is_first: Any, blanks: Any, num_frames: int) -> None:
        super().__init__()
        self._is_first = is_first
        self._blanks = blanks
        self._num_past = num_frames - 1

    def memory(self) -> dict[str, Remembered]:
        """Return (num_frames - 1, *shape) frames for each stacked leaf, oldest first."""
        if not self._num_past:
            return {}
        return {
            name: Remembered(np.zeros((self._num_past, *blank.shape), blank.dtype))
            for name, is_first, blank in zip(
                self._names(), nested.leaves(self._is_first), nested.leaves(self._blanks), strict=True
            )
            if is_first is not None
        }

    def _names(self) -> list[str]:
        return ["/".join(["frames", *map(str, path)]) for path in paths(self._is_first)]

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace column `obs`."""
        names = iter(self._names())

        def stack(is_first: bool | None, leaf: Tensor) -> Tensor:
            name = next(names)
            if is_first is None:
                return leaf
            frames = leaf.unsqueeze(1)
            if self._num_past:
                frames = torch.cat((step.past[name], frames), 1)
                step.remember(name, frames[:, 1:])
            return frames.flatten(1, 2) if is_first else _stacked_frames(frames)

        return {**columns, OBS: nested.map_leaves(stack, self._is_first, columns.get(OBS, step.obs))}


def _stacked_frames(frames: Tensor) -> Tensor:
    """Return (B, F, ..., C) -> (B, ..., F * C); for data without channels, scalars and (H, W): (B, ..., F)."""
    if frames.ndim in (2, 4):
        return frames.movedim(1, -1)
    if frames.ndim > 3:
        frames = frames.movedim(1, -2)
    return frames.flatten(-2)


class PastGraph(ConnectorGraph):
    """Adds past actions and rewards to the observations.

    Args:
        names: columns for the observation, the actions and the rewards.
        encode: (B, ...) actions -> (B, D) float32, or None to omit actions.
        blank_action: an action of the module.
        num_numbers: D.
        num_actions, num_rewards: number of past actions and rewards.
    """

    def __init__(
        self,
        names: tuple[str, str, str],
        encode: Callable[[Any], Tensor] | None,
        blank_action: Any,
        num_numbers: int,
        num_actions: int,
        num_rewards: int,
    ) -> None:
        super().__init__()
        self._names = names
        self._encode = encode
        self._blank_action = blank_action
        self._num_numbers = num_numbers
        self._num_actions = num_actions
        self._num_rewards = num_rewards

    def memory(self) -> dict[str, Remembered]:
        """Return actions and rewards before the last step (`actions` (n, D), `rewards` (n,)), the last ones
        (`prev_action`, `prev_reward`), and `has_begun` (1,), which is 1 from the second step.
        """
        memory = {"has_begun": Remembered(np.zeros(1, np.float32))}
        if self._num_actions:
            memory["prev_action"] = Remembered(self._blank_action, "action")
        if self._num_rewards:
            memory["prev_reward"] = Remembered(np.zeros((), np.float32), "reward")
        if self._num_actions > 1:
            memory["actions"] = Remembered(np.zeros((self._num_actions - 1, self._num_numbers), np.float32))
        if self._num_rewards > 1:
            memory["rewards"] = Remembered(np.zeros(self._num_rewards - 1, np.float32))
        return memory

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Replace column `obs` by a dict."""
        obs_name, actions_name, rewards_name = self._names
        has_begun = step.past["has_begun"]
        obs = {obs_name: columns.get(OBS, step.obs)}
        if self._encode is not None:
            newest = self._encode(step.past["prev_action"]) * has_begun
            obs[actions_name] = self._with_past("actions", newest.unsqueeze(1), step).flatten(1)
        if self._num_rewards:
            newest = step.past["prev_reward"].unsqueeze(1) * has_begun
            obs[rewards_name] = self._with_past("rewards", newest, step)
        step.remember("has_begun", torch.ones_like(has_begun))
        return {**columns, OBS: obs}

    def _with_past(self, name: str, newest: Tensor, step: Step) -> Tensor:
        if name not in step.past:
            return newest
        values = torch.cat((step.past[name], newest), 1)
        step.remember(name, values[:, 1:])
        return values


class ScalingGraph(ConnectorGraph):
    """Adds `actions_for_env`.

    Args:
        scalings: structure of the actions, with a `LeafScaling` or None per leaf.
    """

    def __init__(self, scalings: Any) -> None:
        super().__init__()
        self.scalings = scalings

    def forward(self, columns: Columns, step: Step) -> Columns:
        """Compute from `actions`."""
        actions = columns[ACTIONS]
        if self.scalings is not None:
            actions = nested.map_leaves(
                lambda scaling, leaf: scaling.of_tensors(leaf) if scaling else leaf, self.scalings, actions
            )
        return {**columns, ACTIONS_FOR_ENV: actions}


@dataclass(frozen=True)
class LeafScaling:
    """Scales actions from [-1, 1] to bounds if `kind` is `unsquash`, and clips them: rounding could exceed bounds.

    Attributes:
        kind: `clip` or `unsquash`.
        low, high: (*shape) bounds of the environment.
    """

    kind: Literal["clip", "unsquash"]
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]

    @cached_property
    def _half(self) -> npt.NDArray[Any]:
        return 0.5 * self.high - 0.5 * self.low  # high - low may exceed the range of the dtype

    @cached_property
    def _center(self) -> npt.NDArray[Any] | None:
        return 0.5 * self.high + 0.5 * self.low if is_wide(self.low, self.high) else None

    def __call__(self, actions: npt.NDArray[Any]) -> Any:
        """Return (B, *shape) actions in the dtype of the bounds."""
        if self.kind == "unsquash":
            actions = self._unsquashed(np.minimum(np.maximum(actions, -1.0), 1.0), self.low, self._half, self._center)
        return np.minimum(np.maximum(actions.astype(self.low.dtype, copy=False), self.low), self.high)

    def of_tensors(self, actions: Tensor) -> Tensor:
        """Return (B, *shape) tensors of the same dtype."""
        low, high = torch.from_numpy(self.low.copy()), torch.from_numpy(self.high.copy())
        if self.kind == "unsquash":
            center = None if self._center is None else 0.5 * high + 0.5 * low
            actions = self._unsquashed(actions.clamp(-1.0, 1.0), low, 0.5 * high - 0.5 * low, center)
        return torch.minimum(torch.maximum(actions, low), high)

    @staticmethod
    def _unsquashed(units: Any, low: Any, half: Any, center: Any) -> Any:
        return low + (units + 1.0) * half if center is None else center + units * half

    def undo(self, actions: npt.NDArray[Any]) -> Any:
        """Return the actions (B, *shape) before the scaling, assuming nothing was clipped."""
        if self.kind == "clip":
            return actions
        if self._center is not None:
            return ((actions - self._center) / np.where(self._half > 0, self._half, 1.0)).astype(actions.dtype)
        width = np.where(self.high > self.low, self.high - self.low, 1.0)
        return ((actions - self.low) * (2.0 / width) - 1.0).astype(actions.dtype)


def is_wide(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> bool:
    """Return whether the distance between bounds exceeds the largest number of their dtype."""
    with np.errstate(over="ignore"):
        return not np.isfinite(high - low).all()


def paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the keys and indices that lead to each leaf, in the order of `nested.leaves`."""
    if not isinstance(tree, (dict, tuple)):
        return [path]
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [found for key, branch in branches for found in paths(branch, (*path, key))]
