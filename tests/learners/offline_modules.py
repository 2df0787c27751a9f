"""Small modules, random rows, and shared checks of losses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.learners.loss import Loss, with_noise
from runner.modules import RLModule

OBSERVATIONS = gym.spaces.Box(-5, 5, (3,), np.float32)
CONTINUOUS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
CONFIG = ModuleConfig(fcnet_hiddens=[8], vf_share_layers=False)


def make(
    module_class: type[RLModule], action_space: gym.Space[Any], seed: int = 0, config: ModuleConfig = CONFIG
) -> Any:
    """A module whose targets differ from what they follow."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = module_class(OBSERVATIONS, action_space, config)
        with torch.no_grad():
            for parameter in module.parameters():
                if not parameter.requires_grad:
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def recorded_rows(action_space: gym.Space[Any], num_rows: int = 30, seed: int = 0) -> dict[str, Tensor]:
    """Random rows; some actions of a Box are outside of it or at its bounds, some rows are terminal."""
    stream = np.random.default_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(stream.normal(size=shape).astype(np.float32))

    if isinstance(action_space, gym.spaces.Discrete):
        low = int(action_space.start)
        actions = torch.from_numpy(stream.integers(low, low + action_space.n, num_rows))
    else:
        actions = normal(num_rows, *action_space.shape)  # type: ignore[misc]
        actions[0] = 1.0
    return {
        "obs": normal(num_rows, 3),
        "new_obs": normal(num_rows, 3),
        "actions": actions,
        "rewards": normal(num_rows),
        "value_targets": 20 * normal(num_rows),
        "terminateds": torch.from_numpy(stream.random(num_rows) < 0.3),
    }


def replayed_rows(action_space: gym.Space[Any] = CONTINUOUS) -> dict[str, Tensor]:
    """Random rows with importance weights and targets over 1 to 3 steps."""
    rows, stream = recorded_rows(action_space), np.random.default_rng(3)
    num_rows = len(rows["rewards"])
    weights = torch.from_numpy(stream.random(num_rows, np.float32))
    return rows | {"n_step": torch.from_numpy(stream.integers(1, 4, num_rows)), "weights": weights}


def row_of(batch: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """One row as a batch."""
    return {name: column[i : i + 1] for name, column in batch.items()}


def check_losses(loss: Loss, module: Any, batch: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare a SAC-like loss and its gradients with expected values.

    Args:
        expected: group (`actor`, `critic`, `alpha`) -> its loss, with the draws of a stream of seed 7.
    """
    loss.use_stream(np.random.default_rng(7))
    metrics: Any = loss(module, with_noise(batch, loss, module))
    names = {"actor": "policy_loss", "critic": "qf_loss", "alpha": "alpha_loss"}
    for group, term in expected.items():
        torch.testing.assert_close(getattr(metrics, names[group]), term, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(metrics.total_loss, sum(expected.values()), rtol=1e-3, atol=1e-3)
    check_gradients(module, metrics.total_loss, expected)


def reward_after_three_iterations(experiment: str, overrides: Iterable[str]) -> float:
    """The mean reward of the trained policy in an environment that pays for matching what it shows."""
    from runner import Trainer

    fast = ("seed=100", "tracking=none", "algorithm.actor_lr=3e-3", "algorithm.critic_lr=3e-3", "algorithm.gamma=0")
    small = ("module.fcnet_hiddens=[32]", "algorithm.num_steps_sampled_before_learning_starts=100")
    with Trainer.from_experiment(experiment, ["env.env=null", *fast, *small, *overrides]) as trainer:
        for _ in range(3):
            trainer.train()
        found = trainer.evaluate()
    reward: float = found["evaluation/env_runners/episode_return_mean"]
    return reward / found["evaluation/env_runners/episode_len_mean"]


def check_gradients(module: RLModule, total_loss: Tensor, expected: dict[str, Tensor]) -> None:
    """That the gradient of a group is that of its own loss, and no gradient reaches anything else.

    Args:
        expected: group -> its loss, computed with the same module.
    """
    groups = module.parameter_groups()
    if list(expected) == ["default"]:
        groups = {"default": [parameter for parameter in module.parameters() if parameter.requires_grad]}
    assert set(groups) == set(expected)
    naive = {name: _gradients(loss, groups[name]) for name, loss in expected.items()}
    total_loss.backward()  # type: ignore[no-untyped-call]
    for name, gradients in naive.items():
        for parameter, gradient in zip(groups[name], gradients, strict=True):
            ours = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(ours, gradient, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    for parameter in module.parameters():
        assert parameter.requires_grad or parameter.grad is None


def _gradients(loss: Tensor, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    parameters = list(parameters)
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, found, strict=True)
    ]
