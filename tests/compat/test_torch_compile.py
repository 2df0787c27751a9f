"""What torch keeps about compiled code, and how it reports errors; a failure here means that torch has changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from runner.compat import torch_compile
from runner.compat.torch_compile import DirectCall


def _scaled(values: Tensor, factor: int) -> Tensor:
    return values * factor


@pytest.mark.slow
def test_compiled_code_is_called_directly_for_the_arguments_it_was_compiled_for() -> None:
    torch_compile.allow_tracing(12)
    compiled = torch.compile(_scaled, backend="eager", fullgraph=True, dynamic=False)
    values = torch.arange(3.0)
    assert DirectCall.of(_scaled, values, 2) is None
    compiled(values, 2)
    direct = DirectCall.of(_scaled, values, 2)
    assert direct is not None
    assert torch.equal(direct(values, 2), values * 2)
    assert not direct.takes(values, 3)
    assert not direct.takes(values.double(), 2)
    torch.compiler.reset()
    assert not direct.takes(values, 2)


@pytest.mark.slow
def test_a_function_that_is_compiled_too_often_raises_the_limits_error() -> None:
    torch.compiler.reset()
    compiled = torch.compile(_scaled, backend="eager", fullgraph=True, dynamic=False)

    def call_often() -> None:
        for factor in range(100):
            compiled(torch.ones(1), factor)

    with pytest.raises(torch_compile.COMPILE_ERRORS) as caught:
        call_often()
    assert torch_compile.is_recompile_limit(caught.value)


def _torn(values: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return values


def test_reason_names_the_line_of_the_user() -> None:
    compiled = torch.compile(_torn, backend="eager", fullgraph=True)
    with pytest.raises(torch_compile.COMPILE_ERRORS) as caught:
        compiled(torch.ones(1))
    reason, frame = torch_compile.reason_of(caught.value)
    assert "graph_break" in reason
    assert frame is not None
    assert frame.filename == __file__


def test_torch_traces_gradients_and_finds_a_compiler() -> None:
    assert torch_compile.can_trace_gradients()
    assert torch_compile.cpp_compiler()
    torch_compile.mark_static_address(torch.zeros(1))
