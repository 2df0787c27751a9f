"""Random items of spaces, random train batches for losses, and the parameters that each term of a loss affects."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.environments.stand_in import item_of
from runner.episodes import nested
from runner.modules.actor_critic_module import ActorCriticModule
from runner.modules.rl_module import RLModule

Space = gym.Space[Any]
OBSERVATIONS = gym.spaces.Box(-5.0, 5.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(5)


def items_of(space: Space, *leading: int, seed: int = 0) -> Any:
    """Return random items (*leading, ...) of a space as arrays, nested like the space."""
    space.seed(seed)
    items = nested.stack([item_of(space) for _ in range(int(np.prod(leading)))])
    return nested.map_leaves(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), items)


def tensors_of(space: Space, *leading: int, seed: int = 0) -> Any:
    """Return random items (*leading, ...) of a space as tensors, nested like the space."""
    return nested.map_leaves(torch.from_numpy, items_of(space, *leading, seed=seed))


def small_module(
    observation_space: Space = OBSERVATIONS, action_space: Space = DISCRETE, **options: Any
) -> ActorCriticModule:
    """Return a small network for these spaces, always with equal parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = ModuleConfig(**({"fcnet_hiddens": [8]} | options))
        return ActorCriticModule(observation_space, action_space, config)


def memory_of(module: RLModule, num_rows: int, seed: int = 0) -> Any:
    """Return a random `state_in` (num_rows, ...) of a stateful module."""
    generator = torch.Generator().manual_seed(seed)
    return nested.map_leaves(
        lambda leaf: 0.5 * torch.randn(num_rows, *leaf.shape, generator=generator), module.get_initial_state()
    )


def process_streams() -> tuple[Any, ...]:
    """Return the states of the global random generators of the process."""
    numpy_state: Any = np.random.get_state(legacy=False)
    return torch.get_rng_state(), numpy_state["state"], random.getstate()[1]


def are_close(first: Any, second: Any) -> bool:
    """Return whether nested tensors have equal shapes, and values that are equal up to rounding."""
    pairs = zip(nested.leaves(first), nested.leaves(second), strict=True)
    return all(one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs)


class SampledEnvironments(gym.vector.VectorEnv[Any, Any, Any]):
    """N sub-environments with random observations of a space, episodes of 2 to 9 steps and random rewards.

    Episodes end alternately by termination and by truncation, and are reset in the next step.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    _lengths = (4, 2, 9)

    def __init__(self, num_envs: int, observation_space: Space, action_space: Space) -> None:
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = gym.vector.utils.batch_space(observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the first episodes."""
        self._stream = np.random.default_rng(seed)
        self.single_observation_space.seed(int(self._stream.integers(2**31)))
        self._t = np.zeros(self.num_envs, np.int64)
        self._numbers = np.arange(self.num_envs)  # indices of the episodes of all sub-environments
        self._is_done = np.zeros(self.num_envs, np.bool_)
        return self._observe(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one vector step; `actions` have no effect."""
        is_reset = self._is_done
        self._numbers = self._numbers + self.num_envs * is_reset
        self._t = np.where(is_reset, 0, self._t + 1)
        self._is_done = self._t == np.take(self._lengths, self._numbers % len(self._lengths))
        is_odd = self._numbers % 2 == 1
        rewards = np.where(is_reset, 0.0, self._stream.normal(size=self.num_envs))
        infos = {"reward": rewards, "_reward": np.ones(self.num_envs, np.bool_)}
        return self._observe(), rewards, self._is_done & ~is_odd, self._is_done & is_odd, infos

    def _observe(self) -> Any:
        return nested.stack([item_of(self.single_observation_space) for _ in range(self.num_envs)])


_LENGTHS = (4, 2, 3)  # lengths of the sequences


class ReadColumns(Mapping[str, Any]):
    """A batch that records which of its columns were read."""

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
    """Return random rows that a policy slightly different from `module` could have sampled.

    The module must be stateless. For an auxiliary module, the policy is independent of the observations.
    """
    stream = np.random.default_rng(seed)
    obs = _observed(module, num_rows, stream)
    theta = torch.zeros(num_rows, module.action_dist.num_inputs)
    if "action_dist_inputs" in module.train_outputs:
        with torch.no_grad():
            theta = module.forward_train({"obs": obs})["action_dist_inputs"]
    return {"obs": obs, **_acted(module, theta, stream)}


def _acted(module: RLModule, theta: Tensor, stream: np.random.Generator) -> dict[str, Tensor]:
    """Return the columns of rows (B,) sampled by a policy with parameters near `theta` (B, K)."""
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
    space = module.observation_space
    if isinstance(space, gym.spaces.Box):
        return torch.from_numpy(stream.normal(size=(num_rows, *space.shape)).astype(np.float32))
    return tensors_of(space, num_rows, seed=int(stream.integers(2**31)))


def make_sequences(module: RLModule, padding: float) -> dict[str, Any]:
    """Return sequences (S, L, ...) of 2 to 4 steps for a stateful module, with `padding` in padded steps."""
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
    """Return the rows in this order, along the axis of this length; leaves without such an axis are unchanged."""
    rows = torch.from_numpy(order)

    def taken(leaf: Tensor) -> Tensor:
        axis = next((axis for axis, length in enumerate(leaf.shape) if length == num_rows), None)
        return leaf if axis is None else leaf.index_select(axis, rows)

    return {name: nested.map_leaves(taken, column) for name, column in batch.items()}


# Operations that add up or scale their inputs, and therefore do not combine two terms.
_LINEAR = ("Add", "Sub", "Mean", "Sum", "Neg", "Stack", "Cat", "Where", "View", "Reshape", "Squeeze", "Unsqueeze")
_PRODUCTS = ("Mul", "Div", "Dot")  # linear if only one factor has a gradient


def mixed_terms(
    loss: Tensor, members: Mapping[str, Sequence[nn.Parameter]], names: Mapping[int, str]
) -> Iterator[dict[str, str]]:
    """Yield, for each term of a sum that affects the parameters of several optimisers, these parameters.

    Args:
        loss: the sum, 0-d.
        members: optimiser -> its parameters.
        names: id of a parameter -> its name.

    Yields:
        Optimiser -> name of one of its parameters.

    """
    owner = {id(parameter): optimizer for optimizer, group in members.items() for parameter in group}
    for term in _terms(loss.grad_fn):
        reached: dict[str, str] = {}
        for parameter in _leaves(term):
            if id(parameter) in owner:
                reached.setdefault(owner[id(parameter)], names[id(parameter)])
        if len(reached) > 1:
            yield reached


def _terms(node: Any) -> Iterator[Any]:
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [one for one, _ in node.next_functions if one is not None]
        kind = type(node).__name__
        is_linear = kind.startswith(_LINEAR) or (kind.startswith(_PRODUCTS) and len(before) == 1)
        if is_linear and before:
            waiting += before
        else:
            yield node


def _leaves(node: Any) -> Iterator[Tensor]:
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [one for one, _ in node.next_functions]
