"""Modules with memory: step by step equals at once, where the state goes, and parameters in one vector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.fast.flat_adam import FlatAdam
from runner.modules import ActorCriticModule
from runner.modules.flat_parameters import FlatParameters
from runner.modules.layers import GRU, LSTM
from runner.testing import check_module
from tests.modules.spaces import ACTIONS_BOX, BOX, DISCRETE, NESTED, items_of

SMALL = ModuleConfig(fcnet_hiddens=[8], lstm_cell_size=5)
OPTIONS: dict[str, dict[str, Any]] = {
    "lstm": {"use_lstm": True},
    "gru": {"use_gru": True},
    "lstm, own value net": {"use_lstm": True, "vf_share_layers": False},
    "gru, own value net": {"use_gru": True, "vf_share_layers": False},
    "lstm, no encoder": {"use_lstm": True, "fcnet_hiddens": []},
}
SPACES: dict[str, tuple[Any, Any]] = {
    "plain": (BOX, DISCRETE),
    "scalar": (gym.spaces.Box(-1, 1, ()), ACTIONS_BOX),
    "discrete": (gym.spaces.Discrete(4), DISCRETE),
    "image": (gym.spaces.Box(0, 255, (8, 9, 2), np.uint8), DISCRETE),
    "nested": (NESTED, NESTED["inner"]),
}


def make_module(obs: Any = BOX, actions: Any = DISCRETE, **options: Any) -> ActorCriticModule:
    torch.manual_seed(0)
    return ActorCriticModule(obs, actions, replace(SMALL, **options))


@pytest.fixture(params=[(spaces, options) for spaces in SPACES for options in OPTIONS], ids=" ".join)
def module(request: pytest.FixtureRequest) -> ActorCriticModule:
    spaces, options = request.param
    return make_module(*SPACES[spaces], **OPTIONS[options])


def some_state(module: ActorCriticModule, num_rows: int, seed: int = 3) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return nested.map_leaves(
        lambda leaf: torch.randn(num_rows, *leaf.shape, generator=generator) * 0.5, module.get_initial_state()
    )


def test_initial_state(module: ActorCriticModule) -> None:
    state = module.get_initial_state()
    one = {"h": (5,), "c": (5,)} if module.config.use_lstm else {"h": (5,)}
    shapes = nested.map_leaves(lambda leaf: list(leaf.shape), state)
    expected = {name: list(shape) for name, shape in one.items()}
    assert shapes == (expected if module.config.vf_share_layers else {"pi": expected, "vf": expected})
    for leaf in nested.leaves(state):
        assert leaf.dtype == torch.float32
        assert not leaf.any()
    assert module.is_stateful
    assert module.inputs == ("obs", "state_in")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("spaces", SPACES)
def test_contract(spaces: str, options: str) -> None:
    check_module(lambda: ActorCriticModule(*SPACES[spaces], replace(SMALL, **OPTIONS[options])))


def test_the_past_matters_and_the_future_does_not(module: ActorCriticModule) -> None:
    obs, state = items_of(module.observation_space, 2, 6), some_state(module, 2)
    outputs = module.forward_train({"obs": obs, "state_in": state})["action_dist_inputs"]
    changed = nested.map_leaves(lambda leaf: leaf.clone(), obs)
    other = items_of(module.observation_space, 2, 6, seed=1)
    nested.map_leaves(lambda leaf, new: leaf[:, 3].copy_(new[:, 3]), changed, other)
    after = module.forward_train({"obs": changed, "state_in": state})["action_dist_inputs"]
    torch.testing.assert_close(after[:, :3], outputs[:, :3])
    assert (after[:, 3:] != outputs[:, 3:]).any(-1).any(0).all()
    other_state = some_state(module, 2, seed=4)
    elsewhere = module.forward_train({"obs": obs, "state_in": other_state})["action_dist_inputs"]
    assert (elsewhere != outputs).any(-1).all()


@pytest.mark.parametrize("length", [1, 4])
def test_gradients_reach_all_parameters(module: ActorCriticModule, length: int) -> None:
    batch = {"obs": items_of(module.observation_space, 6, length), "state_in": some_state(module, 6)}
    outputs = module.forward_train(batch)
    (outputs["action_dist_inputs"].square().sum() + outputs["vf_preds"].square().sum()).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_gradients_of_one_pass_are_those_of_steps() -> None:
    for options in OPTIONS.values():
        gradients = []
        for is_step_by_step in (True, False):
            module = make_module(**options)
            obs, state = items_of(BOX, 3, 5), some_state(module, 3)
            if is_step_by_step:
                parts = []
                for t in range(5):
                    outputs = module.forward_exploration({"obs": obs[:, t : t + 1], "state_in": state})
                    parts.append(outputs["action_dist_inputs"])
                    state = outputs["state_out"]
                dist_inputs = torch.cat(parts, 1)
            else:
                dist_inputs = module.forward_train({"obs": obs, "state_in": state})["action_dist_inputs"]
            dist_inputs.square().sum().backward()  # type: ignore[no-untyped-call]
            gradients.append([p.grad for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


# -- against torch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])
def test_memory_is_that_of_torch(ours: Any, theirs: Any) -> None:
    memory, layer = ours(4, 5), theirs(4, 5, batch_first=True)
    with torch.no_grad():
        for own, other in zip(memory.parameters(), layer.parameters(), strict=True):
            other.copy_(own)
    inputs = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    state = {name: torch.full((3, 5), 0.5) for name in memory.initial_state()}
    before = tuple(leaf[None] for leaf in state.values())
    expected, after = layer(inputs, before if ours is LSTM else before[0])
    outputs, state_out = memory.forward(inputs, state)
    torch.testing.assert_close(outputs, expected)
    for got, leaf in zip(state_out.values(), after if ours is LSTM else (after,), strict=True):
        torch.testing.assert_close(got, leaf[0])


def test_initialisers() -> None:
    module = make_module(
        use_gru=True,
        lstm_kernel_initializer="orthogonal_",
        lstm_kernel_initializer_kwargs={"gain": 2.0},
        lstm_bias_initializer="zeros_",
    )
    assert isinstance(module.memory, GRU)
    weight = module.memory.weight_hh.detach()  # (15, 5)
    torch.testing.assert_close(weight.T @ weight, 4 * torch.eye(5))
    assert not module.memory.bias_ih.any()
    assert not module.memory.bias_hh.any()


# -- FlatParameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
def test_training_with_flat_parameters_is_training_without(options: str) -> None:
    """Warnings are errors, so none is given."""
    plain, flat_module = make_module(**OPTIONS[options]), make_module(**OPTIONS[options])
    flat = FlatParameters(flat_module)
    adam, flat_adam = torch.optim.Adam(plain.parameters(), lr=1e-2), FlatAdam(flat.parameter)
    obs, state = items_of(BOX, 3, 5), some_state(plain, 3)

    def loss_of(module: ActorCriticModule, state: Any) -> Tensor:
        outputs = module.forward_train({"obs": obs, "state_in": state})
        return outputs["action_dist_inputs"].square().sum() + (outputs["vf_preds"] - 1).square().sum()

    for _ in range(5):
        adam.zero_grad()
        loss_of(plain, state).backward()  # type: ignore[no-untyped-call]
        adam.step()
        flat.gradient.zero_()
        loss_of(flat_module, state).backward()  # type: ignore[no-untyped-call]
        expected = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
        torch.testing.assert_close(flat.gradient, expected)
        flat_adam.step(1e-2)
        torch.testing.assert_close(loss_of(flat_module, state), loss_of(plain, state), rtol=1e-4, atol=1e-4)
    values = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(torch.from_numpy(flat.to_numpy()), values, rtol=1e-3, atol=1e-4)
    acting = {"obs": obs[:, :1], "state_in": state}
    torch.testing.assert_close(
        flat_module.forward_exploration(acting), plain.forward_exploration(acting), rtol=1e-3, atol=1e-4
    )


def test_sampling_in_inference_mode_and_learning_share_a_module() -> None:
    module = make_module(use_lstm=True)
    with torch.inference_mode():
        module.forward_exploration({"obs": items_of(BOX, 2, 1), "state_in": some_state(module, 2)})
    module.forward_train({"obs": items_of(BOX, 2, 3), "state_in": some_state(module, 2)})["vf_preds"].sum().backward()


# -- outputs at steps --------------------------------------------------------------------------------------------------


def test_outputs_at_steps() -> None:
    module = make_module(use_lstm=True)
    batch = {"obs": items_of(BOX, 3, 4), "state_in": some_state(module, 3)}
    outputs = module.forward_train(batch)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 1, 0]], dtype=torch.bool)
    expected = {name: output[mask] for name, output in outputs.items()}
    assert expected["vf_preds"].shape == (7,)
    torch.testing.assert_close(module.outputs_at_steps(batch | {"loss_mask": mask}), expected)
    rows = torch.tensor([0, 1, 2, 3, 4, 9, 10])
    torch.testing.assert_close(module.outputs_at_steps(batch | {"step_rows": rows}), expected)
    torch.testing.assert_close(
        module.outputs_at_steps(batch | {"loss_mask": mask, "step_rows": rows[2:]})["vf_preds"],
        expected["vf_preds"][2:],
    )
    torch.testing.assert_close(module.outputs_at_steps(batch), outputs)


def test_outputs_at_steps_of_a_module_without_memory_are_all() -> None:
    module = make_module()
    batch = {"obs": items_of(BOX, 4), "loss_mask": torch.tensor([True, False, True, True])}
    torch.testing.assert_close(module.outputs_at_steps(batch), module.forward_train(batch))
    assert not module.is_stateful
    assert module.get_initial_state() == {}


def test_two_memories_are_refused() -> None:
    with pytest.raises(ValueError, match="use_lstm") as caught:
        make_module(use_lstm=True, use_gru=True)
    assert str(caught.value) == "module.use_lstm and module.use_gru are both true; expected: at most one"
