"""Connectors from the module's outputs to the actions of the vector environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from runner.config.algorithms import Schedule
from runner.config.schedules import check_schedule, scheduled_value
from runner.episodes import nested
from runner.episodes.spaces import map_leaf_spaces, replace_leaf_spaces
from runner.modules.action_distribution import MASKED_LOGIT
from runner.modules.rl_module import RLModule
from runner.pipelines.connector import (
    ACTION_DIST_INPUTS,
    ACTION_LOGP,
    ACTION_NOISE,
    ACTIONS,
    ACTIONS_FOR_ENV,
    STATE_OUT,
    Batch,
    Connector,
    Items,
)
from runner.pipelines.connector_graph import ConnectorGraph
from runner.pipelines.connector_graphs import GreedyActionsGraph, LeafScaling, RemoveTimeGraph, ScalingGraph
from runner.pipelines.connector_kinds import ModuleToEnvConnector
from runner.pipelines.noise_connectors import DrawsNoise
from runner.pipelines.requirements import Requirements
from runner.rows.agent_rows import AgentRows
from runner.rows.running_episodes import RunningEpisodes


class GetActions(DrawsNoise, ModuleToEnvConnector):
    """Adds `actions` (N, ...): a sample of the policy's distribution, or its mode if not exploring.

    `action_logp` is added once per fragment, computed from `action_dist_inputs` and `actions`.
    """

    requires = Requirements(reads=(ACTION_DIST_INPUTS,), writes=(ACTIONS,), writes_per_fragment=(ACTION_LOGP,))

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the actions, on the module's device."""
        dist_inputs = batch[ACTION_DIST_INPUTS]
        dist = rl_module.action_dist
        if not explore:
            batch[ACTIONS] = dist.mode(dist_inputs)
            return batch

        def draw(leading: tuple[int, int]) -> Any:
            return torch.from_numpy(dist.draw_noise(self._stream, leading)).to(dist_inputs.device).unbind(0)

        noise = batch.pop(ACTION_NOISE, None)  # of a module that explores with its own noise
        if noise is None:
            noise = self._next_noise(dist_inputs.shape[0], episodes.max_rows, draw)
        batch[ACTIONS] = dist.sample(dist_inputs, noise)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return a graph of the mode; the caller samples from `action_dist_inputs`."""
        return GreedyActionsGraph()

    def complete_fragment(self, columns: dict[str, Any], rl_module: Any) -> None:
        """Add `action_logp` (R,) float32 to the fragment's columns."""
        dist_inputs = torch.from_numpy(columns[ACTION_DIST_INPUTS])
        actions = nested.map_leaves(torch.from_numpy, columns[ACTIONS])
        logp = rl_module.action_dist.log_prob(dist_inputs, actions)
        columns[ACTION_LOGP] = logp.detach().numpy()


