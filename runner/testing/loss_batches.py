"""Random train batches for losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from runner.episodes import nested
from runner.modules.rl_module import RLModule
from runner.testing.sampled_items import memory_of, tensors_of

_LENGTHS = (4, 2, 3)  # of sequences


class ReadColumns(Mapping[str, Any]):
    """A batch that knows which of its columns were read."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def make_batch(module: RLModule, num_rows: int = 12, seed: int = 0) -> dict[str, Tensor]:
    """Return random rows as a policy a little different from `module` could have sampled them.

    The module is without memory.
    """
    stream = np.random.default_rng(seed)
    obs = _observed(module, num_rows, stream)
    with torch.no_grad():
        theta = module.forward_train({"obs": obs})["action_dist_inputs"]
    return {"obs": obs, **_acted(module, theta, stream)}


def _acted(module: RLModule, theta: Tensor, stream: np.random.Generator) -> dict[str, Tensor]:
    """Return the columns of rows (B,) that were acted in by parameters near `theta` (B, K)."""
    num_rows = len(theta)
    with torch.no_grad():
        theta = theta + torch.from_numpy(stream.normal(scale=0.3, size=theta.shape).astype(np.float32))
        noise = torch.from_numpy(module.action_dist.draw_noise(stream, (num_rows,)))
        actions = module.action_dist.sample(theta, noise)
        logp = module.action_dist.log_prob(theta, actions)
    rows = {name: torch.from_numpy(stream.normal(size=num_rows).astype(np.float32)) for name in ("a", "v", "r")}
    return {
        "actions": actions,
        "action_dist_inputs": theta,
        "action_logp": logp,
        "advantages": rows["a"],
        "value_targets": 4 * rows["v"],
        "returns": 4 * rows["v"],
        "rewards": rows["r"],
        "terminateds": torch.zeros(num_rows, dtype=torch.bool),
        "truncateds": torch.zeros(num_rows, dtype=torch.bool),
        "n_step": torch.from_numpy(stream.integers(1, 4, num_rows)),
        "weights": torch.from_numpy(stream.random(num_rows, np.float32)),
        "new_obs": _observed(module, num_rows, stream),
    }


def _observed(module: RLModule, num_rows: int, stream: np.random.Generator) -> Any:
    """Return random observations (num_rows, ...) of a module."""
    space = module.observation_space
    if isinstance(space, gym.spaces.Box):
        return torch.from_numpy(stream.normal(size=(num_rows, *space.shape)).astype(np.float32))
    return tensors_of(space, num_rows, seed=int(stream.integers(2**31)))


def make_sequences(module: RLModule, padding: float) -> dict[str, Any]:
    """Return sequences (S, L, ...) of 2 to 4 steps for a module with memory, whose padded steps hold `padding`."""
    stream = np.random.default_rng(0)
    shape = len(_LENGTHS), max(_LENGTHS)
    obs = torch.from_numpy(stream.normal(size=(*shape, 3)).astype(np.float32))
    state_in = memory_of(module, len(_LENGTHS))
    with torch.no_grad():
        theta = module.forward_train({"obs": obs, "state_in": state_in})["action_dist_inputs"]
    columns = {
        name: rows.reshape(*shape, *rows.shape[1:])
        for name, rows in _acted(module, theta.flatten(0, 1), stream).items()
    }
    columns["obs"] = obs
    mask = torch.arange(shape[1]) < torch.tensor(_LENGTHS)[:, None]
    for column in columns.values():
        column[~mask] = torch.tensor(padding).to(column.dtype)
    return {**columns, "state_in": state_in, "loss_mask": mask}


def reordered(batch: Mapping[str, Any], order: npt.NDArray[Any], num_rows: int) -> dict[str, Any]:
    """Return the rows in this order, along the axis that is so long; what has none stays, as noise of a whole pass."""
    rows = torch.from_numpy(order)

    def taken(leaf: Tensor) -> Tensor:
        axis = next((axis for axis, length in enumerate(leaf.shape) if length == num_rows), None)
        return leaf if axis is None else leaf.index_select(axis, rows)

    return {name: nested.map_leaves(taken, column) for name, column in batch.items()}
