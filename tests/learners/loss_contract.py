"""Our losses by `runner.testing.check_loss`, each for the action spaces that it is for."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.algorithms import AlgorithmConfig
from runner.config.schemas import ModuleConfig
from runner.learners.loss import Loss
from runner.modules import ActorCriticModule, RLModule
from runner.testing import check_loss
from runner.testing.sampled_items import make_batch as make_batch

DISCRETE = gym.spaces.Discrete(3)
CONTINUOUS = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def make_module(action_space: gym.Space[Any], seed: int = 0) -> RLModule:
    """A small policy for three observed numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCriticModule(gym.spaces.Box(-5, 5, (3,), np.float32), action_space, ModuleConfig(fcnet_hiddens=[8]))


class LossContract:
    """The contract of one loss; subclasses give `config` and `make_loss`.

    A loss that is not for every module also gives `make_module`.
    """

    config: AlgorithmConfig
    action_spaces: tuple[str, ...] = ("discrete", "continuous")
    untouched: tuple[str, ...] = ()
    make_module: Any = None

    def make_loss(self) -> Loss:
        """A new loss for `config`."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the contract for each action space."""
        spaces = {"discrete": DISCRETE, "continuous": CONTINUOUS}
        metafunc.parametrize("space", [spaces[name] for name in self.action_spaces], ids=self.action_spaces)

    def test_contract(self, space: gym.Space[Any]) -> None:
        make_module = None if self.make_module is None else lambda: self.make_module(space)
        check_loss(
            lambda _: self.make_loss(),
            self.config,
            make_module,
            action_space=space,
            untouched=self.untouched,
            is_compiled=True,
        )
