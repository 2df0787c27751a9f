"""Our losses by `runner.testing.check_loss`, each for the action spaces that it is for."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.learners.offline_modules import CONFIG, make
from tests.learners.offline_modules import CONTINUOUS as CONTINUOUS

DISCRETE = gym.spaces.Discrete(3)


def make_module(action_space: gym.Space[Any], seed: int = 0) -> RLModule:
    """A small policy for three observed numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCriticModule(gym.spaces.Box(-5, 5, (3,), np.float32), action_space, ModuleConfig(fcnet_hiddens=[8]))


class LossContract:
    """The contract of one loss; subclasses give `loss_class` and `config`.

    A loss that is not for every module also gives `module_class`, or overrides `make_module`.
    """

    loss_class: Callable[[Any], Loss]
    config: AlgorithmConfig
    module_class: type[RLModule] | None = None
    module_config = CONFIG
    action_spaces: tuple[str, ...] = ("discrete", "continuous")
    untouched: tuple[str, ...] = ()

    def make_module(self, action_space: gym.Space[Any]) -> RLModule | None:
        """A module for the loss, or None for the default one."""
        return None if self.module_class is None else make(self.module_class, action_space, config=self.module_config)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the contract for each action space."""
        spaces = {"discrete": DISCRETE, "continuous": CONTINUOUS}
        metafunc.parametrize("space", [spaces[name] for name in self.action_spaces], ids=self.action_spaces)

    def test_contract(self, space: gym.Space[Any]) -> None:
        is_special = self.make_module(space) is not None
        check_loss(
            type(self).loss_class,
            self.config,
            (lambda: self.make_module(space)) if is_special else None,
            action_space=space,
            untouched=self.untouched,
            is_compiled=True,
        )
