"""Batch renormalisation against torch's batch normalisation and the equations of its paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runner.modules.batch_renorm import BatchNormEnsemble, BatchRenorm
from runner.modules.layers import LayerOptions


def _norm_after(num_batches: int, width: int = 3) -> BatchRenorm:
    """A norm of two networks after batches with a mean of 2 and a standard deviation of 3."""
    norm, generator = BatchRenorm(2, width), torch.Generator().manual_seed(0)
    for _ in range(num_batches):
        norm.forward_batch(2.0 + 3.0 * torch.randn(2, 64, width, generator=generator))
    return norm


def test_the_first_steps_are_batch_normalisation() -> None:
    norm, inputs = _norm_after(5), torch.randn(2, 16, 3)
    outputs = norm.forward_batch(inputs)
    for member in range(2):
        expected = F.batch_norm(inputs[member], None, None, training=True, eps=1e-3)
        torch.testing.assert_close(outputs[member], expected)


def test_running_statistics_are_averages_of_the_batches() -> None:
    norm = _norm_after(1000)
    torch.testing.assert_close(norm.mean, torch.full_like(norm.mean, 2.0), atol=0.15, rtol=0)
    torch.testing.assert_close(norm.var, torch.full_like(norm.var, 9.0), atol=0.9, rtol=0)
    inputs = torch.tensor([[2.0, 5.0, -1.0]])
    expected = (inputs - norm.mean) / (norm.var + 1e-3).sqrt()
    torch.testing.assert_close(norm.forward(inputs), expected)
    torch.testing.assert_close(norm.forward(inputs, torch.tensor([1])), expected[[1]])


def test_after_the_warm_up_outputs_are_corrected_towards_running_statistics() -> None:
    norm = _norm_after(1000)
    norm.num_steps.fill_(100_000.0)
    inputs = (2.5 + 2.0 * torch.randn(2, 64, 3)).requires_grad_()
    running_mean, running_std = norm.mean.clone(), (norm.var + 1e-3).sqrt()
    outputs = norm.forward_batch(inputs)
    # Within the limits of r and d, outputs are normalised by the running statistics from before this batch.
    torch.testing.assert_close(outputs, (inputs - running_mean) / running_std)
    far = 100.0 + torch.randn(2, 64, 3)
    std = (far.var(-2, correction=0, keepdim=True) + 1e-3).sqrt()
    ratio = (std / (norm.var + 1e-3).sqrt()).clamp(1 / 3, 3.0)
    expected = (far - far.mean(-2, keepdim=True)) / std * ratio + 5.0
    torch.testing.assert_close(norm.forward_batch(far), expected)


def test_r_and_d_have_no_gradient() -> None:
    norm = _norm_after(10)
    norm.num_steps.fill_(100_000.0)
    inputs, weights = torch.randn(2, 8, 3, requires_grad=True), torch.randn(2, 8, 3)
    running_std, running_mean = (norm.var + 1e-3).sqrt(), norm.mean.clone()
    [gradient] = torch.autograd.grad((norm.forward_batch(inputs) * weights).sum(), [inputs])
    mean = inputs.mean(-2, keepdim=True)
    std = (inputs.var(-2, correction=0, keepdim=True) + 1e-3).sqrt()
    ratio = (std / running_std).clamp(1 / 3, 3.0).detach()
    offset = ((mean - running_mean) / running_std).clamp(-5.0, 5.0).detach()
    outputs = (inputs - mean) / std * ratio + offset
    [expected] = torch.autograd.grad((outputs * weights).sum(), [inputs])
    torch.testing.assert_close(gradient, expected)


def test_an_ensemble_normalises_inputs_and_activations() -> None:
    network = BatchNormEnsemble(2, 3, [4], LayerOptions("relu"))
    inputs = torch.randn(16, 3)
    outputs = network.forward_batch(inputs)
    for member in range(2):
        hidden = F.batch_norm(inputs, None, None, training=True, eps=1e-3)
        [layer] = network.layers
        hidden = F.relu(hidden @ layer.weights[0][member] + layer.biases[0][member])
        expected = F.batch_norm(hidden, None, None, training=True, eps=1e-3)
        torch.testing.assert_close(outputs[member], expected)
    some = network.forward(inputs, torch.tensor([1]))
    torch.testing.assert_close(some, network.forward(inputs)[[1]])
