"""Noisy layers: the distribution of their outputs, and when there is no noise."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from runner.config.schemas import ModuleConfig
from runner.modules import DoubleQModule
from runner.modules.layers import MLP, LayerOptions, factorised_noise

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
NOISY = ModuleConfig(fcnet_hiddens=[6], head_fcnet_hiddens=[5], dueling=True, noisy=True)


def test_mean_and_variance_of_a_layer() -> None:
    """E f(z) = 0 and Var f(z) = E|z| = sqrt(2 / pi) of factors of a standard normal z."""
    torch.manual_seed(0)
    layer = MLP(4, [], LayerOptions("relu", sigma0=0.5), 3).double()
    weight, bias = layer.layers[0].weight, layer.layers[0].bias
    sigma_w, sigma_b = layer.sigmas[0].weight, layer.sigmas[0].bias
    with torch.no_grad():
        for sigma in (sigma_w, sigma_b):  # not all equal
            sigma.mul_(torch.rand_like(sigma) + 0.5)
        x = torch.randn(4, dtype=torch.float64)
        noise = torch.from_numpy(factorised_noise(np.random.default_rng(0), (200_000, layer.num_noise))).double()
        y = layer.forward_with_noise(x.expand(len(noise), -1), noise)
        mean = weight @ x + bias
        factor = math.sqrt(2 / math.pi)
        variance = factor * (factor * (sigma_w**2 @ x**2) + sigma_b**2)
    np.testing.assert_allclose(y.mean(0), mean, atol=5 * float(variance.max().sqrt()) / math.sqrt(len(noise)))
    np.testing.assert_allclose(y.var(0), variance, rtol=0.03)
    # The explicit matrices of one row: eq. 10 and 11 of the paper.
    eps_in, eps_out = noise[0, :4], noise[0, 4:]
    explicit = (weight + sigma_w * torch.outer(eps_out, eps_in)) @ x + bias + sigma_b * eps_out
    torch.testing.assert_close(y[0], explicit)


@pytest.mark.parametrize("dueling", [True, False])
def test_noise_that_all_rows_share(dueling: bool) -> None:
    """As if each had the same noise of its own: outputs and gradients."""
    torch.manual_seed(0)
    config = ModuleConfig(**{**vars(NOISY), "dueling": dueling, "fcnet_use_layernorm": True})
    module, obs = DoubleQModule(VECTOR, gym.spaces.Discrete(2), config), torch.randn(5, 3)
    noise = torch.from_numpy(module.draw_noise(np.random.default_rng(1), ()))
    parameters = list(module.qf.parameters())
    of_rows, shared = (
        module.forward_train({"obs": obs, "noise": drawn})["qf_preds"] for drawn in (noise.expand(5, -1), noise)
    )
    torch.testing.assert_close(shared, of_rows)
    expected, found = (torch.autograd.grad(q.square().sum(), parameters) for q in (of_rows, shared))
    torch.testing.assert_close(found, expected)


def test_initial_scale_of_the_noise() -> None:
    layer = MLP(16, [4], LayerOptions("relu", sigma0=0.8), 2)
    assert layer.num_noise == 16 + 4 + 4 + 2
    for sigma, num_inputs in zip(layer.sigmas, (16, 4), strict=True):
        for parameter in sigma.parameters():
            assert parameter.tolist() == pytest.approx(np.full(parameter.shape, 0.8 / math.sqrt(num_inputs)))
    assert MLP(16, [4], LayerOptions("relu"), 2).num_noise == 0


def test_without_noise_the_weights_are_their_means() -> None:
    torch.manual_seed(0)
    noisy, obs = DoubleQModule(VECTOR, gym.spaces.Discrete(2), NOISY), torch.randn(3, 3)
    plain = DoubleQModule(VECTOR, gym.spaces.Discrete(2), ModuleConfig(**{**vars(NOISY), "noisy": False}))
    means = {name: value for name, value in noisy.state_dict().items() if "sigmas" not in name}
    plain.load_state_dict(means)
    expected = plain.forward_train({"obs": obs})["qf_preds"]
    assert torch.equal(noisy.forward_train({"obs": obs})["qf_preds"], expected)
    for forward in (noisy.forward_inference, noisy.forward_exploration):
        assert torch.equal(forward({"obs": obs})["action_dist_inputs"], expected)
    zero = torch.zeros(3, noisy.num_noise)
    torch.testing.assert_close(noisy.forward_train({"obs": obs, "noise": zero})["qf_preds"], expected)


def test_each_row_has_its_own_noise() -> None:
    torch.manual_seed(0)
    module, stream = DoubleQModule(VECTOR, gym.spaces.Discrete(2), NOISY), np.random.default_rng(1)
    obs = torch.randn(1, 3).expand(4, -1)
    noise = torch.from_numpy(module.draw_noise(stream, (4,)))
    assert noise.shape == (4, module.num_noise) == (4, (6 + 5) + (5 + 1) + (6 + 5) + (5 + 2))
    q = module.forward_exploration({"obs": obs, "noise": noise})["action_dist_inputs"]
    assert len({tuple(row) for row in q.tolist()}) == 4
    alone = module.forward_exploration({"obs": obs[2:3], "noise": noise[2:3]})["action_dist_inputs"]
    torch.testing.assert_close(alone, q[2:3])  # nothing of other rows
    target = module.forward_target({"obs": obs, "noise": noise})["qf_preds"]
    torch.testing.assert_close(target, q)  # before an update the target is the network


@pytest.mark.parametrize("key", ["use_lstm", "use_gru"])
def test_each_env_step_of_a_sequence_has_noise_of_its_own(key: str) -> None:
    config = ModuleConfig(**{**vars(NOISY), key: True, "lstm_cell_size": 4})
    module = DoubleQModule(VECTOR, gym.spaces.Discrete(2), config)
    mask = torch.tensor([[False, True, True], [True, False, False]])
    batch = {
        "obs": torch.randn(2, 3, 3),
        "state_in": {name: torch.randn(2, 4) for name in module.get_initial_state()},
        "loss_mask": mask,
    }
    noise = torch.from_numpy(module.draw_noise(np.random.default_rng(0), (3,)))
    found = module.outputs_at_steps({**batch, "noise": noise})["qf_preds"]  # (3, A)
    assert module.memory is not None
    features, _ = module.memory.forward(module.qf[0].forward(batch["obs"]).reshape(2, 3, -1), batch["state_in"])
    shared = module.outputs_at_steps({**batch, "noise": noise[0]})["qf_preds"]
    for row, of_step in enumerate(features[mask]):
        torch.testing.assert_close(found[row], module.qf.of_features(of_step[None], noise[row : row + 1])[0])
        torch.testing.assert_close(shared[row], module.qf.of_features(of_step[None], noise[0])[0])
    acting = {"obs": batch["obs"][:, :1], "state_in": batch["state_in"], "noise": noise[:2]}
    q = module.forward_exploration(acting)["action_dist_inputs"]  # (2, 1, A)
    torch.testing.assert_close(q[1, 0], _acted(module, acting, 1))


def _acted(module: DoubleQModule, batch: dict[str, Any], row: int) -> torch.Tensor:
    """Q (A,) of one sub-environment by itself."""
    alone = {name: batch[name][row : row + 1] for name in ("obs", "noise")}
    state = {name: leaf[row : row + 1] for name, leaf in batch["state_in"].items()}
    return module.forward_exploration({**alone, "state_in": state})["action_dist_inputs"][0, 0]
