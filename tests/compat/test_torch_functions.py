"""The private functions of torch do what the public ones do; a failure here means that torch has changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from runner.compat import torch_functions
from runner.compat.torch_functions import (
    backward,
    detach_parameters,
    fused_adam_kernel,
    lerp_each,
    submodules,
)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def _gradients(network: nn.Module) -> list[Tensor]:
    gradients = [parameter.grad for parameter in network.parameters()]
    return [gradient for gradient in gradients if gradient is not None]


@pytest.mark.parametrize("has_engine", [True, False], ids=["torch's engine", "without it"])
def test_backward_equals_the_public_one(has_engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_functions._run_backward is not None
    if not has_engine:
        monkeypatch.setattr(torch_functions, "_run_backward", None)
    one, other = _network(), _network()
    for _ in range(2):  # gradients add up
        backward(one(torch.ones(5, 3)).square().sum(), torch.ones(()))
        other(torch.ones(5, 3)).square().sum().backward()
    assert len(_gradients(one)) == 4
    assert all(torch.equal(a, b) for a, b in zip(_gradients(one), _gradients(other), strict=True))


def test_fused_adam_equals_the_optimiser() -> None:
    values, gradient = torch.linspace(-1.0, 1.0, 8), torch.linspace(0.5, 2.0, 8)
    parameter = nn.Parameter(values.clone())
    parameter.grad = gradient.clone()
    torch.optim.Adam([parameter], lr=0.1, fused=True).step()
    moments, step = [torch.zeros(8), torch.zeros(8)], torch.ones(())
    fused_adam_kernel()(
        [values], [gradient], [moments[0]], [moments[1]], [], [step],
        lr=0.1, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
    assert torch.equal(values, parameter.detach())


@pytest.mark.parametrize("has_kernel", [True, False], ids=["in one call", "one by one"])
def test_lerp_each_equals_lerp(has_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_functions._foreach_lerp is not None
    if not has_kernel:
        monkeypatch.setattr(torch_functions, "_foreach_lerp", None)
    targets, ends = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    expected = [target.lerp(end, 0.3) for target, end in zip(targets, ends, strict=True)]
    lerp_each(targets, ends, 0.3)
    lerp_each([], [], 0.3)  # of a network without parameters
    assert all(torch.equal(a, b) for a, b in zip(targets, expected, strict=True))


def test_submodules_are_those_that_the_module_calls() -> None:
    network = _network()
    assert submodules(network) == dict(network.named_children())


@pytest.mark.parametrize("network", [nn.Linear(3, 2), nn.LSTM(3, 2), nn.GRU(3, 2)], ids=lambda one: type(one).__name__)
def test_detached_parameters_get_no_gradient_until_they_are_restored(network: nn.Module) -> None:
    network, inputs = copy.deepcopy(network), torch.ones(4, 3, requires_grad=True)
    before = dict(network.named_parameters())
    kept = detach_parameters(network)
    result = network(inputs)
    (result if isinstance(result, Tensor) else result[0]).sum().backward()
    assert inputs.grad is not None
    for holder, name, value in kept:
        holder[name] = value
    assert dict(network.named_parameters()) == before
    assert _gradients(network) == []
    result = network(inputs)
    (result if isinstance(result, Tensor) else result[0]).sum().backward()
    assert len(_gradients(network)) == len(before)
