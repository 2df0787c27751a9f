"""Products by oneDNN are equal to torch's within rounding, and only large ones are replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from runner.fast.onednn_products import OneDNNProducts

pytestmark = [
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"),  # type: ignore[no-untyped-call]
    # Torch's code generator imports what torch itself has deprecated.
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]
NEW = ("runner.product.default", "runner.products.default")


def passed(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Return the graph of a function after the pass."""
    graph_module = make_fx(function, tracing_mode="fake")(*inputs)
    OneDNNProducts()(graph_module.graph)
    graph_module.recompile()
    return graph_module


def number_of_each(graph_module: fx.GraphModule) -> Counter[str]:
    return Counter(str(node.target) for node in graph_module.graph.nodes if node.op == "call_function")


def loss(x: Tensor, weight: Tensor, bias: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    hidden = torch.nn.functional.linear(x, weight, bias).relu()  # (B, H)
    outputs = torch.baddbmm(biases, hidden.expand(len(weights), -1, -1), weights)  # (E, B, H)
    return outputs.square().mean()


def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [one.detach().requires_grad_() for one in inputs]
    return torch.autograd.grad(loss(*leaves), leaves)


def inputs_of(width: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = ((256, width), (width, width), (width,), (3, width, width), (3, 1, width))
    return tuple(torch.randn(shape) / width**0.5 for shape in shapes)


def test_a_gradient_is_equal_within_rounding() -> None:
    inputs = inputs_of(128)
    replaced = passed(gradients, *inputs)
    assert [number_of_each(replaced)[name] for name in NEW] == [3, 3]  # forward, and two backward, of each kind
    for found, expected in zip(replaced(*inputs), gradients(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_small_products_stay() -> None:
    counts = number_of_each(passed(gradients, *inputs_of(32)))
    assert not set(NEW) & set(counts)
    assert counts["aten.mm.default"]


def test_other_dtypes_stay() -> None:
    inputs = [one.double() for one in inputs_of(128)]
    assert not set(NEW) & set(number_of_each(passed(gradients, *inputs)))


def test_a_bias_for_each_row_stays() -> None:
    a, b, bias = torch.randn(256, 256), torch.randn(256, 256), torch.randn(256, 256)
    assert not set(NEW) & set(number_of_each(passed(torch.addmm, bias, a, b)))


@pytest.mark.slow
def test_torch_compiles_the_products() -> None:
    inputs, compiled_pass = inputs_of(128), OneDNNProducts()
    options: Any = {"post_grad_custom_post_pass": compiled_pass}
    compiled = torch.compile(loss, options=options)
    torch.testing.assert_close(compiled(*inputs), loss(*inputs), rtol=1e-4, atol=1e-6)
