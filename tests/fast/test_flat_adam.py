"""`FlatAdam` equals the Adam of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runner.fast.flat_adam import FlatAdam

LR = 0.01


def vector() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.randn(7, generator=torch.Generator().manual_seed(0)))
    parameter.grad = torch.zeros(7)
    return parameter


def gradients() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(7, generator=draw) for _ in range(5)]


@pytest.mark.parametrize("options", [{}, {"betas": (0.5, 0.9), "eps": 1e-5}, {"weight_decay": 0.1}])
def test_steps_equal_those_of_torch(options: dict[str, Any]) -> None:
    flat, plain = vector(), vector()
    fast, slow = FlatAdam(flat, **options), torch.optim.Adam([plain], lr=LR, fused=True, **options)
    for gradient in gradients():
        for parameter in (flat, plain):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        fast.step(LR)
        slow.step()
    assert torch.equal(flat, plain)


def test_a_group_that_rests_stays() -> None:
    flat, plain = vector(), vector()
    parts = (slice(0, 3), slice(3, 7))
    fast, first = FlatAdam(flat, parts), plain.detach()[parts[0]].clone().requires_grad_()
    slow = torch.optim.Adam([first], lr=LR, fused=True)
    for gradient in gradients():
        assert flat.grad is not None
        flat.grad.copy_(gradient)
        first.grad = gradient[parts[0]].clone()
        fast.step(LR, None)
        slow.step()
    assert torch.equal(flat[parts[0]], first)
    assert torch.equal(flat[parts[1]], plain[parts[1]])


def test_a_state_continues_exactly() -> None:
    straight, resumed = vector(), vector()
    one, other = FlatAdam(straight), FlatAdam(resumed)
    state: dict[str, Any] = {}
    for number, gradient in enumerate(gradients()):
        if number == 2:
            state = one.get_state()
            resumed.data.copy_(straight)
            other.set_state(state)
        for parameter, optimizer in ((straight, one), (resumed, other)):
            if parameter is straight or number >= 2:
                assert parameter.grad is not None
                parameter.grad.copy_(gradient)
                optimizer.step(LR)
    assert torch.equal(straight, resumed)
