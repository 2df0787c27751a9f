"""Random network distillation (Burda et al., 2018, https://arxiv.org/abs/1810.12894): a bonus for unfamiliar states."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from runner.pipelines import NetworkConnector, Requirements


class RND(NetworkConnector):
    """Adds scale * (error of a network that predicts the outputs of a fixed random network) to each reward.

    Only the learner sees the bonus; the reported returns are computed from the environment's rewards.
    """

    requires = Requirements(reads=("obs", "rewards", "loss_mask"), writes=("rewards",))

    def __init__(self, scale: float = 1.0, num_outputs: int = 16, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._scale, self._num_outputs = scale, num_outputs

    def make_network(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> nn.Module:
        """Return the fixed target and the predictor, which is trained."""
        (width,) = observation_space.shape or (0,)
        target = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, self._num_outputs)).requires_grad_(False)
        predictor = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, self._num_outputs))
        return nn.ModuleDict({"target": target, "predictor": predictor})

    def compute_loss(self, network: Any, rows: dict[str, Any]) -> Tensor:
        """Return the mean error of the predictor."""
        return errors(network, rows["obs"]).mean()

    def compute_columns(self, network: Any, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the rewards plus the bonus of the observation after each step, which is in the next row."""
        bonus = self._scale * errors(network, columns["obs"]).roll(-1)
        return {"rewards": columns["rewards"] + bonus * columns["loss_mask"]}


def errors(network: Any, obs: Tensor) -> Tensor:
    """Return the squared error (B,) of each row."""
    difference: Tensor = network["predictor"](obs) - network["target"](obs)
    return difference.square().mean(-1)
