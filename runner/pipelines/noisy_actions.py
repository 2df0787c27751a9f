"""Exploration by adding noise to the actions of a deterministic policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runner.config.algorithms import Schedule
from runner.config.schedules import check_schedule, scheduled_value
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import ACTION_DIST_INPUTS, ACTIONS, Batch
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import GreedyActionsGraph
from runner.pipelines.connector_kinds import ModuleToEnvConnector
from runner.pipelines.noise_connectors import DrawsNoise
from runner.pipelines.requirements import Requirements
from runner.rows.agent_rows import AgentRows
from runner.rows.running_episodes import RunningEpisodes

KINDS = ("gaussian", "ornstein_uhlenbeck")
_REVERSION = 0.15  # theta of Lillicrap et al.


class NoisyActions(DrawsNoise, ModuleToEnvConnector):
    """Adds `actions` (K, ...): the policy's actions plus noise, clipped to their bounds.

    `gaussian` noise is independent in each step (Fujimoto et al., 2018). `ornstein_uhlenbeck` noise depends on the
    previous step, x <- (1 - 0.15) x + sigma N(0, 1), and starts at 0 with each episode (Lillicrap et al., 2016,
    https://arxiv.org/abs/1509.02971). The unit of both is half the distance between an action's bounds. The outputs of
    the module are removed from the batch, because nothing is learned from them.

    Args:
        sigma: standard deviation of the noise; a number, or [[env steps, value], ...] over the env steps of all
            runners.
        kind: `gaussian` or `ornstein_uhlenbeck`.
        num_random_steps: number of initial env steps of all runners with actions drawn uniformly from their bounds.

    Raises:
        ValueError: sigma is below 0 or not a valid schedule, or the kind is unknown.
    """

    requires = Requirements(reads=(ACTION_DIST_INPUTS,), writes=(ACTIONS,), drops=(ACTION_DIST_INPUTS,))

    def __init__(self, sigma: Schedule, kind: str = "gaussian", num_random_steps: int = 0) -> None:
        super().__init__()
        check_schedule("sigma", sigma, 0)
        if kind not in KINDS:
            raise ValueError(f"kind must be {' or '.join(KINDS)}, got {kind!r}")
        self._schedule, self._num_random_steps = sigma, num_random_steps
        self._remembered: npt.NDArray[np.float32] | None = None  # (slots, A)
        self._remembers = kind == "ornstein_uhlenbeck"
        self.at_env_steps(0)

    def at_env_steps(self, num_env_steps: int) -> None:
        """Set sigma, and whether actions are random, for the next fragment."""
        self.sigma = scheduled_value(self._schedule, num_env_steps)
        self._is_random = num_env_steps < self._num_random_steps

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the actions, on the module's device, and remove `action_dist_inputs`.

        Raises:
            TypeError: actions are not bounded Boxes.
        """
        theta = batch.pop(ACTION_DIST_INPUTS)
        dist: Any = rl_module.action_dist
        if not explore:
            batch[ACTIONS] = dist.mode(theta)
            return batch
        if not hasattr(dist, "mode_with_noise"):
            raise TypeError(f"noise needs actions within bounds (module=td3 or sac), got {type(dist).__name__}")
        size = dist.num_noise
        noise = self._next_noise(
            len(theta), episodes.max_rows, lambda leading: self._stream.standard_normal((*leading, size), np.float32)
        )
        if self._is_random:
            shares = torch.special.ndtr(torch.from_numpy(noise))  # uniform, since the noise is normally distributed
            batch[ACTIONS] = dist.at_shares(shares.to(theta.device))
            return batch
        noise = np.float32(self.sigma) * noise
        if self._remembers:
            noise = self._correlated(noise, episodes)
        batch[ACTIONS] = dist.mode_with_noise(theta, torch.from_numpy(noise).to(theta.device))
        return batch

    def _correlated(self, noise: npt.NDArray[np.float32], episodes: RunningEpisodes) -> npt.NDArray[np.float32]:
        """Return the next Ornstein-Uhlenbeck noise (K, A) of these episodes from white noise (K, A)."""
        slots = episodes.slots if isinstance(episodes, AgentRows) else np.arange(len(noise))
        num_slots = int(slots.max()) + 1
        if self._remembered is None or len(self._remembered) < num_slots:
            grown = np.zeros((max(num_slots, episodes.max_rows), noise.shape[1]), np.float32)
            if self._remembered is not None:
                grown[: len(self._remembered)] = self._remembered
            self._remembered = grown
        before = self._remembered[slots]
        before[episodes.starts_episode] = 0.0
        self._remembered[slots] = noise = np.float32(1.0 - _REVERSION) * before + noise
        return noise

    def get_state(self) -> dict[str, Any]:
        """Return the position in the noise and, for correlated noise, the newest noise (slots, A)."""
        remembered = {} if self._remembered is None else {"remembered": self._remembered.copy()}
        return super().get_state() | remembered

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        super().set_state(state)
        remembered = state.get("remembered")
        self._remembered = None if remembered is None else np.array(remembered, np.float32)

    def to_graph(self) -> ConnectorGraph | None:
        """Return a graph of the policy's action."""
        return GreedyActionsGraph()
