"""Matrix products of compiled functions by oneDNN, where torch's default library is slow.

For float32, torch multiplies matrices on the CPU with MKL, which uses 256-bit instructions on processors that Intel did
not make. oneDNN, which is part of torch too, uses 512-bit instructions on all processors that have them. A product of
two matrices of 256 x 256 then takes half of the time on an AMD EPYC. The plain version is the graph without this pass;
results are equal within rounding.

Dimension letters: B pairs of matrices, M x K and K x N.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from runner.compat.torch_compile import GraphPass, digest_of_files, onednn_linear

_FEWEST_MULTIPLICATIONS = 4_000_000  # M * K * N of a product from which oneDNN is faster
_CPU_INFO = Path("/proc/cpuinfo")
_aten = torch.ops.aten


@cache
def is_faster() -> bool:
    """Return whether oneDNN multiplies faster than MKL on this processor."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return _CPU_INFO.exists() and "GenuineIntel" not in _CPU_INFO.read_text(encoding="utf-8")


@torch.library.custom_op("runner::product", mutates_args=())
def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product (M, N) of (M, K) and (K, N), plus the bias (N,)."""
    return onednn_linear(a, b.t(), bias)


@torch.library.custom_op("runner::products", mutates_args=())
def products(a: Tensor, b: Tensor) -> Tensor:
    """Return the products (B, M, N) of (B, M, K) and (B, K, N)."""
    pairs = zip(a.unbind(), b.unbind(), strict=True)
    return torch.stack([onednn_linear(one, other.t(), None) for one, other in pairs])


@product.register_fake
def _(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


@products.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


class OneDNNProducts(GraphPass):
    """Replaces the large products of a graph."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph in place."""
        for node in list(graph.nodes):
            replace = _REPLACEMENTS.get(node.target)
            if replace is not None and not node.kwargs and _is_large(node):
                with graph.inserting_before(node):
                    replaced = replace(graph, node)
                if replaced is not None:
                    replaced.meta.update(node.meta)
                    node.replace_all_uses_with(replaced)
                    graph.erase_node(node)

    def uuid(self) -> Any:
        """Return the identity of the pass in torch's cache of compiled code."""
        return digest_of_files(__file__)


def _is_large(node: fx.Node) -> bool:
    """Return whether a node multiplies large float32 matrices on the CPU."""
    a, b = (one.meta["val"] for one in node.args[-2:])  # type: ignore[union-attr]
    if a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    return bool(a.shape[-2] * a.shape[-1] * b.shape[-1] >= _FEWEST_MULTIPLICATIONS)


def _of_product(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(torch.ops.runner.product.default, (*node.args, None))


def _of_addition(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    bias, a, b = node.args
    if bias.meta["val"].ndim != 1:  # type: ignore[union-attr]
        return None
    return graph.call_function(torch.ops.runner.product.default, (a, b, bias))


def _of_products(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return graph.call_function(torch.ops.runner.products.default, node.args)


def _of_additions(graph: fx.Graph, node: fx.Node) -> fx.Node:
    bias, a, b = node.args
    made = graph.call_function(torch.ops.runner.products.default, (a, b))
    return graph.call_function(_aten.add.Tensor, (made, bias))


_REPLACEMENTS: dict[Any, Callable[[fx.Graph, fx.Node], fx.Node | None]] = {
    _aten.mm.default: _of_product,
    _aten.addmm.default: _of_addition,
    _aten.bmm.default: _of_products,
    _aten.baddbmm.default: _of_additions,
}