class EpsilonGreedyActions(DrawsNoise, ModuleToEnvConnector):
    """Adds `actions` (N, ...): random actions with probability epsilon, otherwise the best by `action_dist_inputs`.

    Random actions are uniform over the actions that masks allow. For MultiDiscrete actions, each number is random or
    best independently. The Q values are removed from the batch: they are not a distribution, and losses do not use
    old Q values.

    Args:
        epsilon: probability of a random action; a number, or [[env steps, value], ...] over the env steps of all
            runners.
        exponent: how much epsilon differs between rows. Row i of N, counted over env runners first, uses
            epsilon^(1 + exponent i / (N - 1)) (Horgan et al., 2018, appendix C of https://arxiv.org/abs/1803.00933,
            with exponent 7); 0 means the same epsilon for all.

    Raises:
        ValueError: epsilon is not a schedule of numbers between 0 and 1, or the exponent is below 0.
    """

    requires = Requirements(reads=(ACTION_DIST_INPUTS,), writes=(ACTIONS,), drops=(ACTION_DIST_INPUTS,))

    def __init__(self, epsilon: Schedule, exponent: float = 0.0) -> None:
        super().__init__()
        check_schedule("epsilon", epsilon, 0, 1)
        if not isinstance(exponent, (int, float)) or exponent < 0:
            raise ValueError(f"exponent must be a number of 0 or more, got {exponent!r}")
        self._schedule, self._exponent = epsilon, exponent
        self._index, self._num_env_runners = 0, 1
        self.at_env_steps(0)

    def at_env_steps(self, num_env_steps: int) -> None:
        """Set epsilon for the next fragment."""
        self.epsilon = scheduled_value(self._schedule, num_env_steps)

    def use_env_runner(self, index: int, num_env_runners: int) -> None:
        """Explore with the epsilon of this env runner."""
        self._index, self._num_env_runners = index, num_env_runners

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: Batch,
        episodes: RunningEpisodes,
        explore: bool | None = None,
        **kwargs: Any,
    ) -> Batch:
        """Add the actions, on the module's device, and remove `action_dist_inputs`."""
        q = batch.pop(ACTION_DIST_INPUTS)
        if explore:
            num_rows, num_values = q.shape
            sizes = getattr(rl_module.action_dist, "sizes", (num_values,))  # number of values of each action component
            width = len(sizes) + num_values
            noise = self._next_noise(
                num_rows, episodes.max_rows, lambda leading: self._stream.random((*leading, width), np.float32)
            )
            explores = noise[:, : len(sizes)] < self._epsilons(num_rows)
            if np.count_nonzero(explores):
                of_values = explores if len(sizes) == 1 else explores.repeat(sizes, 1)
                q = _random_where(of_values, noise[:, len(sizes) :], q)
        batch[ACTIONS] = rl_module.action_dist.mode(q)
        return batch

    def _epsilons(self, num_rows: int) -> Any:
        """Return the epsilon of all rows, or (N, 1) of each row if rows explore differently."""
        if not self._exponent:
            return self.epsilon
        places = np.arange(num_rows)[:, None] * self._num_env_runners + self._index
        return self.epsilon ** (1 + self._exponent * places / max(1, num_rows * self._num_env_runners - 1))

    def to_graph(self) -> ConnectorGraph | None:
        """Return a graph of the best action."""
        return GreedyActionsGraph()


def _random_where(explores: npt.NDArray[np.bool_], random: npt.NDArray[np.float32], q: torch.Tensor) -> torch.Tensor:
    """Return Q (N, K) with random values (N, K) in exploring rows (N, 1) or values (N, K), except for forbidden
    actions."""
    values = q.cpu().numpy()
    mixed = np.where(explores & (values != np.float32(MASKED_LOGIT)), random, values)
    return torch.from_numpy(mixed).to(q.device)


class TensorToNumpy(Connector):
    """Converts all tensors to arrays; on the CPU without a copy."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert every tensor, also in nested columns."""
        for column, value in batch.items():
            if isinstance(value, torch.Tensor):
                batch[column] = _to_numpy(value)
            elif isinstance(value, (dict, tuple)):
                batch[column] = nested.map_leaves(_to_numpy, value)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because columns stay tensors in a graph."""
        return None


def _to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach() if value.requires_grad else value
        return value.numpy() if value.is_cpu else value.cpu().numpy()
    return value


class RemoveSingleTsTimeRankFromBatch(ModuleToEnvConnector):
    """Removes the time axis from the outputs of a stateful module, (N, 1, ...) -> (N, ...).

    `state_out` is unchanged, because it does not have a time axis.
    """

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Remove axis 1 of every column except the states."""
        for column, value in batch.items():
            if column != STATE_OUT:
                batch[column] = nested.map_leaves(lambda leaf: leaf.squeeze(1), value)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return the equivalent torch graph."""
        return RemoveTimeGraph()


class UnBatchToIndividualItems(ModuleToEnvConnector):
    """Checks that each column has one row per sub-environment; row n belongs to sub-environment n."""

    def __call__(self, *, batch: Batch, episodes: RunningEpisodes, **kwargs: Any) -> Batch:
        """Return the batch unchanged."""
        num_envs = len(episodes)
        for column, rows in batch.items():
            num_rows = len(rows) if type(rows) is np.ndarray else nested.row_count(rows)
            if num_rows != num_envs:
                raise ValueError(f"module-to-env column {column!r} has {num_rows} rows for {num_envs} acting envs")
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because the connector only checks."""
        return None


