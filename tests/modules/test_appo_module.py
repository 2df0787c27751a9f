"""The target of an actor-critic: it follows every part, and no gradient reaches it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules import APPOModule
from runner.modules.rl_module import RLModule
from tests.modules.spaces import items_of

OBSERVATIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own value net": {"vf_share_layers": False},
    "free log std": {"free_log_std": True},
    "a component without parameters": {"vf_normalization": "symlog"},
    "lstm": {"use_lstm": True, "lstm_cell_size": 4},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_the_target_follows_all_parameters(options: dict[str, Any]) -> None:
    module = APPOModule(OBSERVATIONS, gym.spaces.Box(-1.0, 1.0, (2,), np.float32), config(**options))
    own = {name: value for name, value in module.named_parameters() if not name.startswith("target.")}
    target = dict(module.target.named_parameters())
    before = {name: value.clone() for name, value in target.items()}
    assert own.keys() == target.keys()
    assert not any(value.requires_grad for value in target.values())
    with torch.no_grad():
        for value in own.values():
            value.add_(1.0)
    assert all(torch.equal(target[name], before[name]) for name in own), "the target moved with its network"
    module.update_targets(0.25)
    for name, value in target.items():
        torch.testing.assert_close(value, before[name] + 0.25, msg=name)


def test_acting_is_by_the_module_and_not_by_its_target() -> None:
    module: RLModule = APPOModule(OBSERVATIONS, gym.spaces.Discrete(2), config())
    batch = {"obs": items_of(OBSERVATIONS, 5)}
    before = module.forward_inference(batch)["action_dist_inputs"]
    with torch.no_grad():
        for target, _ in module.target_networks():
            for parameter in target.parameters():
                parameter.add_(1.0)
    assert torch.equal(module.forward_inference(batch)["action_dist_inputs"], before)


def config(**options: Any) -> ModuleConfig:
    return ModuleConfig(fcnet_hiddens=[8], **options)
