"""A connector that changes the input of the network: an angle is replaced by its sine and cosine."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from runner.pipelines import ObservationConnector, ObservationGraph

ANGLE = 2  # index of the pole's angle in CartPole's observation of four numbers


class SineAndCosine(ObservationConnector):
    """Replaces the pole's angle by its sine and cosine, so four numbers become five."""

    reports: ClassVar = {"tilt": ("max", "largest angle in radians")}

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> Any:
        """Return the space of the result of `transform`, for which the module is built."""
        low = _around_angle(input_observation_space.low[None], -1.0, -1.0)[0]
        high = _around_angle(input_observation_space.high[None], 1.0, 1.0)[0]
        return gym.spaces.Box(low, high, dtype=np.float32)

    def transform(self, obs: Any, batch: Any, episodes: Any) -> Any:
        """Convert rows (N, 4) to rows (N, 5) of the same dtype."""
        angle = obs[:, ANGLE]
        if self.metrics is not None:  # None in evaluation
            self.metrics.report("tilt", float(np.abs(angle).max()))
        return _around_angle(obs, np.sin(angle), np.cos(angle))

    def to_graph(self) -> ObservationGraph:
        """Return the equivalent torch graph, for ONNX files."""
        return ObservationGraph(self._in_torch)

    @staticmethod
    def _in_torch(obs: torch.Tensor) -> torch.Tensor:
        before, angle, after = obs[:, :ANGLE], obs[:, ANGLE : ANGLE + 1], obs[:, ANGLE + 1 :]
        return torch.cat([before, angle.sin(), angle.cos(), after], -1)


def _around_angle(rows: Any, sine: Any, cosine: Any) -> Any:
    """Return rows (N, 4) with the angle replaced by two numbers."""
    before, after = rows[:, :ANGLE], rows[:, ANGLE + 1 :]
    middle = np.stack(np.broadcast_arrays(sine, cosine), -1).reshape(-1, 2)
    return np.concatenate([before, middle, after], -1, dtype=rows.dtype)
