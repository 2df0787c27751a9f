"""The RLModule protocol: three forward passes, a value function, recurrent state, and an action distribution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.config.user_code import place_of
from runner.episodes import nested
from runner.modules.action_distribution import ActionDistribution
from runner.modules.distributions import distribution_for
from runner.modules.target_networks import follow


class RLModule(nn.Module):
    """A policy network with the interface that runners and learners need. Subclass it and override `forward_train`.

    Observations and actions are nested like their spaces: a tensor, or dicts and tuples of tensors. A stateful module
    sets `is_stateful`, `inputs = ("obs", "state_in")` and `outputs = ("action_dist_inputs", "state_out")`, and
    overrides `get_initial_state` and `forward_exploration`. Its batches have a time axis: `obs` (N, 1, ...) when acting
    and (S, L, ...) when learning, and so do its outputs, such as `action_dist_inputs` (N, 1, K). `state_in` and
    `state_out`, (N, ...) or (S, ...), do not have a time axis.

    An auxiliary module, which does not choose actions, sets `train_outputs` to the outputs that its loss reads.

    Dimension letters: N sub-environments, B batch rows, S sequences of length L, K width of `action_dist_inputs`.

    Args:
        observation_space: space of the observations after the env-to-module pipeline.
        action_space: space of the actions before the module-to-env pipeline.
        config: the `module` block; `config.model_config` contains free arguments for custom classes.

    Attributes:
        action_dist: distribution parametrised by `action_dist_inputs`.
        is_stateful: whether the module carries a recurrent state from step to step.
        num_noise: numbers in a row of column `noise`, which the passes read while exploring and learning; 0 for modules
            without noise. Without the column, a noisy module is greedy.
        noise_steps: steps of a sub-environment that share a row of noise while it explores.
        draws_per_row: whether losses draw noise for each row of a train batch instead of one row of noise for all.
    """

    outputs: tuple[str, ...] = ("action_dist_inputs",)
    """Columns written by the acting passes; connectors of the module-to-env pipeline and the loss may read them."""
    train_outputs: tuple[str, ...] = ("action_dist_inputs", "vf_preds")
    """Outputs of `forward_train`, which losses read.

    `vf_preds` may be missing if no loss or connector uses it, or if `compute_values` is overridden.
    """
    inputs: tuple[str, ...] = ("obs",)
    """Columns that the forward passes read."""
    train_inputs: tuple[str, ...] = ()
    """Columns of the train batch that `forward_train` and `compute_values` read in addition to `inputs`.

    A stateful module that reads `is_first` (S, L) learns from sequences that may contain parts of several episodes. Its
    state is the initial one before each step of `is_first`. The column may be missing, which means that it is false.
    """
    is_stateful = False
    num_noise = 0
    noise_steps = 1
    draws_per_row = False

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], config: ModuleConfig) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.action_dist: ActionDistribution = distribution_for(action_space)

    @property
    def learner_inputs(self) -> tuple[str, ...]:
        """Columns of the train batch that the module reads."""
        return tuple(dict.fromkeys((*self.inputs, *self.train_inputs)))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Return name -> parameters, for algorithms with separate learning rates.

        Every learned parameter belongs to one group. Target networks (`requires_grad` false) belong to none.
        """
        return {"default": [parameter for parameter in self.parameters() if parameter.requires_grad]}

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return (target, network) for each target network; use `target_of` to make a target of a network."""
        return []

    def normalize_values(self, values: Tensor) -> Tensor:
        """Return values (B,) in the scale in which the loss compares `vf_preds` with their targets."""
        return values

    def update_value_scale(self, targets: Tensor) -> None:
        """Update the scale of `normalize_values` with value targets (B,), without changing the values."""

    def update_targets(self, tau: float) -> None:
        """Move each target towards its network: target <- target + tau (network - target)."""
        for target, network in self.target_networks():
            follow(target, network, tau)

    def draw_noise(self, stream: np.random.Generator, leading: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Draw column `noise`, `(*leading, num_noise)`, independently for each row."""
        return stream.standard_normal((*leading, self.num_noise), np.float32)

    def get_initial_state(self) -> dict[str, Any]:
        """Return `state_in` of an episode's first step: a nested dict of float32 tensors without batch axis, or {}."""
        return {}

    def forward_inference(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return outputs for acting greedily: `action_dist_inputs` (N, K) from `obs` (N, ...); for stateful modules see
        the class."""
        return self.forward_exploration(batch)

    def forward_exploration(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return outputs for acting and exploring: `action_dist_inputs` (N, K) from `obs` (N, ...); for stateful
        modules see the class."""
        return {"action_dist_inputs": self.forward_train(batch)["action_dist_inputs"]}

    def forward_train(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return outputs for the loss: `action_dist_inputs` (B, K) and `vf_preds` (B,) from `obs` (B, ...); if stateful
        (S, L, K) and (S, L) from `obs` (S, L, ...) and `state_in`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement forward_train ({place_of(type(self))})")

    def compute_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Return (B,) values of `obs` (B, ...); if stateful (S, L)."""
        values: Tensor = self.forward_train(batch)["vf_preds"]
        return values

    def outputs_at_steps(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of `forward_train` at the env steps only.

        Args:
            batch: for a stateful module it contains `loss_mask` (S, L) or `step_rows` (V,) int64, the indices of the
                mask's true entries in (S * L); other batches contain env steps only.

        Returns:
            Every output (V, ...), in the order of the mask's entries.
        """
        return self.at_steps(self.forward_train(batch), batch)

    def at_steps(self, outputs: dict[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
        """Take the env steps (V, ...) from outputs of `forward_train` for this batch; see `outputs_at_steps`."""
        rows = _step_rows(batch) if self.is_stateful else None
        if rows is None:
            return outputs
        return {name: nested.map_leaves(partial(rows_at, rows), output) for name, output in outputs.items()}

    def in_sequences(self, rows: Tensor, batch: Mapping[str, Any], like: Tensor) -> Tensor:
        """Put rows (V, D) of the env steps at their positions in sequences, as (S, L, D); other positions are 0.

        Args:
            rows: rows in the order of `at_steps`; when acting (N, D), one for each sequence of a single step.
            batch: batch that the env steps belong to.
            like: (S, L, ...).
        """
        leading, step_rows = like.shape[:2], _step_rows(batch)
        if step_rows is None:
            return rows.reshape(*leading, -1)
        places = rows.new_zeros((leading.numel(), rows.shape[-1]))
        return places.index_copy(0, step_rows, rows).reshape(*leading, -1)


def _step_rows(batch: Mapping[str, Any]) -> Tensor | None:
    """Return (V,) int64 indices of the env steps in (S * L), or None for a batch without sequences."""
    rows: Tensor | None = batch.get("step_rows")
    mask: Tensor | None = batch.get("loss_mask")
    if rows is not None or mask is None or mask.ndim != 2:
        return rows
    return mask.flatten().nonzero().squeeze(-1)


def rows_at(rows: Tensor, output: Tensor) -> Tensor:
    """Take rows of (S, L, ...) by their index into (S * L)."""
    return output.flatten(0, 1).index_select(0, rows)
