"""Pieces from the module's outputs to the actions that the vector environment is stepped with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from runner.pipelines.piece import (
    ACTION_DIST_INPUTS,
    ACTION_LOGP,
    ACTIONS,
    ACTIONS_FOR_ENV,
    Batch,
    ConnectorPiece,
)
from runner.streams import restore_stream, stream_state

_NOISE_STEPS = 256


class GetActions(ConnectorPiece):
    """Adds `actions` (N, ...): a sample of the policy's distribution, or its mode when not exploring.

    The noise of 256 vector steps is drawn at once from the piece's own stream. `action_logp` is added once per
    fragment, from `action_dist_inputs` and `actions`.
    """

    reads = (ACTION_DIST_INPUTS,)
    writes = (ACTIONS,)
    writes_per_fragment = (ACTION_LOGP,)

    def __init__(self) -> None:
        self._stream = np.random.default_rng(0)
        self._noise: tuple[torch.Tensor, ...] = ()
        self._position = 0
        self._resume_at = 0
        self._drawn_from: dict[str, Any] = {}

    def __call__(self, *, rl_module: Any, batch: Batch, explore: bool | None = None, **kwargs: Any) -> Batch:
        """Add the actions, on the module's device."""
        dist_inputs = batch[ACTION_DIST_INPUTS]
        dist = rl_module.action_dist
        if not explore:
            batch[ACTIONS] = dist.mode(dist_inputs)
            return batch
        if self._position == len(self._noise) or self._noise[0].shape[0] != len(dist_inputs):
            self._draw_noise(dist, dist_inputs)
        batch[ACTIONS] = dist.sample(dist_inputs, self._noise[self._position])
        self._position += 1
        return batch

    def _draw_noise(self, dist: Any, dist_inputs: torch.Tensor) -> None:
        self._drawn_from = stream_state(self._stream)
        noise = dist.draw_noise(self._stream, (_NOISE_STEPS, len(dist_inputs)))
        self._noise = torch.from_numpy(noise).to(dist_inputs.device).unbind(0)
        self._position, self._resume_at = self._resume_at, 0

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Add `action_logp` (R,) float32 to the fragment's columns."""
        dist_inputs = torch.from_numpy(columns[ACTION_DIST_INPUTS])
        logp = rl_module.action_dist.log_prob(dist_inputs, torch.from_numpy(columns[ACTIONS]))
        columns[ACTION_LOGP] = logp.numpy()

    def use_stream(self, stream: np.random.Generator) -> None:
        """Draw noise from `stream`."""
        self._stream = stream
        self._noise, self._position, self._resume_at = (), 0, 0

    def get_state(self) -> dict[str, Any]:
        """The stream before the current noise was drawn, and how much of that noise is used."""
        if self._resume_at or self._position == len(self._noise):
            return {"stream": stream_state(self._stream), "position": self._resume_at}
        return {"stream": self._drawn_from, "position": self._position}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the noise is drawn again at the next call."""
        restore_stream(self._stream, state["stream"])
        self._noise, self._position, self._resume_at = (), 0, int(state["position"])


class TensorToNumpy(ConnectorPiece):
    """Makes arrays of all tensors; on the CPU without a copy."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert every tensor."""
        for column, value in batch.items():
            if isinstance(value, torch.Tensor):
                batch[column] = value.numpy() if value.device.type == "cpu" else value.cpu().numpy()
        return batch


class UnBatchToIndividualItems(ConnectorPiece):
    """Checks that each column has one row for each sub-environment; row n is sub-environment n's item."""

    def __call__(self, *, batch: Batch, episodes: Any, **kwargs: Any) -> Batch:
        """Return the batch as it is."""
        num_envs = len(episodes)
        for column, rows in batch.items():
            if len(rows) != num_envs:
                raise ValueError(
                    f"module-to-env column {column!r} has {len(rows)} rows for {num_envs} sub-environments"
                )
        return batch


class NormalizeAndClipActions(ConnectorPiece):
    """Adds `actions_for_env`: Box actions scaled from [-1, 1] to the space's bounds, or clipped into them.

    Args:
        normalize_actions: the module acts in [-1, 1]; values outside are clipped.
        clip_actions: clip into the bounds; only where actions are not normalised.
    """

    reads = (ACTIONS,)
    writes = (ACTIONS_FOR_ENV,)

    def __init__(self, normalize_actions: bool = True, clip_actions: bool = False) -> None:
        self._normalizes = normalize_actions
        self._clips = clip_actions
        self._low: Any = None

    def recompute_output_action_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Remembers the bounds; the space stays."""
        self._low = None
        if isinstance(input_action_space, gym.spaces.Box) and (self._normalizes or self._clips):
            self._low, self._high = input_action_space.low, input_action_space.high
            bounded = bool(np.all(np.isfinite(self._low)) and np.all(np.isfinite(self._high)))
            self._scales = self._normalizes and bounded
        return input_action_space

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Add the column; other action spaces than Box are passed on as they are."""
        actions = batch[ACTIONS]
        if self._low is not None:
            if self._scales:
                actions = self._low + (np.clip(actions, -1.0, 1.0) + 1.0) * (0.5 * (self._high - self._low))
            else:
                actions = np.clip(actions, self._low, self._high)
        batch[ACTIONS_FOR_ENV] = actions
        return batch


class ListifyDataForVectorEnv(ConnectorPiece):
    """Makes arrays (N, ...) of columns that a piece left as a list or as items per episode, in order."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert what is no array yet."""
        for column, rows in batch.items():
            if type(rows) is not np.ndarray:
                items = [item for chunk in rows.values() for item in chunk] if isinstance(rows, dict) else rows
                batch[column] = np.stack([np.asarray(item) for item in items])
        return batch
