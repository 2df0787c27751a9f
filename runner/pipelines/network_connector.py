"""Base class of learner connectors that own and train a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from runner.config.errors import Problem, RunFailure
from runner.config.user_code import place_of
from runner.episodes import nested
from runner.modules.default_settings import default_settings
from runner.pipelines.connector import LOSS_MASK, Batch
from runner.pipelines.connector_kinds import LearnerConnector
from runner.pipelines.custom_metrics import CustomMetrics
from runner.pipelines.requirements import Requirements


class NetworkConnector(LearnerConnector):
    """Base class of learner connectors that own a network and train it on each batch.

    Override `make_network`, `compute_loss` and `compute_columns`, and name the columns in `requires`. Insert
    the connector after `NumpyToTensor`. Each call computes the columns, then trains the network on the batch's env
    steps. Checkpoints contain the network with its buffers, the state of the optimiser and the random stream. With
    several learners, each of them trains a network on its own rows.

    Args:
        lr: learning rate.
        num_epochs: passes over the env steps of a batch.
        minibatch_size: maximum rows of one gradient step, or None for all env steps of the batch.
        device: device of the network; `auto` means the device of the batch, which is the learner's.
    """

    reports: Mapping[str, tuple[str, str]] = {"network_loss": ("mean", "loss of the network that the connector trains")}

    def __init__(
        self, lr: float = 1e-3, num_epochs: int = 1, minibatch_size: int | None = 256, device: str = "auto"
    ) -> None:
        if lr <= 0 or num_epochs < 1 or (minibatch_size is not None and minibatch_size < 1):
            raise ValueError(f"lr={lr}, num_epochs={num_epochs} and minibatch_size={minibatch_size} must be positive")
        self._lr, self._num_epochs, self._minibatch_size = lr, num_epochs, minibatch_size
        self._device = None if device == "auto" else _available(device)
        self._spaces: tuple[gym.Space[Any], gym.Space[Any]] | None = None
        self._made: tuple[nn.Module, torch.optim.Optimizer] | None = None
        self._take_stream(np.random.default_rng(0))

    # -- methods to override -----------------------------------------------------------------------------------------

    def make_network(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> nn.Module:
        """Return the network for the spaces of the learner pipeline; torch is seeded before the call.

        Parameters whose `requires_grad` is false are not trained.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement make_network ({place_of(type(self))})")

    def compute_columns(self, network: nn.Module, columns: Batch) -> Batch:
        """Return the columns in `writes` from all rows of the columns in `reads`; called without gradients."""
        raise NotImplementedError(f"{type(self).__name__} does not implement compute_columns ({place_of(type(self))})")

    def compute_loss(self, network: nn.Module, rows: Batch) -> Tensor:
        """Return the mean loss (0-d) of a minibatch of env steps with the columns in `reads`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement compute_loss ({place_of(type(self))})")

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser of the trained parameters."""
        return torch.optim.Adam(parameters, lr=self._lr)

    # -- the connector -------------------------------------------------------------------------------------------------

    @default_settings()
    def __call__(self, *, batch: Batch, metrics: CustomMetrics | None = None, **kwargs: Any) -> Batch:
        """Add the columns to the batch of each module, and train the network on the rows of env steps."""
        for columns in batch.values():
            of_batch = self._device_of(columns)
            device = self._device or of_batch
            given = {name: _to(device, columns[name]) for name in Requirements.of(self).reads}
            network, optimizer = self._on(device)
            with torch.no_grad():
                computed = self.compute_columns(network, given)
            if self.is_training:
                is_step = columns.get(LOSS_MASK)
                steps = given if is_step is None else nested.take(given, is_step.to(device))
                loss = self._train(network, optimizer, steps)
                if metrics is not None:
                    metrics.report("network_loss", loss, nested.row_count(steps))
            columns |= {name: _to(of_batch, column) for name, column in computed.items()}
        return batch

    def _device_of(self, columns: Any) -> torch.device:
        read = (
            [columns.get(name) for name in Requirements.of(self).reads] if isinstance(columns, Mapping) else [columns]
        )
        leaves = [leaf for column in read for leaf in nested.leaves(column)]
        if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
            what = f"{type(self).__name__} reads columns that are not tensors"
            raise RunFailure(Problem(what, "connectors.learner", fix="insert_after: NumpyToTensor"))
        device: torch.device = leaves[0].device
        return device

    def _train(self, network: nn.Module, optimizer: torch.optim.Optimizer, steps: Batch) -> float:
        """Train the network for `num_epochs`; return the mean loss of the first one."""
        num_steps = nested.row_count(steps)
        size = self._minibatch_size or num_steps
        losses: list[tuple[Tensor, int]] = []
        for epoch in range(self._num_epochs):
            order = torch.from_numpy(self._stream.permutation(num_steps)).to(next(nested.leaves(steps)).device)
            for rows in torch.split(order, size):
                loss = self.compute_loss(network, nested.take(steps, rows))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                losses += [(loss.detach(), len(rows))] if epoch == 0 else []
        return float(sum(loss * count for loss, count in losses)) / max(num_steps, 1)

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Store the space, for which the network is made."""
        if self._spaces != (input_observation_space, input_action_space):
            self._spaces, self._made = (input_observation_space, input_action_space), None
        return input_observation_space

    # -- the network -------------------------------------------------------------------------------------------------

    @property
    def network(self) -> nn.Module:
        """The network, made at its first use."""
        return self._parts()[0]

    @default_settings()
    def _parts(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        if self._made is None:
            if self._spaces is None:
                what = f"{type(self).__name__} does not know its spaces, because it is not part of a pipeline"
                raise RunFailure(Problem(what, "connectors.learner"))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed)
                network = self.make_network(*self._spaces)
            trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
            self._made = network, self.make_optimizer(trained)
        return self._made

    def _on(self, device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
        network, optimizer = self._parts()
        if any(one.device != device for one in (*network.parameters(), *network.buffers())):
            network.to(device)
            optimizer.load_state_dict(optimizer.state_dict())  # moves its state to the device of the parameters
        return network, optimizer

    def use_stream(self, stream: np.random.Generator) -> None:
        """Set the random stream, which seeds the network and shuffles minibatches."""
        self._take_stream(stream)

    def _take_stream(self, stream: np.random.Generator) -> None:
        self._stream, self._seed, self._made = stream, int(stream.integers(2**31)), None

    def get_state(self) -> dict[str, Any]:
        """Return the network's parameters and buffers, and the state of the optimiser, as arrays."""
        network, optimizer = self._parts()
        of_optimizer = {str(number): values for number, values in optimizer.state_dict()["state"].items()}
        return {"network": _to_arrays(network.state_dict()), "optimizer": _to_arrays(of_optimizer)}

    @default_settings()
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        network, optimizer = self._parts()
        network.load_state_dict({name: torch.as_tensor(value) for name, value in state["network"].items()})
        of_optimizer = {
            int(number): {name: torch.tensor(v) if isinstance(v, np.ndarray) else v for name, v in values.items()}
            for number, values in state["optimizer"].items()
        }
        optimizer.load_state_dict({**optimizer.state_dict(), "state": of_optimizer})

    def reset_state(self) -> None:
        """Make the network again."""
        self._made = None


def _available(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name} is not available: {str(error).splitlines()[0]}") from error
    return device


def _to(device: torch.device, column: Any) -> Any:
    return nested.map_leaves(lambda leaf: leaf.to(device), column)


def _to_arrays(tree: Mapping[str, Any]) -> dict[str, Any]:
    arrays: dict[str, Any] = nested.map_leaves(_to_array, {name: tree[name] for name in tree})
    return arrays


def _to_array(leaf: Any) -> Any:
    return leaf.detach().cpu().numpy().copy() if isinstance(leaf, Tensor) else leaf
