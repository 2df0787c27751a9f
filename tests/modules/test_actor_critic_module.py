"""The contract of RLModules, on ActorCriticModule in all its shapes, and the flat vector of its parameters."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from runner.config.schemas import ModuleConfig
from runner.episodes import nested
from runner.modules import ActorCriticModule, RLModule
from runner.modules.flat_parameters import FlatParameters
from runner.testing import check_module
from tests.modules.spaces import ACTIONS_BOX, BOX, DISCRETE, NESTED, items_of, spaces

SMALL = ModuleConfig(fcnet_hiddens=[8, 6])


def make_module(obs: Any = BOX, actions: Any = DISCRETE, seed: int = 0, **options: Any) -> ActorCriticModule:
    torch.manual_seed(seed)
    return ActorCriticModule(obs, actions, replace(SMALL, **options))


def some_obs(space: gym.Space[Any], count: int = 5) -> Any:
    return items_of(space, count)


CASES = {
    "box": (BOX, DISCRETE, {}),
    "matrix": (gym.spaces.Box(-1.0, 1.0, (2, 3), np.float32), DISCRETE, {}),
    "scalar": (gym.spaces.Box(-1.0, 1.0, (), np.float32), DISCRETE, {}),
    "float64": (gym.spaces.Box(-1.0, 1.0, (4,), np.float64), DISCRETE, {}),
    "bytes": (gym.spaces.Box(0, 255, (4,), np.uint8), DISCRETE, {}),
    "discrete": (gym.spaces.Discrete(7), DISCRETE, {}),
    "gaussian": (BOX, ACTIONS_BOX, {}),
    "gaussian-matrix": (BOX, gym.spaces.Box(-1.0, 1.0, (2, 2), np.float32), {}),
    "free-log-std": (BOX, ACTIONS_BOX, {"free_log_std": True}),
    "free-log-std-discrete": (BOX, DISCRETE, {"free_log_std": True}),
    "own-value-net": (BOX, ACTIONS_BOX, {"vf_share_layers": False}),
    "heads": (BOX, DISCRETE, {"head_fcnet_hiddens": [5, 4], "head_fcnet_activation": "tanh"}),
    "linear-heads-only": (BOX, DISCRETE, {"fcnet_hiddens": []}),
    "layernorm": (BOX, DISCRETE, {"fcnet_use_layernorm": True, "head_fcnet_hiddens": [5]}),
    "relu": (BOX, DISCRETE, {"fcnet_activation": "relu"}),
    "nested": (NESTED, NESTED["inner"], {"free_log_std": True}),
    "image": (NESTED["camera"], gym.spaces.MultiDiscrete([2, 3]), {"vf_share_layers": False}),
    "integers": (gym.spaces.MultiBinary(3), gym.spaces.Box(0, 3, (2,), np.int32), {"free_log_std": True}),
}


@pytest.fixture(params=list(CASES))
def module(request: pytest.FixtureRequest) -> RLModule:
    obs, actions, options = CASES[request.param]
    return make_module(obs, actions, **options)


@pytest.mark.parametrize("name", CASES)
def test_contract(name: str) -> None:
    obs, actions, options = CASES[name]
    check_module(lambda: ActorCriticModule(obs, actions, replace(SMALL, **options)))


def test_every_parameter_gets_a_gradient(module: RLModule) -> None:
    outputs = module.forward_train({"obs": some_obs(module.observation_space)})
    (outputs["action_dist_inputs"].square().sum() + outputs["vf_preds"].square().sum()).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        if name != "log_std":  # 0 at first, so its square has no slope
            assert parameter.grad.abs().sum() > 0, name


def test_default_module_protocol_derives_all_from_forward_train() -> None:
    class Own(RLModule):
        def forward_train(self, batch: Any) -> dict[str, torch.Tensor]:
            return {"action_dist_inputs": batch["obs"][:, :3] * 2, "vf_preds": batch["obs"].sum(-1)}

    module, obs = Own(BOX, DISCRETE, SMALL), some_obs(BOX)
    for forward in (module.forward_exploration, module.forward_inference):
        outputs = forward({"obs": obs})
        assert list(outputs) == ["action_dist_inputs"]
        torch.testing.assert_close(outputs["action_dist_inputs"], obs[:, :3] * 2)
    torch.testing.assert_close(module.compute_values({"obs": obs}), obs.sum(-1))
    with pytest.raises(
        NotImplementedError, match=r"RLModule does not implement forward_train \(.*rl_module\.py:\d+, RLModule\)"
    ):
        RLModule(BOX, DISCRETE, SMALL).forward_inference({"obs": obs})


def test_layers_are_those_of_a_plain_torch_network() -> None:
    module, obs = (
        make_module(fcnet_activation="tanh", head_fcnet_hiddens=[5], head_fcnet_activation="relu"),
        some_obs(BOX),
    )
    linears = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linears] == [
        (4, 8),
        (8, 6),
        (6, 5),
        (5, 3),
        (6, 5),
        (5, 1),
    ]
    first, second, pi_hidden, pi, vf_hidden, vf = linears
    features = torch.tanh(second(torch.tanh(first(obs))))
    outputs = module.forward_train({"obs": obs})
    torch.testing.assert_close(outputs["action_dist_inputs"], pi(torch.relu(pi_hidden(features))))
    torch.testing.assert_close(outputs["vf_preds"], vf(torch.relu(vf_hidden(features)))[:, 0])


@pytest.mark.parametrize("shares", [True, False])
def test_value_net_shares_layers_or_not(shares: bool) -> None:
    module = make_module(vf_share_layers=shares)
    module.forward_train({"obs": some_obs(BOX)})["vf_preds"].sum().backward()
    got_gradient = {name.split(".")[0] for name, p in module.named_parameters() if p.grad is not None}
    assert got_gradient == ({"encoder", "vf"} if shares else {"vf_encoder", "vf"})


def test_free_log_std_does_not_depend_on_the_observation() -> None:
    module = make_module(actions=ACTIONS_BOX, free_log_std=True)
    with torch.no_grad():
        module.log_std[:] = torch.tensor([0.5, -1.0])
    log_std = module.forward_train({"obs": some_obs(BOX)})["action_dist_inputs"][:, 2:]
    torch.testing.assert_close(log_std, torch.tensor([[0.5, -1.0]]).expand(5, 2))
    dependent = make_module(actions=ACTIONS_BOX).forward_train({"obs": some_obs(BOX)})["action_dist_inputs"][:, 2:]
    assert dependent.unique().numel() == 10


def test_free_log_std_starts_at_its_initial_value() -> None:
    module = make_module(actions=ACTIONS_BOX, free_log_std=True, initial_log_std=-2.0)
    log_std = module.forward_train({"obs": some_obs(BOX)})["action_dist_inputs"][:, 2:]
    assert log_std.tolist() == [[-2.0, -2.0]] * 5


@pytest.mark.parametrize("free", [True, False])
def test_log_std_is_clipped_and_means_are_not(free: bool) -> None:
    module = make_module(actions=ACTIONS_BOX, free_log_std=free, log_std_clip_param=0.25)
    with torch.no_grad():
        module.pi.layers[-1].bias[:] = 50.0  # type: ignore[index, union-attr, operator]
        if free:
            module.log_std[:] = torch.tensor([3.0, -3.0])
    dist_inputs = module.forward_train({"obs": some_obs(BOX)})["action_dist_inputs"]
    assert (dist_inputs[:, :2] > 40).all()
    assert dist_inputs[:, 2:].tolist() == [[0.25, -0.25 if free else 0.25]] * 5


def test_discrete_observations_are_one_hot() -> None:
    module = make_module(obs=gym.spaces.Discrete(4))
    same = make_module(obs=BOX)  # the same weights: 4 inputs, too
    classes = torch.tensor([3, 0, 2])
    torch.testing.assert_close(
        module.compute_values({"obs": classes}), same.compute_values({"obs": torch.eye(4)[classes]})
    )


def test_same_seed_same_weights() -> None:
    first, same, other = (FlatParameters(make_module(seed=seed)).to_numpy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).mean() > 0.9


def test_initialisers() -> None:
    module = make_module(
        fcnet_kernel_initializer="constant_",
        fcnet_kernel_initializer_kwargs={"val": 0.25},
        fcnet_bias_initializer="zeros_",
        head_fcnet_kernel_initializer="orthogonal_",
        head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
        head_fcnet_bias_initializer="constant_",
        head_fcnet_bias_initializer_kwargs={"val": 2.0},
    )
    values = {name: parameter.detach() for name, parameter in module.named_parameters()}
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        assert (values[f"{layer}.weight"] == 0.25).all()
        assert (values[f"{layer}.bias"] == 0).all()
    pi = values["pi.layers.0.weight"]
    torch.testing.assert_close(pi @ pi.T, torch.eye(3) * 1e-4, atol=1e-8, rtol=1e-4)
    assert values["vf.layers.0.bias"].tolist() == [2.0]
    with pytest.raises(ValueError, match=r"torch.nn.init does not define 'orthogonal'; expected: .*orthogonal_"):
        make_module(fcnet_kernel_initializer="orthogonal")


# -- nested spaces and masks ------------------------------------------------------------------------------------------

MASK = gym.spaces.Box(0, 1, (3,), np.int8)
MASKED = gym.spaces.Dict({"mask": MASK, "seen": BOX})
NESTED_ACTIONS = gym.spaces.Dict({"d": DISCRETE, "x": ACTIONS_BOX, "y": gym.spaces.Tuple((ACTIONS_BOX, DISCRETE))})


def test_the_mask_reaches_all_outputs_and_is_not_encoded() -> None:
    module = make_module(obs=MASKED, action_mask_key="mask")
    plain = make_module()
    seen, mask = some_obs(BOX), torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.int8)
    batch = {"obs": {"mask": mask, "seen": seen}}
    expected = plain.forward_train({"obs": seen})
    logits = torch.where(mask == 0, -1e9, expected["action_dist_inputs"])
    for outputs in (module.forward_train(batch), module.forward_exploration(batch), module.forward_inference(batch)):
        assert torch.equal(outputs["action_dist_inputs"], logits)
    assert torch.equal(module.forward_train(batch)["vf_preds"], expected["vf_preds"])
    assert torch.equal(module.compute_values(batch), expected["vf_preds"])


def test_the_mask_of_nested_actions() -> None:
    space = gym.spaces.Dict({"mask": gym.spaces.Dict({"d": MASK}), "a": BOX, "b": gym.spaces.Discrete(2)})
    module = make_module(obs=space, actions=NESTED_ACTIONS, action_mask_key="mask")
    obs = items_of(space, 50)
    obs["mask"]["d"][:, 1] = 1
    outputs = module.forward_train({"obs": obs})["action_dist_inputs"]
    assert torch.equal(outputs[:, :3] == -1e9, obs["mask"]["d"] == 0)
    assert (outputs[:, 3:] > -1e3).all()


@pytest.mark.parametrize("options", [{"use_lstm": True}, {"use_gru": True, "vf_share_layers": False}])
def test_the_mask_of_a_module_with_memory(options: dict[str, Any]) -> None:
    module = make_module(obs=MASKED, action_mask_key="mask", **options)
    for length in (1, 4):
        obs = items_of(MASKED, 2, length)
        state_in = nested.map_leaves(lambda leaf: leaf.expand(2, -1), module.get_initial_state())
        outputs = module.forward_train({"obs": obs, "state_in": state_in})["action_dist_inputs"]
        assert torch.equal(outputs == -1e9, obs["mask"] == 0)


def test_log_stds_of_nested_actions_are_clipped_and_nothing_else() -> None:
    module = make_module(actions=NESTED_ACTIONS, log_std_clip_param=0.25)
    with torch.no_grad():
        module.pi.layers[-1].bias[:] = 50.0  # type: ignore[index, union-attr, operator]
    dist_inputs = module.forward_train({"obs": some_obs(BOX)})["action_dist_inputs"]
    is_clipped = [column in (5, 6, 9, 10) for column in range(14)]
    assert module.action_dist.log_std_inputs == (5, 6, 9, 10)
    assert (dist_inputs == 0.25).all(0).tolist() == is_clipped
    assert (dist_inputs > 40).all(0).tolist() == [not clipped for clipped in is_clipped]


def test_free_log_stds_of_nested_actions() -> None:
    module, plain = (make_module(actions=NESTED_ACTIONS, free_log_std=free) for free in (True, False))
    with torch.no_grad():
        module.log_std[:] = torch.tensor([0.1, 0.2, 0.3, -0.4])
    obs = some_obs(BOX)
    dist_inputs = module.forward_train({"obs": obs})["action_dist_inputs"]
    assert dist_inputs.shape == plain.forward_train({"obs": obs})["action_dist_inputs"].shape == (5, 14)
    expected = torch.tensor([0.1, 0.2, 0.3, -0.4]).expand(5, 4)
    torch.testing.assert_close(dist_inputs[:, [5, 6, 9, 10]], expected)
    others = [column for column in range(14) if column not in (5, 6, 9, 10)]
    outputs = module.pi.forward(module.encoder.forward(obs))
    assert torch.equal(dist_inputs[:, others], outputs)


@given(obs=spaces(), actions=spaces())
@settings(max_examples=40, deadline=None)
def test_any_spaces(obs: gym.Space[Any], actions: gym.Space[Any]) -> None:
    module = make_module(obs, actions)
    batch = {"obs": items_of(obs, 5)}
    outputs = module.forward_train(batch)
    assert outputs["action_dist_inputs"].shape == (5, module.action_dist.num_inputs)
    chosen = module.action_dist.mode(outputs["action_dist_inputs"])
    (module.action_dist.log_prob(outputs["action_dist_inputs"], chosen) + outputs["vf_preds"]).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_copy_shares_nothing() -> None:
    module = make_module(obs=NESTED, actions=NESTED_ACTIONS, free_log_std=True, use_lstm=True)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(module)))
    batch = {
        "obs": items_of(NESTED, 2, 3),
        "state_in": nested.map_leaves(lambda leaf: leaf.expand(2, -1), module.get_initial_state()),
    }
    before = module.forward_train(batch)
    torch.testing.assert_close(copied.forward_train(batch), before)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not copied.forward_train(batch)["action_dist_inputs"].any()
    torch.testing.assert_close(module.forward_train(batch), before)


def test_only_parameters_are_in_the_state_and_in_the_vector() -> None:
    module = make_module(obs=NESTED, actions=NESTED_ACTIONS, free_log_std=True, use_gru=True, vf_share_layers=False)
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
    num_parameters = sum(parameter.numel() for parameter in module.parameters())
    assert len(FlatParameters(module).to_numpy()) == num_parameters


REFUSED = [
    pytest.param(
        BOX,
        DISCRETE,
        {"action_mask_key": "mask"},
        (
            "module.action_mask_key 'mask' does not exist: got observations of Box(-1.0, 1.0, (4,), "
            "float32); expected: a Dict with the key 'mask'"
        ),
        id="mask_key_without_dict",
    ),
    pytest.param(
        gym.spaces.Dict({"seen": BOX}),
        DISCRETE,
        {"action_mask_key": "mask"},
        (
            "module.action_mask_key 'mask' does not exist: got observations of Dict('seen': "
            "Box(-1.0, 1.0, (4,), float32)); expected: a Dict with the key 'mask'"
        ),
        id="mask_key_unknown",
    ),
    pytest.param(
        MASKED,
        gym.spaces.Discrete(4),
        {"action_mask_key": "mask"},
        (
            "the mask of actions does not match: got Box(0, 1, (3,), int8); expected: a Box, "
            "MultiBinary or MultiDiscrete of shape (4,)"
        ),
        id="mask_misfit",
    ),
    pytest.param(
        gym.spaces.Dict({"mask": MASK}),
        DISCRETE,
        {"action_mask_key": "mask"},
        (
            "there are no values to encode in observations of Dict(); expected: Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict and Tuple of these"
        ),
        id="mask_alone",
    ),
]


@pytest.mark.parametrize(("obs", "actions", "options", "message"), REFUSED)
def test_what_is_refused(obs: Any, actions: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        make_module(obs=obs, actions=actions, **options)
    assert str(caught.value) == message


# -- FlatParameters ----------------------------------------------------------------------------------------------------


def vector_of(module: nn.Module) -> np.ndarray[Any, Any]:
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in module.parameters()])


def test_making_them_flat_changes_no_value_and_no_output(module: RLModule) -> None:
    obs = some_obs(module.observation_space)
    values, outputs = vector_of(module), module.forward_train({"obs": obs})["vf_preds"]
    flat = FlatParameters(module)
    np.testing.assert_array_equal(flat.to_numpy(), values)
    np.testing.assert_array_equal(module.forward_train({"obs": obs})["vf_preds"].detach(), outputs.detach())


def test_views_stay_true_after_a_step_and_after_load(module: RLModule) -> None:
    obs = some_obs(module.observation_space)
    flat = FlatParameters(module)
    before = flat.to_numpy()
    optimizer = torch.optim.SGD([flat.parameter], lr=0.1)
    module.forward_train({"obs": obs})["vf_preds"].sum().backward()
    gradients = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])  # type: ignore[union-attr]
    np.testing.assert_array_equal(flat.gradient.numpy(), gradients)
    assert np.abs(gradients).sum() > 0
    optimizer.step()
    np.testing.assert_allclose(flat.to_numpy(), before - 0.1 * gradients, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(vector_of(module), flat.to_numpy())
    stepped = module.compute_values({"obs": obs}).detach().clone()
    flat.load(before)
    np.testing.assert_array_equal(vector_of(module), before)
    assert not torch.equal(module.compute_values({"obs": obs}), stepped)
    module.forward_train({"obs": obs})["vf_preds"].sum().backward()  # gradients are still views, and add up
    np.testing.assert_allclose(flat.gradient.numpy(), 2 * gradients, rtol=1e-5, atol=1e-7)


def test_a_copy_is_a_copy_and_may_be_read_only() -> None:
    module = make_module()
    flat = FlatParameters(module)
    copied = flat.to_numpy()
    flat.load(np.zeros_like(copied))
    assert copied.any()
    assert not vector_of(module).any()
    copied.setflags(write=False)  # as those out of Ray's object store
    flat.load(copied)
    np.testing.assert_array_equal(vector_of(module), copied)


def test_float_buffers_travel_with_the_parameters() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("scale", torch.full((3,), 4.0))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    module = Scaled()
    flat = FlatParameters(module)
    assert flat.to_numpy().tolist() == [1, 1, 4, 4, 4]
    assert flat.parameter.shape == (2,)
    flat.load(np.arange(5.0, dtype=np.float32))
    assert module.scale.tolist() == [2, 3, 4]  # type: ignore[operator, union-attr]


def test_wrong_size() -> None:
    flat = FlatParameters(make_module())
    with pytest.raises(ValueError, match=r"weights have 3 values, but this module has \d+"):
        flat.load(np.zeros(3, np.float32))
