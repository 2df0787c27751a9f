"""Modules with Q functions: shapes for any space, what a gradient reaches, and how targets follow."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules import DoubleQModule, IQLModule, SACModule
from runner.modules.layers import ACTIVATIONS
from runner.modules.q_functions import through_actions
from runner.modules.target_networks import follow, target_of
from runner.pipelines.module_to_env_connectors import acting_space
from tests.modules.spaces import items_of

CONFIG = ModuleConfig(fcnet_hiddens=[8], vf_share_layers=False)
VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
DICT = gym.spaces.Dict({"position": VECTOR, "kind": gym.spaces.Discrete(4), "view": IMAGE})
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": gym.spaces.Discrete(3, start=1),
    "multi discrete": gym.spaces.MultiDiscrete([2, 3]),
    "bits": gym.spaces.MultiBinary(3),
    "box": BOX,
    "dict": gym.spaces.Dict({"move": BOX, "fire": gym.spaces.Discrete(2)}),
}
OBSERVATIONS = {"vector": VECTOR, "image": IMAGE, "dict": DICT}


@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("observation_space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_iql_module_for_any_space(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    module = IQLModule(observation_space, action_space, CONFIG)
    obs, actions = items_of(observation_space, 5), items_of(action_space, 5)
    outputs = module.forward_train({"obs": obs})
    assert outputs["action_dist_inputs"].shape == (5, module.action_dist.num_inputs)
    assert outputs["vf_preds"].shape == module.compute_values({"obs": obs}).shape == (5,)
    q = module.compute_q_values(obs, actions)
    assert q.shape == (2, 5)
    assert not torch.equal(q[0], q[1])
    torch.testing.assert_close(module.compute_target_q_values(obs, actions), q.detach())


@pytest.mark.parametrize("observation_space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_q_of_several_actions_of_each_observation(observation_space: gym.Space[Any]) -> None:
    module = SACModule(observation_space, BOX, CONFIG)
    obs, actions = items_of(observation_space, 5), items_of(BOX, 5, 4)
    together = module.compute_q_values(obs, actions).unflatten(-1, (5, 4))
    for number in range(4):
        torch.testing.assert_close(together[:, :, number], module.compute_q_values(obs, actions[:, number]))
    outputs = module.forward_train({"obs": obs})
    assert outputs["action_dist_inputs"].shape == (5, 4)


LAYERS = {
    "plain": ModuleConfig(fcnet_hiddens=[8, 5], fcnet_activation="relu"),
    "norm": ModuleConfig(fcnet_hiddens=[8], fcnet_use_layernorm=True, head_fcnet_hiddens=[6], num_critics=5),
    "linear": ModuleConfig(fcnet_hiddens=[], num_critics=1),
}


@pytest.mark.parametrize("config", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("observation_space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_an_ensemble_is_one_q_function_after_another(observation_space: gym.Space[Any], config: ModuleConfig) -> None:
    critic = SACModule(observation_space, BOX, config).critic
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    obs, actions = items_of(observation_space, 5), items_of(BOX, 5)
    together = critic.forward(obs, actions)
    encoders = critic.obs_features.encoders
    for number in range(config.num_critics):
        encode = encoders[number if len(encoders) > 1 else 0]
        outputs = torch.cat((encode.forward(obs), actions), -1)
        for part, activate in (
            (critic.encoder, ACTIVATIONS[config.fcnet_activation]),
            (critic.head, ACTIVATIONS[config.head_fcnet_activation]),
        ):
            for layer, (weight, bias) in enumerate(zip(part.weights, part.biases, strict=True)):
                outputs = torch.nn.functional.linear(outputs, weight[number].T, bias[number, 0])
                if part is critic.head and layer == len(part.weights) - 1:
                    break
                if part is critic.encoder and config.fcnet_use_layernorm:
                    scale, shift = part.norms[2 * layer][number, 0], part.norms[2 * layer + 1][number, 0]
                    outputs = torch.nn.functional.layer_norm(outputs, outputs.shape[-1:], scale, shift)
                outputs = activate(outputs)
        torch.testing.assert_close(together[number], outputs)
    some = torch.tensor([0, config.num_critics - 1])
    torch.testing.assert_close(critic.forward(obs, actions, some), together[some])
    torch.testing.assert_close(critic.forward(obs, actions, slice(1)), together[:1])


def test_actions_are_clamped_into_the_boxes_of_their_space() -> None:
    low, high = np.array([[-1, 0, -np.inf], [1, 10, 5]], np.float32)
    uneven = gym.spaces.Box(low, high)
    space = gym.spaces.Dict({"move": gym.spaces.Tuple([uneven]), "fire": gym.spaces.Discrete(2)})
    fire = torch.tensor([0, 1])
    actions = {"move": (torch.tensor([[3.0, -1.0, -99.0], [0.5, 5.0, 99.0]]),), "fire": fire}
    clamped = IQLModule(VECTOR, space, CONFIG).clamped(actions)
    assert clamped["move"][0].tolist() == [[1.0, 0.0, -99.0], [0.5, 5.0, 5.0]]
    assert clamped["fire"] is fire


def test_log_stds_are_clipped() -> None:
    module = SACModule(VECTOR, BOX, ModuleConfig(fcnet_hiddens=[8], log_std_clip_param=3.0))
    with torch.no_grad():
        module.pi.layers[-1].bias.copy_(torch.tensor([9.0, -9.0, 9.0, -9.0]))
    log_std = module.forward_train({"obs": torch.zeros(1, 3)})["action_dist_inputs"][0, 2:]
    assert log_std.tolist() == [2.0, -3.0]


def test_masks_reach_q() -> None:
    space = gym.spaces.Dict({"mask": gym.spaces.MultiBinary(3), "seen": VECTOR})
    config = ModuleConfig(fcnet_hiddens=[8], vf_share_layers=False, action_mask_key="mask")
    module = DoubleQModule(space, gym.spaces.Discrete(3), config)
    obs = {"mask": torch.tensor([[1, 0, 1]] * 4, dtype=torch.int8), "seen": torch.randn(4, 3)}
    for q in (module.forward_train({"obs": obs})["qf_preds"], module.forward_target({"obs": obs})["qf_preds"]):
        assert bool((q[:, 1] < -1e8).all())
        assert bool((q[:, ::2].abs() < 100).all())
        assert bool((q.argmax(-1) != 1).all())
    allowed = module.forward_train({"obs": obs})["qf_preds"][:, ::2]
    torch.testing.assert_close(module.compute_values({"obs": obs}), allowed.amax(-1))
    iql = IQLModule(space, gym.spaces.Discrete(3), config)
    assert iql.compute_q_values(obs, torch.tensor([0, 2, 0, 2])).shape == (2, 4)
    assert bool((iql.forward_train({"obs": obs})["action_dist_inputs"][:, 1] < -1e8).all())


def test_a_gradient_through_actions_reaches_actions_only() -> None:
    module = SACModule(VECTOR, BOX, CONFIG)
    obs, actions = torch.randn(4, 3), torch.zeros(4, 2, requires_grad=True)
    q = module.compute_q_values(obs, actions).amin(0)
    (expected,) = torch.autograd.grad(q.exp().sum(), actions, retain_graph=True)
    through = through_actions(q, actions)
    assert torch.equal(through, q)
    through.exp().sum().backward()
    torch.testing.assert_close(actions.grad, expected)
    assert all(parameter.grad is None for parameter in module.critic.parameters())


def test_targets_follow() -> None:
    network = torch.nn.Linear(3, 2)
    target = target_of(network)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    before = target.weight.clone()
    with torch.no_grad():
        network.weight.add_(1.0)
    torch.testing.assert_close(target.weight, before, msg="the target is no copy")
    follow(target, network, 0.25)
    torch.testing.assert_close(target.weight, before + 0.25)
    follow(target, network, 1.0)
    assert torch.equal(target.weight, network.weight)


def test_the_space_that_a_module_acts_in() -> None:
    box = gym.spaces.Box(-2.0, 5.0, (2, 3), np.float64)
    others = [gym.spaces.Discrete(3), gym.spaces.Box(0, 9, (2,), np.int64), gym.spaces.Box(0.0, np.inf, (2,))]
    assert acting_space(box, True) == gym.spaces.Box(-1.0, 1.0, (2, 3), np.float64)
    assert acting_space(box, False) == box
    assert [acting_space(space, True) for space in others] == others
    nested = gym.spaces.Dict({"b": box, "a": gym.spaces.Tuple([box, others[0]])})
    acted = acting_space(nested, True)
    assert list(acted) == list(nested)
    assert acted["a"][0].high.max() == acted["b"].high.max() == 1.0