class NormalizeAndClipActions(ModuleToEnvConnector):
    """Adds `actions_for_env`: Box actions scaled from [-1, 1] to the space's bounds, or clipped into them.

    Args:
        normalize_actions: scale actions from [-1, 1], after clipping them to that range.
        clip_actions: clip actions to the bounds; only if actions are not normalised.
    """

    requires = Requirements(reads=(ACTIONS,), writes=(ACTIONS_FOR_ENV,))

    def __init__(self, normalize_actions: bool = True, clip_actions: bool = False) -> None:
        self._normalizes = normalize_actions
        self._clips = clip_actions
        self._scalings: Any = None

    def recompute_output_action_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Store the bounds; the space is unchanged."""
        self._scalings = map_leaf_spaces(self._scaling_of, input_action_space)
        if not any(nested.leaves(self._scalings)):
            self._scalings = None
        return input_action_space

    def _scaling_of(self, space: gym.Space[Any]) -> Any:
        """Return the scaling of a leaf's actions, or None if they are unchanged."""
        if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            return None
        if self._normalizes and _is_bounded(space):
            return LeafScaling("unsquash", space.low, space.high)
        return LeafScaling("clip", space.low, space.high) if self._normalizes or self._clips else None

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Add the column; actions of spaces other than Box are unchanged."""
        actions = batch[ACTIONS]
        if self._scalings is not None:
            actions = nested.map_leaves(_scaled, self._scalings, actions)
        batch[ACTIONS_FOR_ENV] = actions
        return batch

    def to_module(self, actions: Any) -> Any:
        """Return the actions (R, ...) that the module would have drawn for these actions of the environment, assuming
        nothing was clipped."""
        if self._scalings is None:
            return actions
        return nested.map_leaves(
            lambda scaling, leaf: leaf if scaling is None else scaling.undo(leaf), self._scalings, actions
        )

    def to_graph(self) -> ScalingGraph:
        """Return the equivalent torch graph."""
        return ScalingGraph(self._scalings)


def acting_space(space: gym.Space[Any], normalize_actions: bool) -> gym.Space[Any]:
    """Return the space in which a module acts: the environment's space, or [-1, 1] for bounded float Boxes if actions
    are normalised."""
    return replace_leaf_spaces(_normalized, space) if normalize_actions else space


def _normalized(space: gym.Space[Any]) -> gym.Space[Any]:
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating) and _is_bounded(space):
        return gym.spaces.Box(-1.0, 1.0, space.shape, space.dtype.type)
    return space


def _is_bounded(space: gym.spaces.Box) -> bool:
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def _scaled(scaling: LeafScaling | None, actions: Any) -> Any:
    return actions if scaling is None else scaling(actions)


class ModuleToAgentUnmapping(ModuleToEnvConnector):
    """Converts `actions_for_env` (K, ...) to a list of (sub-environment, agent id, action) of the agents that act.

    Agents whose episodes have just ended are left out: their last observations also passed through the module.
    """

    requires = Requirements(reads=(ACTIONS_FOR_ENV,), writes=(ACTIONS_FOR_ENV,))

    def __call__(self, *, batch: Batch, episodes: AgentRows, **kwargs: Any) -> Batch:
        """Replace the column."""
        actions = batch[ACTIONS_FOR_ENV]
        items = list(actions) if type(actions) is np.ndarray else nested.unstack(actions)
        slots, is_running = episodes.slots.tolist(), episodes.is_running[episodes.slots].tolist()
        batch[ACTIONS_FOR_ENV] = [
            (episodes.env_of(slot), episodes.agent_of(slot), action)
            for slot, acts, action in zip(slots, is_running, items, strict=True)
            if acts
        ]
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because a graph acts for one agent per row."""
        return None


class ListifyDataForVectorEnv(ModuleToEnvConnector):
    """Converts columns that a connector left as lists or as items per episode to arrays (N, ...), in order."""

    def __call__(self, *, batch: Batch, **kwargs: Any) -> Batch:
        """Convert all columns that are not arrays."""
        for column, rows in batch.items():
            if isinstance(rows, Items):
                batch[column] = rows.stacked()
            elif isinstance(rows, list):
                batch[column] = nested.stack(rows)
        return batch

    def to_graph(self) -> ConnectorGraph | None:
        """Return None, because columns are tensors in a graph."""
        return None
