"""Our losses by `runner.testing.check_loss`, each for the action spaces that it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest

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
    module: RLModule = make(ActorCriticModule, action_space, seed, ModuleConfig(fcnet_hiddens=[8]))
    return module


class LossContract:
    """The contract of one loss; subclasses set `loss_class` and `config`, and `module_class` if the loss does not
    support every module.
    """

    loss_class: Callable[[Any], Loss]
    config: AlgorithmConfig
    module_class: type[RLModule] | None = None
    module_config = CONFIG
    action_spaces: tuple[str, ...] = ("discrete", "continuous")
    untouched: tuple[str, ...] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run the contract for each action space."""
        spaces = {"discrete": DISCRETE, "continuous": CONTINUOUS}
        metafunc.parametrize("space", [spaces[name] for name in self.action_spaces], ids=self.action_spaces)

    def test_contract(self, space: gym.Space[Any]) -> None:
        module_class = self.module_class
        make_module = None if module_class is None else partial(make, module_class, space, config=self.module_config)
        check_loss(
            type(self).loss_class,
            self.config,
            make_module,
            action_space=space,
            untouched=self.untouched,
            is_compiled=True,
        )
